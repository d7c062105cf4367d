r"""Attach a loss to a forward graph.

With predictions `x`, labels `z`, `N` samples and `K` classes:

- ``softmax-cross-entropy``, sparse labels: `l_n = -log softmax(x_n)[z_n]`;
  dense labels: `l_n = -sum_k z_nk log softmax(x_n)_k`. The softmax is over the class axis, see
  :mod:`ortboost.transforms.class_axis`; every other position (pixel, token) is a sample.
  ``label_smoothing`` `e` replaces `z_nk` (of sparse labels: 1 for the class, otherwise 0) by
  `(1 - e) z_nk + e / K`. Class weights ``weight`` multiply the term of each class `k` by `w[k]`.
- ``mse``: `l_i = (x_i - z_i)^2`;  ``l1``: `l_i = |x_i - z_i|`, elementwise. Labels have the shape
  of the predictions; they broadcast only with ``broadcast`` or a ``label_shape`` of another form.
- ``huber``: with `d = |x_i - z_i|`, `l_i = d^2 / 2` up to `delta`, then `delta (d - delta / 2)`.
- ``bce-with-logits``: `l_i = w_i (p_i z_i softplus(-x_i) + (1 - z_i) softplus(x_i))`.
- A model that ends with the activation that the loss applies itself (a Softmax over the class axis
  for cross entropy, a Sigmoid for ``bce-with-logits``) computes probabilities; the loss is computed
  from its logits, the inputs of that activation, unless ``from_logits`` is true.
- ``output``: the model already computes its loss, which is differentiated directly.
- ``FILE.onnx``: a user-defined loss, see :mod:`ortboost.transforms.own_loss`.

``mean`` divides by the number of losses (positions whose label is not ignored for cross entropy,
elements otherwise) or, with class weights and sparse labels, by the sum of the weights of the
labels, ``sum`` adds them, ``none`` returns all of them and differentiates their sum, as MindSpore
does. If all labels of a batch are ignored, the mean and its gradient are 0; PyTorch returns NaN,
which would cause the step to be skipped. The loss of an output of another float type is computed in
float32.

``shift_labels`` is the loss of a causal language model: position `t` is compared with the label of
`t + 1`, and the last position is ignored. The labels are then the token IDs themselves.

`softplus(x)` is computed as `ReduceLogSumExp([0, x])`: it does not overflow, and its gradient is
the sigmoid everywhere, even at `x = 0`, where the usual form `max(x, 0) + log(1 + exp(-|x|))` has a
kink that automatic differentiation gets wrong (a new head with zero weights starts exactly there).

Sources: the ONNX operator SoftmaxCrossEntropyLoss; `torch.nn.CrossEntropyLoss` for class weights
and label smoothing (Szegedy et al., Rethinking the Inception Architecture, arXiv:1512.00567,
section 7); `torch.nn.HuberLoss` (`delta` times its SmoothL1Loss); `torch.nn.BCEWithLogitsLoss` for
the form with ``pos_weight``; `transformers.loss.loss_utils.ForCausalLMLoss` for the shift.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from ortboost.core.errors import ConfigError, ModelError, UsageError, require_known
from ortboost.core.report import Report
from ortboost.graph.build import Builder, free_name
from ortboost.graph.query import FLOAT_TYPES, format_shape, known_shape
from ortboost.graph.shapes.shape_inference import dimension_names, infer_missing
from ortboost.graph.source import source_name
from ortboost.transforms.class_axis import find_class_axis
from ortboost.transforms.final_activation import (
    APPLIED_BY_LOSS,
    decision_threshold,
    holds_probabilities,
    logits_before,
)
from ortboost.transforms.loss_config import IGNORED, LOSSES, LossConfig
from ortboost.transforms.loss_functions import (
    dense_losses,
    reduce_losses,
    shifted_labels,
    sparse_cross_entropy,
)
from ortboost.transforms.own_loss import class_inputs, splice_loss

__all__ = ["IGNORED", "LOSSES", "AttachedLoss", "LossConfig", "attach_loss", "shifted_labels"]


@dataclass(frozen=True)
class AttachedLoss:
    """The names of the loss and its inputs in the graph.

    Args:
        report: The report of the rewrite.
        prediction: Name of the output that labels are compared with.
        logits: Name of the value that the loss is computed from, the prediction itself or the
            logits before its activation.
        loss: Name of the graph output with the loss shown to users, ``loss``.
        objective: Name of the scalar to differentiate; differs from ``loss`` for ``none``.
        labels: Name of the label input; ``None`` if the model computes its own loss.
        classes: Number of classes for sparse labels, if known.
        class_axis: For cross entropy: the class axis of the prediction.
        ignored: For sparse labels: the label to ignore, if any.
        threshold: For two classes: the prediction above which it is class 1.
        inputs: If the model computes its own loss: input with class indices to their number, the
            label to ignore, and the class axis of the scores.
    """

    report: Report
    prediction: str
    logits: str
    loss: str
    objective: str
    labels: str | None
    classes: int | None = None
    class_axis: int | None = None
    ignored: int | None = None
    threshold: float = 0.0
    inputs: Mapping[str, tuple[int, int | None, int]] = field(default_factory=dict)


def attach_loss(model: ir.Model, config: LossConfig) -> AttachedLoss:
    """Append the loss to a normalized forward model, opset 18 or newer, in place.

    It becomes the output ``loss``; labels become an input.

    Raises:
        ConfigError: Dense labels for another loss than cross entropy, or weights that do not
            broadcast to the output.
        UsageError: The output to train on does not exist, or is not given and there are several.
        ModelError: The shape or type of the output does not fit the loss.
    """
    if not config.sparse and config.name != "softmax-cross-entropy":
        raise ConfigError(
            f"--dense-labels has no effect for {config.name}.",
            where="loss, sparse",
            fix="Omit it; it applies to softmax-cross-entropy, whose labels are class indices "
            "otherwise.",
        )
    prediction = _choose_output(model, config)
    builder = Builder(model.graph, "ortboost/loss")
    if config.name == "output":
        return _own_loss(model, prediction, builder)
    attach = _from_file if config.is_file else _built_in
    return attach(model, prediction, config, builder)


def _built_in(
    model: ir.Model, prediction: ir.Value, config: LossConfig, builder: Builder
) -> AttachedLoss:
    """Attach a loss of :data:`ortboost.transforms.loss_config.LOSSES`."""
    axis = _class_axis(model, prediction, config)
    if config.shift_labels and config.ignore_index is None:
        config = dataclasses.replace(config, ignore_index=IGNORED)
    labels = _label_input(model, config, prediction, axis)
    logits = _logits(model, prediction, config, axis, builder)
    # Exponentials and sums of a loss overflow float16.
    scores = builder.cast(logits, ir.DataType.FLOAT)
    if config.name == "softmax-cross-entropy" and config.sparse:
        target = labels
        if config.shift_labels and config.ignore_index is not None:  # set above
            target = shifted_labels(builder, labels, config.ignore_index)
        loss, objective = sparse_cross_entropy(builder, scores, target, config, axis)
    else:
        losses = dense_losses(builder, scores, labels, config, axis)
        loss, objective = reduce_losses(builder, losses, config.reduction)
    _add_output(model, loss, builder)
    report = Report("attach_loss")
    report.changed[prediction.name or ""] = (
        f"{config.name}, {config.reduction}, labels '{labels.name}'"
        + ("" if axis is None else f", classes in axis {axis}")
        + (", shifted by one position" if config.shift_labels else "")
        + (", weighted by class" if config.class_weights else "")
        + (f", smoothed by {config.label_smoothing:g}" if config.label_smoothing else "")
    )
    if logits is not prediction:
        report.notes.append(
            f"the output '{prediction.name}' holds probabilities, and {config.name} takes logits: "
            "the loss is computed from the logits before the last activation"
        )
    elif config.from_logits is None and _are_probabilities(prediction, config):
        report.notes.append(
            f"the output '{prediction.name}' holds probabilities, and {config.name} takes logits: "
            "training will be slow and inaccurate; export the model without its last activation, "
            "or name an output with the logits with --output"
        )
    shape = known_shape(prediction)
    # With it, labels are checked before a step: the runtime reads out of bounds for others.
    count = None if axis is None or shape is None or not config.sparse else shape[axis]
    names = (prediction.name or "", logits.name or "", loss.name or "", objective.name or "")
    classes = count if isinstance(count, int) else None
    threshold = 0.0 if config.from_logits else decision_threshold(prediction)
    return AttachedLoss(report, *names, labels.name, classes, axis, config.ignore_index, threshold)


def _logits(
    model: ir.Model,
    prediction: ir.Value,
    config: LossConfig,
    axis: int | None,
    builder: Builder,
) -> ir.Value:
    """The predictions, or the logits before the activation that the loss applies itself."""
    activation = APPLIED_BY_LOSS.get(config.name)
    if activation is None or config.from_logits:
        return prediction
    found = logits_before(builder, prediction, activation, axis)
    if found is None and config.from_logits is False:
        raise ModelError(
            f"The logits of the output '{prediction.name}' are unknown: it is not the result of a "
            f"{activation} over the classes.",
            where=f"{source_name(model)}: '{prediction.name}'; loss, from_logits",
            fix="Omit 'from_logits' if the output holds logits; otherwise export the model without "
            "its last activation, or write the loss as an ONNX file.",
        )
    return prediction if found is None else found


def _are_probabilities(prediction: ir.Value, config: LossConfig) -> bool:
    return config.name in APPLIED_BY_LOSS and holds_probabilities(prediction)


def _class_axis(model: ir.Model, prediction: ir.Value, config: LossConfig) -> int | None:
    """The class axis of cross entropy; ``None`` for other losses."""
    axis, shape = None, known_shape(prediction)
    if config.name == "softmax-cross-entropy" and shape is not None and len(shape) > 1:
        # Only language models shift labels, and their class axis is the last.
        given = -1 if config.shift_labels and config.class_axis is None else config.class_axis
        axis = find_class_axis(model, prediction, given)
        if shape[axis] == 1:
            raise ModelError(
                f"The output '{prediction.name}' has scores of a single class: its cross entropy "
                "is 0 whatever the weights are.",
                where=f"{source_name(model)}: '{prediction.name}' {format_shape(shape)}, classes "
                f"in axis {axis}",
                fix="Use --loss bce-with-logits for two classes, --loss mse for a number, or name "
                "another axis with --class-axis.",
            )
    if config.shift_labels and (shape is None or len(shape) != 3 or axis != 2):
        raise ModelError(
            f"The output '{prediction.name}' is not a sequence of class scores: its labels cannot "
            "be shifted.",
            where=f"{source_name(model)}: '{prediction.name}' {format_shape(shape)}",
            fix="--shift-labels requires [batch, sequence, classes]; omit it, or name such an "
            "output with --output.",
        )
    return axis


def _from_file(
    model: ir.Model, prediction: ir.Value, config: LossConfig, builder: Builder
) -> AttachedLoss:
    """Attach a loss from a file: it becomes the output ``loss``, its labels an input."""
    _require_free(model, config.labels)
    # The file names its inputs as it likes: in the graph, the labels have the configured name.
    labels, loss, picking = splice_loss(model, prediction, config.name, builder)
    labels.name = config.labels
    model.graph.inputs.append(labels)
    _add_output(model, loss, builder)
    name = prediction.name or ""
    report = Report("attach_loss")
    report.changed[name] = f"{config.name}, {config.reduction}, labels '{labels.name}'"
    threshold = decision_threshold(prediction)
    attached = AttachedLoss(report, name, name, "loss", "loss", labels.name, threshold=threshold)
    if picking is None:
        return attached
    scores = known_shape(picking.inputs[0])
    count = scores[1] if scores is not None and len(scores) > 1 else None  # [N, C, ...]
    if not isinstance(count, int):
        raise ModelError(
            f"The number of classes of the loss's {picking.op_type} is unknown.",
            where=f"{config.name}: node '{picking.name}', scores {format_shape(scores)}",
            fix="Fix the number of classes, in the loss or in the output of the network.",
        )
    ignored = picking.attributes.get_int("ignore_index", None)
    return dataclasses.replace(attached, classes=count, class_axis=1, ignored=ignored)


def _require_free(model: ir.Model, labels: str) -> None:
    """Make a name available for the labels, if no input of the model has it."""
    if any(value.name == labels for value in model.graph.inputs):
        raise UsageError(
            f"The model already has an input '{labels}'.",
            where=source_name(model),
            fix="Give the labels another name with --labels NAME, or --loss output if the model "
            "computes its own loss.",
        )
    free_name(model.graph, labels)


def _choose_output(model: ir.Model, config: LossConfig) -> ir.Value:
    outputs = {value.name or "": value for value in model.graph.outputs}
    if config.output is not None:
        what = f"The model has no output '{config.output}'."
        require_known(config.output, outputs, what, source_name(model))
        return outputs[config.output]
    # Only float outputs can be trained; but an unknown type may be one, too.
    floats = [value for value in outputs.values() if value.dtype in FLOAT_TYPES]
    if len(outputs) > 1 and len(floats) == 1 and all(v.dtype is not None for v in outputs.values()):
        return floats[0]  # the others are class indices and the like
    if len(outputs) != 1:
        raise UsageError(
            f"The model has {len(outputs)} outputs; the loss needs exactly one.",
            where=f"{source_name(model)}: {', '.join(outputs)}",
            fix="Name it with --output NAME; for a loss over several, let the model compute it and "
            "use --loss output.",
        )
    return next(iter(outputs.values()))


def _own_loss(model: ir.Model, output: ir.Value, builder: Builder) -> AttachedLoss:
    """Take an output as the loss."""
    shape = known_shape(output)
    if output.dtype not in FLOAT_TYPES or (shape is not None and any(d != 1 for d in shape)):
        raise ModelError(
            f"The output '{output.name}' is not a scalar loss: it is {output.dtype} "
            f"{format_shape(shape)}.",
            where=source_name(model),
            fix="Choose a loss with --loss, or name the output that holds the loss.",
        )
    # A new value, so that the step's `loss` is always the unscaled scalar of shape [].
    scores = builder.cast(output, ir.DataType.FLOAT)
    scalar = builder.op("Reshape", scores, builder.ints(), shape=())
    builder.flush()
    name = output.name or ""
    report = Report("attach_loss", {name: "differentiated as the loss of the model"})
    if name == "loss":
        output.name = builder.unique("loss/model")
        model.graph.outputs[model.graph.outputs.index(output)] = scalar
    else:
        model.graph.outputs.append(scalar)
    _rename_to_loss(model.graph, scalar)
    return AttachedLoss(report, "loss", "loss", "loss", "loss", None, inputs=class_inputs(model))


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
    _require_free(model, config.labels)
    sparse = config.name == "softmax-cross-entropy" and config.sparse
    label_shape: tuple[int | str | None, ...] | None = config.label_shape
    if label_shape is None:
        if shape is None:
            raise ModelError(
                f"The rank of the output '{prediction.name}' is unknown, so the shape of the "
                "labels is too.",
                where=source_name(model),
                fix="Export the model with shapes, fix its dimensions with --dim, or use --loss "
                "output if the model computes its own.",
            )
        if config.name == "softmax-cross-entropy" and axis is None:
            raise ModelError(
                f"The shape of the output '{prediction.name}' does not fit the loss: "
                f"{format_shape(shape)}.",
                where=source_name(model),
                fix="Cross entropy needs a batch axis and a class axis. Choose another loss, or "
                "use --loss output if the model computes its own.",
            )
        shape = _named_as_inputs(model, prediction, shape)
        label_shape = tuple(d for i, d in enumerate(shape) if i != axis) if sparse else shape
    dtype = ir.DataType.INT64 if sparse else ir.DataType.FLOAT
    labels = ir.val(config.labels, dtype, label_shape)
    model.graph.inputs.append(labels)
    return labels


def _named_as_inputs(
    model: ir.Model, prediction: ir.Value, shape: tuple[int | str | None, ...]
) -> tuple[int | str | None, ...]:
    """The shape with the input's names for dimensions that are equal to the input's."""
    # Exporters may give the same length another name at the output.
    known = {dim for value in model.graph.inputs for dim in known_shape(value) or ()}
    if all(isinstance(dim, int) or dim in known for dim in shape):
        return shape
    names = dimension_names(model, prediction)
    if len(names) != len(shape):
        return shape
    return tuple(
        dim if isinstance(dim, int) or name is None else name
        for dim, name in zip(shape, names, strict=True)
    )


def _add_output(model: ir.Model, loss: ir.Value, builder: Builder) -> None:
    """Add the nodes to the graph, and the loss to its outputs."""
    builder.flush()
    _rename_to_loss(model.graph, loss)
    model.graph.outputs.append(loss)
    infer_missing(model)


def _rename_to_loss(graph: ir.Graph, value: ir.Value) -> None:
    free_name(graph, "loss", owner=value)
    value.name = "loss"
