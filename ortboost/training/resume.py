"""Resuming a run from a checkpoint, or explaining why that is impossible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ortboost.core.errors import ConfigError, FileError, UsageError
from ortboost.core.field_types import read_config
from ortboost.training.callbacks import Callback
from ortboost.training.checkpoints import Checkpoint, CheckpointStore
from ortboost.training.protocols import Stepper
from ortboost.training.schedule_text import schedule_text
from ortboost.training.schedules import LinearWarmup

__all__ = ["check_fresh", "find_checkpoint", "load_callbacks", "verify_run"]

_LONG = 100  # characters of a schedule that a warning shows; lists may have thousands of rates


def check_fresh(store: CheckpointStore, overwrite: bool) -> bool:
    """Whether the folder has checkpoints of an old run, which the new one must remove.

    Raises:
        UsageError: The folder has checkpoints and ``overwrite`` is False.
    """
    steps = store.steps()
    if not steps:
        return False
    if not overwrite:
        raise UsageError(
            f"The folder already has a run with checkpoints up to step {steps[-1]}.",
            where=str(store.folder),
            fix="Continue it with --resume, or start over with --overwrite.",
        )
    return True


def find_checkpoint(
    store: CheckpointStore, stepper: Stepper, program: str, tell: Callable[[str], None]
) -> Checkpoint | None:
    """The newest valid checkpoint of this program; None if the folder has no checkpoints.

    Newer ones that are refused are reported through ``tell``.

    Raises:
        FileError: There are checkpoints, but none of them can be used.
    """
    found = store.latest(program=program, expect=stepper.state(copy=False))
    for refused in found.refused:
        tell(f"warning: checkpoint refused: {refused.path}: {refused.reason}")
    if found.checkpoint is not None:
        if found.refused:
            tell(f"warning: falling back to the newest valid checkpoint: {found.checkpoint.path}")
        store.prune()  # a smaller `keep` may have been set because the disk was full
        return found.checkpoint
    if found.refused:
        first, many = found.refused[0], len(found.refused)
        raise FileError(
            f"None of the {many} checkpoints can be used."
            if many > 1
            else "The only checkpoint cannot be used.",
            where=f"{first.path}: {first.reason}",
            fix="Resume with the program that wrote them, or start over with --overwrite.",
        )
    return None


def verify_run(
    progress: Mapping[str, Any], run: Mapping[str, Any], data: Mapping[str, Any]
) -> list[str]:
    """Compare the run that a checkpoint's progress describes with this run and its data.

    Returns:
        Warnings about permitted differences (schedules).

    Raises:
        UsageError: The seed, batch size or data changed, so that the position in the epoch would
            refer to other samples.
    """
    for what, before, now in (
        ("seed", progress["run"]["seed"], run["seed"]),
        ("training data", progress["data"], _as_old(data, progress["data"])),
    ):
        # Settings, such as those of images, say more than the checksums that depend on them.
        differences = sorted(_differences(before, now, ""), key=lambda one: _is_checksum(one[0]))
        # Other headers explain other contents, but do not prevent a resume with the same ones.
        if any(not key.endswith(".columns") for key, _, _ in differences):
            key, old, new = differences[0]
            name = "batch size" if key == ".batch_size" else what
            place = name if name != what else f"{what}{key}"
            raise UsageError(
                f"The {name} changed since the checkpoint, so the run cannot be resumed exactly.",
                where=f"{place}: other contents"
                if _is_checksum(key)
                else f"{place}: {old} -> {new}",
                fix="Use what the run was started with, or start over with --overwrite.",
            )
    before, now = progress["run"]["schedules"], run["schedules"]
    return [
        f"warning: the schedule of {name} changed since the checkpoint: "
        f"{_schedule(before.get(name))} -> {_schedule(now.get(name))}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def load_callbacks(callbacks: Sequence[Callback], states: Mapping[str, Any]) -> list[str]:
    """Restore the states of the callbacks; returns warnings about new and missing callbacks."""
    names = {callback.name for callback in callbacks}
    warnings = [
        f"warning: this run has no '{name}', whose state is in the checkpoint: "
        "give the callbacks and validation data of the run to continue it"
        for name in states
        if name not in names and states[name]
    ]
    for callback in callbacks:
        if callback.name in states:
            callback.load_state_dict(states[callback.name])
        elif callback.state_dict():
            warnings.append(f"warning: the callback '{callback.name}' starts without saved state")
    return warnings


def _schedule(data: Any) -> str:
    """A schedule as the command line has it."""
    try:
        # read_config takes a class, and Schedule is a union: read it as a field of one.
        text = schedule_text(read_config(LinearWarmup, {"after": data, "steps": 0}).after)
    except ConfigError:  # of another version
        text = str(data)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _as_old(now: Any, before: Any) -> Any:
    """The fingerprint without what older versions did not write."""
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        return {
            key: _as_old(value, before.get(key))
            for key, value in now.items()
            if key in before or key not in ("columns", "content", "range")
        }
    return now


def _is_checksum(key: str) -> bool:
    return key.endswith((".content", ".crc", ".rows"))


def _differences(before: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The differences of two JSON values: ``.key``, old and new value."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}")
    elif before != now:
        yield path, before, now
