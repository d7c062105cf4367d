"""``GradientAccumulation``: an optimizer that updates once per several micro-batches."""

from __future__ import annotations

import dataclasses

from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import ArgumentValueError, Count
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.updates import OptimizerWrapper, Updates

__all__ = ["GradientAccumulation"]


class GradientAccumulation(OptimizerWrapper):
    """Update with the mean of the gradients of several steps.

    Pass it to a training cell in place of the optimizer: the gradients never leave the graph, so
    the window is part of it, see :mod:`ortboost.program.step`. A step whose gradients overflow is
    not counted; the learning rate is per update; windows continue across epochs. The training
    cell's ``flush()`` applies an incomplete last window.

    Args:
        max_accumulation_step: Steps per window, at least 1.
        optimizer: An optimizer, or a :class:`ortboost.mindspore.boost.FreezeOpt`.

    Example:
        >>> opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)  # doctest: +SKIP
        >>> opt = GradientAccumulation(4, opt)  # doctest: +SKIP
        >>> step = BoostTrainOneStepCell(net_with_loss, opt)  # doctest: +SKIP
    """

    @checked
    def __init__(
        self, max_accumulation_step: Count, optimizer: Optimizer | OptimizerWrapper
    ) -> None:
        super().__init__(optimizer)
        if super().updates().accumulate > 1:
            raise ArgumentValueError(
                "The optimizer already accumulates.",
                where="GradientAccumulation, optimizer",
                fix="Give the optimizer itself, and the whole window here.",
            )
        self.max_accumulation_step = max_accumulation_step

    def updates(self) -> Updates:
        """How a training step applies it."""
        return dataclasses.replace(super().updates(), accumulate=self.max_accumulation_step)
