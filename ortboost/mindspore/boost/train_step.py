"""``BoostTrainOneStepCell`` and ``BoostTrainOneStepWithLossScaleCell``: training steps with boosts.

The optimizer defines the boosts: an :class:`ortboost.mindspore.boost.FreezeOpt`, or a
:class:`ortboost.mindspore.boost.GradientAccumulation` around it or around a plain one. (MindSpore's
cells read a singleton of ``AutoBoost``; here two cells of one process can differ.) The order is
that of :mod:`ortboost.boosts.table`: the freeze selects the gradients, the window sums them, and
the optimizer uses their mean.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ortboost.mindspore.boost.auto_boost import warn_of_unused
from ortboost.mindspore.boost.freeze_opt import FreezeOpt
from ortboost.mindspore.core.arguments import ArgumentValueError, NotInThisVersionError
from ortboost.mindspore.nn.compiled import CompiledSteps
from ortboost.mindspore.nn.train_step import TrainOneStepCell, TrainOneStepWithLossScaleCell
from ortboost.mindspore.nn.updates import OptimizerWrapper

__all__ = ["BoostTrainOneStepCell", "BoostTrainOneStepWithLossScaleCell"]


class _Boosts:
    """Common base of both cells: the boosts, and MindSpore's methods for each."""

    # of the other base class of each cell
    optimizer: Any
    construct: Any
    _steps: CompiledSteps

    @property
    def freeze(self) -> bool:
        """Whether groups of parameters are trained in turns."""
        return self._steps.freeze is not None

    @property
    def train_strategy(self) -> list[int] | None:
        """The group of each update, if the optimizer has a strategy."""
        optimizer = self.optimizer
        while isinstance(optimizer, OptimizerWrapper) and not isinstance(optimizer, FreezeOpt):
            optimizer = optimizer.optimizer
        return optimizer.train_strategy if isinstance(optimizer, FreezeOpt) else None

    @property
    def use_grad_accumulation(self) -> bool:
        """Whether an update accumulates several steps."""
        return self._steps.accumulate > 1

    @property
    def max_accumulation_step(self) -> int:
        """Steps per update."""
        return self._steps.accumulate

    @property
    def enable_adasum(self) -> bool:
        """See :meth:`check_adasum_enable`."""
        return self.check_adasum_enable()

    @property
    def enable_dim_reduce(self) -> bool:
        """See :meth:`check_dim_reduce_enable`."""
        return self.check_dim_reduce_enable()

    def check_adasum_enable(self) -> bool:
        """Whether AdaSum combines the updates of several servers: always False here."""
        return False

    def check_dim_reduce_enable(self) -> bool:
        """Whether the optimizer is a :class:`DimReduce`, so that steps are taken in a subspace."""
        return self._steps.line_search is not None

    def gradient_freeze_process(self, *inputs: Any) -> Any:
        """Run one step of a cell with gradient freeze; equivalent to calling it.

        Args:
            *inputs: Data of each input, then the labels.

        Raises:
            ArgumentValueError: Nothing is frozen.
        """
        self._require(self.freeze, "freezes", "gradient_freeze_process", "FreezeOpt")
        return self.construct(*inputs)

    def gradient_accumulation_process(self, loss: Any, grads: Any, sens: Any, *inputs: Any) -> Any:
        """Run one step of a window of accumulation; equivalent to calling the cell.

        Args:
            loss: Ignored: the step computes it.
            grads: Must be ``None``: gradients are computed in the graph and cannot be replaced.
            sens: ``None``, or the ``sens`` of the cell.
            *inputs: Data of each input, then the labels.

        Raises:
            ArgumentValueError: Nothing is accumulated.
            NotInThisVersionError: Gradients were given, or another ``sens``.
        """
        on, method = self.use_grad_accumulation, "gradient_accumulation_process"
        self._require(on, "accumulates", method, "GradientAccumulation")
        own = getattr(self, "sens", None)
        other_sens = sens is not None and (own is None or np.any(np.asarray(sens) != own))
        if grads is not None or other_sens:
            raise NotInThisVersionError(
                "Gradients are computed in the graph, with the loss scale of the cell."
                if grads is not None
                else f"sens is {sens}; that of the cell is "
                f"{'its loss scale' if own is None else own}.",
                where=f"{type(self).__name__}.{method}, {'grads' if grads is not None else 'sens'}",
                fix="Give None, or call the cell itself: step(data, label).",
            )
        return self.construct(*inputs)

    def adasum_process(self, *args: Any) -> NoReturn:
        """Not supported in this version.

        Raises:
            NotInThisVersionError: Always.
        """
        raise NotInThisVersionError(
            "AdaSum is not in this version of training cells.",
            where=f"{type(self).__name__}.adasum_process",
            fix="Call the cell itself; boost.AdaSum combines updates in a loop of your own.",
        )

    def flush(self) -> bool:
        """Update with an incomplete window of accumulation, as the mean of its steps.

        Returns:
            Whether there was anything to apply.

        Raises:
            ArgumentRuntimeError: The list of learning rates has ended.
        """
        return self._steps.flush()

    def _require(self, on: bool, verb: str, method: str, kind: str) -> None:
        if not on:
            raise ArgumentValueError(
                f"The optimizer {verb} nothing.",
                where=f"{type(self).__name__}.{method}",
                fix=f"Make the cell with a {kind}.",
            )


