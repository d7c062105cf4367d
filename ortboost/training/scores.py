"""Comparisons of scores with labels: one value for each sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ArgumentValueError
from ortboost.training.label_rule import in_order
from ortboost.training.protocols import Array

__all__ = [
    "absolute_error",
    "accuracy",
    "binary_accuracy",
    "class_labels",
    "cross_entropy",
    "hits",
    "is_binary",
    "squared_error",
    "top_k",
]


def accuracy(scores: Array, labels: Array, threshold: float = 0.0) -> NDArray[np.float64]:
    """1 where the label's score is the highest.

    Args:
        scores: ``[N, C]`` or ``[N, C, d...]``, such as logits or probabilities; or the
            ``[N]`` or ``[N, 1]`` scores of a binary model.
        labels: Class indices ``[N, d...]``, or one-hot/dense labels in the shape of ``scores``,
            with one class for each sample.
        threshold: Of a binary model: scores above it mean class 1; 0 for logits.

    Returns:
        ``[N]``; positions ``d...`` are averaged. NaN scores count as wrong.

    Example:
        >>> accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])).tolist()
        [1.0, 0.0]
    """
    if is_binary(scores):
        return binary_accuracy(scores, labels, threshold)
    classes = class_labels(scores, labels)
    return _by_sample(hits(scores, classes))


def is_binary(scores: Array) -> bool:
    """Whether there is one score, of class 1, instead of a score for each class."""
    return scores.ndim == 1 or (scores.ndim > 1 and scores.shape[1] == 1)


def binary_accuracy(scores: Array, labels: Array, threshold: float = 0.0) -> NDArray[np.float64]:
    """The share of the scores that are above the threshold where the label is 1, or not where 0.

    Args:
        scores: ``[N, d...]``, for example of several classes that do not exclude each other.
        labels: 0 or 1 for each score, in order.
        threshold: 0 for logits, 0.5 for probabilities.

    Returns:
        ``[N]``. NaN scores count as wrong.

    Example:
        >>> logits, labels = np.array([[1.5, -0.2], [0.3, 2.0]]), np.array([[1, 0], [0, 1]])
        >>> binary_accuracy(logits, labels).tolist()
        [1.0, 0.5]
    """
    right = (scores > threshold) == (_of_each(scores, labels) > 0.5)
    return _by_sample(right & np.isfinite(scores))


def absolute_error(scores: Array, labels: Array) -> NDArray[np.float64]:
    """The mean absolute difference of a sample, ``[N]``; labels have the shape of the scores."""
    return _by_sample(abs(scores.astype(np.float64) - _of_each(scores, labels)))


def squared_error(scores: Array, labels: Array) -> NDArray[np.float64]:
    """The mean squared difference of a sample, ``[N]``; labels have the shape of the scores."""
    return _by_sample((scores.astype(np.float64) - _of_each(scores, labels)) ** 2)


def cross_entropy(
    scores: Array, labels: Array, *, probabilities: bool = False
) -> tuple[float, int]:
    """The sum of the cross entropies of all samples and positions, and their number.

    Args:
        scores: ``[N, C]`` or ``[N, C, d...]``: logits or logarithms of probabilities.
        labels: Class indices ``[N, d...]``, or one-hot/dense labels in the shape of ``scores``.
        probabilities: The scores are probabilities.

    Raises:
        ArgumentValueError: The probabilities of a sample do not add up to 1.

    Example:
        >>> total, count = cross_entropy(np.zeros((3, 4)), np.array([0, 1, 2]))
        >>> f"{total / count:.4f}", count
        ('1.3863', 3)
    """
    exact = scores.astype(np.float64)
    if probabilities:
        sums = exact.sum(axis=1)
        if (abs(sums - 1) > 0.05).any():  # reduced precision rounds each of them
            raise ArgumentValueError(
                "The probabilities of the classes do not add up to 1, so there is no perplexity.",
                where=f"output {list(scores.shape)}, with sums up to {sums.max():.3g}",
                fix="Name the output with the logits, or evaluate the program.",
            )
        with np.errstate(divide="ignore"):
            logs = np.log(exact)
    else:
        logs = exact - exact.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    if labels.shape == scores.shape:
        terms = (labels * np.where(labels == 0, 0, logs)).sum(axis=1)
    else:
        classes = class_labels(scores, labels).astype(np.int64)
        terms = np.take_along_axis(logs, classes[:, None], axis=1)
    return -float(terms.sum()), terms.size


def top_k(k: int) -> Callable[[Array, Array], NDArray[np.float64]]:
    """A metric function: 1 where fewer than ``k`` classes have a higher score than the label's.

    Example:
        >>> top_k(2)(np.array([[0.5, 0.3, 0.2]]), np.array([1])).tolist()
        [1.0]
    """

    def function(scores: Array, labels: Array) -> NDArray[np.float64]:
        return _by_sample(hits(scores, class_labels(scores, labels), k))

    return function


def hits(scores: Array, classes: Array, k: int = 1) -> NDArray[np.bool_]:
    """Where fewer than ``k`` classes have a higher score than the correct one.

    Of equal scores the one with the lower class index ranks first, as in argmax; NaN is a miss.

    Args:
        scores: ``[N, C]`` or ``[N, C, d...]``.
        classes: The correct class indices, ``[N, d...]``; an invalid index is a miss.
        k: How many of the highest scores count.

    Returns:
        ``[N, d...]``.

    Example:
        >>> hits(np.array([[0.5, 0.3, 0.2]]), np.array([1]), 2).tolist()
        [True]
    """
    if k == 1:
        found = scores.argmax(axis=1) == classes
    else:
        known = (classes >= 0) & (classes < scores.shape[1])
        chosen = np.where(known, classes, 0).astype(np.int64)[:, None]
        own = np.take_along_axis(scores, chosen, axis=1)  # [N, 1, d...]: the correct class's score
        index = np.arange(scores.shape[1]).reshape(1, -1, *[1] * (scores.ndim - 2))
        ahead = (scores > own) | ((scores == own) & (index < chosen))
        found = known & (ahead.sum(axis=1) < k)
    return np.asarray(found & ~np.isnan(scores).any(axis=1))


def class_labels(scores: Array, labels: Array) -> Array:
    """Labels as class indices of the shape ``[N, d...]``.

    Args:
        scores: ``[N, C, d...]`` of two classes or more.
        labels: Class indices of as many elements in the same order, or one-hot or soft labels in
            the shape of ``scores``.

    Raises:
        ArgumentValueError: The shapes do not fit, or a row of labels has several classes, or none.
    """
    if scores.ndim < 2 or scores.shape[1] < 2:
        raise _mismatch(scores, labels)
    wanted = (scores.shape[0], *scores.shape[2:])
    if labels.shape == scores.shape:
        top = labels.max(axis=1, keepdims=True)
        tied = (labels == top).sum(axis=1, keepdims=True) > 1
        # Equal largest probabilities below 1 are a soft label: as in argmax, the first one counts.
        if (tied & ((top == 0) | (top >= 1))).any():
            raise ArgumentValueError(
                "A row of labels has several classes, or none, so there is no accuracy.",
                where=f"labels {list(labels.shape)}",
                fix="Turn the metric off; the loss itself is reported.",
            )
        return np.asarray(labels.argmax(axis=1))
    if in_order(labels.shape, wanted):
        return labels.reshape(wanted)
    raise _mismatch(scores, labels)


def _of_each(scores: Array, labels: Array) -> Array:
    """The labels in the shape of the scores; they may lack axes of length 1."""
    if not in_order(labels.shape, scores.shape):
        raise _mismatch(scores, labels)
    return labels.reshape(scores.shape)


def _mismatch(scores: Array, labels: Array) -> ArgumentValueError:
    return ArgumentValueError(
        "The shape of the labels does not match the model's output, so the metric is unknown.",
        where=f"output {list(scores.shape)}, labels {list(labels.shape)}",
        fix="Choose another metric or none, or name the output that the labels are for.",
    )


def _by_sample(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(values.reshape(len(values), -1).mean(axis=1, dtype=np.float64))
