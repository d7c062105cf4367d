r"""Attach a loss to a forward graph.

With predictions `x`, labels `z`, `N` samples and `K` classes:

- ``softmax-cross-entropy``, sparse labels: `l_n = -log softmax(x_n)[z_n]`;
  dense labels: `l_n = -sum_k z_nk log softmax(x_n)_k`. The softmax is over the class axis, see
  :mod:`ortboost.transforms.class_axis`; every other position (pixel, token) is a sample.
- ``mse``: `l_i = (x_i - z_i)^2`;  ``l1``: `l_i = |x_i - z_i|`, elementwise. Labels have the shape
  of the predictions; they broadcast only with ``broadcast`` or a ``label_shape`` of another form.
- ``bce-with-logits``: `l_i = w_i (p_i z_i softplus(-x_i) + (1 - z_i) softplus(x_i))`.
- ``output``: the model already computes its loss; its gradient is taken as it is.

``mean`` divides by the number of losses (positions whose label counts for cross entropy, elements
otherwise), ``sum`` adds them up, ``none`` gives them all out and differentiates their sum, as
MindSpore does. Where no label of a batch counts, the mean is 0 and so is its gradient: PyTorch
answers NaN, which would make the step a skipped one.

``shift_labels`` is the loss of a causal language model: position `t` is compared with the label of
`t + 1`, the last with none. Labels are then the token ids themselves.

`softplus(x)` is computed as `ReduceLogSumExp([0, x])`: it does not overflow, and its gradient is the
sigmoid everywhere, at `x = 0` too, where the usual form `max(x, 0) + log(1 + exp(-|x|))` has a kink
that automatic differentiation gets wrong (a new head with zero weights starts just there).

Sources: the ONNX operator SoftmaxCrossEntropyLoss; `torch.nn.BCEWithLogitsLoss` for the form with
``pos_weight``; `transformers.loss.loss_utils.ForCausalLMLoss` for the shift.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import ConfigError, ModelError, UsageError, nearest
from ortboost.core.field_types import check_kinds
from ortboost.core.report import Report
from ortboost.graph.build import Builder, free_name
from ortboost.graph.io import source_name
from ortboost.graph.normalize import infer_shapes
from ortboost.graph.query import FLOAT_TYPES, known_shape
from ortboost.transforms.class_axis import find_class_axis

__all__ = ["IGNORED", "LOSSES", "AttachedLoss", "LossConfig", "attach_loss", "shifted_labels"]

IGNORED: Final = -100
"""The label that does not count in PyTorch unless another is named; here with ``shift_labels``."""

LOSSES = ("softmax-cross-entropy", "mse", "bce-with-logits", "l1", "output")
"""Names of the losses."""

_Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class LossConfig:
    """Which loss, over which output, against labels of which form.

    Args:
        name: One of :data:`LOSSES`.
        reduction: ``mean``, ``sum`` or ``none``.
        sparse: For cross entropy: labels are class numbers (int64), not one row of
            probabilities a sample.
        output: Name of the model's output that the loss is taken of; may stay out if the model has
            one output.
        labels: Name of the new input.
        label_shape: Shape of the labels; follows from the output if not given.
        ignore_index: For sparse cross entropy: labels with this value do not count; :data:`IGNORED`
            with ``shift_labels`` if not given.
        class_axis: For cross entropy: axis of the output that counts the classes, -1 for the last;
            found if not given, see :mod:`ortboost.transforms.class_axis`.
        shift_labels: For sparse cross entropy: compare each position with the next label.
        broadcast: Labels may broadcast against the output, as in MindSpore; refused otherwise.
        weight: For ``bce-with-logits``: factor of each element, broadcast against the output.
        pos_weight: For ``bce-with-logits``: factor of the positive part, broadcast likewise.

    Raises:
        ConfigError: An unknown name or reduction, or a setting of another loss.
    """

    name: str = "softmax-cross-entropy"
    reduction: Literal["mean", "sum", "none"] = "mean"
    sparse: bool = True
    output: str | None = None
    labels: str = "labels"
    label_shape: tuple[int | str | None, ...] | None = None
    ignore_index: int | None = None
    class_axis: int | None = None
    shift_labels: bool = False
    broadcast: bool = False
    weight: Any = field(default=None, compare=False)
    pos_weight: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_kinds(self, "loss")
        if self.name not in LOSSES:
            raise ConfigError(
                f"Unknown loss '{self.name}'.", where="loss", fix=nearest(self.name, LOSSES)
            )
        sparse = self.name == "softmax-cross-entropy" and self.sparse
        for key in ("ignore_index", "shift_labels"):
            value = getattr(self, key)
            if value is not None and value is not False and not sparse:  # 0 is a label
                raise ConfigError(
                    f"'{key}' means nothing to {self.name}"
                    f"{'' if self.name != 'softmax-cross-entropy' else ' with dense labels'}.",
                    where=f"loss, {key}",
                    fix="Leave it out; it is for softmax-cross-entropy with sparse labels.",
                )
        if self.class_axis is not None and self.name != "softmax-cross-entropy":
            raise ConfigError(
                f"'class_axis' means nothing to {self.name}.",
                where="loss, class_axis",
                fix="Leave it out; it is for softmax-cross-entropy.",
            )
        for key in ("weight", "pos_weight"):
            if getattr(self, key) is not None:
                self._check_factors(key)

    def _check_factors(self, key: str) -> None:
        """Factors are numbers, and there is one loss that reads them."""
        if self.name != "bce-with-logits":
            raise ConfigError(
                f"'{key}' means nothing to {self.name}.",
                where=f"loss, {key}",
                fix="Leave it out; it is for bce-with-logits.",
            )
        try:
            good = bool(np.isfinite(np.asarray(getattr(self, key), np.float32)).all())
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise ConfigError(
                f"'{key}' does not hold finite numbers.",
                where=f"loss, {key}",
                fix="Give one number, or numbers in a shape that fits the output.",
            )


_TWICE = {"softmax-cross-entropy": "Softmax", "bce-with-logits": "Sigmoid"}
"""What a loss does itself; a model that has done it already is trained on squashed scores."""


@dataclass(frozen=True)
class AttachedLoss:
    """Where the loss is in the graph.

    Args:
        report: What was attached.
        prediction: Name of the output that the loss is taken of.
        loss: Name of the graph output with the loss that users see, ``loss``.
        objective: Name of the scalar to differentiate; differs from ``loss`` for ``none``.
        labels: Name of the label input; ``None`` if the model computes its own loss.
        classes: Number of classes that sparse labels may name, where it is known.
        class_axis: For cross entropy: axis of the prediction that counts the classes.
        ignored: For sparse labels: the label that does not count, if there is one.
    """

    report: Report
    prediction: str
    loss: str
    objective: str
    labels: str | None
    classes: int | None = None
    class_axis: int | None = None
    ignored: int | None = None


def attach_loss(model: ir.Model, config: LossConfig) -> AttachedLoss:
    """Append the loss to the graph and make it the output ``loss``; labels become an input.

    Args:
        model: A normalized forward model (opset 18 or newer); changed in place.
        config: Which loss.

    Raises:
        UsageError: The output to train on is not named and there are several, or does not exist.
        ModelError: Its shape or type does not fit the loss.
    """
    graph = model.graph
    prediction = _choose_output(model, config)
    builder = Builder(graph, "ortboost/loss")
    report = Report("attach_loss")
    if config.name == "output":
        name = prediction.name or ""
        scalar = _own_loss(model, prediction, builder).name or ""
        report.changed[name] = "differentiated as the loss of the model"
        return AttachedLoss(report, scalar, scalar, scalar, None)

    shape = known_shape(prediction)
    axis = None
    if config.name == "softmax-cross-entropy" and shape is not None and len(shape) > 1:
        # Only language models shift, and their classes are the last axis.
        given = -1 if config.shift_labels and config.class_axis is None else config.class_axis
        axis = find_class_axis(model, prediction, given)
    if config.shift_labels and (shape is None or len(shape) != 3 or axis != 2):
        raise ModelError(
            f"The output '{prediction.name}' is no sequence of classes, so its labels cannot be shifted.",
            where=f"{source_name(model)}: '{prediction.name}' {shape}",
            fix="--shift-labels is for [batch, sequence, classes]; leave it out, or name that output "
            "with --output.",
        )
    if config.shift_labels and config.ignore_index is None:
        config = dataclasses.replace(config, ignore_index=IGNORED)
    labels = _label_input(model, config, prediction, axis)
    if config.name == "softmax-cross-entropy" and config.sparse:
        target = labels
        if config.shift_labels:
            target = shifted_labels(builder, labels, config.ignore_index or 0)
        loss, objective = _sparse_cross_entropy(builder, prediction, target, config, axis)
    elif config.name == "softmax-cross-entropy":
        log_softmax = builder.op("LogSoftmax", prediction, axis=-1 if axis is None else axis)
        product = builder.op("Mul", log_softmax, _like(builder, labels, prediction, config))
        over = builder.ints(-1 if axis is None else axis)
        losses = builder.op("Neg", builder.op("ReduceSum", product, over, keepdims=0))
        loss, objective = _reduce(builder, losses, config.reduction)
    else:
        same = _like(builder, labels, prediction, config)
        losses = _elementwise(builder, prediction, same, config)
        loss, objective = _reduce(builder, losses, config.reduction)
    builder.flush()
    _rename_to_loss(graph, loss)
    graph.outputs.append(loss)
    infer_shapes(model)
    report.changed[prediction.name or ""] = (
        f"{config.name}, {config.reduction}, labels '{labels.name}'"
        + ("" if axis is None else f", classes in axis {axis}")
        + (", shifted by one position" if config.shift_labels else "")
    )
    producer = prediction.producer()
    if producer is not None and _TWICE.get(config.name) == producer.op_type:
        report.notes.append(
            f"the output '{prediction.name}' is a {producer.op_type} already, and {config.name} takes "
            "one itself: training will be slow and poor; export the model without it, or name an "
            "output with the plain scores with --output"
        )
    count = None if axis is None or shape is None or not config.sparse else shape[axis]
    return AttachedLoss(
        report,
        prediction.name or "",
        loss.name or "",
        objective.name or "",
        labels.name,
        count if isinstance(count, int) else None,
        axis,
        config.ignore_index,
    )


def shifted_labels(builder: Builder, labels: ir.Value, ignored: int) -> ir.Value:
    """The labels ``[batch, sequence]`` one position earlier; the last one does not count.

    Shifting the labels copies nothing of the predictions, which are much larger.
    """
    int64, shape = ir.DataType.INT64, known_shape(labels) or ()
    rest = builder.op(
        "Slice", labels, builder.ints(1), builder.ints(np.iinfo(np.int64).max), builder.ints(1),
        dtype=int64,
    )  # fmt: skip
    fill = builder.const(ignored, int64)
    return builder.op("Pad", rest, builder.ints(0, 0, 0, 1), fill, dtype=int64, shape=shape)


def _choose_output(model: ir.Model, config: LossConfig) -> ir.Value:
    outputs = {value.name or "": value for value in model.graph.outputs}
    if config.output is not None:
        if config.output not in outputs:
            raise UsageError(
                f"The model has no output '{config.output}'.",
                where=source_name(model),
                fix=nearest(config.output, outputs),
            )
        return outputs[config.output]
    floats = [value for value in outputs.values() if value.dtype in FLOAT_TYPES]
    if len(outputs) > 1 and len(floats) == 1 and all(v.dtype is not None for v in outputs.values()):
        return floats[0]  # the others are class numbers and such
    if len(outputs) != 1:
        raise UsageError(
            f"The model has {len(outputs)} outputs, and the loss needs one.",
            where=f"{source_name(model)}: {', '.join(outputs)}",
            fix="Name it with --output NAME (LossConfig(output=...)).",
        )
    return next(iter(outputs.values()))


def _own_loss(model: ir.Model, output: ir.Value, builder: Builder) -> ir.Value:
    shape = known_shape(output)
    if output.dtype not in FLOAT_TYPES or (shape is not None and any(d != 1 for d in shape)):
        raise ModelError(
            f"The output '{output.name}' is no scalar loss: {output.dtype}, shape {shape}.",
            where=source_name(model),
            fix="Choose a loss with --loss, or name the output that holds the loss.",
        )
    # A fresh name, so that the step's `loss` is always the unscaled scalar, whatever the model says.
    scalar = builder.op("Reshape", output, builder.ints(), shape=())
    builder.flush()
    if output.name == "loss":
        output.name = builder.unique("loss/model")
        index = next(i for i, value in enumerate(model.graph.outputs) if value is output)
        model.graph.outputs[index] = scalar
    else:
        model.graph.outputs.append(scalar)
    _rename_to_loss(model.graph, scalar)
    return scalar


def _label_input(
    model: ir.Model, config: LossConfig, prediction: ir.Value, axis: int | None
) -> ir.Value:
    shape = known_shape(prediction)
    if prediction.dtype not in FLOAT_TYPES:
        raise ModelError(
            f"The output '{prediction.name}' is {prediction.dtype}, not a float tensor.",
            where=source_name(model),
            fix="Name an output that holds predictions with --output.",
        )
    if any(value.name == config.labels for value in model.graph.inputs):
        raise UsageError(
            f"The model already has an input '{config.labels}'.",
            where=source_name(model),
            fix="Give the labels another name with --labels NAME, or --loss output if the model "
            "computes its own loss.",
        )
    free_name(model.graph, config.labels)
    sparse = config.name == "softmax-cross-entropy" and config.sparse
    wanted: _Dims | None = config.label_shape
    if wanted is None:
        if shape is None:
            raise ModelError(
                f"The rank of the output '{prediction.name}' is not known, so labels have no shape.",
                where=source_name(model),
                fix="Export the model with shapes, fix its dimensions with --dim, or take --loss output "
                "if the model computes its own.",
            )
        if config.name == "softmax-cross-entropy" and axis is None:
            raise ModelError(
                f"The shape of the output '{prediction.name}' does not fit the loss: {shape}.",
                where=source_name(model),
                fix="Cross entropy needs a batch axis and a class axis. Choose another loss, or --loss "
                "output if the model computes its own.",
            )
        wanted = tuple(d for i, d in enumerate(shape) if i != axis) if sparse else shape
    labels = ir.Value(
        name=config.labels,
        type=ir.TensorType(ir.DataType.INT64 if sparse else ir.DataType.FLOAT),
        shape=ir.Shape(wanted),
    )
    model.graph.inputs.append(labels)
    return labels


def _sparse_cross_entropy(
    builder: Builder, x: ir.Value, labels: ir.Value, config: LossConfig, axis: int | None
) -> tuple[ir.Value, ir.Value]:
    """The loss and its objective by the standard fused operator, which has the classes in axis 1."""
    shape = known_shape(x) or ()
    rank = len(shape)
    target = labels
    if axis is not None and axis > 1:  # all positions are samples: rows of classes, without a copy
        if axis != rank - 1:
            perm = [i for i in range(rank) if i != axis] + [axis]
            x = builder.op("Transpose", x, shape=[shape[i] for i in perm], perm=perm)
        x = builder.op("Flatten", x, shape=(None, shape[axis]), axis=rank - 1)
        target = builder.op("Reshape", labels, builder.ints(-1), dtype=ir.DataType.INT64)
    if config.reduction != "none":
        loss = _fused_cross_entropy(builder, x, target, config, config.reduction)
        return loss, loss
    losses = _fused_cross_entropy(builder, x, target, config, "none")
    if target is not labels:
        size = builder.op("Shape", labels, dtype=ir.DataType.INT64)
        losses = builder.op("Reshape", losses, size, shape=known_shape(labels) or ())
    return _reduce(builder, losses, "none")


def _fused_cross_entropy(
    builder: Builder, x: ir.Value, labels: ir.Value, config: LossConfig, reduction: str
) -> ir.Value:
    """The standard fused operator; its second output is what native gradients read."""
    extra: dict[str, Any] = (
        {} if config.ignore_index is None else {"ignore_index": config.ignore_index}
    )
    loss, log_prob = builder.ops(
        "SoftmaxCrossEntropyLoss", x, labels, names=[None, None], reduction=reduction, **extra
    )
    shape = known_shape(labels)
    if reduction != "none":
        loss.shape = ir.Shape(())
    elif shape is not None:
        loss.shape = ir.Shape(shape)
    log_prob.shape = x.shape
    return loss


def _like(builder: Builder, labels: ir.Value, x: ir.Value, config: LossConfig) -> ir.Value:
    """The labels, held to the number of predictions: a single row of labels would be broadcast.

    A runtime holds them to fixed lengths by itself.
    """
    shape = known_shape(x)
    free = config.broadcast or config.label_shape is not None
    if free or shape is None or all(isinstance(d, int) for d in shape):
        return labels
    size = builder.op("Shape", x, dtype=ir.DataType.INT64)
    return builder.op("Reshape", labels, size, shape=shape)


def _elementwise(builder: Builder, x: ir.Value, labels: ir.Value, config: LossConfig) -> ir.Value:
    if config.name == "mse":
        difference = builder.op("Sub", x, labels)
        return builder.op("Mul", difference, difference)
    if config.name == "l1":
        return builder.op("Abs", builder.op("Sub", x, labels))
    one = builder.const(1.0)
    positive = builder.op("Mul", labels, _softplus(builder, builder.op("Neg", x)))
    if config.pos_weight is not None:
        positive = builder.op("Mul", positive, builder.const(config.pos_weight))
    negative = builder.op("Mul", builder.op("Sub", one, labels), _softplus(builder, x))
    losses = builder.op("Add", positive, negative)
    return (
        losses if config.weight is None else builder.op("Mul", losses, builder.const(config.weight))
    )


def _softplus(builder: Builder, x: ir.Value) -> ir.Value:
    last = builder.ints(-1)
    x_last = builder.op("Unsqueeze", x, last)  # [..., 1]
    zeros = builder.op("Mul", x_last, builder.const(0.0))
    pair = builder.op("Concat", zeros, x_last, axis=-1)  # [..., 2]
    return builder.op("ReduceLogSumExp", pair, last, keepdims=0)


def _reduce(builder: Builder, losses: ir.Value, reduction: str) -> tuple[ir.Value, ir.Value]:
    """The loss that is shown, and the scalar that is differentiated."""
    if reduction == "mean":
        mean = builder.op("ReduceMean", losses, keepdims=0, shape=())
        return mean, mean
    total = builder.op("ReduceSum", losses, keepdims=0, shape=())
    return (total, total) if reduction == "sum" else (losses, total)


def _rename_to_loss(graph: ir.Graph, value: ir.Value) -> None:
    free_name(graph, "loss", owner=value)
    value.name = "loss"
