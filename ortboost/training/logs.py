r"""The event log of a run: one JSON object per line (JSONL), flushed immediately.

Every line has ``event`` and ``step`` (steps done when it was written). Numbers that are not finite
are written as null. The events and their further keys:

- ``start``: ``time`` (ISO 8601, UTC), ``resumed`` (the checkpoint's path or null), ``seconds`` (of
  the sessions that led to it), ``epochs``, ``steps_per_epoch`` (or null), ``steps`` (of the whole
  run, or null), ``about`` (metadata: ``run``, ``engine``, ``optimizer``, ...), ``rising``
  (validation metric to whether a higher value is better); with several processes ``launch``
  (``id``, ``host`` and ``pid`` of their torchrun)
- ``step``: ``epoch``, ``loss`` (unscaled), ``overflow``, ``loss_scale`` (after the step; with a
  grouped scale that of the first group, and all of them as ``loss_scales``), ``learning_rate``
  (object: group to rate), ``applied_steps``, ``total_skips``, and ``metrics``
- ``validation``: ``epoch`` and the values by name (``val_loss``, ``val_accuracy``, ...)
- ``epoch``: ``epoch`` and the means over it by name (``train_loss``, ...)
- ``checkpoint``: ``path``, ``best`` (bool)
- ``scale``: a change of the loss scale: ``change`` (``shrink``, ``grow``, ``minimum``: an overflow
  at the smallest scale, or ``held``: one that the hysteresis tolerates), ``before``, ``after``
- ``diagnosis``: where a skipped step overflowed: ``text``, ``loss_scale``, ``findings`` (``where``,
  ``node``, ``op``, and the statistics of ``tensor`` and ``inputs``), ``nonfinite``, ``tensors``
- ``warning``: ``text``
- ``end``: ``reason``, ``seconds`` (of this session)

A checkpoint stores the number of events at the time. A resumed run removes later events, so every
curve has one value per step; an incomplete line of a killed process is removed too. A run that
replaces another one keeps that one's log until its own first step.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from ortboost.core.errors import FileError

__all__ = ["EventLog", "LogFollower", "finite_or_none", "read_log"]

_TAIL: Final = 200  # bytes before the current position; if they changed, the log was replaced


def finite_or_none(value: Any) -> Any:
    """JSON data with non-finite numbers replaced by None, and plain numbers for those of numpy.

    Example:
        >>> finite_or_none({"loss": float("inf"), "steps": [1, 2.5]})
        {'loss': None, 'steps': [1, 2.5]}
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return value


class EventLog:
    """Appends events to a JSONL file and flushes each line; the folder of the file must exist.

    Example:
        ``log.write("step", 12, loss=0.5)`` writes ``{"event": "step", "step": 12, "loss": 0.5}``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.position = 0
        """Number of events in the file that this object wrote or kept; see :meth:`rewind`."""
        self._stream: IO[str] | None = None
        self._held: list[str] | None = None

    def write(self, event: str, step: int, **fields: Any) -> None:
        """Append one event; a FileError if the file cannot be written."""
        line = json.dumps(finite_or_none({"event": event, "step": step, **fields}))
        if self._held is None:
            self._append(line)
        else:
            self._held.append(line)

    def _append(self, line: str) -> None:
        try:
            if self._stream is None:
                self._stream = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - held open
            self._stream.write(line + "\n")
            self._stream.flush()
            self.position += 1
        except OSError as error:
            raise _unwritten(self.path, error) from error

    def hold(self) -> None:
        """Keep the old file, and new events in memory until :meth:`replace`; closing drops them."""
        self._held = []

    def replace(self) -> None:
        """Start a new log with the events held."""
        lines = self._held or ()
        self.rewind(0)
        for line in lines:
            self._append(line)

    def rewind(self, position: int) -> None:
        """Keep only the first ``position`` events, damaged ones included; 0 starts a new log."""
        self.close()
        self.position = 0
        if position <= 0:
            self.path.unlink(missing_ok=True)
        elif self.path.is_file():
            try:
                self.position = _cut(self.path, position)
            except OSError as error:
                raise _unwritten(self.path, error) from error

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        self._held = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _cut(path: Path, position: int) -> int:
    """Truncate a file after ``position`` events, one per line; returns how many it has.

    In place, because a full disk has no room for a copy.
    """
    kept = length = 0
    with open(path, "rb+") as stream:
        for line in stream:
            if kept == position:
                break
            kept += 1
            length += len(line)
        stream.truncate(length)
        if length:
            stream.seek(length - 1)
            if stream.read() != b"\n":
                stream.write(b"\n")
    return kept


def _unwritten(path: Path, error: OSError) -> FileError:
    return FileError(
        "The log cannot be written.",
        where=f"{path}: {error.strerror or error}",
        fix="Check the permissions of the folder and the free space.",
    )


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The events of a log; invalid lines (such as an incomplete last line) are skipped.

    Raises:
        FileError: The file is missing or cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return list(_events(stream))
    except OSError as error:
        raise _unread(path, error) from error


class LogFollower:
    """Reads new events from a log that another process writes, and that need not exist yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._length = 0
        self._tail = b""

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the log was restarted (or truncated by a resumed run), and the new events.

        An incomplete last line is left for the next call; invalid lines are skipped.

        Raises:
            FileError: The log exists but cannot be read.
        """
        try:
            with open(self.path, "rb") as stream:
                stream.seek(self._length - len(self._tail))
                # A new log may be longer than the old one was: compare contents, not lengths.
                restarted = stream.read(len(self._tail)) != self._tail
                if restarted:
                    self._length, self._tail = stream.seek(0), b""
                whole, end, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            restarted, self._length, self._tail = self._length > 0, 0, b""
            return restarted, []
        except OSError as error:
            raise _unread(self.path, error) from error
        if whole or end:
            self._length += len(whole) + 1
            self._tail = whole[-_TAIL:] + end
        return restarted, list(_events(whole.decode(errors="replace").split("\n")))


def _unread(path: str | os.PathLike[str], error: OSError) -> FileError:
    return FileError("A log cannot be read.", where=f"{path}: {error}", fix="Check the path.")


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        step = event.get("step") if isinstance(event, dict) else None
        if isinstance(step, int) and 0 <= step < 2**63 and "event" in event:
            yield event
