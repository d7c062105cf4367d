"""One session of the trainer: its state, and how it is recorded and restored."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortboost.core.step_result import StepResult
from ortboost.training.callbacks import Callback, RunView
from ortboost.training.checkpoint_file import json_data
from ortboost.training.checkpoints import CheckpointStore
from ortboost.training.config import TrainConfig
from ortboost.training.data.sources import Source
from ortboost.training.logs import EventLog
from ortboost.training.metrics import get_metric
from ortboost.training.overflow import scale_change
from ortboost.training.progress import Reporter, StepInfo
from ortboost.training.protocols import Stepper
from ortboost.training.resume import find_checkpoint, load_callbacks, verify_run
from ortboost.training.run_state import RunState
from ortboost.training.signals import SignalGuard
from ortboost.training.stop_rule import StopRule

__all__ = ["Recorder", "Session"]


@dataclass
class Session:
    """One call of :meth:`Trainer.fit`.

    Args:
        train: The training data.
        validation: The validation data, if any.
        signals: Requests to stop.
        rule: When to warn and when to stop.
        state: The position of the run.
        view: The callbacks' view of the run, and their requests.
        resumed: The checkpoint that the session resumed from.
        saved: The last checkpoint.
        saved_step: Its step; -1 for none.
        stale: Whether the folder still has the checkpoints of the run that this one replaces.
        waited: Seconds spent waiting for data.
        stepped: Seconds spent in the steps.
        started: Start of the session, in seconds of :func:`time.perf_counter`.
        before: Seconds of the sessions that led to the checkpoint it resumed from.
    """

    train: Source
    validation: Source | None
    signals: SignalGuard
    rule: StopRule
    state: RunState = field(default_factory=RunState)
    view: RunView = field(default_factory=RunView)
    resumed: Path | None = None
    saved: Path | None = None
    saved_step: int = -1
    stale: bool = False
    waited: float = 0.0
    stepped: float = 0.0
    started: float = field(default_factory=time.perf_counter)
    before: float = 0.0

    @property
    def seconds(self) -> float:
        """Duration of this session so far."""
        return time.perf_counter() - self.started

    @property
    def data_wait(self) -> float:
        """Fraction of the step time that was spent waiting for data."""
        return self.waited / (self.waited + self.stepped) if self.stepped else 0.0

    def refresh_view(self) -> None:
        """Update the callbacks' view of the run."""
        self.view.epoch, self.view.step = self.state.epoch, self.state.step
        self.view.batch = self.state.batch
        self.view.applied_steps = self.state.applied_steps
        self.view.metrics = dict(self.state.metrics)


