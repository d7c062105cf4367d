"""Metrics of a validation: names and functions, independent of how the data are divided."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from ortboost.core.errors import ConfigError, OrtBoostError, UsageError, first_line, nearest
from ortboost.training import class_counts, scores
from ortboost.training.protocols import Array

__all__ = [
    "METRICS",
    "Mean",
    "Metric",
    "get_metric",
    "get_metrics",
    "is_rising",
    "perplexity_of_scores",
    "strict",
]


@dataclass
class Mean:
    """A streaming, sample-weighted mean in float64.

    Example:
        >>> mean = Mean()
        >>> mean.add(1.0, 3)
        >>> mean.add(0.0, 1)
        >>> mean.value
        0.75
    """

    total: float = 0.0
    count: float = 0

    def add(self, value: float, samples: float = 1) -> None:
        """Add ``samples`` samples with the mean ``value``."""
        self.add_sum(value * samples, samples)

    def add_sum(self, total: float, samples: float) -> None:
        """Add ``samples`` samples whose values sum to ``total``."""
        self.total += total
        self.count += samples

    @property
    def value(self) -> float:
        """The mean; NaN before the first sample."""
        return self.total / self.count if self.count else float("nan")


@dataclass(frozen=True)
class Metric:
    """A number that is computed from the scores and the labels of all batches.

    Args:
        name: The name in logs; in a training with the prefix ``val_``.
        batch: A function of the scores ``[N, C, ...]`` and the labels of a batch that returns what
            the batch contributes, for example counts. If labels are ignored, it gets only the
            others with their scores, ``[n, C]`` and ``[n]``. ``None`` for a metric of the loss,
            which the evaluation graph computes.
        value: A function of the list of all contributions that returns the metric. For a metric of
            the loss, a contribution is the sum of the loss over a batch and the number of terms.
        rising: Whether a higher value is better.
        labels: What the labels are: ``classes`` for one class per sample or position, ``scores``
            for a label for each score; ``None`` for either.

    Example:
        >>> def batch(scores, labels):
        ...     return np.abs(scores - labels).max()
        >>> largest = Metric("largest-error", batch, max, rising=False, labels="scores")
        >>> largest.value([largest.batch(np.ones((2, 3)), np.zeros((2, 3)))]).item()
        1.0
    """

    name: str
    batch: Callable[[Array, Array], Any] | None
    value: Callable[[Sequence[Any]], float]
    rising: bool = True
    labels: Literal["classes", "scores"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or (self.name == "loss" and self.batch):
            raise ConfigError(
                f"A metric cannot have the name {self.name!r}.",
                where="Metric, name",
                fix="Give another name, a string.",
            )
        for name in ("batch", "value"):
            given = getattr(self, name)
            if not callable(given) and not (name == "batch" and given is None):
                raise ConfigError(
                    f"'{name}' is {given!r}; a function is needed.",
                    where=f"metric '{self.name}'",
                    fix="Give batch(scores, labels) and value(contributions of all batches).",
                )

    @classmethod
    def mean(
        cls,
        name: str,
        function: Callable[[Array, Array], Array],
        *,
        rising: bool = True,
        labels: Literal["classes", "scores"] | None = None,
    ) -> Metric:
        """The mean over the samples of a function.

        Args:
            name: The name in logs.
            function: A function of the scores ``[N, C, ...]`` and the labels of a batch that
                returns a value for each sample, ``[N]``.
            rising: Whether a higher value is better.
            labels: What the labels are, see :class:`Metric`.
        """

        def batch(scores: Array, labels: Array) -> tuple[float, int]:
            values = np.asarray(function(scores, labels), np.float64)
            if values.shape != (len(scores),):
                raise UsageError(
                    f"The function of the metric returned the shape {list(values.shape)}.",
                    where=f"metric '{name}', {len(scores)} samples",
                    fix="Return a value for each sample, [N].",
                )
            return float(values.sum()), len(values)

        return cls(name, batch, _mean_of, rising, labels)

    def contribution(self, scores: Array, labels: Array) -> Any:
        """What a batch contributes.

        Raises:
            UsageError: ``batch`` raised an error.
        """
        assert self.batch is not None
        try:
            return self.batch(scores, labels)
        except OrtBoostError:
            raise
        except Exception as error:  # the function of a user
            raise self._failed("batch", error, scores, labels) from error

    def result(self, parts: Sequence[Any]) -> float:
        """The value as a float; NaN if no batch contributed.

        Raises:
            UsageError: ``value`` raised an error, or did not return a number.
        """
        if not parts:
            return math.nan
        try:
            return float(self.value(parts))
        except Exception as error:  # the function of a user
            raise self._failed("value", error) from error

    def _failed(self, function: str, error: Exception, *arrays: Array) -> UsageError:
        shapes = ", ".join(f"{array.dtype} {list(array.shape)}" for array in arrays)
        return UsageError(
            f"The metric '{self.name}' failed: {type(error).__name__}: {first_line(error)}",
            where=f"{function}({shapes or 'the contributions of all batches'})",
            fix="Fix this function; it has to return a number."
            if function == "value"
            else "Fix this function; its arguments are the scores and the labels of a batch.",
        )


def is_rising(name: str) -> bool:
    """Whether a higher value of a metric with this name is better, also with ``val_`` before it.

    Example:
        >>> is_rising("val_f1"), is_rising("val_loss"), is_rising("val_top5")
        (True, False, True)
    """
    try:
        return get_metric(name.removeprefix("val_")).rising
    except UsageError:  # a user's own, or one of the steps
        return "accuracy" in name


def get_metric(name: str | Metric, threshold: float = 0.0) -> Metric:
    """A metric by name; a :class:`Metric` is returned as it is.

    Args:
        name: One of :data:`METRICS`; ``topK`` (``top5``, ``top-5``) for every K.
        threshold: The score above which a binary model predicts class 1.

    Raises:
        UsageError: The name is unknown; the message suggests the nearest.
    """
    if isinstance(name, Metric):
        return name
    for metric in _known(threshold):
        if metric.name == name:
            return metric
    match = re.fullmatch(r"top[-_]?([1-9]\d*)", name)
    if match:
        return Metric.mean(f"top{match[1]}", scores.top_k(int(match[1])), labels="classes")
    raise UsageError(f"Unknown metric '{name}'.", where="metrics", fix=nearest(name, METRICS))


def get_metrics(chosen: Sequence[str | Metric], threshold: float = 0.0) -> list[Metric]:
    """:func:`get_metric` of each; results are by name, so names must differ.

    Raises:
        UsageError: A name is unknown, or two metrics have the same name.
    """
    found = [get_metric(name, threshold) for name in chosen]
    names = [metric.name for metric in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"Several metrics have the name '{name}'.",
                where=f"metrics {', '.join(names)}",
                fix="Leave one out, or give a metric of your own another name.",
            )
    return found


def _known(threshold: float) -> list[Metric]:
    """The metrics with a name, except ``topK``."""
    accuracy = partial(scores.accuracy, threshold=threshold)
    binary = partial(scores.binary_accuracy, threshold=threshold)
    counts = partial(class_counts.class_counts, threshold=threshold)
    return [
        Metric.mean("accuracy", accuracy, labels="classes"),
        Metric("f1", counts, class_counts.f1, labels="classes"),
        Metric("precision", counts, class_counts.precision, labels="classes"),
        Metric("recall", counts, class_counts.recall, labels="classes"),
        Metric("iou", counts, class_counts.iou, labels="classes"),
        Metric("auc", class_counts.ranked, class_counts.auc, labels="classes"),
        Metric.mean("binary-accuracy", binary, labels="scores"),
        Metric.mean("mae", scores.absolute_error, rising=False, labels="scores"),
        Metric.mean("mse", scores.squared_error, rising=False, labels="scores"),
        Metric("perplexity", None, lambda losses: _exp(_mean_of(losses)), rising=False),
        Metric("loss", None, _mean_of, rising=False),
    ]


def perplexity_of_scores(*, probabilities: bool) -> Metric:
    """The perplexity of a model that does not compute its loss.

    Args:
        probabilities: The scores are probabilities, not logits.
    """
    batch = partial(scores.cross_entropy, probabilities=probabilities)
    return dataclasses.replace(get_metric("perplexity"), batch=batch, labels="classes")


def _mean_of(parts: Sequence[tuple[float, float]]) -> float:
    """The mean of pairs of a sum and its number of terms."""
    totals, counts = zip(*parts, strict=True)
    return math.fsum(totals) / math.fsum(counts)


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def strict(metric: Metric) -> Metric:
    """The metric, except that an invalid class index is an error instead of a miss.

    For a bare model, which does not specify which label to ignore.

    Example:
        >>> strict(get_metric("accuracy")).batch(np.array([[0.1, 0.9]]), np.array([1]))
        (1.0, 1)
    """
    batch = metric.batch
    if batch is None or metric.labels != "classes":
        return metric

    def checked(found: Array, labels: Array) -> Any:
        if found.ndim > 1 and found.shape[1] > 1:
            count, classes = found.shape[1], scores.class_labels(found, labels)
            strays = classes[~((classes >= 0) & (classes < count))]
            known = f"the model has {count}, 0 to {count - 1}"
        else:
            strays = labels[(labels < 0) | (labels > 1)]
            known = "a model with one score has 0 and 1"
        if strays.size:
            raise UsageError(
                f"The label {strays.flat[0]:g} is not a class: {known}.",
                where=f"metric '{metric.name}'",
                fix="Fix the labels, name the output that holds the class scores (--output), or "
                "specify the label to ignore (--ignore-index).",
            )
        return batch(found, labels)

    return dataclasses.replace(metric, batch=checked)


METRICS: Final = ("top5", *(metric.name for metric in _known(0.0)))
"""Names for :func:`get_metric`; ``topK`` is valid for every K."""
