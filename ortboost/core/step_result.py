"""The result of one training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["StepResult"]


@dataclass(frozen=True)
class StepResult:
    """The result of one step.

    Args:
        loss: Unscaled loss before the update; the mean for the reduction ``none``.
        overflow: Whether a gradient was not finite, so that nothing was updated.
        loss_scale: The loss scale after this step, 1 without one; with a grouped scale that of the
            first group.
        applied_steps: Total number of updates.
        consecutive_skips: Number of consecutive skipped steps, including this one.
        total_skips: Total number of skipped steps.
        metrics: Further outputs by name.
        losses: The loss output of the graph, shape ``[]`` or ``[batch]``.
        updated: Whether this step updated the parameters: no overflow, and with accumulation the
            last micro-batch of its window.
        group: The freeze group that was trained; 0 trains everything.
        loss_scales: With a grouped scale, the loss scale of each group after this step.
        labels: If a label is ignored and the loss is a mean: the number of labels it averages over.
        label_weight: With class weights, and a mean loss: the sum of the weights of these labels.
    """

    loss: float
    overflow: bool
    loss_scale: float
    applied_steps: int
    consecutive_skips: int
    total_skips: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    losses: NDArray[Any] = field(default_factory=lambda: np.zeros(()))
    updated: bool = True
    group: int = 0
    loss_scales: tuple[float, ...] = ()
    labels: int | None = None
    label_weight: float | None = None
