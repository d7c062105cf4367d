"""Callbacks: small observers of a run that may ask it to stop or to keep the best model.

This is the one protocol that the trainer knows. Callbacks of another make (those with MindSpore's
names) have a method ``to_trainer`` that gives one of these, see :class:`Adaptable`.

A callback whose behaviour depends on what it saw before keeps that in ``state_dict``: it is saved
with every checkpoint, so that a resumed run decides as an uninterrupted one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from ortboost.core.errors import ArgumentTypeError, UsageError, nearest
from ortboost.core.field_types import Range, check_kinds
from ortboost.training.protocols import StepResult

__all__ = [
    "Adaptable",
    "BestModel",
    "Callback",
    "EarlyStopping",
    "Goal",
    "Patience",
    "RunView",
    "as_callbacks",
]


@dataclass
class RunView:
    """What a callback sees of the run, and how it asks for something.

    Args:
        epoch: Current epoch, from 0; after the end of one the next.
        step: Steps done (batches consumed).
        batch: Batches of the current epoch that are done.
        epochs: Epochs of the whole run.
        steps_per_epoch: Batches in an epoch; None where that is not known before its end.
        applied_steps: Updates applied.
        metrics: The newest of ``train_loss``, ``val_loss``, ``val_accuracy``, ...
        learning_rates: Learning-rate input to its value in the newest step.
        about: What the run is, by name: its ``run``, ``engine``, ``optimizer``, ``batch_size``, ...
        stop_reason: Why the run is asked to stop after this step or epoch; None to go on.
        keep_best: Set to keep the present state as the best model.
    """

    epoch: int = 0
    step: int = 0
    batch: int = 0
    epochs: int = 1
    steps_per_epoch: int | None = None
    applied_steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
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

    def on_epoch_begin(self, run: RunView) -> None:
        """Before the first batch of an epoch, or of what a resumed run has left of it."""

    def on_step_begin(self, run: RunView) -> None:
        """Before each step."""

    def on_step_end(self, run: RunView, result: StepResult) -> None:
        """After each step, skipped or not."""

    def on_validation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """After each validation; ``metrics`` holds ``val_...`` names."""

    def on_epoch_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """After each epoch and its validation; ``metrics`` holds ``train_...`` names."""

    def on_train_end(self, run: RunView) -> None:
        """After the last step of a run that was not interrupted and did not diverge."""

    def on_close(self, run: RunView) -> None:
        """When a session that has begun ends, however it does.

        ``run.stop_reason`` is why; None after an error, Ctrl-C or divergence.
        """

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, as JSON data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of :meth:`state_dict`."""


@runtime_checkable
class Adaptable(Protocol):
    """A callback of another make that can take part in a run of the trainer."""

    def to_trainer(self) -> Callback:
        """This callback for the trainer.

        Raises:
            UsageError: It needs what the trainer does not have.
        """


def as_callbacks(values: Sequence[Callback | Adaptable]) -> list[Callback]:
    """Callbacks for the trainer out of callbacks of any make.

    Args:
        values: The callbacks.

    Raises:
        ArgumentTypeError: One is no callback.
        UsageError: One needs what the trainer does not have.
    """
    found: list[Callback] = []
    for value in values:
        if not isinstance(value, Callback | Adaptable) or isinstance(value, type):
            kind = f"class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise ArgumentTypeError(
                f"A {kind} is no callback.",
                where="callbacks",
                fix="Give instances of a subclass of ortboost.training.Callback.",
            )
        found.append(value if isinstance(value, Callback) else value.to_trainer())
    return found


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
    min_delta: Annotated[float, Range(0)] = 0.0

    def __post_init__(self) -> None:
        check_kinds(self, "callbacks")

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


@dataclass
class Patience:
    """How long a metric may go without getting better.

    Args:
        goal: What counts as better.
        patience: Values in a row without improvement before the run is stopped.
        best: The best value so far; None before the first, or what has to be beaten.
        waited: Values since then.

    Example:
        >>> patience = Patience(Goal("val_loss"), 2)
        >>> [patience.look(value) for value in (1.0, 0.5, 0.7, 0.6)], patience.spent
        ([True, True, False, False], True)
    """

    goal: Goal
    patience: Annotated[int, Range(1)]
    best: float | None = None
    waited: int = 0

    def __post_init__(self) -> None:
        check_kinds(self, "callbacks")

    def look(self, value: float) -> bool:
        """Take a value; whether it is the best so far. NaN never is."""
        improved = self.goal.better(value, self.best)
        if improved:
            self.best = value
        self.waited = 0 if improved else self.waited + 1
        return improved

    @property
    def spent(self) -> bool:
        """Whether it is time to stop."""
        return self.waited >= self.patience


class _Monitoring(Callback):
    """What the two callbacks below share: they look at one metric and remember the best value."""

    def __init__(self, goal: Goal | None, patience: int, best: float | None = None) -> None:
        self.goal = goal or Goal()
        self._seen = Patience(self.goal, patience, best)
        self.best_step = 0

    @property
    def best(self) -> float | None:
        """The best value so far."""
        return self._seen.best

    def on_validation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._look(run, metrics)

    def on_epoch_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        self._look(run, metrics)

    def _look(self, run: RunView, metrics: Mapping[str, float]) -> None:
        value = self.goal.read(metrics, run.metrics)
        if value is None:
            return
        improved = self._seen.look(value)
        if improved:
            self.best_step = run.step
        self._judge(run, improved)

    def _judge(self, run: RunView, improved: bool) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen.best, self.best_step = state["best"], int(state["best_step"])


class EarlyStopping(_Monitoring):
    """Stop when the monitored metric has not improved for ``patience`` looks.

    Args:
        goal: What counts as better.
        patience: Validations (epochs for ``train_...``) without improvement before it stops.
        baseline: What the first value has to beat, if anything.

    Raises:
        ConfigError: ``patience`` is below 1.
    """

    def __init__(
        self, goal: Goal | None = None, patience: int = 5, baseline: float | None = None
    ) -> None:
        super().__init__(goal, patience, baseline)

    @property
    def patience(self) -> int:
        """Values in a row without improvement before it stops."""
        return self._seen.patience

    @property
    def waited(self) -> int:
        """Values since the best one."""
        return self._seen.waited

    def on_train_begin(self, run: RunView) -> None:
        """A run that had stopped early stops again at once, unless its patience was raised."""
        self._stop_if_due(run)

    def _judge(self, run: RunView, improved: bool) -> None:
        self._stop_if_due(run)

    def _stop_if_due(self, run: RunView) -> None:
        if not self._seen.spent:
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
        self._seen.waited = int(state["waited"])


class BestModel(_Monitoring):
    """Keep the state with the best value of a metric as the checkpoint ``best``.

    Example:
        ``Trainer(..., callbacks=[BestModel(Goal("val_accuracy"))])``, then ``store.best()``.
    """

    def __init__(self, goal: Goal | None = None) -> None:
        super().__init__(goal, patience=1)

    def _judge(self, run: RunView, improved: bool) -> None:
        run.keep_best = run.keep_best or improved
