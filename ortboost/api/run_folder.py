"""A program folder with the files that training adds: checkpoints, log, curves, and a lock."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortboost.core.arguments import checked
from ortboost.core.errors import FileError, UsageError, nearest
from ortboost.core.files import process_exists, read_json, writable_path, write_json
from ortboost.core.tensor_file import Selection
from ortboost.graph.io import ModelSource, check_model_file, name_of
from ortboost.program.program import MANIFEST, Program, is_part
from ortboost.training import Checkpoint, CheckpointStore, Constants

__all__ = [
    "CHECKPOINTS",
    "LOCK",
    "LOG",
    "PLOT",
    "alone_in",
    "check_output",
    "checkpoints_of",
    "in_training",
    "load_run",
    "refuse_for_model",
    "require_same",
]

CHECKPOINTS, LOG, PLOT, LOCK = "checkpoints", "log.jsonl", "curves.png", "train.lock"
_LARGE = 2**20  # bytes
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Prevent other trainings and conversions in the folder.

    The lock is released when the process ends, however it ends; the file ``train.lock`` records the
    owner. On a file system without locks the file alone decides: it is stale if its process no
    longer exists on this machine.

    Raises:
        UsageError: Another process, named in the message, is training or replacing the program.
        FileError: The folder cannot be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise FileError(
            "The program folder cannot be opened.", where=str(folder), fix=str(error)
        ) from error
    note = folder / LOCK
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _taken(folder, _holder(note)) from error
        except OSError as error:  # a file system without locks
            holder = _holder(note)
            if holder is not None and _may_live(holder):
                raise _taken(folder, holder) from error
        with contextlib.suppress(FileError):  # a read-only folder fails later, with a better error
            write_json(note, {"pid": os.getpid(), "host": socket.gethostname()})
        try:
            yield
        finally:
            note.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def require_same(folder: Path, program: Program) -> None:
    """Refuse a program that was replaced after it was read; call it holding the lock of `alone_in`.

    Raises:
        UsageError: The folder holds another one now.
    """
    found = read_json(folder / MANIFEST)
    if not isinstance(found, Mapping) or found.get("fingerprint") != program.fingerprint:
        raise UsageError(
            "The program was replaced while it was opened.",
            where=str(folder),
            fix="Train again, now the new one.",
        )


def check_output(path: str | os.PathLike[str], suffix: str) -> None:
    """Check the path of a file to write before any work, so that a slip replaces nothing.

    Raises:
        UsageError: It has another suffix, or is a part of a program.
        FileError: It cannot be written there; see :func:`ortboost.core.files.writable_path`.
    """
    target = writable_path(path).resolve()
    if (target.parent / MANIFEST).is_file() and (is_part(target.name) or target.name == LOG):
        raise UsageError(
            f"'{target.name}' is part of the program in this folder, and would be overwritten.",
            where=str(path),
            fix="Give the file another name.",
        )
    if target.suffix.lower() != suffix:
        raise UsageError(
            f"The name of the file to write does not end in {suffix}.",
            where=str(path),
            fix=f"Call it {target.stem}{suffix}, for example.",
        )


def in_training(folder: Path) -> bool:
    """Whether a process trains the program, according to the lock file in the folder."""
    holder = _holder(folder / LOCK)
    return holder is not None and _may_live(holder)


def _holder(note: Path) -> Mapping[str, Any] | None:
    with contextlib.suppress(FileError):
        found = read_json(note)
        if isinstance(found, Mapping) and {"pid", "host"} <= set(found):
            # Anything else is damaged; numbers up to 0 would be those of process groups.
            return found if type(found["pid"]) is int and found["pid"] > 0 else None
    return None


def _may_live(holder: Mapping[str, Any]) -> bool:
    # A process of another machine cannot be looked up.
    return holder["host"] != socket.gethostname() or process_exists(holder["pid"])


def _taken(folder: Path, holder: Mapping[str, Any] | None) -> UsageError:
    who = "" if holder is None else f": process {holder['pid']} on {holder['host']}"
    return UsageError(
        "Another process is training or replacing this program.",
        where=f"{folder}{who}",
        fix="Wait for it, or convert the model into another folder. If it no longer runs, remove "
        f"{LOCK}.",
    )


def refuse_for_model(model: ModelSource, checkpoint: str, update_bn: object = None) -> None:
    """Refuse arguments that a plain model does not have, if they were given.

    Raises:
        FileError: There is no such file.
        UsageError: A checkpoint was chosen, or data for running statistics were given.
    """
    if isinstance(model, str | os.PathLike):
        check_model_file(Path(model))  # a program that does not exist is no plain model
    if checkpoint != "best":
        raise UsageError(
            "Only a program folder has checkpoints.",
            where=f"checkpoint {checkpoint!r}",
            fix="Leave it out, or give the folder of a trained program.",
        )
    if update_bn is not None:
        raise UsageError(
            "Only a program can re-estimate its running statistics.",
            where=f"{name_of(model)}: update_bn",
            fix="Give the program folder, or leave --update-bn out.",
        )


def checkpoints_of(
    program: Program, folder: Path, keep: int = 3, *, writes: bool = True
) -> CheckpointStore:
    """The checkpoints of a program in a folder; see :class:`CheckpointStore`.

    They do not repeat frozen weights, which the program folder holds, if these are large.
    """
    frozen = [e for e in program.catalogue.state if e.next is None and not e.sharded]
    constants = None
    if sum(math.prod(e.shape) * e.dtype.itemsize for e in frozen) >= _LARGE:
        names = [e.name for e in frozen]
        constants = Constants(Selection(program.initial, names), program.initial_digest(names))
    return CheckpointStore(folder, keep, writes=writes, constants=constants)


@checked
def load_run(
    run: str | os.PathLike[str], checkpoint: str = "best"
) -> tuple[Program, dict[str, NDArray[Any]], Checkpoint | None]:
    """Load a program folder with the state to use.

    Args:
        run: The folder.
        checkpoint: ``best`` (the newest if there is no best one), ``last``, ``initial``, a step,
            or the name or path of a checkpoint file.

    Raises:
        FileError: It is not a program folder, or the checkpoint does not exist or cannot be used.

    Example:
        >>> import ortboost as ob
        >>> program = ob.convert("models/mlp.onnx", "runs/example/load", overwrite=True)
        >>> program, state, checkpoint = ob.load_run("runs/example/load", "initial")
        >>> checkpoint is None  # nothing was trained yet
        True
    """
    folder = Path(run)
    program = Program.load(folder)
    if checkpoint == "initial":
        return program, dict(program.initial), None
    found: Checkpoint | None = None
    file = None if checkpoint in ("best", "last") else _checkpoint_file(folder, checkpoint)
    if file is not None:
        store = checkpoints_of(program, file.parent, writes=False)
        found = store.load(file, program=program.fingerprint)
    elif (folder / CHECKPOINTS).is_dir():  # a store creates its folder, but this must only read
        store = checkpoints_of(program, folder / CHECKPOINTS, writes=False)
        found = store.best(program=program.fingerprint) if checkpoint == "best" else None
        steps = store.steps()
        if found is not None and steps and steps[-1] > found.step:
            _warn_unvalidated(store, steps[-1], int(found.step))
        if found is None and steps:  # raises for a damaged one: an older one was not requested
            found = store.load(store.path(steps[-1]), program=program.fingerprint)
    if found is None:
        raise FileError(
            "The program has not been trained yet: there is no checkpoint.",
            where=str(folder / CHECKPOINTS),
            fix=f"Train it with 'ortboost train {folder} --data DATA', "
            "or use --checkpoint initial for the initial weights.",
        )
    return program, dict(found.state), found


def _checkpoint_file(folder: Path, checkpoint: str) -> Path:
    """The file of a checkpoint, given by its path, its name, or its step."""
    inside = folder / CHECKPOINTS
    name = f"step-{checkpoint.zfill(8)}" if checkpoint.isdecimal() else checkpoint
    for file in (Path(checkpoint), inside / name):
        if file.is_file() or (file.name and file.with_suffix(".json").is_file()):
            return file
    names = sorted(path.stem for path in inside.glob("step-*.json"))
    raise FileError(
        f"There is no checkpoint '{checkpoint}'.",
        where=str(inside),
        fix=nearest(name, ["best", "last", "initial", *names]),
    )


def _warn_unvalidated(store: CheckpointStore, newest: int, best: int) -> None:
    """Warn if the best checkpoint is old because nothing was validated since."""
    with contextlib.suppress(FileError):
        validated = store.load(store.path(newest)).progress.get("validated_step", -1)
        if validated < best:
            _log.warning(
                "the best checkpoint is of step %d; none of the newer ones, up to step %d, was "
                "validated (--checkpoint last uses the newest)",
                best,
                newest,
            )
