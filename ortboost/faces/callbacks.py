"""Callbacks of :class:`ortboost.Model` under MindSpore's names.

A callback's methods get a :class:`RunContext`; ``run_context.original_args()`` holds, as attributes:
``epoch_num``, ``batch_num`` (steps in an epoch, 0 if not known), ``cur_epoch_num`` and
``cur_step_num`` (from 1), ``cur_step_in_epoch``, ``network``, ``train_network``, ``loss_fn``,
``optimizer``, ``net_outputs``, ``train_dataset``, ``train_dataset_element``, ``mode``; in
validation also ``valid_dataset``, ``metrics`` and, after it, ``eval_results``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortboost.faces.arguments import ArgumentTypeError, ArgumentValueError, check_range, check_type
from ortboost.network import Network
from ortboost.faces.serialization import save_checkpoint

__all__ = [
    "Callback",
    "CallbackParam",
    "CheckpointConfig",
    "EarlyStopping",
    "LossMonitor",
    "ModelCheckpoint",
    "RunContext",
    "TimeMonitor",
    "as_callbacks",
    "call_all",
]


class CallbackParam(dict[str, Any]):
    """A dict whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class RunContext:
    """What a callback is told, and how it stops the run.

    Args:
        original_args: The parameters of the run.
    """

    def __init__(self, original_args: Mapping[str, Any]) -> None:
        self._original_args = (
            original_args
            if isinstance(original_args, CallbackParam)
            else CallbackParam(original_args)
        )
        self._stop = False

    def original_args(self) -> CallbackParam:
        """The parameters of the run; see the module."""
        return self._original_args

    def request_stop(self) -> None:
        """Stop after this step."""
        self._stop = True

    def get_stop_requested(self) -> bool:
        """Whether a stop was asked for."""
        return self._stop


class Callback:
    """Base of the callbacks; override what is needed.

    The ``on_train_*`` and ``on_eval_*`` methods call the short ones (``begin``, ``epoch_begin``,
    ``step_begin``, ``step_end``, ``epoch_end``, ``end``) unless overridden.
    """

    def begin(self, run_context: RunContext) -> None:
        """Before everything."""

    def epoch_begin(self, run_context: RunContext) -> None:
        """Before an epoch."""

    def step_begin(self, run_context: RunContext) -> None:
        """Before a step."""

    def step_end(self, run_context: RunContext) -> None:
        """After a step."""

    def epoch_end(self, run_context: RunContext) -> None:
        """After an epoch."""

    def end(self, run_context: RunContext) -> None:
        """After everything."""

    def on_train_begin(self, run_context: RunContext) -> None:
        """Before training."""
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Before an epoch of training."""
        self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Before a step of training."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """After a step of training."""
        self.step_end(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """After an epoch of training."""
        self.epoch_end(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """After training."""
        self.end(run_context)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Before validation."""
        self.begin(run_context)

    def on_eval_epoch_begin(self, run_context: RunContext) -> None:
        """Before the pass of validation."""
        self.epoch_begin(run_context)

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        """Before a batch of validation."""
        self.step_begin(run_context)

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """After a batch of validation."""
        self.step_end(run_context)

    def on_eval_epoch_end(self, run_context: RunContext) -> None:
        """After the pass of validation."""
        self.epoch_end(run_context)

    def on_eval_end(self, run_context: RunContext) -> None:
        """After validation."""
        self.end(run_context)


def as_callbacks(value: Any) -> list[Callback]:
    """Callbacks as a list.

    Raises:
        ArgumentTypeError: Something is no callback.
    """
    items = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    for item in items:
        if not isinstance(item, Callback):
            raise ArgumentTypeError(
                f"A {type(item).__name__} is no callback.",
                where="callbacks",
                fix="Give a Callback or a list of them.",
            )
    return items


