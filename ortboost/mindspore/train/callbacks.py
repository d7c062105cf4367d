"""The standard callbacks of :class:`ortboost.Model`, with MindSpore's API."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np

from ortboost import training
from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import ArgumentValueError, Count, CountOrZero
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.train.callback import Callback
from ortboost.mindspore.train.model_checkpoint import CheckpointConfig, ModelCheckpoint
from ortboost.mindspore.train.run_context import CallbackParam, RunContext
from ortboost.training.callbacks import Goal, Patience

__all__ = [
    "Callback",
    "CheckpointConfig",
    "EarlyStopping",
    "LossMonitor",
    "ModelCheckpoint",
    "RunContext",
    "TimeMonitor",
]

_MINIMIZED: Final = frozenset(
    {
        "hausdorff_distance",
        "loss",
        "mae",
        "mean_surface_distance",
        "mse",
        "perplexity",
        "root_mean_square_distance",
    }
)


class LossMonitor(Callback):
    """Print the loss of a step.

    A non-finite loss of a step that was *not* skipped stops the run. (MindSpore also stops at the
    overflow of a skipped step, from which a dynamic scale recovers.)

    Args:
        per_print_times: Print every this many steps; 0 for never.

    Example:
        >>> model.train(1, batches, callbacks=LossMonitor(100))  # doctest: +SKIP
        epoch: 1 step: 100, loss is 0.4123
    """

    @checked
    def __init__(self, per_print_times: CountOrZero = 1) -> None:
        self._per_print_times = per_print_times
        self._last_print_time = 0

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Print the loss, or stop the run."""
        args = run_context.original_args()
        loss = _loss_of(args.net_outputs)
        if not math.isfinite(loss) and not _skipped(args.net_outputs):
            raise ArgumentValueError(
                f"The loss is {loss}.",
                where=f"epoch {args.cur_epoch_num}, step {args.cur_step_in_epoch}",
                fix="Lower the learning rate, or look for NaN in the data.",
            )
        if args.cur_step_num < self._last_print_time:  # a new run
            self._last_print_time = 0
        passed = args.cur_step_num - self._last_print_time
        if self._per_print_times and passed >= self._per_print_times:
            self._last_print_time = args.cur_step_num
            print(  # the purpose of the callback
                f"epoch: {args.cur_epoch_num} step: {args.cur_step_in_epoch}, loss is {loss}",
                flush=True,
            )


class TimeMonitor(Callback):
    """Print the time per epoch of training and per step, in milliseconds.

    Args:
        data_size: Steps per epoch; counted if not given.
        data_time: Print the time per step that was spent on waiting for data, too.

    Example:
        >>> model.train(1, batches, callbacks=TimeMonitor())  # doctest: +SKIP
        Train epoch time: 512.301 ms, per step time: 5.123 ms
    """

    @checked
    def __init__(self, data_size: Count | None = None, data_time: bool = False) -> None:
        self.data_size = data_size
        self.data_time = data_time
        self._started = self._waiting_since = self._waited = 0.0

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Start the clock."""
        self._started = self._waiting_since = time.perf_counter()
        self._waited = 0.0

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Add the time since the last step."""
        self._waited += time.perf_counter() - self._waiting_since

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Start the clock of the data."""
        self._waiting_since = time.perf_counter()

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print the times."""
        args = run_context.original_args()
        spent = (time.perf_counter() - self._started) * 1000
        steps = self.data_size or args.cur_step_in_epoch or 1
        line = f"Train epoch time: {spent:.3f} ms, per step time: {spent / steps:.3f} ms"
        if self.data_time:
            line += f" (data time: {self._waited * 1000 / steps:.3f} ms)"
        print(line, flush=True)


