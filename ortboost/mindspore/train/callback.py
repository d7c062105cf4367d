"""The callback interface of :class:`ortboost.Model`, as in MindSpore.

A callback's methods receive a :class:`RunContext`; ``run_context.original_args()`` has the
attributes ``epoch_num``, ``batch_num`` (steps per epoch, 0 if unknown), ``cur_epoch_num`` and
``cur_step_num`` (from 1), ``cur_step_in_epoch``, ``network``, ``train_network``, ``loss_fn``,
``optimizer``, ``net_outputs``, ``train_dataset``, ``train_dataset_element``, ``mode``,
``parallel_mode``, ``device_number``; in validation also ``eval_network``, ``valid_dataset``,
``eval_dataset_element`` and, after it, the results as ``metrics`` and, with ``eval_loss``,
``eval_results``. ``Model.eval`` has none of those of training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ortboost import training
from ortboost.mindspore.core.arguments import ArgumentTypeError

__all__ = ["Callback", "CallbackParam", "RunContext", "as_callbacks", "call_all", "entered"]


class CallbackParam(dict[str, Any]):
    """A dict whose items are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class RunContext:
    """The information for a callback, and its means to stop the run.

    Args:
        original_args: The parameters of the run.

    Example:
        >>> context = RunContext({"cur_step_num": 3})
        >>> context.request_stop()
        >>> context.original_args().cur_step_num, context.get_stop_requested()
        (3, True)
    """

    def __init__(self, original_args: Mapping[str, Any]) -> None:
        if not isinstance(original_args, CallbackParam):
            original_args = CallbackParam(original_args)
        self._original_args = original_args
        self._stop = False

    def original_args(self) -> CallbackParam:
        """The parameters of the run; see the module docstring."""
        return self._original_args

    def request_stop(self) -> None:
        """Request to stop after this step."""
        self._stop = True

    def get_stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return self._stop


class Callback:
    """Base class of the callbacks; override methods as needed.

    The ``on_train_*`` and ``on_eval_*`` methods call the short ones (``begin``, ``epoch_begin``,
    ``step_begin``, ``step_end``, ``epoch_end``, ``end``) unless overridden.

    Example:
        >>> class Count(Callback):
        ...     steps = 0
        ...
        ...     def step_end(self, run_context):
        ...         self.steps = run_context.original_args().cur_step_num
    """

    def to_trainer(self) -> training.Callback:
        """Adapt it to :func:`ortboost.train`; see :mod:`ortboost.mindspore.train.adapter`.

        Raises:
            ArgumentValueError: It has a method that the trainer never calls.
        """
        from ortboost.mindspore.train.adapter import TrainerAdapter  # it imports this class

        return TrainerAdapter(self)

    def __enter__(self) -> Callback:
        """Acquire resources for a run; the default is nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release them, also after an error."""

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
    """Convert callbacks to a list."""
    items = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    for item in items:
        if not isinstance(item, Callback):
            raise ArgumentTypeError(
                f"A {type(item).__name__} is not a callback.",
                where="callbacks",
                fix="Give a Callback or a list of them.",
            )
    return items


@contextlib.contextmanager
def entered(value: Any) -> Iterator[list[Callback]]:
    """Enter the callbacks, which are context managers, for a run.

    Raises:
        ArgumentTypeError: An item is not a callback.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(callback) for callback in as_callbacks(value)]


def call_all(callbacks: Sequence[Callback], method: str, run_context: RunContext) -> None:
    """Call one method of every callback."""
    for callback in callbacks:
        getattr(callback, method)(run_context)
