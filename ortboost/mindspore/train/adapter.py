"""Adapt callbacks with MindSpore's interface to :func:`ortboost.train`.

Their ``on_train_*`` methods are called as in ``Model.train``, with ``cur_epoch_num``,
``cur_step_num``, ``cur_step_in_epoch``, ``epoch_num``, ``batch_num``, ``net_outputs`` (loss,
overflow, loss scale), ``mode`` and, after a validation, ``eval_results``. Parameters that only
``Model`` has (``network``, ``optimizer``, the data sets) raise an error that says so. Of the
``on_eval_*`` methods only an overridden ``on_eval_end`` is called: the short names (``begin``,
``step_end``) refer to training only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ortboost import training
from ortboost.core.errors import UsageError
from ortboost.mindspore.core.arguments import ArgumentValueError
from ortboost.mindspore.train.run_context import CallbackParam, RunContext

__all__ = ["NotInTrainerError", "TrainerAdapter"]

_NEVER: Final = (
    "__enter__",
    "__exit__",
    "on_eval_begin",
    "on_eval_epoch_begin",
    "on_eval_step_begin",
    "on_eval_step_end",
    "on_eval_epoch_end",
)
_EVAL_END: Final = "on_eval_end"


class NotInTrainerError(UsageError, AttributeError):
    """A parameter of ``Model`` that the trainer of a program does not have."""


class _Parameters(CallbackParam):
    """The parameters of the run; missing ones raise an error with advice."""

    def __getattr__(self, name: str) -> Any:
        if name in self or name.startswith("__"):
            return super().__getattr__(name)
        raise NotInTrainerError(
            f"The run of a program has no '{name}' for a callback.",
            where=f"original_args().{name}",
            fix=f"It has {', '.join(self)}; a callback that needs more is for ortboost.Model.",
        )


class TrainerAdapter(training.Callback):
    """A callback for the trainer that calls one with MindSpore's interface.

    Args:
        callback: The callback.
        base: The base class of callbacks; what it defines does nothing.

    Raises:
        ArgumentValueError: It overrides a method that the trainer never calls.
    """

    def __init__(self, callback: object, base: type[object]) -> None:
        self.callback = callback
        self._validates = getattr(type(callback), _EVAL_END) is not getattr(base, _EVAL_END)
        for method in _NEVER:
            if getattr(type(callback), method) is not getattr(base, method):
                raise ArgumentValueError(
                    f"The trainer of a program never calls '{method}'.",
                    where=f"callbacks, {type(callback).__name__}",
                    fix="Use on_train_begin, on_train_end or on_eval_end, or train with "
                    "ortboost.Model.",
                )
        self._args = _Parameters(mode="train")
        self._context = RunContext(self._args)

    @property
    def name(self) -> str:
        """The class name with the prefix ``mindspore.``."""
        return f"mindspore.{type(self.callback).__name__}"

    def on_train_begin(self, run: training.RunView) -> None:
        """Before the first step."""
        self._args |= {
            "epoch_num": run.epochs,
            "batch_num": run.steps_per_epoch or 0,
            "cur_epoch_num": run.epoch,
            "cur_step_num": run.step,
            "cur_step_in_epoch": run.batch,
            "net_outputs": None,
            "eval_results": {},
        }
        self._call("on_train_begin", run)

    def on_epoch_begin(self, run: training.RunView) -> None:
        """Before an epoch."""
        self._args |= {
            "cur_epoch_num": run.epoch + 1,
            "cur_step_in_epoch": run.batch,
            "eval_results": {},
        }
        self._call("on_train_epoch_begin", run)

    def on_step_begin(self, run: training.RunView) -> None:
        """Before a step; its number is already set, as in ``Model``."""
        self._args |= {"cur_step_num": run.step + 1, "cur_step_in_epoch": run.batch + 1}
        self._call("on_train_step_begin", run)

    def on_step_end(self, run: training.RunView, result: training.StepResult) -> None:
        """After a step."""
        self._args.net_outputs = (
            np.float32(result.loss),
            np.bool_(result.overflow),
            np.float32(result.loss_scale),
        )
        self._call("on_train_step_end", run)

    def on_validation_end(self, run: training.RunView, metrics: Mapping[str, float]) -> None:
        """After a validation."""
        self._args.eval_results = {
            name.removeprefix("val_"): value for name, value in metrics.items()
        }
        if self._validates:
            self._call(_EVAL_END, run)

    def on_epoch_end(self, run: training.RunView, metrics: Mapping[str, float]) -> None:
        """After an epoch and its validation."""
        self._call("on_train_epoch_end", run)

    def on_train_end(self, run: training.RunView) -> None:
        """After the last step."""
        self._call("on_train_end", run)

    def _call(self, method: str, run: training.RunView) -> None:
        getattr(self.callback, method)(self._context)
        if self._context.get_stop_requested():
            run.stop(f"stopped by {type(self.callback).__name__}")
