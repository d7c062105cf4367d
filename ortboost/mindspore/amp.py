"""Loss-scale managers, mixed precision, and the training network built from them."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal, TypeAlias

from ortboost.core.arguments import check_argument, checked
from ortboost.core.errors import require_known
from ortboost.core.field_types import Range
from ortboost.mindspore.boost.group_loss_scale import GroupLossScaleManager
from ortboost.mindspore.boost.train_step import (
    BoostTrainOneStepCell,
    BoostTrainOneStepWithLossScaleCell,
)
from ortboost.mindspore.core.arguments import ArgumentRuntimeError, ArgumentValueError, Count
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.mixed_precision import (
    AmpLevel,
    auto_mixed_precision,
    custom_mixed_precision,
    dtype_name,
    get_black_list,
    get_white_list,
)
from ortboost.mindspore.nn.loss import LossBase
from ortboost.mindspore.nn.loss_scale import (
    DynamicLossScaleUpdateCell,
    FixedLossScaleUpdateCell,
    LossScaleUpdateCell,
)
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.train_step import TrainOneStepCell, TrainOneStepWithLossScaleCell
from ortboost.mindspore.nn.updates import OptimizerWrapper, updates_of
from ortboost.mindspore.nn.wrap import WithLossCell

__all__ = [
    "DynamicLossScaleManager",
    "FixedLossScaleManager",
    "LossScaleManager",
    "auto_mixed_precision",
    "build_train_network",
    "custom_mixed_precision",
    "get_black_list",
    "get_white_list",
]

_Scale: TypeAlias = Annotated[float, Range(1, 3.4e38)]
_MAX_BAD_STEPS = 1000  # consecutive overflows, as in MindSpore
BoostLevel: TypeAlias = Literal["O0", "O1", "O2"]
_KEYWORDS = ("loss_scale_manager", "keep_batchnorm_fp32", "cast_model_type")


class LossScaleManager:
    """Base class; use :class:`FixedLossScaleManager` or :class:`DynamicLossScaleManager`."""

    def get_loss_scale(self) -> float:
        """The loss scale."""
        raise NotImplementedError

    def update_loss_scale(self, overflow: Any) -> None:
        """Update the scale after a step; by default it is constant."""

    def get_drop_overflow_update(self) -> bool:
        """Whether an overflow skips the update; True by default."""
        return True

    def get_update_cell(self) -> LossScaleUpdateCell | None:
        """The update cell for a training step; ``None`` for a step without a finite check."""
        raise NotImplementedError


class FixedLossScaleManager(LossScaleManager):
    """A constant loss scale.

    Args:
        loss_scale: The scale, at least 1.
        drop_overflow_update: Whether an overflow skips the update. With False the training step
            does not unscale: give the optimizer the same ``loss_scale``, or a warning says so.

    Example:
        >>> FixedLossScaleManager(1024, drop_overflow_update=False).get_update_cell() is None
        True
    """

    @checked
    def __init__(self, loss_scale: _Scale = 128.0, drop_overflow_update: bool = True) -> None:
        self._loss_scale = loss_scale
        self._drop_overflow_update = drop_overflow_update

    def get_loss_scale(self) -> float:
        """The loss scale."""
        return self._loss_scale

    def get_drop_overflow_update(self) -> bool:
        """Whether an overflow skips the update."""
        return self._drop_overflow_update

    def get_update_cell(self) -> FixedLossScaleUpdateCell | None:
        """A fixed update cell; ``None`` if overflows are not checked."""
        return FixedLossScaleUpdateCell(self._loss_scale) if self._drop_overflow_update else None


class DynamicLossScaleManager(LossScaleManager):
    """A loss scale that shrinks on overflow and grows after a window of good steps, on the host.

    A training step made with :meth:`get_update_cell` updates its own scale in the graph. Both agree
    for factors that are powers of two; here the scale is a Python float.

    Args:
        init_loss_scale: The initial scale, at least 1.
        scale_factor: Factor by which it shrinks and grows, above 0. (Below 1 it would grow on
            overflow; the update cell refuses that.)
        scale_window: Good steps before it grows, at least 1.

    Example:
        >>> manager = DynamicLossScaleManager(2**16, scale_window=1)
        >>> manager.update_loss_scale(overflow=False)
        >>> manager.get_loss_scale()
        131072.0
    """

    @checked
    def __init__(
        self,
        init_loss_scale: _Scale = 2**24,
        scale_factor: Annotated[float, Range(above=0)] = 2,
        scale_window: Count = 2000,
    ) -> None:
        self.scale_factor, self.scale_window = scale_factor, scale_window
        self._scale, self._steps, self._last, self._bad = float(init_loss_scale), 1, 0, 0

    def get_loss_scale(self) -> float:
        """The current scale."""
        return self._scale

    def update_loss_scale(self, overflow: Any) -> None:
        """Update the scale after a step.

        Args:
            overflow: Whether the gradients overflowed.

        Raises:
            ArgumentRuntimeError: This is the 1001st overflow in a row.
        """
        if overflow:
            self._scale = max(self._scale * (1.0 / self.scale_factor), 1.0)
            self._last = self._steps
        elif (self._steps - self._last) % self.scale_window == 0:  # growth leaves `_last`
            self._scale *= self.scale_factor
        self._bad = self._bad + 1 if overflow else 0
        if self._bad > _MAX_BAD_STEPS:
            raise ArgumentRuntimeError(
                f"The gradients overflowed {self._bad} times in a row.",
                where=f"loss scale {self._scale}",
                fix="Lower the learning rate, clip the gradients, or look for NaN in the data.",
            )
        self._steps += 1

    def get_update_cell(self) -> DynamicLossScaleUpdateCell:
        """An update cell with the current scale as initial value."""
        return DynamicLossScaleUpdateCell(
            self.get_loss_scale(), self.scale_factor, self.scale_window
        )


@checked
def build_train_network(
    network: Any,
    optimizer: Optimizer | OptimizerWrapper,
    loss_fn: LossBase | None = None,
    level: AmpLevel = "O0",
    boost_level: BoostLevel = "O0",
    **kwargs: Any,
) -> TrainOneStepCell | TrainOneStepWithLossScaleCell:
    """Build the training step of a network, an optimizer and a loss-scale manager.

    Args:
        network: The network; a :class:`ortboost.mindspore.nn.WithLossCell` if there is no
            ``loss_fn``.
        optimizer: The optimizer.
        loss_fn: The loss.
        level: Mixed precision of the steps, see :func:`auto_mixed_precision`; modifies the network.
        boost_level: With ``O1`` or ``O2`` the steps are those of :mod:`ortboost.mindspore.boost`;
            network and optimizer define what is boosted, see
            :class:`ortboost.mindspore.boost.AutoBoost`.
        **kwargs: ``loss_scale_manager``, which may be a
            :class:`ortboost.mindspore.boost.GroupLossScaleManager`; the default at level ``O2`` is
            a :class:`DynamicLossScaleManager`; ``None`` for none. ``keep_batchnorm_fp32`` overrides
            the rule of the levels ``O2`` and ``O3`` for normalizations, ``cast_model_type``
            (``float16`` or ``bfloat16``, ``float32`` at level ``O0``) the precision.
    """
    for key in kwargs:
        what, where = f"Unknown argument '{key}'.", "build_train_network"
        require_known(key, _KEYWORDS, what, where, ArgumentValueError)
    default = DynamicLossScaleManager() if level == "O2" else None
    manager = kwargs.get("loss_scale_manager", default)
    types = LossScaleManager | GroupLossScaleManager | None
    check_argument("build_train_network", "loss_scale_manager", manager, types)
    dtype = kwargs.get("cast_model_type", "float32" if level == "O0" else "float16")
    keep_batchnorm = kwargs.get("keep_batchnorm_fp32")
    _check_precision(level, dtype, keep_batchnorm)
    cell: Cell = network if loss_fn is None else WithLossCell(network, loss_fn)
    if level != "O0":
        auto_mixed_precision(cell, level, dtype, keep_batchnorm_fp32=keep_batchnorm)
    # Wrapped optimizers and grouped scales need the cells of `boost` at level O0, too.
    boosted = boost_level != "O0" or isinstance(optimizer, OptimizerWrapper)
    boosted = boosted or isinstance(manager, GroupLossScaleManager)
    update_cell = None if manager is None else manager.get_update_cell()
    if update_cell is not None:
        scaled = BoostTrainOneStepWithLossScaleCell if boosted else TrainOneStepWithLossScaleCell
        return scaled(cell, optimizer, update_cell)
    sens = None if manager is None else manager.get_loss_scale()
    updates = updates_of(optimizer)
    divisor = updates.optimizer.loss_scale
    if sens not in (None, divisor) and updates.line_search is None:  # which always unscales
        warnings.warn(
            f"the loss is multiplied by {sens:g}, but the optimizer divides its gradients by "
            f"{divisor:g}: with drop_overflow_update=False give it loss_scale={sens:g}",
            stacklevel=3,
        )
    plain = BoostTrainOneStepCell if boosted else TrainOneStepCell
    return plain(cell, optimizer, sens)


def _check_precision(level: AmpLevel, dtype: Any, keep_batchnorm: Any) -> None:
    owner = "build_train_network"
    if level == "O0" and dtype_name(dtype) != "float32":
        raise ArgumentValueError(
            f"'cast_model_type' is {dtype}, but level O0 computes in float32.",
            where=f"{owner}, cast_model_type",
            fix="Leave it out, or give level='O2' or 'O3'.",
        )
    check_argument(owner, "keep_batchnorm_fp32", keep_batchnorm, bool | None)
