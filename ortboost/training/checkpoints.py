"""Checkpoints on disk: written so that a crash leaves whole ones, read so that a bad one is named.

A checkpoint is two files::

    step-00000120.safetensors   every state tensor
    step-00000120.json          written last: sha256 and size of the tensor file, the catalogue of
                                the tensors, the program's fingerprint, the trainer's progress, and
                                a digest of the JSON itself

A tensor file without its JSON is an unfinished save and counts as nothing. ``best.json`` names the
checkpoint that is kept however old it grows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from ortboost.errors import FileError
from ortboost.files import atomic_path, read_json, write_json
from ortboost.training.protocols import Array

__all__ = ["FORMAT_VERSION", "Checkpoint", "CheckpointStore", "Found", "Refused"]

FORMAT_VERSION: Final = 1
_FORMAT: Final = "ortboost-checkpoint"
_NAME = re.compile(r"step-(\d{8,})\.json")
_TEMPORARY = re.compile(r"\.(?:step-\d{8,}\.(?:safetensors|json)|best\.json)\.(\d+)\.tmp")
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found good.

    Args:
        step: The global step (batches consumed) after which it was taken.
        path: Its JSON file.
        state: State tensor by name.
        progress: What the trainer gave to :meth:`CheckpointStore.save`.
        program: Fingerprint of the program that it belongs to.
    """

    step: int
    path: Path
    state: dict[str, Array]
    progress: dict[str, Any]
    program: str


class Refused(NamedTuple):
    """A checkpoint that cannot be used: its file, and why."""

    path: Path
    reason: str


class Found(NamedTuple):
    """The newest good checkpoint (None if there is none) and the newer ones that were refused."""

    checkpoint: Checkpoint | None
    refused: tuple[Refused, ...]


