"""The history of a run, from its event log: a curve for each logged number, and the run's status.

`plot`, `watch`, `runs` and the CSV export read logs through this module. A damaged value becomes
NaN.
"""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ortboost.core.files import atomic_path
from ortboost.training.callbacks import Goal
from ortboost.training.logs import read_log

__all__ = ["Curve", "RunHistory", "write_csv"]

_MOST: Final = 1e200  # larger values overflow when matplotlib adds a margin, and it raises
_PLACES: Final = ("event", "step")


@dataclass
class Curve:
    """A logged number over the steps; NaN where it was not finite."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def x(self) -> NDArray[np.int64]:
        """The steps."""
        return np.array(self.steps, np.int64)

    @property
    def y(self) -> NDArray[np.float64]:
        """The values."""
        return np.array(self.values, np.float64)

    def best(self, goal: Goal) -> tuple[int, float] | None:
        """Step and value of the best point, by a goal."""
        found: tuple[int, float] | None = None
        for step, value in zip(self.steps, self.values, strict=True):
            if goal.better(value, None if found is None else found[1]):
                found = step, value
        return found


@dataclass
class RunHistory:
    """A run, as reconstructed from its log.

    Args:
        name: Name of the run.
        curves: Name to curve: ``loss``, ``learning_rate``, ``loss_scale``, ``loss_scales/1``,
            ``total_skips``, ``accuracy`` (of a batch), ``val_loss``, ``val_accuracy``,
            ``train_loss``, ...
        skipped: Steps that were skipped.
        about: Metadata of the run, see :class:`~ortboost.training.callbacks.RunView`.
        epochs: Planned epochs; 0 if unknown.
        total: Planned steps; None if unknown.
        step: Steps done.
        epoch: The current epoch, from 0.
        sessions: How often the run was started or resumed.
        warnings: Texts of the warnings.
        reason: Why the run ended; None while it is running.
        seconds: Duration of all sessions; None if the last one has not ended.
        before: Duration of the sessions before the last one, as far as it continues them.
        rising: Validation metric to whether a higher value is better.

    Example:
        >>> run = RunHistory()
        >>> run.add({"event": "step", "step": 1, "loss": 0.5, "overflow": True, "loss_scale": 8.0})
        >>> run.curves["loss"].y.tolist(), run.skipped
        ([0.5], [1])
    """

    name: str = ""
    curves: dict[str, Curve] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 0
    total: int | None = None
    step: int = 0
    epoch: int = 0
    sessions: int = 0
    warnings: list[str] = field(default_factory=list)
    reason: str | None = None
    seconds: float | None = None
    before: float = 0.0
    rising: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def read(cls, log: str | os.PathLike[str]) -> RunHistory:
        """Read the run of a log file; without a name in the log, it has the folder's name.

        Raises:
            FileError: The log cannot be read.
        """
        run = cls(Path(log).absolute().parent.name)
        for event in read_log(log):
            run.add(event)
        return run

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event of the log."""
        step, kind = event["step"], event["event"]
        self.step = step if kind == "start" else max(self.step, step)
        # Any event after an end shows that the run went on.
        self.reason = None
        if kind == "start":
            self._start(event)
        elif kind == "step":
            self._step(step, event)
        elif kind in ("validation", "epoch"):
            self._note(step, event)
        elif kind == "warning":
            self.warnings.append(str(event.get("text")))
        elif kind == "end":
            self.reason = str(event.get("reason") or "ended")
            seconds = _number(event.get("seconds"))
            self.seconds = None if math.isnan(seconds) else self.before + seconds
        if kind == "epoch":
            self.epoch = _count(event.get("epoch")) + 1

    def _start(self, event: Mapping[str, Any]) -> None:
        about, total = event.get("about"), _count(event.get("steps"))
        self.about = about if isinstance(about, Mapping) else {}
        self.name = str(self.about.get("run") or self.name)
        rising = event.get("rising")
        self.rising = rising if isinstance(rising, Mapping) else {}
        self.epochs = _count(event.get("epochs"))
        self.total = total or self.epochs * _count(event.get("steps_per_epoch")) or None
        before = _number(event.get("seconds"))  # logs of older versions lack it
        self.before = (self.seconds or self.before) if math.isnan(before) else before
        self.sessions, self.seconds = self.sessions + 1, None

    def _step(self, step: int, event: Mapping[str, Any]) -> None:
        inner = [event.get(name) for name in ("learning_rate", "metrics")]
        self._note(step, event, *(item for item in inner if isinstance(item, Mapping)))
        scales = event.get("loss_scales")
        if isinstance(scales, list):
            self._note(step, {f"loss_scales/{i}": scale for i, scale in enumerate(scales, 1)})
        if event.get("overflow") is True:
            self.skipped.append(step)
        self.epoch = _count(event.get("epoch"))

    def _note(self, step: int, *sources: Mapping[str, Any]) -> None:
        for name, value in ((n, v) for source in sources for n, v in source.items()):
            if name not in _PLACES and (value is None or isinstance(value, (int, float))):
                curve = self.curves.setdefault(name, Curve())
                curve.steps.append(step)
                curve.values.append(_number(value))

    @property
    def latest(self) -> dict[str, float]:
        """The newest value of each curve."""
        return {name: curve.values[-1] for name, curve in self.curves.items()}

    @property
    def skips(self) -> int:
        """Steps skipped, as the run counted them."""
        total = self.latest.get("total_skips", math.nan)
        return len(self.skipped) if math.isnan(total) else int(total)

    @property
    def monitored(self) -> str:
        """The metric to compare runs by: the first validation metric, else a loss."""
        names = [name for name in self.curves if name.startswith("val_")]
        names = [name for name in names if name != "val_loss"] + ["val_loss", "train_loss"]
        return next((name for name in names if name in self.curves), "loss")

    def best(self, metric: str | None = None) -> tuple[int, float] | None:
        """Step and value of the best point of a metric; None if no value is finite."""
        name = metric or self.monitored
        return self.curves[name].best(self.goal(name)) if name in self.curves else None

    def goal(self, metric: str) -> Goal:
        """The metric and its direction, which the log has for a user's own."""
        known = self.rising.get(metric)
        return Goal(metric) if known is None else Goal(metric, "max" if known else "min")


def write_csv(runs: Iterable[RunHistory], path: str | os.PathLike[str]) -> Path:
    """Write a CSV file with a row for each step of each run, and a column for each curve.

    A cell is empty where a curve has no value at that step, and ``nan`` where the value is not
    finite. Numbers have enough digits to be read back exactly. The first column has the names of
    the runs.

    Raises:
        FileError: The folder is missing or not writable.
    """
    listed = list(runs)
    columns = list(dict.fromkeys(name for run in listed for name in run.curves))
    target = Path(path)
    with atomic_path(target) as temporary, open(temporary, "w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["run", "step", *columns])
        for run in listed:
            for step, row in _rows(run):
                writer.writerow([run.name, step, *(row.get(name, "") for name in columns)])
    return target


def _rows(run: RunHistory) -> Iterator[tuple[int, dict[str, str]]]:
    rows: dict[int, dict[str, str]] = {}
    for name, curve in run.curves.items():
        for step, value in zip(curve.steps, curve.values, strict=True):
            rows.setdefault(step, {})[name] = repr(value).removesuffix(".0")
    yield from sorted(rows.items())


def _number(value: object) -> float:
    fits = isinstance(value, (int, float)) and abs(value) < _MOST
    return float(value) if fits else math.nan  # type: ignore[arg-type]


def _count(value: object) -> int:
    number = _number(value)
    return int(number) if 0 <= number < 2**53 else 0
