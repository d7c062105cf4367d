"""How much the part of a process counts in the sums over all parts of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from numpy.typing import NDArray

from ortboost.core.loss_terms import count_labels, sum_weights
from ortboost.program import names
from ortboost.program.catalogue import TensorSpec

__all__ = ["Counts", "PartWeights", "Reduction", "count_samples"]

Reduction: TypeAlias = Literal["mean", "sum", "none"]
"""How a loss joins its samples."""
_BASE: Final = 2**12  # two digits, of which float32 represents each up to 2**24


class Counts(NamedTuple):
    """The size of a batch, or of a part of one.

    Args:
        samples: Samples.
        labels: Labels that are not ignored; samples if no label is.
        terms: What a mean loss divides by: ``labels``, or the sum of their class weights.
    """

    samples: int
    labels: int
    terms: float

    def divisor(self, output: str, reduction: Reduction) -> float:
        """What the loss or a metric is a mean over; 1 for a sum.

        Args:
            output: Name of the loss or the metric.
            reduction: The reduction of the loss; if it is ``none``, the mean is reported.
        """
        if output != names.LOSS:
            return self.labels
        return {"mean": self.terms, "none": self.samples, "sum": 1}[reduction]

    def digits(self) -> list[float]:
        """The counts as six numbers that float32 represents, and that can be added up."""
        return [digit for count in self for digit in divmod(count, _BASE)]

    @classmethod
    def of_digits(cls, digits: Sequence[float]) -> Counts:
        """The inverse of :meth:`digits`, also of sums of them.

        Example:
            >>> a, b = Counts(2**25 + 1, 3, 1.5), Counts(2**25, 1, 2.0)
            >>> Counts.of_digits([x + y for x, y in zip(a.digits(), b.digits())])
            Counts(samples=67108865, labels=4, terms=3.5)
        """
        samples, labels, terms = (
            float(high) * _BASE + float(low)
            for high, low in zip(digits[::2], digits[1::2], strict=True)
        )
        return cls(int(samples), int(labels), terms)


@dataclass(frozen=True)
class PartWeights:
    """The weights of a part; see :mod:`ortboost.runtime.shared_step` for the sums.

    Args:
        own: The counts of this part.
        ran: Whether this process runs the graph: 0 or 1.
        whole: The counts of all parts.
        all_ran: Number of processes that run the graph.
        server_terms: Terms of the parts of this server.
        reduction: The reduction of the loss.
        exchanges: Whether the processes exchange sums within the graph.

    Example:
        >>> parts = Counts(2, 1, 1), Counts(8, 4, 4)
        >>> weights = PartWeights(parts[0], True, parts[1], 2, 4, "mean", exchanges=False)
        >>> weights.gradients, weights.statistics
        (0.25, 0.5)
    """

    own: Counts
    ran: bool
    whole: Counts
    all_ran: float
    server_terms: float
    reduction: Reduction
    exchanges: bool

    @property
    def in_server(self) -> float:
        """The share of this part in the terms of its server, `n_r / n`."""
        return self.own.terms / self.server_terms if self.server_terms else 0.0

    @property
    def gradients(self) -> float:
        """Weight of gradients; with exchanges, a part without labels has some from other losses."""
        is_mean = self.reduction == "mean"
        if self.exchanges and self.ran:
            return (self.own.terms or 1) / (self.whole.terms or 1) if is_mean else 1.0
        return self.in_server if is_mean else float(self.own.terms > 0)

    @property
    def means(self) -> float:
        """Weight of batch means; a part that ran counts even if all its labels are ignored."""
        own, whole = self.own.labels, self.whole.labels
        return max(own, 1) / whole if self.ran and whole else 0.0

    @property
    def statistics(self) -> float:
        """Weight of running statistics; all processes that ran have the same weight."""
        return float(self.ran) / self.all_ran

    def shown(self, output: str, value: NDArray[Any]) -> float:
        """What this part adds to the loss or a metric of the whole batch."""
        own, whole = (counts.divisor(output, self.reduction) for counts in (self.own, self.whole))
        return own / whole * float(value.mean()) if whole else 0.0


def count_samples(inputs: Sequence[TensorSpec], feeds: Mapping[str, NDArray[Any]]) -> Counts:
    """Count the samples of a batch, and the terms of a mean loss.

    The arrays may have any shape; :func:`~ortboost.runtime.feeds.check_batch` refuses wrong ones.

    Example:
        >>> import numpy as np
        >>> labels = TensorSpec("labels", np.dtype("int64"), ("N",), classes=3, ignored=-1)
        >>> count_samples([labels], {"labels": np.array([0, -1, 2])})
        Counts(samples=3, labels=2, terms=2)
    """
    number = int(bool(feeds))  # without a batch axis, the data count as one sample
    for spec in inputs:
        axis = spec.batch_axis
        if isinstance(axis, int) and spec.name in feeds and axis < feeds[spec.name].ndim:
            number = feeds[spec.name].shape[axis]
    labels, terms = number, float(number)
    for spec in inputs:
        if spec.name not in feeds or not number:
            continue
        if spec.ignored is not None:
            labels = count_labels(feeds[spec.name], spec.ignored, shifted=spec.shifted)
            terms = labels
        if spec.weights is not None:
            terms = sum_weights(feeds[spec.name], spec.weights, spec.ignored, shifted=spec.shifted)
    return Counts(number, labels, terms)