class EarlyStopping(Callback):
    """Stop when a metric no longer improves.

    Args:
        monitor: ``eval_loss`` or a metric of the model (both need a validation in ``Model.fit``),
            or ``loss``, the loss of the last step of the epoch.
        min_delta: Minimum change that counts as an improvement, 0 or more.
        patience: Epochs without improvement before the run is stopped; 0 is like 1. (MindSpore
            then stops after the first epoch, even if the metric improves.)
        verbose: Print when it stops.
        mode: ``min``, ``max``, or ``auto``: ``min`` for losses, errors and the other metrics that
            MindSpore minimizes, ``max`` for all others.
        baseline: Value that the metric must improve on.
        restore_best_weights: Restore the weights of the best epoch when it stops.

    Example:
        >>> callback = EarlyStopping("eval_loss", patience=3, restore_best_weights=True)
        >>> model.fit(20, batches, held_out, callbacks=callback)  # doctest: +SKIP
    """

    @checked
    def __init__(
        self,
        monitor: str = "eval_loss",
        min_delta: float = 0,
        patience: CountOrZero = 0,
        verbose: bool = False,
        mode: Literal["auto", "min", "max"] = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
    ) -> None:
        self.monitor, self.patience, self.verbose = monitor, patience, verbose
        self.baseline, self.restore_best_weights = baseline, restore_best_weights
        name = monitor.removeprefix("eval_")
        falling = name in _MINIMIZED or "loss" in name or "error" in name
        self._mode: Literal["min", "max"] = mode if mode != "auto" else "min" if falling else "max"
        self._min_delta = abs(min_delta)
        self._seen, self._best = self._fresh(self.baseline), self._fresh(None)
        self._weights: dict[str, Any] = {}
        self._available = False  # whether the metric was ever seen

    def on_train_begin(self, run_context: RunContext) -> None:
        """Reset the state."""
        self._seen, self._best = self._fresh(self.baseline), self._fresh(None)
        self._weights, self._available = {}, False

    def on_train_end(self, run_context: RunContext) -> None:
        """Warn if there was nothing to watch."""
        if not self._available:
            warnings.warn(
                f"EarlyStopping watched nothing: there was no validation with '{self.monitor}'; "
                "give Model.fit a valid_dataset, or watch 'loss'",
                stacklevel=2,
            )

    def _fresh(self, best: float | None) -> Patience:
        goal = Goal(self.monitor, self._mode, self._min_delta)
        return Patience(goal, max(self.patience, 1), best)

    def to_trainer(self) -> training.EarlyStopping:
        """Convert to the callback of :func:`ortboost.train`, where ``loss`` is the epoch mean.

        Raises:
            ArgumentValueError: ``restore_best_weights`` is True.
        """
        if self.restore_best_weights:
            raise ArgumentValueError(
                "The trainer of a program does not restore weights in the middle of a run.",
                where="EarlyStopping, restore_best_weights",
                fix="Leave it out: the best weights are kept as the checkpoint 'best', which "
                "evaluate and export use.",
            )
        name = self.monitor.removeprefix("eval_")
        monitor = "train_loss" if self.monitor == "loss" else f"val_{name}"
        monitor = {"val_acc": "val_accuracy"}.get(monitor, monitor)
        goal = Goal(monitor, self._mode, self._min_delta)
        return training.EarlyStopping(goal, max(self.patience, 1), self.baseline)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Check the metric, and stop if patience is exhausted."""
        args = run_context.original_args()
        value = self._value(args)
        if value is None:
            return
        self._available = True
        network: Network = args.network
        # The best weights are also kept if none improves on the baseline.
        if self._best.look(value) and self.restore_best_weights:
            self._weights = {p.name: p.asnumpy() for p in network.get_parameters()}
        if not self._seen.look(value) and self._seen.spent:
            run_context.request_stop()
            if self.verbose:
                print(f"Epoch {args.cur_epoch_num}: early stopping, {self.monitor} is {value}")
            for parameter in network.get_parameters() if self._weights else ():
                parameter.set_data(self._weights[parameter.name])

    def _value(self, args: CallbackParam) -> float | None:
        if self.monitor == "loss":
            return _loss_of(args.net_outputs)
        results: Mapping[str, float] = args.get("eval_results") or {}
        if not results:
            return None  # no validation in this epoch
        for name in (self.monitor, self.monitor.removeprefix("eval_")):
            if name in results:
                return float(results[name])
        raise ArgumentValueError(
            f"'{self.monitor}' is not available.",
            where="EarlyStopping, monitor",
            fix=f"Give one of loss, {', '.join(results)}.",
        )


def _loss_of(outputs: Any) -> float:
    """The loss of a step; the mean for the reduction ``none``."""
    loss = outputs[0] if isinstance(outputs, tuple) else outputs
    return float(np.mean(np.asarray(loss)))


def _skipped(outputs: Any) -> bool:
    return isinstance(outputs, tuple) and len(outputs) > 1 and bool(np.any(np.asarray(outputs[1])))