class LossMonitor(Callback):
    """Print the loss of a step.

    It stops the run when the loss of a step that was *not* skipped is not finite. (MindSpore also
    stops at the overflow of a skipped step, from which a dynamic scale recovers.)

    Args:
        per_print_times: Print at every so many steps; 0 never.

    Raises:
        ArgumentTypeError, ArgumentValueError: It is no int, or below 0.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        check_type("LossMonitor", "per_print_times", per_print_times, int)
        check_range("LossMonitor", "per_print_times", per_print_times, 0)
        self._per_print_times = per_print_times
        self._last_print_time = 0

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Print, or stop."""
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
            print(  # what the callback is for
                f"epoch: {args.cur_epoch_num} step: {args.cur_step_in_epoch}, loss is {loss}",
                flush=True,
            )


class TimeMonitor(Callback):
    """Print the time of an epoch and of a step, in milliseconds.

    Args:
        data_size: Steps in an epoch; counted if not given.
    """

    def __init__(self, data_size: int | None = None) -> None:
        if data_size is not None:
            check_type("TimeMonitor", "data_size", data_size, int)
            check_range("TimeMonitor", "data_size", data_size, 1)
        self.data_size = data_size
        self._started = 0.0

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print."""
        args = run_context.original_args()
        spent = (time.perf_counter() - self._started) * 1000
        steps = self.data_size or args.cur_step_in_epoch or 1
        print(
            f"Train epoch time: {spent:.3f} ms, per step time: {spent / steps:.3f} ms", flush=True
        )


class CheckpointConfig:
    """When :class:`ModelCheckpoint` saves, and how many files it keeps.

    Args:
        save_checkpoint_steps: Save at every so many steps; 0 goes by seconds.
        save_checkpoint_seconds: Save after so many seconds, if above 0 and steps are 0.
        keep_checkpoint_max: The oldest files beyond this number are removed; 0 keeps all.

    Raises:
        ArgumentTypeError, ArgumentValueError: An argument is no int, or below 0.
    """

    def __init__(
        self,
        save_checkpoint_steps: int = 1,
        save_checkpoint_seconds: int = 0,
        keep_checkpoint_max: int = 5,
    ) -> None:
        for name, value in (
            ("save_checkpoint_steps", save_checkpoint_steps),
            ("save_checkpoint_seconds", save_checkpoint_seconds),
            ("keep_checkpoint_max", keep_checkpoint_max),
        ):
            check_type("CheckpointConfig", name, value, int)
            check_range("CheckpointConfig", name, value, 0)
        self.save_checkpoint_steps = save_checkpoint_steps
        self.save_checkpoint_seconds = save_checkpoint_seconds
        self.keep_checkpoint_max = keep_checkpoint_max


class ModelCheckpoint(Callback):
    """Save the weights as ``<directory>/<prefix>-<epoch>_<step>.safetensors``.

    Args:
        prefix: Start of the names.
        directory: Folder; made if missing, the present one if not given.
        config: When to save.

    Raises:
        ArgumentTypeError: ``config`` is no CheckpointConfig.
        ArgumentValueError: ``prefix`` is no text, or holds a '/'.
    """

    def __init__(
        self,
        prefix: str = "CKP",
        directory: str | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        if not isinstance(prefix, str) or "/" in prefix or not prefix:
            raise ArgumentValueError(
                f"'prefix' is {prefix!r}.", where="ModelCheckpoint", fix="Give a short text."
            )
        if config is not None:
            check_type("ModelCheckpoint", "config", config, CheckpointConfig)
        self._prefix, self._directory = prefix, Path(directory or ".")
        self._config = config or CheckpointConfig()
        self._last_step, self._last_time = 0, 0.0
        self._files: list[Path] = []

    @property
    def latest_ckpt_file_name(self) -> str:
        """The newest file; empty before the first."""
        return str(self._files[-1]) if self._files else ""

    def on_train_begin(self, run_context: RunContext) -> None:
        """Make the folder."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._last_step = run_context.original_args().cur_step_num
        self._last_time = time.monotonic()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Save if it is time."""
        args, config = run_context.original_args(), self._config
        if config.save_checkpoint_steps:
            due = args.cur_step_num - self._last_step >= config.save_checkpoint_steps
        else:
            passed = time.monotonic() - self._last_time
            due = 0 < config.save_checkpoint_seconds <= passed
        if due:
            self._save(args)

    def on_train_end(self, run_context: RunContext) -> None:
        """Save the last state, unless that was just done."""
        args = run_context.original_args()
        if args.cur_step_num != self._last_step:
            self._save(args)

    def _save(self, args: CallbackParam) -> None:
        name = f"{self._prefix}-{args.cur_epoch_num}_{args.cur_step_in_epoch}"
        path = save_checkpoint(args.network, self._directory / f"{name}.safetensors")
        self._last_step, self._last_time = args.cur_step_num, time.monotonic()
        self._files = [file for file in self._files if file != path] + [path]
        keep = self._config.keep_checkpoint_max
        while keep and len(self._files) > keep:
            self._files.pop(0).unlink(missing_ok=True)


class EarlyStopping(Callback):
    """Stop when a number no longer improves.

    Args:
        monitor: ``eval_loss`` or a metric of the model (both need a validation in ``Model.fit``),
            or ``loss``, the loss of the last step of the epoch.
        min_delta: Less than this is no improvement, 0 or more.
        patience: Epochs without improvement that are endured.
        verbose: Print when it stops.
        mode: ``min``, ``max``, or ``auto``: max if ``acc`` is part of the name.
        baseline: The number must be better than this.
        restore_best_weights: Put the weights of the best epoch back when it stops.

    Raises:
        ArgumentTypeError, ArgumentValueError: As documented by MindSpore.
    """

    def __init__(
        self,
        monitor: str = "eval_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: bool = False,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
    ) -> None:
        owner = "EarlyStopping"
        check_type(owner, "monitor", monitor, str)
        check_type(owner, "min_delta", min_delta, float, int)
        check_type(owner, "patience", patience, int)
        check_range(owner, "patience", patience, 0)
        check_type(owner, "verbose", verbose, bool)
        check_type(owner, "restore_best_weights", restore_best_weights, bool)
        if mode not in ("auto", "min", "max"):
            raise ArgumentValueError(
                f"'mode' is {mode!r}.", where=owner, fix="Give 'auto', 'min' or 'max'."
            )
        if baseline is not None:
            check_type(owner, "baseline", baseline, float, int)
        self.monitor, self.patience, self.verbose = monitor, patience, verbose
        self.baseline, self.restore_best_weights = baseline, restore_best_weights
        largest = mode == "max" or (mode == "auto" and "acc" in monitor)
        self._sign = 1.0 if largest else -1.0
        self._min_delta = abs(min_delta)
        self._best = -math.inf
        self._wait = 0
        self._weights: dict[str, Any] = {}

    def on_train_begin(self, run_context: RunContext) -> None:
        """Start anew."""
        self._best = -math.inf if self.baseline is None else self._sign * self.baseline
        self._wait, self._weights = 0, {}

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Look at the number, and stop if it is time."""
        args = run_context.original_args()
        value = self._value(args)
        if value is None:
            return
        network: Network = args.network
        if self._sign * value > self._best + self._min_delta:
            self._best, self._wait = self._sign * value, 0
            if self.restore_best_weights:
                self._weights = {p.name: p.asnumpy() for p in network.get_parameters()}
            return
        self._wait += 1
        if self._wait >= max(self.patience, 1):
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
            f"There is no '{self.monitor}' to watch.",
            where="EarlyStopping, monitor",
            fix=f"Give one of loss, {', '.join(results)}; eval_loss needs the metric 'loss'.",
        )


def call_all(callbacks: Sequence[Callback], method: str, run_context: RunContext) -> None:
    """Call one method of every callback."""
    for callback in callbacks:
        function: Callable[[RunContext], None] = getattr(callback, method)
        function(run_context)


def _loss_of(outputs: Any) -> float:
    """The loss of a step; the mean where the reduction is ``none``."""
    loss = outputs[0] if isinstance(outputs, tuple) else outputs
    return float(np.mean(np.asarray(loss)))


def _skipped(outputs: Any) -> bool:
    return isinstance(outputs, tuple) and len(outputs) > 1 and bool(np.any(np.asarray(outputs[1])))
