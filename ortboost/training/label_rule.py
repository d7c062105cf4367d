"""How labels are compared with scores: the class axis, the ignored label, the shift."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np

from ortboost.core.loss_terms import count_labels, sum_weights
from ortboost.training.protocols import Array, Batch

__all__ = ["LabelRule", "in_order"]


def in_order(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether reshaping from one shape to the other only splits or merges neighbouring axes.

    Example:
        >>> in_order((6, 4), (24,)), in_order((6, 4), (6, 2, 2)), in_order((6, 4), (4, 6))
        (True, True, False)
    """
    # The number of elements after each axis: merging two axes leaves out one of them.
    ends, others = set(itertools.accumulate(one, mul)), set(itertools.accumulate(other, mul))
    return math.prod(one) == math.prod(other) and (ends <= others or others <= ends)


@dataclass(frozen=True)
class LabelRule:
    """The meaning of the labels, as specified by a program or a user.

    Args:
        class_axis: The class axis of the scores, -1 for the last.
        ignored: A label to ignore in the metrics and the loss (``ignore_index``).
        shifted: Each position is compared with the next label, as for causal language models.
        averaged: The loss of a batch is the mean over the labels that are not ignored.
        weights: The weights of the classes in this mean; None if all are 1.
        threshold: Of two classes: the score above which class 1 is predicted.

    Example:
        >>> rule = LabelRule(class_axis=-1, ignored=-100, shifted=True)
        >>> scores, labels = rule.aligned(np.zeros([1, 4, 9]), np.array([[7, 2, 5, -100]]))
        >>> scores.shape, labels.tolist(), rule.count(np.array([[7, 2, 5, -100]]))
        ((2, 9), [2, 5], 2)
    """

    class_axis: int = 1
    ignored: int | None = None
    shifted: bool = False
    averaged: bool = True
    weights: tuple[float, ...] | None = None
    threshold: float = 0.0

    @classmethod
    def of(cls, inputs: Sequence[object], labels: str) -> LabelRule:
        """The rule that the specification of the labels input defines."""
        spec = next((s for s in inputs if getattr(s, "name", None) == labels), None)
        names = ("ignored", "shifted", "averaged", "weights", "threshold")
        known = {name: getattr(spec, name) for name in names if hasattr(spec, name)}
        return cls(getattr(spec, "class_axis", None) or 1, **known)

    def count(self, labels: Array) -> float | None:
        """What the mean loss of a batch divides by: labels that are not ignored, or their weights.

        ``None`` for the number of samples or positions.
        """
        if self.weights is not None:
            return sum_weights(labels, self.weights, self.ignored, shifted=self.shifted)
        if self.ignored is None:
            return None
        return count_labels(labels, self.ignored, shifted=self.shifted)

    def counted(self, batch: Batch, labels: str) -> float | None:
        """:meth:`count` of a batch for a loss that is the mean over its labels, else ``None``."""
        return self.count(batch[labels]) if self.averaged and labels in batch else None

    def aligned(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        """The scores with the classes in axis 1, and the labels to compare them with.

        If ``ignored`` is set, both are flat: scores ``[n, C]`` and labels ``[n]`` of the ``n``
        positions that are not ignored, so that a mean over them is over positions, not samples.
        """
        if scores.ndim >= 3 and labels.ndim == scores.ndim - 1:
            labels = self._shift(labels)
            scores = np.moveaxis(scores, self.class_axis, 1)
        elif scores.ndim >= 3 and labels.shape == scores.shape:  # dense
            scores = np.moveaxis(scores, self.class_axis, 1)
            labels = np.moveaxis(labels, self.class_axis, 1)
        # Anything else is rows, or a mismatch, which the metric reports.
        if self.ignored is None or scores.ndim < 2:
            return scores, labels
        if not in_order(labels.shape, (scores.shape[0], *scores.shape[2:])):
            return scores, labels
        flat, counts = labels.reshape(-1), labels.reshape(-1) != self.ignored
        return np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1])[counts], flat[counts]

    def _shift(self, labels: Array) -> Array:
        if not self.shifted or labels.ndim < 2:
            return labels
        # The last position has no next label. Rules with a shift always ignore a label, -100 by
        # default, so this one does not count.
        last = np.full_like(labels[:, :1], self.ignored if self.ignored is not None else 0)
        return np.concatenate([labels[:, 1:], last], axis=1)
