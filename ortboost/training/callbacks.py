"""Callbacks: methods called during a run, which can stop it or keep its state as the best.

This is the trainer's only callback protocol. Callbacks of other APIs (those with MindSpore's names)
have a method ``to_trainer`` that converts them, see :class:`Adaptable`.

A callback whose behaviour depends on earlier events returns its state in ``state_dict``. It is
saved with every checkpoint, so that a resumed run decides as an uninterrupted one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from ortboost.core.errors import ArgumentTypeError, require_known
from ortboost.core.field_types import Range, check_kinds
from ortboost.core.printable import count_of
from ortboost.core.step_result import StepResult
from ortboost.training.metrics import is_rising

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
    """A callback's view of the run, with the requests that it can make.

    Args:
        epoch: Current epoch, from 0; after the end of an epoch, the next one.
        step: Steps done (batches consumed).
        batch: Batches of the current epoch done so far.
        epochs: Epochs of the whole run.
        steps_per_epoch: Batches in an epoch; None if unknown before its end.
        applied_steps: Updates applied.
        metrics: The newest values of ``train_loss``, ``val_loss``, ``val_accuracy``, ...
        learning_rates: Learning-rate input to its value in the newest step.
        about: Metadata of the run: ``run``, ``engine``, ``optimizer``, ``batch_size``, ...
        stop_reason: Why the run is to stop after this step or epoch; None to continue.
        keep_best: Set to True to keep the current state as the best model.
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
    """Base class of callbacks; its hooks do nothing.

    ``name`` is the key of the state in a checkpoint and must differ between the callbacks of a run.
    """

    @property
    def name(self) -> str:
        """The class name by default."""
        return type(self).__name__

    def on_train_begin(self, run: RunView) -> None:
        """Before the first step of this session, after a checkpoint was loaded."""

    def on_epoch_begin(self, run: RunView) -> None:
        """Before the first batch of an epoch, or of the remaining part in a resumed run."""

    def on_step_begin(self, run: RunView) -> None:
        """Before each step."""

    def on_step_end(self, run: RunView, result: StepResult) -> None:
        """After each step, skipped or not."""

    def on_validation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """After each validation; ``metrics`` holds ``val_...`` names."""

    def on_epoch_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """After each epoch and its validation; ``metrics`` holds ``train_...`` names."""

    def on_train_end(self, run: RunView) -> None:
        """After the last step of a run that was neither interrupted nor diverged."""

    def on_close(self, run: RunView) -> None:
        """When a session ends, for whatever reason.

        ``run.stop_reason`` is the reason; None after an error, Ctrl-C or divergence.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state to save in checkpoints, as JSON data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""


_HOOKS = [name for name in vars(Callback) if name.startswith("on_")]


@runtime_checkable
class Adaptable(Protocol):
    """A callback of another API that can be converted for the trainer."""

    def to_trainer(self) -> Callback:
        """This callback as a callback of the trainer.

        Raises:
            UsageError: It needs something that the trainer does not have.
        """


def as_callbacks(values: Sequence[Callback | Adaptable]) -> list[Callback]:
    """Convert callbacks of any API to callbacks of the trainer.

    Raises:
        ArgumentTypeError: A value is not a callback, or has a hook of an unknown name.
        UsageError: A callback needs something that the trainer does not have.
    """
    found: list[Callback] = []
    for value in values:
        if not isinstance(value, Callback | Adaptable) or isinstance(value, type):
            given = f"class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise ArgumentTypeError(
                f"Not a callback: {given}.",
                where="callbacks",
                fix="Pass instances of a subclass of ortboost.training.Callback.",
            )
        callback = value if isinstance(value, Callback) else value.to_trainer()
        kind = type(callback)
        for name in dir(kind):
            if name.startswith("on_") and callable(getattr(kind, name)):  # it is never called
                where = f"callbacks, {kind.__name__}"
                require_known(name, _HOOKS, f"There is no hook '{name}'.", where, ArgumentTypeError)
        found.append(callback)
    return found


@dataclass(frozen=True)
class Goal:
    """The metric to monitor, and when a value counts as an improvement.

    Args:
        monitor: The metric: ``val_loss``, ``val_accuracy``, ``train_loss``, ...
        mode: "min", "max", or "auto": "max" for metrics of which more is better (accuracies,
            ``topK``, ``f1``, ...), "min" otherwise.
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
            return is_rising(self.monitor)
        return self.mode == "max"

    def better(self, value: float, best: float | None) -> bool:
        """Whether ``value`` improves on ``best``, or on None; NaN and infinity never do."""
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        gain = value - best if self.rising else best - value
        return gain > self.min_delta

    def read(self, metrics: Mapping[str, float], every: Mapping[str, float]) -> float | None:
        """The monitored value if this event has it.

        ``every`` are all metrics of the run so far, for the error message.

        Raises:
            UsageError: The metric does not exist after a whole epoch.
        """
        if self.monitor in metrics:
            return metrics[self.monitor]
        # The means over an epoch (train_...) come last: by now every metric is known.
        if any(name.startswith("train_") for name in metrics):
            what = f"Unknown metric '{self.monitor}' to monitor."
            require_known(self.monitor, every, what, "callbacks")
        return None


