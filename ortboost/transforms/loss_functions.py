"""The losses as standard operators; their algebra is in :mod:`ortboost.transforms.attach_loss`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import ConfigError
from ortboost.graph.build import Builder
from ortboost.graph.query import ROLE_MARK, format_shape, known_shape
from ortboost.transforms.loss_config import LossConfig

__all__ = ["dense_losses", "reduce_losses", "shifted_labels", "sparse_cross_entropy"]

_ROW = 16


def shifted_labels(builder: Builder, labels: ir.Value, ignored: int) -> ir.Value:
    """Shift the labels ``[batch, sequence]`` left by one position; the last one is ignored.

    Shifting the labels avoids a copy of the predictions, which are much larger.
    """
    b, int64, shape = builder, ir.DataType.INT64, known_shape(labels) or ()
    # To the end: ONNX clips an end beyond the axis to it.
    end = b.ints(np.iinfo(np.int64).max)
    rest = b.op("Slice", labels, b.ints(1), end, b.ints(1), dtype=int64)
    # CUDA has no Pad of integers.
    column = b.op("Slice", labels, b.ints(0), b.ints(1), b.ints(1), dtype=int64)
    fill = b.filled(ignored, b.op("Shape", column, dtype=int64), int64)
    return b.op("Concat", rest, fill, dtype=int64, shape=shape, axis=1)


def sparse_cross_entropy(
    builder: Builder, x: ir.Value, labels: ir.Value, config: LossConfig, axis: int | None
) -> tuple[ir.Value, ir.Value]:
    """Cross entropy of logits ``x``, ``[batch, ..., classes, ...]``, with class indices.

    The labels, int64, have the shape of ``x`` without the class axis, which is 1 if not given. The
    results are the loss to show and the scalar to differentiate.
    """
    shape = known_shape(x) or ()
    rank = len(shape)
    target = labels
    if axis is not None and axis > 1:  # flatten positions into samples, without a copy
        if axis != rank - 1:
            perm = [i for i in range(rank) if i != axis] + [axis]
            x = builder.op("Transpose", x, shape=[shape[i] for i in perm], perm=perm)
        x = builder.op("Flatten", x, shape=(None, shape[axis]), axis=rank - 1)
        target = builder.op("Reshape", labels, builder.ints(-1), dtype=ir.DataType.INT64)
    losses = _cross_entropy(builder, x, target, config)
    if config.reduction != "none":
        return losses, losses
    # The losses of the flattened samples go back to the positions of the labels.
    if target is not labels:
        size = builder.op("Shape", labels, dtype=ir.DataType.INT64)
        losses = builder.op("Reshape", losses, size, shape=known_shape(labels) or ())
    return reduce_losses(builder, losses, "none")


def _cross_entropy(builder: Builder, x: ir.Value, labels: ir.Value, config: LossConfig) -> ir.Value:
    """The loss of scores with the classes in axis 1."""
    shape = known_shape(labels) if config.reduction == "none" else ()
    settings: dict[str, Any] = {"reduction": config.reduction}
    if config.ignore_index is not None:
        settings["ignore_index"] = config.ignore_index
    weights = config.class_weights
    operands = [labels] if weights is None else [labels, _class_weights(builder, x, weights)]
    if not config.label_smoothing:
        # The fused operator, with its second output, which the native gradient reads.
        loss, log_p = builder.ops(
            "SoftmaxCrossEntropyLoss", x, *operands, names=[None, None], **settings
        )
        loss.shape = None if shape is None else ir.Shape(shape)
        log_p.shape = x.shape
        return loss
    log_p = builder.op("LogSoftmax", x, axis=1)
    spread = None if weights is None else _class_weights(builder, x, weights, spread=True)
    of_each = log_p if spread is None else builder.op("Mul", log_p, spread, shape=x.shape)
    of_all = builder.op("ReduceMean", of_each, builder.ints(1), keepdims=1)
    if spread is not None:  # the loss below multiplies by the weight of the label, unlike torch
        of_all = builder.op("Div", of_all, spread, shape=x.shape)
    smoothed = _mixed(builder, log_p, of_all, config.label_smoothing)
    smoothed.shape = x.shape
    return builder.op("NegativeLogLikelihoodLoss", smoothed, *operands, shape=shape, **settings)


def _class_weights(
    builder: Builder,
    x: ir.Value,
    weights: tuple[float, ...],
    *,
    axis: int | None = 1,
    spread: bool = False,
) -> ir.Value:
    """The weights of the classes in an axis; with ``spread``, they broadcast to ``x``."""
    shape, axis = known_shape(x) or (), -1 if axis is None else axis
    if len(shape) < 2 or shape[axis] != len(weights):
        raise ConfigError(
            f"There are {len(weights)} class weights, which is not the number of classes.",
            where=f"--class-weights; predictions {format_shape(shape)}, classes in axis {axis}",
            fix="Give one number for each class, in their order.",
        )
    behind = len(shape) - 1 - axis % len(shape)
    factor = builder.const(np.reshape(weights, [-1] + [1] * behind * spread))
    factor.metadata_props[ROLE_MARK] = "constant"
    return factor


def _mixed(builder: Builder, of_label: ir.Value, of_all: ir.Value, share: float) -> ir.Value:
    """``(1 - share) of_label + share of_all``."""
    of_label = builder.op("Mul", of_label, builder.const(1.0 - share))
    return builder.op("Add", of_label, builder.op("Mul", of_all, builder.const(share)))


def dense_losses(
    builder: Builder, x: ir.Value, labels: ir.Value, config: LossConfig, axis: int | None
) -> ir.Value:
    """The losses for labels, probabilities or targets, in the shape of the predictions ``x``.

    The result has the loss of each element, or for cross entropy of each position, without the
    class axis, which is the last if ``axis`` is ``None``.

    Raises:
        ConfigError: A weight does not broadcast to ``x``.
    """
    if config.name == "softmax-cross-entropy":
        over = builder.ints(-1 if axis is None else axis)
        log_p = builder.op("LogSoftmax", x, axis=-1 if axis is None else axis)
        if config.class_weights is not None:
            weights = _class_weights(builder, x, config.class_weights, axis=axis, spread=True)
            log_p = builder.op("Mul", log_p, weights, shape=x.shape)
        product = builder.op("Mul", log_p, _in_shape_of(x, labels, config, builder))
        total = builder.op("ReduceSum", product, over, keepdims=0)
        if config.label_smoothing:
            of_all = builder.op("ReduceMean", log_p, over, keepdims=0)
            total = _mixed(builder, total, of_all, config.label_smoothing)
        return builder.op("Neg", total)
    labels = _in_shape_of(x, labels, config, builder)
    losses = _ELEMENTWISE[config.name](builder, x, labels, config)
    losses.shape = x.shape
    return losses


def _squared_error(b: Builder, x: ir.Value, labels: ir.Value, config: LossConfig) -> ir.Value:
    difference = b.op("Sub", x, labels)
    return b.op("Mul", difference, difference)


def _absolute_error(b: Builder, x: ir.Value, labels: ir.Value, config: LossConfig) -> ir.Value:
    return b.op("Abs", b.op("Sub", x, labels))


def _huber(b: Builder, x: ir.Value, labels: ir.Value, config: LossConfig) -> ir.Value:
    """With `m = min(|d|, delta)`: `m^2 / 2 + delta (|d| - m)`, whose gradient has no branches."""
    delta = b.const(1.0 if config.delta is None else config.delta)
    error = b.op("Abs", b.op("Sub", x, labels))
    inner = b.op("Min", error, delta)
    square = b.op("Mul", b.op("Mul", inner, inner), b.const(0.5))
    return b.op("Add", square, b.op("Mul", b.op("Sub", error, inner), delta))


def _binary_cross_entropy(
    b: Builder, x: ir.Value, labels: ir.Value, config: LossConfig
) -> ir.Value:
    one = b.const(1.0)
    positive = b.op("Mul", labels, _softplus(b, b.op("Neg", x)))
    positive = _weighted(b, positive, x, "pos_weight", config.pos_weight)
    negative = b.op("Mul", b.op("Sub", one, labels), _softplus(b, x))
    losses = b.op("Add", positive, negative)
    return _weighted(b, losses, x, "weight", config.weight)


_ELEMENTWISE: Final[Mapping[str, Callable[..., ir.Value]]] = {
    "mse": _squared_error,
    "l1": _absolute_error,
    "huber": _huber,
    "bce-with-logits": _binary_cross_entropy,
}
"""Name to the loss of each element, from predictions and labels of one shape."""


def _in_shape_of(x: ir.Value, labels: ir.Value, config: LossConfig, b: Builder) -> ir.Value:
    """Reshape the labels to the shape of the predictions, so that a single row is not broadcast.

    The runtime checks static shapes itself, so no node is added for these.
    """
    shape = known_shape(x)
    free = config.broadcast or config.label_shape is not None
    if free or shape is None or all(isinstance(d, int) for d in shape):
        return labels
    return b.op("Reshape", labels, b.op("Shape", x, dtype=ir.DataType.INT64), shape=shape)


def _weighted(builder: Builder, losses: ir.Value, x: ir.Value, key: str, weight: Any) -> ir.Value:
    """The losses times a weight, if there is one, in the shape of the predictions ``x``."""
    if weight is None:
        return losses
    lengths, shape = np.shape(weight), known_shape(x)
    last = () if shape is None else shape[len(shape) - len(lengths) :]
    if shape is not None and (
        len(lengths) > len(shape)
        or any(n not in (1, d) and isinstance(d, int) for n, d in zip(lengths, last, strict=True))
    ):
        raise ConfigError(
            f"'{key}' of shape {format_shape(lengths)} does not broadcast to the predictions.",
            where=f"loss, {key}; predictions {format_shape(shape)}",
            fix="Give a number, or an array with one weight for each output.",
        )
    factor = builder.const(weight)
    factor.metadata_props[ROLE_MARK] = "constant"  # it is used like a trained scale, but is not one
    return builder.op("Mul", losses, factor)


def _softplus(builder: Builder, x: ir.Value) -> ir.Value:
    """``log(1 + exp(x))`` as `ReduceLogSumExp([0, x])`, whose gradient is correct even at 0."""
    last = builder.ints(-1)
    x_last = builder.op("Unsqueeze", x, last)  # [..., 1]
    # Zeros in the shape of `x`, which may be open.
    zeros = builder.op("Mul", x_last, builder.const(0.0))
    pair = builder.op("Concat", zeros, x_last, axis=-1)  # [..., 2]
    return builder.op("ReduceLogSumExp", pair, last, keepdims=0)


def reduce_losses(builder: Builder, losses: ir.Value, reduction: str) -> tuple[ir.Value, ir.Value]:
    """Reduce the losses to the loss to show and the scalar to differentiate."""
    op = "ReduceMean" if reduction == "mean" else "ReduceSum"
    total = builder.op(op, losses, keepdims=0, shape=())
    if reduction == "none":
        return losses, total
    axes = _last_axes(losses)
    if not axes:
        return total, total
    # A sum of float32 numbers one after the other, as the runtime's, loses digits: of 22 million
    # squares, the mean is off by 2e-3. Sums of rows are exact to 1e-6. The gradient is the same.
    rows = builder.op(op, losses, builder.ints(*axes), keepdims=0)
    return builder.op(op, rows, keepdims=0, shape=()), total


def _last_axes(losses: ir.Value) -> list[int]:
    """The last axes, without the first one, of some 16 elements or more together."""
    shape, size = known_shape(losses) or (), 1
    for count, length in enumerate(reversed(shape[1:]), start=1):
        size *= length if isinstance(length, int) else _ROW
        if size >= _ROW:
            return list(range(-count, 0))
    return []