class BoostTrainOneStepCell(_Boosts, TrainOneStepCell):
    """A training step with boosts, without a finite check.

    It always returns the loss of the batch before the update. (MindSpore's returns nothing if
    ``sens`` is not given, and its documentation promises a tuple.)

    Args:
        network: A :class:`ortboost.mindspore.nn.WithLossCell`, or a network whose only output is
            its loss.
        optimizer: An optimizer, a :class:`ortboost.mindspore.boost.FreezeOpt` or a
            :class:`ortboost.mindspore.boost.GradientAccumulation`.
        sens: See :class:`ortboost.mindspore.nn.TrainOneStepCell`.

    Example:
        >>> opt = GradientAccumulation(4, opt)  # doctest: +SKIP
        >>> step = BoostTrainOneStepCell(net_with_loss, opt)  # doctest: +SKIP
        >>> for images, labels in batches:  # doctest: +SKIP
        ...     loss = step(images, labels)
        >>> step.flush()  # doctest: +SKIP
        False
    """

    def __init__(self, network: Any, optimizer: Any, sens: Any = None) -> None:
        _warn_if_plain(self, optimizer)
        super().__init__(network, optimizer, sens)


class BoostTrainOneStepWithLossScaleCell(_Boosts, TrainOneStepWithLossScaleCell):
    """A training step with boosts and a loss scale: an overflow skips the update.

    A step that overflows does not count in a window of accumulation. The group of gradient freeze
    advances with the updates, so that after an overflow the same group is tried again.

    Args:
        network: A :class:`ortboost.mindspore.nn.WithLossCell`, or a network whose only output is
            its loss.
        optimizer: See :class:`BoostTrainOneStepCell`. (MindSpore's does not support a
            ``FreezeOpt``.)
        scale_sense: See :class:`ortboost.mindspore.nn.TrainOneStepWithLossScaleCell`.

    Example:
        >>> manager = nn.DynamicLossScaleUpdateCell(2**12, 2, 1000)  # doctest: +SKIP
        >>> step = BoostTrainOneStepWithLossScaleCell(net_with_loss, opt, manager)  # doctest: +SKIP
        >>> loss, overflow, loss_scale = step(images, labels)  # doctest: +SKIP
    """

    def __init__(self, network: Any, optimizer: Any, scale_sense: Any) -> None:
        _warn_if_plain(self, optimizer)
        super().__init__(network, optimizer, scale_sense)


def _warn_if_plain(cell: _Boosts, optimizer: Any) -> None:
    if not isinstance(optimizer, OptimizerWrapper):
        warn_of_unused(type(cell).__name__)
