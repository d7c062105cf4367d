"""A folder of checkpoints: the newest ones and the best one.

An invalid checkpoint is reported and never used. ``best.json`` names the best checkpoint, which is
kept however old it is.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ortboost.core.errors import FileError
from ortboost.core.files import read_json, sweep, write_json
from ortboost.training.checkpoint_file import (
    Checkpoint,
    Constants,
    RefusedError,
    digest_of,
    is_ours,
    read_checkpoint,
    tensor_files,
    write_checkpoint,
)
from ortboost.training.protocols import Array

__all__ = ["Checkpoint", "CheckpointStore", "Constants", "Found"]

_NAME = re.compile(r"step-(\d{8,})\.json")
_TENSORS = re.compile(r"(step-\d{8,})(\.[0-9a-f]{8})?\.safetensors")


class Found(NamedTuple):
    """The newest valid checkpoint (None if there is none) and the newer ones that were refused."""

    checkpoint: Checkpoint | None
    refused: tuple[RefusedError, ...]


class CheckpointStore:
    """A folder of checkpoints.

    Args:
        folder: The folder; created if missing. Temporary files of dead processes in it are removed.
        keep: How many of the newest to keep, 1 or more; the best one is kept in addition.
        writes: False for a process that only reads the checkpoints of another one: saving, pinning
            and removing do nothing.
        constants: Tensors that the steps do not change, which checkpoints need not repeat. Without
            them, they are missing in a state that is read.

    Raises:
        FileError: The folder cannot be created.

    Example:
        ``store.save(state, {"step": 120, ...}, program="ab12")`` and, later,
        ``store.latest(program="ab12").checkpoint.state``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 3,
        *,
        writes: bool = True,
        constants: Constants | None = None,
    ) -> None:
        self.folder, self.keep, self._writes = Path(folder), max(1, keep), writes
        self._constants = constants
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                "The checkpoint folder cannot be created.", where=str(self.folder), fix=str(error)
            ) from error
        self._refused: set[int] = set()
        if writes:
            sweep(self.folder)

    def steps(self) -> list[int]:
        """The steps of all checkpoints, valid or not, in increasing order."""
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
        """Write a checkpoint, see :func:`write_checkpoint`, then :meth:`prune`.

        The ``step`` of the progress names the JSON file, which is returned. ``best`` also pins the
        checkpoint as the best one, in place of the previous one.
        """
        path = self.path(int(progress["step"]))
        if not self._writes:
            return path
        write_checkpoint(path, state, progress, program, self._constants)
        self._refused.discard(int(progress["step"]))
        if best:
            self.pin_best(int(progress["step"]))
        self.prune()
        return path

    def pin_best(self, step: int) -> None:
        """Pin an existing checkpoint as the best one."""
        if self._writes:
            write_json(self._pin, {"step": step, "digest": digest_of({"step": step})})

    @property
    def _pin(self) -> Path:
        return self.folder / "best.json"

    def _pinned(self) -> int | None:
        """The step in the pin; None if there is no pin, or it is damaged."""
        with contextlib.suppress(FileError, KeyError, TypeError):
            pin = read_json(self._pin)
            step = pin["step"]
            expected = digest_of({"step": step})
            whole = pin.get("digest", expected) == expected  # older versions wrote none
            return step if type(step) is int and step >= 0 and whole else None
        return None

    def best_step(self) -> int | None:
        """The step of the pinned checkpoint, or None.

        If the pin is damaged, it is the newest checkpoint that was the best when it was written.
        """
        step = self._pinned()
        return self._newest_best() if step is None and self._pin.exists() else step

    def _newest_best(self) -> int | None:
        for step in reversed(self.steps()):
            with contextlib.suppress(RefusedError):
                if read_checkpoint(self.path(step), None, None).progress.get("best", False):
                    return step
        return None

    def best(self, *, program: str | None = None) -> Checkpoint | None:
        """The pinned checkpoint, or None; arguments as for :meth:`load`.

        Raises:
            FileError: See :meth:`load`; or the pin is damaged.
        """
        step = self._pinned()
        if step is None and self._pin.exists():
            raise FileError(
                "The file that names the best checkpoint is damaged.",
                where=str(self._pin),
                fix="Use --checkpoint last, or the path of a checkpoint; or continue the training "
                "with --resume, which names the best one again.",
            )
        return None if step is None else self.load(self.path(step), program=program)

    def latest(
        self, *, program: str | None = None, expect: Mapping[str, Array] | None = None
    ) -> Found:
        """The newest valid checkpoint, and which newer ones were refused; see :meth:`load`."""
        found = self._newest(self.steps(), program, expect)
        good = -1 if found.checkpoint is None else found.checkpoint.step
        self._refused = {step for step in self.steps() if step > good}
        return found

    def load(self, path: str | os.PathLike[str], *, program: str | None = None) -> Checkpoint:
        """Read one checkpoint, given its JSON or tensor file; see :func:`read_checkpoint`.

        Raises:
            FileError: It is damaged or belongs to another program. The message names the file and
                the newest valid checkpoint before it, or else after it.
        """
        if not Path(path).name:
            raise FileError(
                "The checkpoint has no name.",
                where=f"checkpoint '{path}'",
                fix="Use best, last, initial, or the path of a checkpoint file.",
            )
        # A tensor file may have a number in its name, its JSON has none.
        tensors = _TENSORS.fullmatch(Path(path).name)
        name = f"{tensors[1]}.json" if tensors else Path(path).with_suffix(".json").name
        wanted = Path(path).with_name(name)
        try:
            return read_checkpoint(wanted, program, None, self._constants)
        except RefusedError as error:
            match = _NAME.fullmatch(wanted.name)
            earlier = [step for step in self.steps() if not match or step < int(match[1])]
            other = self._newest(earlier, program).checkpoint
            which = "the valid one before it"
            if other is None:  # the best one may be older than the last
                later = [step for step in self.steps() if step not in earlier]
                other, which = self._newest(later, program).checkpoint, "the newest one"
            raise FileError(
                "A checkpoint cannot be used.",
                where=f"{error.path}: {error.reason}",
                fix=f"Use {which}: {other.path}"
                if other
                else "There is no other valid one; start the training over.",
            ) from error

    def clear(self) -> None:
        """Remove all checkpoints and the pin."""
        if not self._writes:
            return
        self._pin.unlink(missing_ok=True)
        for step in self.steps():
            self._remove(step)

    def _newest(
        self,
        steps: list[int],
        program: str | None,
        expect: Mapping[str, Array] | None = None,
    ) -> Found:
        refused: list[RefusedError] = []
        for step in reversed(steps):
            try:
                found = read_checkpoint(self.path(step), program, expect, self._constants)
                return Found(found, tuple(refused))
            except RefusedError as error:
                refused.append(error)
        return Found(None, tuple(refused))

    def prune(self) -> None:
        """Remove the checkpoints beyond ``keep`` and incomplete ones, if ortboost wrote them.

        Checkpoints that :meth:`latest` refused do not count as kept.
        """
        if not self._writes:
            return
        steps = self.steps()
        good = [step for step in steps if step not in self._refused]
        kept = {*good[-self.keep :], self.best_step()}
        for step in steps:
            # Refused ones stay until the run has passed their step.
            newer = step in self._refused and step > max(good, default=-1)
            if step not in kept and not newer and is_ours(self.path(step)):
                self._remove(step)
        for path in self.folder.iterdir():  # incomplete saves
            match = _TENSORS.fullmatch(path.name)
            if match and not self.folder.joinpath(f"{match[1]}.json").exists() and is_ours(path):
                path.unlink(missing_ok=True)

    def _remove(self, step: int) -> None:
        # The JSON first: without it the tensor file is an incomplete save.
        self.path(step).unlink(missing_ok=True)
        for path in tensor_files(self.path(step)):
            path.unlink(missing_ok=True)
