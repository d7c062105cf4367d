"""Callbacks: small observers of a run that may ask it to stop or to keep the best model.

A callback whose behaviour depends on what it saw before keeps that in ``state_dict``: it is saved
with every checkpoint, so that a resumed run decides as an uninterrupted one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ortboost.core.errors import ConfigError, UsageError, nearest
from ortboost.training.protocols import StepResult

__all__ = ["BestModel", "Callback", "EarlyStopping", "Goal", "RunView"]


@dataclass
class RunView:
    """What a callback sees of the run, and how it asks for something.

    Args:
        epoch: Current epoch, from 0.
        step: Steps done (batches consumed).
        applied_steps: Updates applied.
        metrics: The newest of ``train_loss``, ``val_loss``, ``val_accuracy``, ...
        stop_reason: Why the run is asked to stop after this step or epoch; None to go on.
        keep_best: Set to keep the present state as the best model.
    """

    epoch: int = 0
    step: int = 0
    applied_steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    stop_reason: str | None = None
    keep_best: bool = False

    def stop(self, reason: str) -> None:
        """Ask the run to stop."""
        self.stop_reason = self.stop_reason or reason


class Callback:
    """Base of callbacks: every hook does nothing.

    ``name`` is the key of the state in a checkpoint and must differ between the callbacks of a run.
    """

    @property
    def name(self) -> str:
        """The class name by default."""
        return type(self).__name__

    def on_train_begin(self, run: RunView) -> None:
        """Before the first step of this session, after a checkpoint was loaded."""

    def on_step_end(self, run: RunView, result: StepResult) -> None:
        """After each step, skipped or not."""

    def on_validation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """After each validation; ``metrics`` holds ``val_...`` names."""

    def on_epoch_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """After each epoch and its validation; ``metrics`` holds ``train_...`` names."""

    def on_train_end(self, run: RunView) -> None:
        """After the last step of a run that was not interrupted and did not diverge."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, as JSON data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of :meth:`state_dict`."""


@dataclass(frozen=True)
class Goal:
    """What counts as better.

    Args:
        monitor: The metric: ``val_loss``, ``val_accuracy``, ``train_loss``, ...
        mode: "min", "max", or "auto": "max" for accuracies and ``topK``, "min" for the rest.
        min_delta: An improvement must be larger than this.

    Example:
        >>> Goal("val_accuracy").better(0.9, 0.8), Goal("val_loss").better(0.9, 0.8)
        (True, False)
    """

    monitor: str = "val_loss"
    mode: Literal["auto", "min", "max"] = "auto"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "min", "max"):
            raise ConfigError(
                f"There is no mode '{self.mode}'.",
                where="mode",
                fix=nearest(self.mode, ("auto", "min", "max")),
            )
        if not self.min_delta >= 0:
            raise ConfigError(
                f"'min_delta' is {self.min_delta}.", where="min_delta", fix="Use 0 or more."
            )

    @property
    def rising(self) -> bool:
        """Whether higher is better."""
        if self.mode == "auto":
            return "accuracy" in self.monitor or "_top" in self.monitor
        return self.mode == "max"

    def better(self, value: float, best: float | None) -> bool:
        """Whether ``value`` beats ``best``; NaN beats nothing, any number beats None."""
        if math.isnan(value):
            return False
        if best is None:
            return True
        gain = value - best if self.rising else best - value
        return gain > self.min_delta

    def read(self, metrics: Mapping[str, float], every: Mapping[str, float]) -> float | None:
        """The monitored value if this event carries it.

        Args:
            metrics: The metrics of the event.
            every: All metrics of the run so far, for the error.

        Raises:
            UsageError: After a whole epoch no such metric exists.
        """
        if self.monitor in metrics:
            return metrics[self.monitor]
        if self.monitor not in every and any(name.startswith("train_") for name in metrics):
            raise UsageError(
                f"There is no metric '{self.monitor}' to monitor.",
                where="callbacks",
                fix=nearest(self.monitor, every),
            )
        return None


class _Monitoring(Callback):
    """What the two callbacks below share: they look at one metric and remember the best value."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.best: float | None = None
        self.best_step = 0

    def on_validation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._look(run, metrics)

    def on_epoch_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._look(run, metrics)

    def _look(self, run: RunView, metrics: Mapping[str, float]) -> None:
        value = self.goal.read(metrics, run.metrics)
        if value is None:
            return
        improved = self.goal.better(value, self.best)
        if improved:
            self.best, self.best_step = value, run.step
        self._judge(run, improved)

    def _judge(self, run: RunView, improved: bool) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_step = state["best"], int(state["best_step"])


class EarlyStopping(_Monitoring):
    """Stop when the monitored metric has not improved for ``patience`` looks.

    Args:
        goal: What counts as better.
        patience: Looks (validations, or epochs for ``train_...``) without improvement to endure.

    Raises:
        ConfigError: ``patience`` is below 1.
    """

    def __init__(self, goal: Goal | None = None, patience: int = 5) -> None:
        super().__init__(goal or Goal())
        if patience < 1:
            raise ConfigError(f"'patience' is {patience}.", where="patience", fix="Use 1 or more.")
        self.patience, self.waited = patience, 0

    def on_train_begin(self, run: RunView) -> None:
        """A run that had stopped early stops again at once, unless its patience was raised."""
        self._stop_if_due(run)

    def _judge(self, run: RunView, improved: bool) -> None:
        self.waited = 0 if improved else self.waited + 1
        self._stop_if_due(run)

    def _stop_if_due(self, run: RunView) -> None:
        if self.waited < self.patience:
            return
        looks = f"{self.waited} look{'s' * (self.waited != 1)}"
        if self.best is None:  # NaN beats nothing
            run.stop(f"early stop: {self.goal.monitor} was NaN in all of {looks}")
        else:
            run.stop(
                f"early stop: no better {self.goal.monitor} than {self.best:.6g} "
                f"(step {self.best_step}) in {looks}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Best value, its step, and the looks waited since."""
        return {**super().state_dict(), "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of :meth:`state_dict`."""
        super().load_state_dict(state)
        self.waited = int(state["waited"])


class BestModel(_Monitoring):
    """Keep the state with the best value of a metric as the checkpoint ``best``.

    Example:
        ``Trainer(..., callbacks=[BestModel(Goal("val_accuracy"))])``, then ``store.best()``.
    """

    def __init__(self, goal: Goal | None = None) -> None:
        super().__init__(goal or Goal())

    def _judge(self, run: RunView, improved: bool) -> None:
        run.keep_best = run.keep_best or improved
