"""How much the part of a process counts in the sums over all parts of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ortboost.program import names
from ortboost.program.catalogue import TensorSpec

__all__ = ["PartWeights", "count_samples"]


@dataclass(frozen=True)
class PartWeights:
    """The weights of a part; see :mod:`ortboost.runtime.shared_step` for the sums.

    Args:
        terms: Terms of a mean loss in this part: samples, or labels that are not ignored.
        samples: Samples in this part.
        ran: Whether this process runs the graph: 0 or 1.
        all_terms: Terms of all parts.
        all_samples: Samples of all parts.
        all_ran: Number of processes that run the graph.
        server_terms: Terms of the parts of this server.
        is_mean: Whether the loss is a mean.
        exchanges: Whether the processes exchange sums within the graph.

    Example:
        >>> weights = PartWeights(1, 2, True, 4, 8, 2, 4, is_mean=True, exchanges=False)
        >>> weights.gradients, weights.statistics
        (0.25, 0.5)
    """

    terms: int
    samples: int
    ran: bool
    all_terms: float
    all_samples: float
    all_ran: float
    server_terms: float
    is_mean: bool
    exchanges: bool

    @property
    def in_server(self) -> float:
        """`n_r / n` within the server."""
        return self.terms / self.server_terms if self.server_terms else 0.0

    @property
    def gradients(self) -> float:
        """Of gradients; with exchanges, a part without labels has those of other parts' losses."""
        if self.exchanges and self.ran:
            return max(self.terms, 1) / max(self.all_terms, 1) if self.is_mean else 1.0
        return self.in_server if self.is_mean else float(self.terms > 0)

    @property
    def means(self) -> float:
        """Of batch means, for which a part that ran counts even if all its labels are ignored."""
        return max(self.terms, 1) / self.all_terms if self.ran and self.all_terms else 0.0

    @property
    def statistics(self) -> float:
        """Of running statistics that are equal in all processes that ran."""
        return float(self.ran) / self.all_ran

    def shown(self, spec: TensorSpec, value: NDArray[Any]) -> float:
        """What this part adds to the loss or a metric of the whole batch."""
        factor = self.terms / self.all_terms if self.all_terms else 0.0
        if spec.name == names.LOSS and not self.is_mean:  # a sum, or one value per sample
            factor = self.samples / max(self.all_samples, 1.0) if value.ndim else 1.0
        return factor * float(value.mean())


def count_samples(
    inputs: Sequence[TensorSpec], feeds: Mapping[str, NDArray[Any]]
) -> tuple[int, int]:
    """Count the samples of a batch, and the terms of a mean loss: samples, or labels not ignored.

    The arrays may have any shape; :func:`~ortboost.runtime.feeds.check_batch` refuses wrong ones.

    Example:
        >>> import numpy as np
        >>> labels = TensorSpec("labels", np.dtype("int64"), ("N",), classes=3, ignored=-1)
        >>> count_samples([labels], {"labels": np.array([0, -1, 2])})
        (3, 2)
    """
    number = int(bool(feeds))  # without a batch axis, the data count as one sample
    for spec in inputs:
        axis = spec.batch_axis
        if isinstance(axis, int) and spec.name in feeds and axis < feeds[spec.name].ndim:
            number = feeds[spec.name].shape[axis]
    counted = number
    for spec in inputs:
        if spec.ignored is not None and spec.name in feeds and number:
            labels = feeds[spec.name]
            # A shifted loss compares each prediction with the next token; the first is never one.
            labels = labels[:, 1:] if spec.shifted and labels.ndim > 1 else labels
            counted = int((labels != spec.ignored).sum())
    return number, counted
