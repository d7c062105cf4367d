"""Crash-safe file writing: at any moment, either the old or the new file is there.

A new file is written under a temporary name beside the old one, synced, and renamed into place.
Several files that belong together (a program) are written into a temporary folder inside the target
folder; renaming it to ``.ortboost-commit`` commits the new files, and the next process that opens
the folder finishes an interrupted replacement: :func:`replace_files`, :func:`finish_replacement`.

Temporary names are ``.ortboost-<machine>-<process>-<random>.tmp``. They cannot be guessed and are
created exclusively (``O_EXCL``, ``O_NOFOLLOW``), so that no planted link is followed. The next
write into the folder removes what a dead process left behind; see :func:`sweep`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ortboost.core.errors import FileError
from ortboost.core.limits import LIMITS_VARIABLE, Limits

__all__ = [
    "atomic_path",
    "check_name",
    "finish_replacement",
    "foreign_files",
    "process_exists",
    "put_in_place",
    "read_json",
    "read_text",
    "replace_files",
    "sweep",
    "temporary_folder",
    "writable_path",
    "write_json",
]

_MACHINE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_TEMPORARY = re.compile(r"\.ortboost-([0-9a-f]{8})-(\d+)-[0-9a-f]{16}\.tmp")
_COMMIT, _DROPPED = ".ortboost-commit", "dropped.json"
_STARTED = time.time()  # of this process
_DAY = 86400.0  # seconds


def check_name(path: Path) -> None:
    """Raise a FileError for a name that is not UTF-8: onnx and onnxruntime cannot open it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FileError(
            "The name of a file is not UTF-8.",
            where=ascii(str(path)),
            fix="Rename the file, or the folder that it is in.",
        ) from None


