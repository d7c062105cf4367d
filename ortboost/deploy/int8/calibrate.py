r"""Ranges of activations, measured by running the model on calibration data.

``minmax`` is the smallest and the largest value observed. The other two use a histogram of absolute
values from a second pass, with bins over the range found in the first:

* ``percentile``: the smallest threshold that keeps the given share of the values.
* ``entropy``: the threshold ``t`` with the least divergence between the distribution clipped at
  ``t``, P, and its quantization to 128 levels, Q (Migacz, "8-bit Inference with TensorRT", 2017)::

      KL(P || Q) = sum_i P_i log(P_i / Q_i)

onnxruntime.quantization has calibrators too. They are not used because they keep every activation
of every batch in memory and print to stdout; the tests compare these ranges with theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.deploy.intermediates import intermediate_evaluator

__all__ = ["Range", "calibrate", "entropy_threshold", "percentile_threshold", "select_evenly"]

_BINS: Final = 2048
_LEVELS: Final = 128
_STRIDE: Final = 8  # thresholds tried: every eighth bin


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of a tensor that are to be represented."""

    low: float
    high: float

    @property
    def finite(self) -> bool:
        """Whether both ends are finite."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    @property
    def magnitude(self) -> float:
        """The larger of both absolute values."""
        return max(abs(self.low), abs(self.high))


def calibrate(
    model: ir.Model,
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    names: Iterable[str],
    method: str = "minmax",
    *,
    percentile: float = 99.99,
) -> dict[str, Range]:
    """Measure the range of tensors of the main graph, inputs included, on calibration batches.

    ``method`` and ``percentile`` are those of :class:`~ortboost.deploy.int8.config.Int8Config`.

    Returns:
        Name to range. A tensor with a non-finite value on the data has a non-finite range.

    Raises:
        UsageError: There are no data.
        ModelError: The runtime rejects the model.
    """
    wanted = list(dict.fromkeys(names))
    if not feeds:
        raise UsageError(
            "Quantizing needs calibration data.", where="--calib", fix="Give --calib DATA."
        )
    if not wanted:
        return {}
    made = {out.name for node in model.graph for out in node.outputs}
    inner = [name for name in wanted if name in made]  # the others are inputs
    # A session needs an output, also if only inputs are measured.
    with intermediate_evaluator(model, inner or [next(iter(made)) or ""]) as evaluator:

        def answers() -> Iterable[dict[str, NDArray[Any]]]:
            # Computed anew in each pass: storing all activations could exceed the memory.
            for batch in feeds:
                found = evaluator.evaluate(batch)
                yield {name: np.asarray(found.get(name, batch.get(name))) for name in wanted}

        ranges = _full_ranges(wanted, answers())
        if method == "minmax":
            return ranges
        # Tensors that are all zero or not finite get no histogram.
        largest = {name: r.magnitude for name, r in ranges.items() if r.finite and r.magnitude > 0}
        histograms = _histograms(largest, answers())
    for name, histogram in histograms.items():
        if method == "percentile":
            bins = percentile_threshold(histogram, percentile)
        else:
            bins = entropy_threshold(histogram)
        most = bins * largest[name] / _BINS  # a threshold of both signs
        ranges[name] = Range(max(ranges[name].low, -most), min(ranges[name].high, most))
    return ranges


def _full_ranges(
    names: Sequence[str], batches: Iterable[Mapping[str, NDArray[Any]]]
) -> dict[str, Range]:
    """The smallest and the largest value of each tensor."""
    low, high = dict.fromkeys(names, np.inf), dict.fromkeys(names, -np.inf)
    for found in batches:
        for name, array in found.items():
            if array.size:  # NaN propagates through minimum and maximum
                low[name] = float(np.minimum(low[name], array.min()))
                high[name] = float(np.maximum(high[name], array.max()))
    return {name: Range(low[name], high[name]) for name in names}


def _histograms(
    largest: Mapping[str, float], batches: Iterable[Mapping[str, NDArray[Any]]]
) -> dict[str, NDArray[np.float64]]:
    """Counts of the absolute values of each tensor, in ``_BINS`` equal bins up to its largest."""
    counts = {name: np.zeros(_BINS) for name in largest}
    for found in batches:
        for name, histogram in counts.items():
            histogram += _histogram(found[name], largest[name])
    return counts


def _histogram(values: NDArray[Any], largest: float) -> NDArray[np.int64]:
    """Counts of absolute values in equal bins from 0 to ``largest``.

    Five times faster than numpy's histogram.
    """
    places = np.abs(values).ravel()  # a copy: the next lines work in place
    places /= np.float32(largest)
    places *= _BINS
    return np.bincount(np.minimum(places, _BINS - 1).astype(np.intp), minlength=_BINS)


def select_evenly(
    feeds: Sequence[Mapping[str, NDArray[Any]]], samples: int
) -> Sequence[Mapping[str, NDArray[Any]]]:
    """Select batches with about ``samples`` samples, evenly distributed over the data.

    Example:
        >>> [int(f["x"][0]) for f in select_evenly([{"x": np.full(8, i)} for i in range(10)], 24)]
        [0, 3, 6]
    """
    total = sum(next((len(a) for a in batch.values() if np.ndim(a)), 1) for batch in feeds)
    if total <= samples:
        return feeds
    count = max(1, -(-len(feeds) * samples // total))
    return [feeds[i * len(feeds) // count] for i in range(count)]


def percentile_threshold(histogram: NDArray[Any], percentile: float) -> int:
    """The number of bins that hold this share of all values.

    Example:
        >>> percentile_threshold(np.array([90, 9, 1]), 99.0)
        2
    """
    share = np.cumsum(histogram) / histogram.sum()
    # A little less, so that rounding in the division does not cost another bin.
    return min(int(np.searchsorted(share, percentile / 100.0 - 1e-12)) + 1, len(histogram))


def entropy_threshold(histogram: NDArray[Any]) -> int:
    """The number of first bins whose quantization to 128 levels preserves a histogram best."""
    counts = np.asarray(histogram, np.float64).copy()
    # Exact zeros (after a Relu) are represented exactly whatever the threshold is.
    counts[0] = counts[1] if len(counts) > 1 else counts[0]
    if not counts.any():
        return len(counts)
    best, best_bins = np.inf, len(counts)
    for bins in range(_LEVELS, len(counts) + 1, _STRIDE):
        divergence = _divergence(counts, bins)
        if divergence < best:
            best, best_bins = divergence, bins
    return best_bins


def _divergence(counts: NDArray[np.float64], bins: int) -> float:
    """KL(P || Q) of the first ``bins`` bins; the last one also holds all values beyond."""
    inside = counts[:bins]
    if not inside.any():
        return float("inf")
    clipped = inside.copy()
    clipped[-1] += counts[bins:].sum()
    # Q: each level spreads its values evenly over those of its bins that are not empty; the values
    # beyond the threshold, which P has in its last bin, are not among them.
    starts = (np.arange(_LEVELS) * bins) // _LEVELS
    filled = inside > 0
    totals = np.add.reduceat(inside, starts)
    counted = np.add.reduceat(filled.astype(np.float64), starts)
    sizes = np.diff(np.append(starts, bins))
    means = np.divide(totals, counted, out=np.zeros_like(totals), where=counted > 0)
    expanded = np.where(filled, np.repeat(means, sizes), 0.0)
    p, q = clipped / clipped.sum(), expanded / expanded.sum()
    support = p > 0
    # Values beyond the threshold may fall into a last bin that Q leaves empty.
    q = np.where(support & (q <= 0), 1e-9, q)
    return float(np.sum(p[support] * np.log(p[support] / q[support])))
