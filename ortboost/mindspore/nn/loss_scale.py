"""The loss-scale update cells.

They define how the scale changes; :class:`ortboost.mindspore.nn.TrainOneStepWithLossScaleCell`
builds that policy into its graph. Called directly, they update a scale on the host by the same
policy, see :mod:`ortboost.core.loss_scale`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arguments import checked
from ortboost.core.field_types import Range
from ortboost.core.loss_scale import (
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
    ScaleConfig,
    initial_state,
    update,
)
from ortboost.mindspore.core.arguments import ArgumentValueError, Count, PositiveScale
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.live_state import LiveState
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.core.parameter import Parameter

__all__ = [
    "DynamicLossScaleUpdateCell",
    "FixedLossScaleUpdateCell",
    "GroupedScaleCell",
    "LossScaleUpdateCell",
]


class LossScaleUpdateCell(Cell):
    """Base class of both cells: a policy for the loss scale."""

    def __init__(self, config: ScaleConfig, loss_scale_value: float) -> None:
        super().__init__()
        self.config, self.loss_scale_value = config, loss_scale_value
        self._state = initial_state(config)

    def get_loss_scale(self) -> float:
        """The *initial* scale, as in MindSpore; the training cell has the current one."""
        return self.loss_scale_value

    @checked
    def construct(self, loss_scale: Parameter | NDArray[Any], overflow: Any) -> Any:
        """Update a scale on the host.

        Args:
            loss_scale: :class:`ortboost.Parameter` or Tensor with the scale as one float; modified.
            overflow: Whether the gradients overflowed.

        Returns:
            ``overflow``, unchanged.

        Raises:
            ArgumentValueError: The scale is not one writable float.
        """
        value = np.asarray(loss_scale)
        writable = isinstance(loss_scale, Parameter) or value.flags.writeable
        if value.size != 1 or value.dtype.kind != "f" or not writable:
            raise ArgumentValueError(
                f"The scale is {value.dtype}{list(value.shape)}"
                f"{'' if writable else ' and cannot be written'}.",
                where=f"{type(self).__name__}, loss_scale",
                fix="Give a Parameter or Tensor of one float, such as Tensor(1024.0).",
            )
        before = np.float32(value.item())
        self._state = update(
            dataclasses.replace(self._state, scale=before),
            bool(np.asarray(overflow).item()),
            self.config,
        )
        if isinstance(loss_scale, Parameter):
            loss_scale.set_data(np.full(loss_scale.shape, self._state.scale, loss_scale.dtype))
        else:
            loss_scale[...] = self._state.scale
        return overflow


class GroupedScaleCell(Cell):
    """Base class of :class:`ortboost.mindspore.boost.GroupLossScaleManager`."""

    def policy(
        self, owner: str, network: Network, parameters: Iterable[Parameter]
    ) -> GroupedScaleConfig:
        """Get the policy for a network and its trained parameters."""
        raise NotImplementedError

    def follow(self, state: LiveState) -> None:
        """Bind to the scales of a training cell."""
        raise NotImplementedError


class DynamicLossScaleUpdateCell(LossScaleUpdateCell):
    """A loss scale that shrinks on overflow and grows after a window of good steps.

    The policy is exactly MindSpore's: it never shrinks below 1, and has no upper bound.

    Args:
        loss_scale_value: The initial scale, above 0.
        scale_factor: Factor by which it shrinks and grows, above 1.
        scale_window: Good steps before it grows, at least 1.
        hysteresis: Number of overflows before it shrinks, see
            :class:`ortboost.core.loss_scale.DynamicScaleConfig`. MindSpore supports only 1.
        consecutive_hysteresis: Whether every good step resets the count of overflows.

    Example:
        >>> cell = DynamicLossScaleUpdateCell(2**12, scale_factor=2, scale_window=1000)
        >>> scale = Parameter(np.float32(cell.get_loss_scale()))
        >>> cell(scale, True), float(scale.asnumpy())
        (True, 2048.0)
    """

    @checked
    def __init__(
        self,
        loss_scale_value: PositiveScale,
        scale_factor: Annotated[float, Range(above=1, most=1e30)],
        scale_window: Count,
        *,
        hysteresis: Count = 1,
        consecutive_hysteresis: bool = False,
    ) -> None:
        super().__init__(
            DynamicScaleConfig(
                init_scale=float(loss_scale_value),
                scale_factor=float(scale_factor),
                scale_window=scale_window,
                max_scale=None,
                hysteresis=hysteresis,
                consecutive_hysteresis=consecutive_hysteresis,
            ),
            loss_scale_value,
        )
        self.scale_factor, self.scale_window = scale_factor, scale_window


class FixedLossScaleUpdateCell(LossScaleUpdateCell):
    """A constant loss scale; an overflow still skips the update.

    Args:
        loss_scale_value: The scale, above 0.
    """

    @checked
    def __init__(self, loss_scale_value: PositiveScale) -> None:
        super().__init__(FixedScaleConfig(float(loss_scale_value)), loss_scale_value)
