"""How much the part of a process counts in the sums over all parts of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ortboost.core.loss_terms import count_labels, sum_weights
from ortboost.program import names
from ortboost.program.catalogue import TensorSpec

__all__ = ["Counts", "PartWeights", "count_samples"]


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


@dataclass(frozen=True)
class PartWeights:
    """The weights of a part; see :mod:`ortboost.runtime.shared_step` for the sums.

    Args:
        own: The counts of this part.
        ran: Whether this process runs the graph: 0 or 1.
        whole: The counts of all parts.
        all_ran: Number of processes that run the graph.
        server_terms: Terms of the parts of this server.
        is_mean: Whether the loss is a mean.
        exchanges: Whether the processes exchange sums within the graph.

    Example:
        >>> parts = Counts(2, 1, 1), Counts(8, 4, 4)
        >>> weights = PartWeights(parts[0], True, parts[1], 2, 4, is_mean=True, exchanges=False)
        >>> weights.gradients, weights.statistics
        (0.25, 0.5)
    """

    own: Counts
    ran: bool
    whole: Counts
    all_ran: float
    server_terms: float
    is_mean: bool
    exchanges: bool

    @property
    def in_server(self) -> float:
        """`n_r / n` within the server."""
        return self.own.terms / self.server_terms if self.server_terms else 0.0

    @property
    def gradients(self) -> float:
        """Of gradients; with exchanges, a part without labels has those of other parts' losses."""
        if self.exchanges and self.ran:
            return (self.own.terms or 1) / (self.whole.terms or 1) if self.is_mean else 1.0
        return self.in_server if self.is_mean else float(self.own.terms > 0)

    @property
    def means(self) -> float:
        """Of batch means, for which a part that ran counts even if all its labels are ignored."""
        own, whole = self.own.labels, self.whole.labels
        return max(own, 1) / whole if self.ran and whole else 0.0

    @property
    def statistics(self) -> float:
        """Of running statistics that are equal in all processes that ran."""
        return float(self.ran) / self.all_ran

    def shown(self, spec: TensorSpec, value: NDArray[Any]) -> float:
        """What this part adds to the loss or a metric of the whole batch."""
        own: float = self.own.labels
        whole: float = self.whole.labels
        if spec.name == names.LOSS and self.is_mean:
            own, whole = self.own.terms, self.whole.terms
        elif spec.name == names.LOSS:  # a sum, or one value per sample
            own, whole = (self.own.samples, self.whole.samples) if value.ndim else (1, 1)
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
