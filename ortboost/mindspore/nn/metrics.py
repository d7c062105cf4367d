"""Metrics with MindSpore's API: ``clear``, then ``update`` for each batch, then ``eval``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arguments import checked
from ortboost.core.arrays import as_array
from ortboost.core.errors import require_known
from ortboost.mindspore.core.arguments import (
    ArgumentKeyError,
    ArgumentRuntimeError,
    ArgumentTypeError,
    ArgumentValueError,
    Count,
)
from ortboost.training.metrics import Mean
from ortboost.training.scores import class_labels, hits

__all__ = [
    "MAE",
    "MSE",
    "Accuracy",
    "Loss",
    "Metric",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "chosen",
    "get_metric_fn",
    "get_metrics",
    "names",
    "rearrange_inputs",
]

_R = TypeVar("_R")


def rearrange_inputs(update: Callable[..., _R]) -> Callable[..., _R]:
    """Decorate a metric's ``update``: its inputs are those of :meth:`Metric.set_indexes`.

    Raises:
        ArgumentValueError: By ``update``, if there are fewer inputs.
    """

    @functools.wraps(update)
    def rearranged(metric: Metric, *inputs: Any) -> _R:
        return update(metric, *(inputs if not metric.indexes else chosen(inputs, metric.indexes)))

    return rearranged


def chosen(outputs: Sequence[Any], indexes: Sequence[int]) -> list[Any]:
    """Some of the outputs of an evaluation network, or of the inputs of a metric."""
    wrong = [index for index in indexes if not -len(outputs) <= index < len(outputs)]
    if wrong:
        raise ArgumentValueError(
            f"There are {len(outputs)} outputs, but index {wrong[0]} is needed.",
            where="Model, eval_indexes or Metric.set_indexes",
            fix=f"Use 0 to {len(outputs) - 1}.",
        )
    return [outputs[index] for index in indexes]


class Metric:
    """Base class of the metrics: a mean over samples."""

    def __init__(self) -> None:
        self.indexes: Sequence[int] | None = None
        self._mean = Mean()  # not by clear(), which a subclass may not support yet

    def clear(self) -> None:
        """Reset the metric."""
        self._mean = Mean()

    def update(self, *inputs: Any) -> None:
        """Add a batch: predictions and labels."""
        raise NotImplementedError

    def eval(self) -> float:
        """Compute the mean over all samples since the last reset.

        Raises:
            ArgumentRuntimeError: There were no samples.
        """
        if not self._mean.count:
            raise ArgumentRuntimeError(
                f"'{type(self).__name__}' has seen no samples.",
                where=type(self).__name__,
                fix="Call update first; is the data set empty?",
            )
        return self._mean.value

    def __call__(self, *inputs: Any) -> float:
        """The value of one batch alone, as in MindSpore: clear, update, eval."""
        self.clear()
        self.update(*inputs)
        return self.eval()

    def set_indexes(self, indexes: Sequence[int]) -> Metric:
        """Rearrange the inputs of ``update``: ``[2, 1]`` makes (a, b, c) to (c, b).

        In a metric of your own, ``update`` needs the decorator :func:`rearrange_inputs` for it.

        Raises:
            ArgumentValueError: It is not a list of integers.
        """
        if not isinstance(indexes, list) or not all(isinstance(index, int) for index in indexes):
            raise ArgumentValueError(
                f"'indexes' is {indexes!r}.",
                where=f"{type(self).__name__}.set_indexes",
                fix="Give a list of numbers: [0, 2].",
            )
        self.indexes = list(indexes)
        return self

    @staticmethod
    def _convert_data(data: Any) -> NDArray[Any]:
        """Convert an input of ``update`` to an array; metrics of users call it, as in MindSpore."""
        return as_array(data, "data")

    def _add(self, values: NDArray[Any]) -> None:
        """Add one value for each sample, or position of one."""
        self._mean.add_sum(float(np.sum(values, dtype=np.float64)), values.size)


class _TopK(Metric):
    """Share of samples whose label is among the `k` highest scores."""

    k = 1

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        """Add scores ``[N, C]`` and labels, ``[N]`` or one-hot ``[N, C]``."""
        self._add(self._right(*_pair(self, inputs)))

    def _right(self, scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.bool_]:
        return hits(scores, class_labels(scores, labels), self.k)


class Accuracy(_TopK):
    """Share of samples whose label has the highest score.

    Args:
        eval_type: ``classification``; or ``multilabel``: the share of samples whose predictions
            ``[N, C]``, 0 or 1, equal all their labels.

    Raises:
        ArgumentTypeError: The type is unknown, as in MindSpore.

    Example:
        >>> metric = Accuracy()
        >>> metric.update(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
        >>> metric.eval()
        0.5
    """

    def __init__(self, eval_type: str = "classification") -> None:
        super().__init__()
        if eval_type not in ("classification", "multilabel"):
            raise ArgumentTypeError(
                f"'eval_type' is {eval_type!r}.",
                where="Accuracy",
                fix="Give 'classification' or 'multilabel'.",
            )
        self.eval_type = eval_type

    def _right(self, scores: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.bool_]:
        if self.eval_type == "classification":
            return super()._right(scores, labels)
        fit = scores.shape == labels.shape and scores.ndim > 1
        if not fit or not all(np.isin(array, (0, 1)).all() for array in (scores, labels)):
            raise ArgumentValueError(
                f"Predictions {list(scores.shape)} and labels {list(labels.shape)} are not 0 and 1 "
                "in one shape.",
                where="Accuracy('multilabel')",
                fix="Give arrays [N, C] of 0 and 1, for example rounded probabilities.",
            )
        return np.asarray((scores == labels).all(axis=1))


class TopKCategoricalAccuracy(_TopK):
    """Share of samples whose label is among the `k` highest scores."""

    @checked
    def __init__(self, k: Count) -> None:
        super().__init__()
        self.k = k


class Top1CategoricalAccuracy(TopKCategoricalAccuracy):
    """:class:`TopKCategoricalAccuracy` with `k` = 1."""

    def __init__(self) -> None:
        super().__init__(1)


class Top5CategoricalAccuracy(TopKCategoricalAccuracy):
    """:class:`TopKCategoricalAccuracy` with `k` = 5."""

    def __init__(self) -> None:
        super().__init__(5)


class _Errors(Metric):
    """Errors summed in each sample (row; a single number is one), averaged over the samples."""

    _power: ClassVar[int]

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        """Add predictions and labels of one shape ``[N, ...]``, except for axes of length 1."""
        predicted, wanted = _pair(self, inputs)
        if predicted.squeeze().shape != wanted.squeeze().shape:
            raise ArgumentValueError(
                f"Predictions {list(predicted.shape)} and labels {list(wanted.shape)} differ in "
                "shape.",
                where=type(self).__name__,
                fix="Reshape the labels.",
            )
        predicted = predicted.reshape(wanted.shape).astype(np.float64)
        errors = np.abs(predicted - wanted) ** self._power
        self._add(np.asarray(errors.sum(axis=tuple(range(1, errors.ndim)))))


class MSE(_Errors):
    """Squared errors summed in each sample, averaged over the samples (rows), as in MindSpore."""

    _power = 2


class MAE(_Errors):
    """Absolute errors summed in each sample, averaged over the samples (rows), as in MindSpore."""

    _power = 1


class Loss(Metric):
    """Unweighted mean of the losses of all batches, as in MindSpore."""

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        """Add the loss of one batch, a scalar or one value per sample."""
        loss = as_array(inputs[0], "loss") if len(inputs) == 1 else None
        if loss is None or loss.ndim > 1:
            found = f"{len(inputs)} arrays" if loss is None else f"a loss {list(loss.shape)}"
            raise ArgumentValueError(
                f"'Loss' needs a scalar or one loss per sample, not {found}.",
                where="Loss",
                fix="Use a loss with the reduction 'mean' or 'sum'.",
            )
        self._add(np.mean(loss, keepdims=True, dtype=np.float64).reshape(1))


_METRICS: Mapping[str, Callable[..., Metric]] = {
    "acc": Accuracy,
    "accuracy": Accuracy,
    "loss": Loss,
    "mae": MAE,
    "mse": MSE,
    "top_1_accuracy": Top1CategoricalAccuracy,
    "top_5_accuracy": Top5CategoricalAccuracy,
    "topk": TopKCategoricalAccuracy,
}


def names() -> list[str]:
    """The names for :func:`get_metric_fn`."""
    return sorted(_METRICS)


def get_metric_fn(name: str, *args: Any, **kwargs: Any) -> Metric:
    """Make a metric by name; further arguments are passed to it.

    Raises:
        ArgumentKeyError: The name is unknown; the message suggests the nearest.
    """
    require_known(name, _METRICS, f"Unknown metric '{name}'.", "metrics", ArgumentKeyError)
    return _METRICS[name](*args, **kwargs)


def get_metrics(metrics: Any) -> dict[str, Metric]:
    """Make the metrics of a model from a set of names, or a dict from name to metric."""
    if metrics is None:
        return {}
    if isinstance(metrics, set | frozenset):
        return {name: get_metric_fn(name) for name in sorted(metrics, key=str)}
    if isinstance(metrics, Mapping) and all(
        isinstance(key, str) and isinstance(value, Metric) for key, value in metrics.items()
    ):
        return dict(metrics)
    raise ArgumentTypeError(
        f"'metrics' is {metrics!r}.",
        where="metrics",
        fix="Give a set of names, {'acc', 'loss'}, or a dict from a name to a Metric.",
    )


def _pair(metric: Metric, inputs: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if len(inputs) != 2:
        raise ArgumentValueError(
            f"'{type(metric).__name__}' needs predictions and labels, not {len(inputs)} arrays.",
            where=type(metric).__name__,
            fix="Give two, or set eval_indexes.",
        )
    return as_array(inputs[0], "predictions"), as_array(inputs[1], "labels")
