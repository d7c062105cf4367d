"""``TrainOneStepCell`` and ``TrainOneStepWithLossScaleCell``: one call is one step.

The whole step (forward, loss, backward, unscaling, finite check, update, scale) is one graph; see
:mod:`ortboost.program.step`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ortboost.core.arguments import checked
from ortboost.core.loss_scale import NO_SCALE, FixedScaleConfig, ScaleConfig
from ortboost.mindspore.core.arguments import (
    ArgumentTypeError,
    ArgumentValueError,
    NotInThisVersionError,
    positive,
    refuse_given,
)
from ortboost.mindspore.core.cell import Cell, refuse_own_methods
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.nn.compiled import CompiledSteps
from ortboost.mindspore.nn.loss_scale import GroupedScaleCell, LossScaleUpdateCell
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.updates import OptimizerWrapper, updates_of
from ortboost.mindspore.nn.wrap import network_of, parts_of
from ortboost.program import names

__all__ = ["TrainOneStepCell", "TrainOneStepWithLossScaleCell"]

_STEP_METHODS: Final = ("start_overflow_check", "get_overflow_status", "process_loss_scale")


class TrainStep(Cell):
    """Common base of both cells: the step graphs of a network and an optimizer."""

    def _compile(
        self,
        network: Cell,
        optimizer: Optimizer | OptimizerWrapper,
        policy: ScaleConfig,
        *,
        finite: bool,
        divisor: float = 1.0,
    ) -> None:
        """Prepare the steps; ``divisor`` undoes the unscaling if it is not wanted."""
        self.network, self.optimizer = network, optimizer
        owner, updates = type(self).__name__, updates_of(optimizer)
        self._steps = CompiledSteps(
            owner,
            *parts_of(owner, network),
            updates,
            policy,
            check_finite=finite,
            divisor=divisor * updates.optimizer.loss_scale,
        )


class TrainOneStepCell(TrainStep):
    """A training step without a finite check.

    Args:
        network: A :class:`WithLossCell`, or a network whose only output is its loss.
        optimizer: The optimizer, made with the parameters of that network.
        sens: Factor of the loss before the backward pass. Only the optimizer's ``loss_scale``
            divides by it again. ``None`` is 1.
        return_grad: Must be False; True is not supported in this version.

    Raises:
        ArgumentValueError: The parameters belong to another network.

    Example:
        >>> step = TrainOneStepCell(WithLossCell(net, loss), opt)  # doctest: +SKIP
        >>> step(images, labels)                                   # doctest: +SKIP
        Tensor(2.31, dtype=float32)
    """

    @checked
    def __init__(
        self,
        network: Cell,
        optimizer: Optimizer | OptimizerWrapper,
        sens: Any = None,
        return_grad: bool = False,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        refuse_given(owner, return_grad=return_grad)
        self._sens = 1.0 if sens is None else positive(owner, "sens", sens)
        scale = NO_SCALE if self.sens == 1 else FixedScaleConfig(self.sens)
        self._compile(network, optimizer, scale, finite=False, divisor=1 / self.sens)

    @property
    def sens(self) -> float:
        """The factor of the loss; it is part of the graph and cannot be changed."""
        return self._sens

    @sens.setter
    def sens(self, value: object) -> None:
        raise NotInThisVersionError(
            "'sens' cannot be changed after the cell was created.",
            where=f"{type(self).__name__}.sens",
            fix="Create another cell with sens=..., or use TrainOneStepWithLossScaleCell and "
            "set_sense_scale.",
        )

    def construct(self, *inputs: Any) -> Tensor:
        """Run one step: data of each input, then the labels.

        Returns:
            The loss before the update, float32; with the reduction ``none`` all its values.
        """
        return Tensor(self._steps.step(*inputs).losses)


class TrainOneStepWithLossScaleCell(TrainStep):
    """A training step with a loss scale: an overflow skips the update.

    Order: loss times scale, backward, gradients divided by the scale, finite check, update of the
    scale, and if all gradients are finite the optimizer (which divides by its own ``loss_scale``).

    Args:
        network: A :class:`WithLossCell`, or a network whose only output is its loss.
        optimizer: The optimizer, made with the parameters of that network.
        scale_sense: An update cell (``nn.DynamicLossScaleUpdateCell``,
            ``nn.FixedLossScaleUpdateCell``), a
            :class:`ortboost.mindspore.boost.GroupLossScaleManager`, or an array of shape ``()`` or
            ``(1,)`` for a fixed scale that :meth:`set_sense_scale` sets.

    Raises:
        ArgumentValueError: ``scale_sense`` has another shape or is not above 0.

    Example:
        >>> manager = DynamicLossScaleUpdateCell(2**12, 2, 1000)            # doctest: +SKIP
        >>> step = TrainOneStepWithLossScaleCell(net_with_loss, opt, manager)  # doctest: +SKIP
        >>> loss, overflow, loss_scale = step(images, labels)              # doctest: +SKIP
    """

    @checked
    def __init__(
        self, network: Cell, optimizer: Optimizer | OptimizerWrapper, scale_sense: Any
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        refuse_own_methods(owner, self, _STEP_METHODS)
        policy: ScaleConfig
        start: Any
        if isinstance(scale_sense, LossScaleUpdateCell):
            refuse_own_methods(owner, scale_sense)
            policy, start = scale_sense.config, scale_sense.get_loss_scale()
        elif isinstance(scale_sense, GroupedScaleCell):
            trained = updates_of(optimizer).optimizer.parameters
            policy = scale_sense.policy(owner, network_of(owner, network), trained)
            start = policy.starts()
        elif isinstance(scale_sense, np.ndarray | Parameter):
            start = _scale_value(owner, "scale_sense", np.asarray(scale_sense))
            policy = FixedScaleConfig(start)
        else:
            raise ArgumentTypeError(
                f"'scale_sense' is {type(scale_sense).__name__}.",
                where=owner,
                fix="Give an update cell such as nn.DynamicLossScaleUpdateCell(...), or a Tensor.",
            )
        self._compile(network, optimizer, policy, finite=True)
        self._scale_shape = np.shape(start)
        self._steps.scale_state.write(names.SCALE, np.asarray(start, np.float32))
        if isinstance(scale_sense, GroupedScaleCell):
            scale_sense.follow(self._steps.scale_state)

    @property
    def scale_sense(self) -> Parameter:
        """The current scale as a parameter; with groups ``[groups]``."""
        return Parameter.of_state(self._steps.scale_state, names.SCALE, requires_grad=False)

    def set_sense_scale(self, sens: Any) -> None:
        """Set the scale of the next step.

        Args:
            sens: Array of shape ``()`` or ``(1,)``, above 0; with groups also ``[groups]``.
        """
        owner = type(self).__name__
        if isinstance(sens, Parameter):
            sens = sens.data
        if not isinstance(sens, np.ndarray):
            raise ArgumentTypeError(
                f"'sens' is {type(sens).__name__}.",
                where=f"{owner}.set_sense_scale",
                fix="Give a Tensor: Tensor(1024.0).",
            )
        value: Any
        if self._scale_shape and sens.shape == self._scale_shape:
            value = [positive(owner, "sens", number) for number in sens.tolist()]
        else:
            value = _scale_value(owner, "sens", sens)
        scale = np.broadcast_to(np.asarray(value, np.float32), self._scale_shape)
        self._steps.scale_state.write(names.SCALE, scale)

    def construct(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Run one step: data of each input, then the labels.

        Returns:
            ``(loss, overflow, loss_scale)``: the unscaled loss before the update, float32; whether
            a gradient was not finite, bool; the scale *after* this step, float32, with groups that
            of the first.
        """
        result = self._steps.step(*inputs)
        overflow, scale = np.bool_(result.overflow), np.float32(result.loss_scale)
        return Tensor(result.losses), Tensor(overflow), Tensor(scale)


def _scale_value(owner: str, name: str, value: np.ndarray[Any, Any]) -> float:
    if value.shape not in ((), (1,)):
        raise ArgumentValueError(
            f"'{name}' has the shape {value.shape}.",
            where=f"{owner}, {name}",
            fix="Give a Tensor of the shape () or (1,).",
        )
    return positive(owner, name, value)
