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
from numpy.typing import NDArray

from ortboost.mindspore.boost.auto_boost import warn_of_unused
from ortboost.mindspore.boost.freeze_opt import FreezeOpt
from ortboost.mindspore.core.arguments import (
    ArgumentTypeError,
    ArgumentValueError,
    NotInThisVersionError,
)
from ortboost.mindspore.core.tensor import Tensor, given_array
from ortboost.mindspore.nn.compiled import CompiledSteps
from ortboost.mindspore.nn.train_step import TrainOneStepCell, TrainOneStepWithLossScaleCell
from ortboost.mindspore.nn.updates import OptimizerWrapper
from ortboost.program.gradients import LARGEST_NORM

__all__ = ["BoostTrainOneStepCell", "BoostTrainOneStepWithLossScaleCell"]


class _Boosts:
    """Common base of both cells: the boosts, and MindSpore's methods for each."""

    # Defined by the other base class of each cell.
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
        if not isinstance(optimizer, FreezeOpt) or optimizer.train_strategy is None:
            return None
        freeze = self._steps.freeze  # as it was when this cell was made
        return None if freeze is None else list(freeze.sequence or ())

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
        """Run one step of a window of accumulation.

        Without gradients it is equivalent to calling the cell, which computes loss and gradients in
        its graph. With gradients it adds them to the window and updates at its end; as in
        MindSpore, they are already divided by the loss scale of a
        ``BoostTrainOneStepWithLossScaleCell``, but not by the ``sens`` of a
        ``BoostTrainOneStepCell``, and the scale does not change.

        Args:
            loss: With ``grads``, their loss, which is returned; otherwise ignored.
            grads: ``None``, or the gradient of each of the optimizer's parameters, in their order.
            sens: ``None``, or the ``sens`` of the cell; ignored with ``grads``.
            *inputs: Without ``grads``: data of each input, then the labels.

        Raises:
            ArgumentValueError: Nothing is accumulated, or a gradient has another shape, or is
                infinite, NaN, or so large that its square overflows.
            ArgumentTypeError: ``grads`` are not arrays, or not as many as there are parameters.
            NotInThisVersionError: Another ``sens`` was given; or the cell freezes parameters, uses
                DimReduce or THOR, or shares its steps with other processes, and gradients were
                given.

        Example:
            >>> step = BoostTrainOneStepCell(  # doctest: +SKIP
            ...     net_with_loss, GradientAccumulation(2, opt)
            ... )
            >>> for loss, grads in two_batches:  # doctest: +SKIP
            ...     step.gradient_accumulation_process(loss, grads, None)
        """
        on, method = self.use_grad_accumulation, "gradient_accumulation_process"
        self._require(on, "accumulates", method, "GradientAccumulation")
        if grads is not None:
            self._steps.take(self._gradients(grads, f"{type(self).__name__}.{method}"))
            return Tensor(loss)
        own = getattr(self, "sens", None)
        if sens is not None and (own is None or np.any(np.asarray(sens) != own)):
            raise NotInThisVersionError(
                f"sens is {sens}; that of the cell is {'its loss scale' if own is None else own}.",
                where=f"{type(self).__name__}.{method}, sens",
                fix="Give None, or call the cell itself: step(data, label).",
            )
        return self.construct(*inputs)

    def _gradients(self, grads: Any, where: str) -> dict[str, NDArray[Any]]:
        """The gradients of trained parameters by name, checked."""
        parameters = list(self.optimizer.parameters)
        if not isinstance(grads, tuple | list) or len(grads) != len(parameters):
            number = f"{len(grads)} " if isinstance(grads, tuple | list) else ""
            raise ArgumentTypeError(
                f"'grads' is {type(grads).__name__}, {number}given for {len(parameters)} "
                "parameters.",
                where=f"{where}, grads",
                fix="Give a tuple with one gradient for each of optimizer.parameters.",
            )
        found = {}
        for parameter, value in zip(parameters, grads, strict=True):
            gradient = given_array(where, "grads", value).astype(np.float32, copy=False)
            place = f"{where}, the gradient of '{parameter.name}'"
            if gradient.shape != parameter.shape:
                raise ArgumentValueError(
                    f"A gradient has the shape {gradient.shape}, its parameter {parameter.shape}.",
                    where=place,
                    fix="Give the gradients in the order of optimizer.parameters.",
                )
            # Larger ones would make the optimizer's state infinite; steps skip them.
            if not np.linalg.norm(gradient.astype(np.float64)) < LARGEST_NORM:
                raise ArgumentValueError(
                    "A gradient is not finite, or too large.",
                    where=place,
                    fix="Skip this step, as a training cell with a loss scale does.",
                )
            if parameter.requires_grad:
                found[parameter.name] = gradient
        return found

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
