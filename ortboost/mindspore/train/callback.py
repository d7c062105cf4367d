"""The callback interface of :class:`ortboost.Model`, as in MindSpore."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from ortboost import training
from ortboost.mindspore.core.arguments import ArgumentTypeError
from ortboost.mindspore.train.adapter import TrainerAdapter
from ortboost.mindspore.train.run_context import RunContext

__all__ = ["Callback", "as_callbacks", "call_all", "entered"]


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
        return TrainerAdapter(self, Callback)

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
