"""Losses with MindSpore's API.

In a training step they become part of the graph (see :mod:`ortboost.transforms.attach_loss` for the
formulas); called directly, they run in a graph of their own, which each call opens (some 3 ms).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.arguments import checked
from ortboost.core.field_types import Range
from ortboost.mindspore.core.arguments import (
    ArgumentTypeError,
    ArgumentValueError,
    as_argument_error,
    positive,
)
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.tensor import Tensor, given_array
from ortboost.mindspore.core.traced import Traced
from ortboost.runtime.session import open_session
from ortboost.transforms.attach_loss import IGNORED, LossConfig, attach_loss

__all__ = [
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "L1Loss",
    "LossBase",
    "MSELoss",
    "SoftmaxCrossEntropyWithLogits",
]

_Array = NDArray[Any]
_Reduction = Literal["mean", "sum", "none"]


class LossBase(Cell):
    """Base class of the losses.

    Args:
        reduction: ``mean``, ``sum`` or ``none``. With ``none``, a training step differentiates the
            sum and returns all values.
    """

    kind = ""
    broadcasts: ClassVar[bool] = True
    """Whether predictions and labels may have different shapes."""
    in_words: ClassVar[str] = (
        "a loss of ortboost.nn, for example nn.SoftmaxCrossEntropyWithLogits(...)"
    )

    @checked
    def __init__(self, reduction: _Reduction = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def config(self, label_shape: tuple[int, ...] | None = None) -> LossConfig:
        """The configuration in a program; give ``label_shape`` if it is not that of the output."""
        return LossConfig(
            name=self.kind,
            reduction=self.reduction,
            label_shape=label_shape,
            broadcast=self.broadcasts,
        )

    def labels(self, value: Any) -> _Array:
        """Convert labels to the dtype of the graph."""
        return _float(value, "labels", type(self).__name__)

    def traced(self, logits: Any, labels: Any) -> Traced:
        """The traced loss."""
        owner = next(value.owner for value in (logits, labels) if isinstance(value, Traced))
        return Traced(owner, self, (logits, labels))

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """Compute the loss of numpy arrays.

        Args:
            logits: Predictions, float.
            labels: Targets.

        Returns:
            float32 Tensor: a scalar, or all values for the reduction ``none``.
        """
        predicted = _float(logits, "logits", type(self).__name__)
        target = self.labels(labels)
        self._check_shapes(predicted, target)
        if not predicted.size:  # the mean of nothing is not 0
            raise ArgumentValueError(
                f"There are no predictions: their shape is {list(predicted.shape)}.",
                where=type(self).__name__,
                fix="Leave empty batches out.",
            )
        given = ir.val("logits", ir.DataType.FLOAT, predicted.shape)
        same = ir.val("prediction", ir.DataType.FLOAT, predicted.shape)
        copy = ir.node("Identity", [given], outputs=[same])
        graph = ir.Graph([given], [same], nodes=[copy], opset_imports={"": 18}, name="loss")
        model = ir.Model(graph, ir_version=8)
        other = target.dtype == np.float32 and target.shape != predicted.shape
        with as_argument_error(type(self).__name__):
            attached = attach_loss(model, self.config(target.shape if other else None))
        session = open_session(model, device="cpu", threads=1)
        feeds = {"logits": predicted, str(attached.labels): target}
        return Tensor(session.run([attached.loss], feeds)[0])

    def _check_shapes(self, logits: _Array, labels: _Array) -> None:
        try:
            np.broadcast_shapes(logits.shape, labels.shape)
        except ValueError:
            raise self.misfit(logits.shape, labels.shape) from None
        if not self.broadcasts and logits.shape != labels.shape:
            raise self.misfit(logits.shape, labels.shape)

    def misfit(self, logits: Sequence[object], labels: Sequence[int]) -> ArgumentValueError:
        """Make the error for shapes that do not fit."""
        return ArgumentValueError(
            f"Predictions [{', '.join(map(str, logits))}] and labels {list(labels)} do not fit.",
            where=type(self).__name__,
            fix="Check the shapes of the network's output and of the labels.",
        )


class SoftmaxCrossEntropyWithLogits(LossBase):
    """Softmax cross entropy of logits ``[N, C]``.

    Args:
        sparse: Whether labels are class indices ``[N]`` (int32 or int64) instead of probabilities
            ``[N, C]``.
        reduction: ``none`` (MindSpore's default), ``mean`` or ``sum`` over the rows.

    Example:
        >>> loss = SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        >>> round(float(loss(np.zeros([2, 4], np.float32), np.array([0, 3]))), 4)
        1.3863
    """

    kind = "softmax-cross-entropy"
    broadcasts = False
    ignore_index: int | None = None

    @checked
    def __init__(self, sparse: bool = False, reduction: _Reduction = "none") -> None:
        super().__init__(reduction)
        self.sparse = sparse

    def config(self, label_shape: tuple[int, ...] | None = None) -> LossConfig:
        """The configuration of the loss in a program."""
        plain = super().config(label_shape)
        return dataclasses.replace(plain, sparse=self.sparse, class_axis=1, from_logits=True)

    def labels(self, value: Any) -> _Array:
        """Convert class indices to int64, or probabilities to float32."""
        array = given_array(type(self).__name__, "labels", value)
        if self.sparse != (array.dtype.kind in "iu"):
            raise ArgumentTypeError(
                f"The labels are {array.dtype}, but 'sparse' is {self.sparse}.",
                where=f"{type(self).__name__}, labels",
                fix="Class indices (int32) need sparse=True, float probabilities sparse=False.",
            )
        return array.astype(np.int64 if self.sparse else np.float32)

    def _check_shapes(self, logits: _Array, labels: _Array) -> None:
        wanted = (logits.shape[0], *logits.shape[2:]) if self.sparse else logits.shape
        if logits.ndim < 2 or labels.shape != wanted:
            raise self.misfit(logits.shape, labels.shape)
        known = labels[labels != self.ignore_index] if self.sparse else labels
        if self.sparse and known.size and not 0 <= known.min() <= known.max() < logits.shape[1]:
            raise ArgumentValueError(
                f"Labels range from {known.min()} to {known.max()}, "
                f"but there are {logits.shape[1]} classes.",
                where=type(self).__name__,
                fix="Count classes from 0.",
            )


class CrossEntropyLoss(SoftmaxCrossEntropyWithLogits):
    """Softmax cross entropy of logits ``[N, C]`` or ``[N, C, d...]`` with class indices.

    For labels that are probabilities, use ``SoftmaxCrossEntropyWithLogits(sparse=False)``.

    Args:
        weight: Weight of each class, ``[C]``; a mean is divided by the sum of the weights of the
            labels.
        ignore_index: A label that does not count.
        reduction: ``mean`` over the labels that count, ``sum`` or ``none``.
        label_smoothing: The share of a label that is spread over all classes, from 0, below 1.

    Example:
        >>> loss = CrossEntropyLoss()
        >>> round(float(loss(np.zeros([2, 4], np.float32), np.array([0, -100]))), 4)
        1.3863
    """

    @checked
    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = IGNORED,
        reduction: _Reduction = "mean",
        label_smoothing: Annotated[float, Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__(sparse=True, reduction=reduction)
        self.weight = None if weight is None else _float(weight, "weight", type(self).__name__)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def config(self, label_shape: tuple[int, ...] | None = None) -> LossConfig:
        """The configuration of the loss in a program."""
        return dataclasses.replace(
            super().config(label_shape),
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing or None,
        )

    def labels(self, value: Any) -> _Array:
        """Convert class indices to int64."""
        array = given_array(type(self).__name__, "labels", value)
        if array.dtype.kind not in "iu":
            raise ArgumentTypeError(
                f"The labels are {array.dtype}; class indices are needed.",
                where=f"{type(self).__name__}, labels",
                fix="Give int32; for probabilities use SoftmaxCrossEntropyWithLogits().",
            )
        return array.astype(np.int64)


class MSELoss(LossBase):
    """Mean squared error; predictions and labels broadcast against each other.

    Example:
        >>> float(MSELoss()(np.zeros([2, 3], np.float32), np.full(3, 2.0)))
        4.0
    """

    kind = "mse"


class L1Loss(LossBase):
    """Mean absolute error; the derivative at 0 is 0."""

    kind = "l1"


class HuberLoss(LossBase):
    """Half the squared error up to ``delta``, from there on linear; mean over all elements.

    Args:
        reduction: ``mean``, ``sum`` or ``none``.
        delta: The error from which on the loss is linear, above 0.

    Example:
        >>> float(HuberLoss(delta=1.0)(np.zeros([1, 2], np.float32), np.array([[0.5, 3.0]])))
        1.3125
    """

    kind = "huber"

    @checked
    def __init__(self, reduction: _Reduction = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = positive(type(self).__name__, "delta", delta)

    def config(self, label_shape: tuple[int, ...] | None = None) -> LossConfig:
        """The configuration of the loss in a program."""
        return dataclasses.replace(super().config(label_shape), delta=self.delta)


class BCEWithLogitsLoss(LossBase):
    """Numerically stable binary cross entropy of logits.

    Args:
        reduction: ``mean`` (over elements, regardless of weights), ``sum`` or ``none``.
        weight: Weight of each element, an array that broadcasts against the logits.
        pos_weight: Weight of the positive term, an array that broadcasts likewise.
    """

    kind = "bce-with-logits"
    broadcasts = False

    def __init__(
        self, reduction: _Reduction = "mean", weight: Any = None, pos_weight: Any = None
    ) -> None:
        super().__init__(reduction)
        owner = type(self).__name__
        self.weight = None if weight is None else _float(weight, "weight", owner)
        self.pos_weight = None if pos_weight is None else _float(pos_weight, "pos_weight", owner)

    def config(self, label_shape: tuple[int, ...] | None = None) -> LossConfig:
        """The configuration of the loss in a program."""
        plain = super().config(label_shape)
        return dataclasses.replace(
            plain, weight=self.weight, pos_weight=self.pos_weight, from_logits=True
        )


def _float(value: Any, name: str, owner: str) -> _Array:
    return given_array(owner, name, value).astype(np.float32)