class _RefusedError(Exception):
    """Why a checkpoint is refused: the file and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path, self.reason = path, reason


class CheckpointStore:
    """A folder of checkpoints.

    Args:
        folder: Where they lie; created if missing. Temporary files of dead processes in it are
            removed.
        keep: How many of the newest to keep, 1 or more; the best one is kept besides.

    Raises:
        FileError: The folder cannot be made.

    Example:
        ``store.save(state, {"step": 120, ...}, program="ab12")`` and, later,
        ``store.latest(program="ab12").checkpoint.state``.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3) -> None:
        self.folder, self.keep = Path(folder), max(1, keep)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                "The checkpoint folder cannot be made.", where=str(self.folder), fix=str(error)
            ) from error
        self._sweep()

    def steps(self) -> list[int]:
        """The steps of all checkpoints, good or bad, in rising order."""
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def path(self, step: int) -> Path:
        """The JSON file of a step's checkpoint."""
        return self.folder / f"step-{step:08d}.json"

    def save(
        self,
        state: Mapping[str, Array],
        progress: Mapping[str, Any],
        *,
        program: str,
        best: bool = False,
    ) -> Path:
        """Write a checkpoint, then drop the ones beyond ``keep``.

        Args:
            state: State tensor by name; dtypes and 0-d shapes are kept.
            progress: JSON data; its ``step`` names the file.
            program: Fingerprint of the program, checked on loading.
            best: Also pin it as the best one, in place of the one pinned before.

        Returns:
            The JSON file.

        Raises:
            FileError: The folder is not writable.
        """
        path = self.path(int(progress["step"]))
        tensors = path.with_suffix(".safetensors")
        # ascontiguousarray would turn a 0-d tensor into a 1-d one.
        arrays = {name: np.asarray(array, order="C") for name, array in state.items()}
        path.unlink(missing_ok=True)  # an old JSON must never vouch for a new tensor file
        with atomic_path(tensors) as temporary:
            save_file(arrays, str(temporary))
            size, sha256 = temporary.stat().st_size, _sha256(temporary)
        content = {
            "format": _FORMAT,
            "version": FORMAT_VERSION,
            "program": program,
            "file": {"name": tensors.name, "size": size, "sha256": sha256},
            "tensors": {name: _describe(array) for name, array in sorted(arrays.items())},
            "progress": dict(progress),
        }
        write_json(path, {**content, "digest": _digest(content)})
        if best:
            write_json(self.folder / "best.json", {"step": int(progress["step"])})
        self._prune()
        return path

    def pin_best(self, step: int) -> None:
        """Pin an existing checkpoint as the best one."""
        write_json(self.folder / "best.json", {"step": step})

    def best_step(self) -> int | None:
        """The step of the pinned checkpoint; None if none is pinned or the pin is unreadable."""
        with contextlib.suppress(FileError, KeyError, TypeError, ValueError):
            return int(read_json(self.folder / "best.json")["step"])
        return None

    def best(
        self, *, program: str | None = None, expect: Mapping[str, Array] | None = None
    ) -> Checkpoint | None:
        """The pinned checkpoint, or None; arguments and errors as in :meth:`load`."""
        step = self.best_step()
        if step is None:
            return None
        return self.load(self.path(step), program=program, expect=expect)

    def latest(
        self, *, program: str | None = None, expect: Mapping[str, Array] | None = None
    ) -> Found:
        """The newest good checkpoint, and which newer ones were refused and why.

        Args:
            program: The fingerprint that it must have; None takes any.
            expect: Tensors whose names, shapes and dtypes it must have.
        """
        return self._newest(self.steps(), program, expect)

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        program: str | None = None,
        expect: Mapping[str, Array] | None = None,
    ) -> Checkpoint:
        """Read one checkpoint.

        Args:
            path: Its JSON or its tensor file.
            program: The fingerprint that it must have; None takes any.
            expect: Tensors whose names, shapes and dtypes it must have.

        Raises:
            FileError: It is damaged or foreign. The text names the bad file and offers the newest
                good checkpoint before it.
        """
        wanted = Path(path).with_suffix(".json")
        try:
            return _read(wanted, program, expect)
        except _RefusedError as error:
            match = _NAME.fullmatch(wanted.name)
            earlier = [step for step in self.steps() if not match or step < int(match[1])]
            other = self._newest(earlier, program, expect).checkpoint
            raise FileError(
                "A checkpoint cannot be used.",
                where=f"{error.path}: {error.reason}",
                fix=f"Use the good one before it: {other.path}"
                if other
                else "There is no good one before it; start the training anew.",
            ) from error

    def clear(self) -> None:
        """Remove all checkpoints and the pin."""
        (self.folder / "best.json").unlink(missing_ok=True)
        for step in self.steps():
            self._remove(step)

    def _newest(
        self, steps: list[int], program: str | None, expect: Mapping[str, Array] | None
    ) -> Found:
        refused: list[Refused] = []
        for step in reversed(steps):
            try:
                return Found(_read(self.path(step), program, expect), tuple(refused))
            except _RefusedError as error:
                refused.append(Refused(error.path, error.reason))
        return Found(None, tuple(refused))

    def _prune(self) -> None:
        pinned = self.best_step()
        for step in self.steps()[: -self.keep]:
            if step != pinned:
                self._remove(step)
        for tensors in self.folder.glob("step-*.safetensors"):
            if not tensors.with_suffix(".json").exists():  # an unfinished save
                tensors.unlink(missing_ok=True)

    def _remove(self, step: int) -> None:
        # The JSON first: without it the tensor file counts as nothing.
        self.path(step).unlink(missing_ok=True)
        self.path(step).with_suffix(".safetensors").unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove the temporary files that killed processes left."""
        for path in self.folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and not _alive(int(match[1])):
                path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process != os.getpid()


def _describe(array: Array) -> dict[str, Any]:
    return {"dtype": array.dtype.name, "shape": list(array.shape)}


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read(path: Path, program: str | None, expect: Mapping[str, Array] | None) -> Checkpoint:
    """Read and verify a checkpoint; raises :class:`_RefusedError`."""
    content = _read_content(path)
    if program is not None and content["program"] != program:
        raise _RefusedError(
            path, f"it belongs to another program ({content['program']}, this one is {program})"
        )
    tensors = path.with_name(content["file"]["name"])
    if tensors.name != path.with_suffix(".safetensors").name:
        raise _RefusedError(path, f"it names another checkpoint's tensors ({tensors.name})")
    try:
        size = tensors.stat().st_size
        if size != content["file"]["size"]:
            raise _RefusedError(
                tensors, f"it has {size} bytes instead of {content['file']['size']}"
            )
        if _sha256(tensors) != content["file"]["sha256"]:
            raise _RefusedError(tensors, "its bytes changed since it was written (sha256 differs)")
        state = load_file(str(tensors))
    except FileNotFoundError as error:
        raise _RefusedError(tensors, "the tensor file is missing") from error
    except OSError as error:
        raise _RefusedError(tensors, str(error)) from error
    found = {name: _describe(array) for name, array in state.items()}
    if found != content["tensors"]:
        raise _RefusedError(tensors, "its tensors are not those that its JSON lists")
    if expect is not None:
        _check_tensors(tensors, found, {name: _describe(a) for name, a in expect.items()})
    progress = dict(content["progress"])
    return Checkpoint(int(progress["step"]), path, state, progress, str(content["program"]))


def _read_content(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileError as error:
        raise _RefusedError(path, "the file is missing or is not valid JSON") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _RefusedError(path, "it is no ortboost checkpoint")
    if content.get("version") != FORMAT_VERSION:
        raise _RefusedError(
            path,
            f"it has format version {content.get('version')}, this ortboost reads {FORMAT_VERSION}",
        )
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise _RefusedError(path, "its text changed since it was written (digest differs)")
    return content


def _check_tensors(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in wanted:
        if name not in found:
            raise _RefusedError(path, f"the tensor '{name}' is missing")
        if found[name] != wanted[name]:
            raise _RefusedError(
                path,
                f"the tensor '{name}' is {found[name]['dtype']}{found[name]['shape']}, "
                f"the program wants {wanted[name]['dtype']}{wanted[name]['shape']}",
            )
    for name in found:
        if name not in wanted:
            raise _RefusedError(path, f"the program has no tensor '{name}'")
