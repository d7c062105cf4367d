r"""Metrics of classes that are not means over samples: F1, precision, recall, IoU, AUC.

With `t` the samples (or positions) of a class that are predicted as this class, `p` all that are
predicted as it, and `n` all that belong to it::

    precision = t / p    recall = t / n    F1 = 2 t / (p + n)    IoU = t / (p + n - t)

A model with one score per sample has one such class, class 1. Otherwise the metric is the mean over
the classes that occur in the labels or the predictions. 0 / 0 is 0. These are scikit-learn's
``average="binary"`` and ``average="macro"``.

The area under the ROC curve is the probability that a sample of class 1 has a higher score than one
of class 0; of equal scores, half of the pairs count (Fawcett, An introduction to ROC analysis,
2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ArgumentValueError
from ortboost.training.label_rule import in_order
from ortboost.training.protocols import Array
from ortboost.training.scores import class_labels, is_binary

__all__ = ["auc", "class_counts", "f1", "iou", "precision", "ranked", "recall"]

Counts: TypeAlias = NDArray[np.int64]
"""``[3, C]``: `t`, `p` and `n` of each class; ``[3, 1]`` for class 1 of a binary model."""


def class_counts(scores: Array, labels: Array, threshold: float = 0.0) -> Counts:
    """Count the samples of each class, those that are predicted as it, and those of both.

    Args:
        scores: ``[N, C, d...]``; or the ``[N]`` or ``[N, 1, d...]`` scores of a binary model.
        labels: Classes, or one-hot labels, as for :func:`ortboost.training.scores.accuracy`.
            Samples whose label is not a class count as predictions only; where a score is NaN,
            nothing is predicted.
        threshold: Of a binary model: scores above it mean class 1.

    Example:
        >>> class_counts(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])).tolist()
        [[0, 1], [1, 1], [0, 2]]
    """
    if is_binary(scores):
        predicted, actual = scores > threshold, _are_one(scores, labels)
        return np.array([[(predicted & actual).sum()], [predicted.sum()], [actual.sum()]])
    classes, number = class_labels(scores, labels), scores.shape[1]
    chosen = np.where(np.isnan(scores).any(axis=1), -1, scores.argmax(axis=1))
    both = np.where(chosen == classes, classes, -1)
    return np.stack([_count(values, number) for values in (both, chosen, classes)])


def _count(values: NDArray[Any], number: int) -> Counts:
    valid = values[(values >= 0) & (values < number)].astype(np.int64)
    return np.bincount(valid, minlength=number)


def _are_one(scores: Array, labels: Array) -> NDArray[np.bool_]:
    """Where the label of a binary model is class 1; probabilities are rounded, as for accuracy."""
    if not in_order(labels.shape, scores.shape):
        raise ArgumentValueError(
            "The shape of the labels does not match the model's output, so the metric is unknown.",
            where=f"output {list(scores.shape)}, labels {list(labels.shape)}",
            fix="Choose another metric or none, or name the output that the labels are for.",
        )
    return np.asarray(np.rint(labels) == 1).reshape(scores.shape)


def precision(parts: Sequence[Counts]) -> float:
    """`t / p` of the counts of all batches."""
    (both, predicted, actual) = np.sum(parts, axis=0)
    return _mean(both, predicted, predicted + actual)


def recall(parts: Sequence[Counts]) -> float:
    """`t / n` of the counts of all batches."""
    (both, predicted, actual) = np.sum(parts, axis=0)
    return _mean(both, actual, predicted + actual)


def f1(parts: Sequence[Counts]) -> float:
    """`2 t / (p + n)` of the counts of all batches."""
    (both, predicted, actual) = np.sum(parts, axis=0)
    return _mean(2 * both, predicted + actual, predicted + actual)


def iou(parts: Sequence[Counts]) -> float:
    """`t / (p + n - t)` of the counts of all batches, the Jaccard index.

    Example:
        >>> iou([class_counts(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))])
        0.25
    """
    (both, predicted, actual) = np.sum(parts, axis=0)
    return _mean(both, predicted + actual - both, predicted + actual)


def _mean(above: Counts, below: Counts, occurrences: Counts) -> float:
    """The mean of ``above / below`` over the classes that occur; 0 if none does."""
    ratios = above / np.maximum(below, 1)
    occurring = ratios[occurrences > 0]
    return float(occurring.mean()) if len(occurring) else 0.0


def ranked(scores: Array, labels: Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The scores of class 1 and whether it is right, flat.

    Raises:
        ArgumentValueError: There are more than two classes.
    """
    if is_binary(scores):
        return scores.reshape(-1).astype(np.float64), _are_one(scores, labels).reshape(-1)
    if scores.ndim < 2 or scores.shape[1] != 2:
        raise ArgumentValueError(
            "The area under the ROC curve needs two classes.",
            where=f"metric 'auc', output {list(scores.shape)}",
            fix="Use accuracy or f1.",
        )
    classes = class_labels(scores, labels)
    first, second = np.moveaxis(scores.astype(np.float64), 1, 0)
    return (second - first).reshape(-1), classes.reshape(-1) == 1


def auc(parts: Sequence[tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> float:
    """The area under the ROC curve; NaN if there is only one class, or a score is NaN.

    Example:
        >>> auc([(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))])
        0.75
    """
    scores, positive = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives or np.isnan(scores).any():
        return float("nan")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of equal scores, from 1
    total = float(ranks[places][positive].sum())
    return (total - positives * (positives + 1) / 2) / (positives * negatives)