@dataclass(frozen=True)
class Recorder:
    """Records a run in checkpoints, the event log and the progress display.

    A checkpoint holds the states of the stepper and of the callbacks, the description of the
    configuration, and the fingerprint of the program.
    """

    stepper: Stepper
    config: TrainConfig
    callbacks: Sequence[Callback]
    store: CheckpointStore | None
    log: EventLog | None
    progress: Reporter
    program: str

    def event(self, s: Session, event: str, **fields: object) -> None:
        """Write an event to the log."""
        if self.log is not None:
            self.log.write(event, s.state.step, **fields)

    def start(
        self,
        s: Session,
        steps: int | None,
        about: Mapping[str, Any],
        launch: Mapping[str, object],
    ) -> None:
        """Log and show the start of a session with this number of ``steps``, if known."""
        self.progress.start(steps, s.state.step)
        self.event(
            s,
            "start",
            time=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            resumed=None if s.resumed is None else str(s.resumed),
            seconds=s.before,
            epochs=self.config.epochs,
            steps_per_epoch=s.train.steps_per_epoch,
            steps=steps,
            about=about,
            rising={f"val_{m.name}": m.rising for m in map(get_metric, self.config.metrics)},
            **({"launch": launch} if launch else {}),
        )

    def step(
        self, s: Session, result: StepResult, rates: Mapping[str, float], before: float
    ) -> None:
        """Log and show a step that has been counted; ``before`` is the loss scale before it."""
        state = s.state
        if result.overflow or state.step % self.config.log_every == 0:
            self.event(
                s,
                "step",
                epoch=state.epoch,
                loss=float(result.loss),
                overflow=bool(result.overflow),
                loss_scale=float(result.loss_scale),
                **({"loss_scales": list(result.loss_scales)} if result.loss_scales else {}),
                learning_rate=rates,
                applied_steps=int(result.applied_steps),
                total_skips=int(result.total_skips),
                metrics={name: float(value) for name, value in result.metrics.items()},
            )
        policy = self.config.loss_scale
        change = scale_change(before, state.loss_scale, bool(result.overflow), policy)
        if change is not None:
            self.event(s, "scale", change=change, before=before, after=state.loss_scale)
        self.progress.step(
            StepInfo(
                state.step,
                state.epoch,
                self.config.epochs,
                result.loss,
                next(iter(rates.values()), 0.0),
                result.loss_scale,
                result.total_skips,
            )
        )

    def end(self, s: Session, reason: str | None, **fields: object) -> float:
        """Log the end of the session and its reason; returns its duration in seconds."""
        seconds = s.seconds
        self.event(s, "end", reason=reason, seconds=seconds, **fields)
        return seconds

    def warn(self, s: Session, text: str) -> None:
        """Show a warning and write it to the log."""
        self.event(s, "warning", text=text)
        self.progress.message(f"warning: {text}")

    def save(self, s: Session, *, best: bool = False) -> None:
        """Write a checkpoint of the current state."""
        if self.store is None:
            return
        progress = {
            **s.state.to_dict(),
            "run": self.config.describe(self.stepper.groups),
            "data": _fingerprint(s.train),
            "callbacks": {
                callback.name: json_data(callback.state_dict(), f"callback '{callback.name}'")
                for callback in self.callbacks
            },
            "rule": s.rule.state_dict(),
            "log": 0 if self.log is None else self.log.position,
            "best": best,
            "seconds": s.before + s.seconds,
        }
        # Each tensor is copied from the device when it is written, not the whole state at once.
        state = self.stepper.state(copy=False)
        s.saved = self.store.save(state, progress, program=self.program, best=best)
        s.saved_step = s.state.step
        self.event(s, "checkpoint", path=str(s.saved), best=best)

    def restore(self, s: Session) -> int:
        """Restore the newest valid checkpoint, if there is one; the number of log events to keep.

        Raises:
            FileError: There are checkpoints, but none can be used.
            UsageError: The seed or data changed since.
        """
        if self.store is None:
            return 0
        message = self.progress.message
        found = find_checkpoint(self.store, self.stepper, self.program, message)
        if found is None:
            return 0
        # Verify before anything is changed: an error leaves the stepper as it was.
        run = self.config.describe(self.stepper.groups)
        warnings = verify_run(found.progress, run, _fingerprint(s.train))
        warnings += load_callbacks(self.callbacks, found.progress["callbacks"])
        self.stepper.load_state(found.state)
        s.state = RunState.from_dict(found.progress)
        s.rule.load_state_dict(found.progress["rule"])
        s.resumed = s.saved = found.path
        s.saved_step = s.state.step
        s.before = float(found.progress.get("seconds", 0.0))  # older versions did not write it
        # Killed after the checkpoint, before the pin; or the pin is damaged.
        best = found.step if found.progress.get("best", False) else self.store.best_step()
        if best is not None:
            self.store.pin_best(best)
        for text in warnings:
            message(text)
        self.progress.result(f"resumed from step {s.state.step} ({found.path.name})")
        return int(found.progress["log"])


def _fingerprint(data: Source) -> Any:
    return json_data(data.fingerprint(), f"fingerprint of {type(data).__name__}")
