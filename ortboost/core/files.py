"""Writing files atomically: a crash leaves the old file or the new one."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortboost.core.errors import FileError

__all__ = ["atomic_path", "read_json", "write_json"]


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside ``path``; on success sync it and rename it into place.

    Args:
        path: The file to write. Its folder must exist.

    Yields:
        A path in the same folder. If the block raises, it is removed and ``path`` keeps what it
        had.

    Raises:
        FileError: The folder is missing or not writable, or ``path`` is a device or pipe.
    """
    target = Path(path)
    if not target.name:
        raise FileError("The file to write has no name.", where=f"'{path}'", fix="Name a file.")
    if not target.parent.is_dir():
        raise FileError(
            f"The folder for '{target.name}' does not exist.",
            where=str(target.parent),
            fix="Create the folder or give another path.",
        )
    if target.exists() and not (target.is_file() or target.is_dir()):  # a device, a pipe
        raise FileError(
            f"'{target.name}' is no ordinary file, and would be replaced by one.",
            where=str(target),
            fix="Give the name of a file.",
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as probe:
            mode = os.fstat(probe.fileno()).st_mode  # what the user's umask gives a new file
        yield temporary
        with open(temporary, "rb+") as written:
            os.fchmod(written.fileno(), stat.S_IMODE(mode))  # safetensors makes its files private
            os.fsync(written.fileno())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise FileError(
            f"'{target.name}' cannot be written.",
            where=f"{target}: {error.strerror or error}",
            fix="Check the rights of the folder and the free space.",
        ) from error
    finally:
        with contextlib.suppress(OSError):  # a read-only file system says so above
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; file systems that cannot sync a folder are no error."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        FileError: The file is missing or is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(
            "A file is missing.", where=str(path), fix="Check the path, or make the file again."
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileError(
            "A file is not valid JSON.", where=f"{path}: {error}", fix="Restore or re-create it."
        ) from error