def writable_path(path: str | os.PathLike[str]) -> Path:
    """The path of a file to write, which need not exist.

    Raises:
        FileError: It has no name or an impossible one, its folder does not exist or is closed to
            this user, or it is a folder, a device or a pipe.
    """
    target = Path(path)
    if not target.name:
        raise FileError("The file to write has no name.", where=f"'{path}'", fix="Name a file.")
    try:
        mode = os.stat(target).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None  # it is not there
    except (OSError, ValueError) as error:
        raise _unwritten(target, error) from error
    check_name(target)
    if not target.parent.is_dir():
        raise FileError(
            f"The folder for '{target.name}' does not exist.",
            where=str(target.parent),
            fix="Create the folder or give another path.",
        )
    if mode is not None and not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise FileError(
            f"'{target.name}' is {kind}.", where=str(target), fix="Give the name of a file."
        )
    return target


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success, sync it and rename it to ``path``.

    Args:
        path: The file to write. Its folder must exist.

    Yields:
        A path in the same folder. If the block raises, it is removed and ``path`` is unchanged.

    Raises:
        FileError: The folder is not writable, or see :func:`writable_path`.
    """
    target = writable_path(path)
    sweep(target.parent)
    temporary = _unused(target.parent)
    try:
        # Created here, exclusively; the block then opens it by name.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        probe = os.open(temporary, flags, 0o666)
        mode = os.fstat(probe).st_mode  # what the user's umask gives a new file
        os.close(probe)
        yield temporary
        with open(temporary, "rb+") as written:
            os.fchmod(written.fileno(), stat.S_IMODE(mode))  # safetensors makes its files private
        put_in_place(temporary, target)
    except OSError as error:
        raise _unwritten(target, error) from error
    finally:
        with contextlib.suppress(OSError):  # a read-only file system says so above
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_folder(parent: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new folder inside ``parent``, on the same file system; it is removed at the end.

    Raises:
        FileError: ``parent`` is missing or not writable.
    """
    sweep(parent)
    folder = _unused(Path(parent))
    try:
        folder.mkdir()
    except OSError as error:
        raise _unwritten(Path(parent), error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def replace_files(made: Path, folder: Path, dropped: Iterable[str] = ()) -> None:
    """Move all files of one folder into another, in place of those with the same names, or none.

    Args:
        made: A folder of files, made by :func:`temporary_folder` in ``folder``.
        folder: The destination.
        dropped: Names of files or folders in ``folder`` to remove.

    Raises:
        FileError: The folder cannot be written. Its contents are unchanged, or the next opening
            finishes the replacement.
    """
    moved = {path.name for path in made.iterdir()}
    # Never a new file: finishing the replacement a second time would remove it.
    write_json(made / _DROPPED, sorted({*dropped} - moved))
    try:
        for path in made.iterdir():
            _sync(path)
        _sync_folder(made)
        os.rename(made, folder / _COMMIT)  # from here on the replacement will be finished
        _sync_folder(folder)
    except OSError as error:
        raise _unwritten(folder, error) from error
    finish_replacement(folder)


def finish_replacement(folder: str | os.PathLike[str]) -> None:
    """Finish an interrupted replacement, if there is one.

    Of several processes that open the folder, one does it while the others wait. Otherwise a slow
    one could remove what has been written to the folder since.

    Raises:
        FileError: The folder cannot be read or written, or an entry to remove is not a plain file
            name.
    """
    target = Path(folder)
    commit = target / _COMMIT
    try:
        if not commit.is_dir() or commit.is_symlink():
            return
    except OSError as error:
        raise FileError(
            "The folder cannot be read.",
            where=f"{target}: {error.strerror or error}",
            fix="Check its name and its permissions.",
        ) from error
    try:
        # Not the folder itself: whoever trains in it holds its lock.
        with contextlib.suppress(FileNotFoundError), _locked(commit):  # another one finished it
            if (commit / _DROPPED).exists():  # otherwise everything has been moved
                _finish(commit, target)
            commit.rmdir()
    except OSError as error:
        raise FileError(
            "An interrupted replacement cannot be finished.",
            where=f"{target}: {error.strerror or error}",
            fix="Make the folder writable and try again.",
        ) from error
    _sync_folder(target)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait for other processes that hold the lock of a folder, and hold it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _finish(commit: Path, target: Path) -> None:
    dropped = read_json(commit / _DROPPED)
    if not isinstance(dropped, list) or not all(map(_is_plain, dropped)):
        raise FileError(
            "The list of files to remove has entries that are not plain file names.",
            where=str(commit / _DROPPED),
            fix=f"Remove {commit}; the folder may hold files of two programs.",
        )
    for name in dropped:
        path = target / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in commit.iterdir():
        if path.name != _DROPPED:
            with contextlib.suppress(FileNotFoundError):  # without locks: another one has moved it
                os.replace(path, target / path.name)
    _sync_folder(target)
    (commit / _DROPPED).unlink(missing_ok=True)  # last: it says that there is work left


def _is_plain(name: object) -> bool:
    """Whether a name is that of an entry of the folder itself."""
    return isinstance(name, str) and "/" not in name and name not in ("", ".", "..")


def foreign_files(folder: Path, *known: str) -> bool:
    """Whether a folder holds anything but ortboost's temporary files, and files of known names."""
    names = (path.name for path in folder.iterdir())
    return any(name not in known and _TEMPORARY.fullmatch(name) is None for name in names)


def sweep(folder: str | os.PathLike[str]) -> None:
    """Remove temporary files of dead processes on this machine, of other machines after a day."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY.fullmatch(entry.name)
            if match and not _in_use(match[1], int(match[2]), entry):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    Path(entry.path).unlink(missing_ok=True)


def _in_use(machine: str, process: int, entry: os.DirEntry[str]) -> bool:
    written = entry.stat(follow_symlinks=False).st_mtime
    if machine != _MACHINE:
        return written > time.time() - _DAY
    if process == os.getpid():  # in a container, each run may have the same process ID
        return written >= _STARTED
    return process_exists(process)


def process_exists(process: int) -> bool:
    """Whether this machine has a process with this ID.

    Example:
        >>> process_exists(os.getpid())
        True
    """
    try:
        os.kill(process, 0)  # signal 0 only checks
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # not permitted: the process of another user
        pass
    return True


def _unused(folder: Path) -> Path:
    return folder / f".ortboost-{_MACHINE}-{os.getpid()}-{secrets.token_hex(8)}.tmp"


def put_in_place(temporary: Path, target: Path) -> None:
    """Sync a file, rename it, and sync the folder so that the rename is durable."""
    _sync(temporary)
    os.replace(temporary, target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system supports it
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(target: Path, error: OSError | ValueError) -> FileError:
    return FileError(
        f"'{target.name}' cannot be written.",
        where=f"{target}: {getattr(error, 'strerror', None) or error}",
        fix="Check the permissions of the folder and the free space.",
    )


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a text file in UTF-8.

    Raises:
        FileError: It is not a regular file, or longer than
            :attr:`~ortboost.core.limits.Limits.text_bytes`.
        OSError: It cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    limit = Limits.from_environment().text_bytes
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # a device has no end, a pipe waits
        raise FileError(
            "The file to read is not a regular file.",
            where=str(path),
            fix="Give the path of a file.",
        )
    if status.st_size > limit:
        raise FileError(
            f"A text file has {status.st_size:,} bytes; the limit is {limit:,}.",
            where=str(path),
            fix=f"If that is intended, set {LIMITS_VARIABLE}=text_bytes={status.st_size}.",
        )
    return Path(path).read_text(encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        FileError: The file is missing, is not JSON, or is refused by :func:`read_text`.
    """
    try:
        return json.loads(read_text(path))
    except FileNotFoundError as error:
        raise FileError(
            "A file is missing.", where=str(path), fix="Check the path, or make the file again."
        ) from error
    except OSError as error:
        raise FileError(
            "A file cannot be read.", where=f"{path}: {error}", fix="Check its permissions."
        ) from error
    except (ValueError, RecursionError) as error:
        raise FileError(
            "A file is not valid JSON.", where=f"{path}: {error}", fix="Restore or re-create it."
        ) from error