@dataclass
class Patience:
    """How long a metric may go without improving.

    Args:
        goal: The metric and its direction.
        patience: Consecutive values without improvement before the run is stopped.
        best: The best value so far, or the value to improve on; None before the first.
        waited: Number of values since then.

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
        """Record a value; returns whether it is the best so far. NaN never is."""
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
    """Base of the callbacks below, which monitor a metric and record its best value."""

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
        return {
            "monitor": self.goal.monitor,
            "best": self.best,
            "best_step": self.best_step,
            "waited": self._seen.waited,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`; that of another metric is ignored."""
        # Older versions did not write the metric, nor the number of values for the best model.
        if state.get("monitor", self.goal.monitor) == self.goal.monitor:
            self._seen.best, self.best_step = state["best"], int(state["best_step"])
            self._seen.waited = int(state.get("waited", 0))


class EarlyStopping(_Monitoring):
    """Stop when the monitored metric has not improved for ``patience`` evaluations.

    Args:
        goal: The metric and its direction.
        patience: Validations (epochs for ``train_...``) without improvement before stopping.
        baseline: A value that the first one must improve on, if any.

    Raises:
        ConfigError: ``patience`` is below 1.
    """

    def __init__(
        self, goal: Goal | None = None, patience: int = 5, baseline: float | None = None
    ) -> None:
        super().__init__(goal, patience, baseline)

    @property
    def patience(self) -> int:
        """Consecutive values without improvement before stopping."""
        return self._seen.patience

    @property
    def waited(self) -> int:
        """Number of values since the best one."""
        return self._seen.waited

    def on_train_begin(self, run: RunView) -> None:
        """A run that had stopped early stops again at once, unless its patience was raised."""
        self._stop_if_due(run)

    def _judge(self, run: RunView, improved: bool) -> None:
        self._stop_if_due(run)

    def _stop_if_due(self, run: RunView) -> None:
        if not self._seen.spent:
            return
        waited = count_of(self.waited, "validation")
        if self.best is None:  # NaN beats nothing
            run.stop(f"early stop: {self.goal.monitor} was NaN in all of {waited}")
        else:
            run.stop(
                f"early stop: no better {self.goal.monitor} than {self.best:.6g} "
                f"(step {self.best_step}) in {waited}"
            )


class BestModel(_Monitoring):
    """Keep the state with the best value of a metric as the checkpoint ``best``.

    Example:
        ``Trainer(..., callbacks=[BestModel(Goal("val_accuracy"))])``, then ``store.best()``.
    """

    def __init__(self, goal: Goal | None = None) -> None:
        super().__init__(goal, patience=1)

    def _judge(self, run: RunView, improved: bool) -> None:
        run.keep_best = run.keep_best or improved
