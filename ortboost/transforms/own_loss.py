"""A user-defined loss: an ONNX model that maps scores and labels to a scalar.

    --loss my_loss.onnx        loss(scores, labels) -> scalar

The model has two inputs, in the order of ``torch.nn`` losses, ``loss(input, target)``: the scores,
with the shape of the trained output, and the labels, whose type and shape become those of the label
input. Its only output is a float scalar. Like the losses that are built in, it is computed in
float32: scores of another type are cast, and a loss in float16 or float64 becomes float32. Symbolic
dimensions of the scores are bound to those of the output, so that labels ``[N]`` with scores
``[N, K]`` have the length of the batch. Its weights (class weights, for example) are constants:
they are not trained.

``reduction`` says whether the scalar is a mean or a sum over the samples; the file is not analyzed
for this. Validation, and the parts of several processes, average such means by their samples: with
a mean weighted by class, which divides by the weights of its labels, the result depends on how the
samples are divided into batches.

A runtime reads out of bounds if a label is not a valid class: if the loss selects scores by its
labels, with SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss, labels in the data are checked
against the number of classes. The nodes are inserted into the graph of the network, with the same
opset, and differentiated like the rest of it.
"""

from __future__ import annotations

import contextlib

import onnx_ir as ir

from ortboost.core.errors import ModelError, UsageError
from ortboost.graph.build import Builder
from ortboost.graph.io import load_model
from ortboost.graph.normal_form.to_float32 import to_float32
from ortboost.graph.normalize import normalize
from ortboost.graph.query import (
    FLOAT_TYPES,
    ROLE_MARK,
    find_nodes,
    format_shape,
    known_shape,
    source_before,
)
from ortboost.graph.source import source_name
from ortboost.transforms.class_axis import find_class_axis

__all__ = ["class_inputs", "splice_loss"]

_PREFIX = "ortboost/loss"
_FIX = "It must have two inputs, scores and labels in this order, and one output, a float scalar."
_PICKING = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_MOVING = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
_LABELS = ("y", "labels", "label", "targets", "target")


def splice_loss(
    model: ir.Model, prediction: ir.Value, path: str, builder: Builder
) -> tuple[ir.Value, ir.Value, ir.Node | None]:
    """Append the nodes of the loss in a file to a forward model, in place.

    Returns:
        The labels, a new value that is not an input yet; the loss, a scalar; and the node that uses
        the labels as class indices, if there is one.

    Raises:
        FileError: The file does not exist or is not a model.
        ModelError: The file is not a loss of this form, or does not fit the output.
    """
    loss = load_model(path)
    dtypes = {value.dtype for value in loss.graph.inputs[:1]}
    to_float32(loss, [dtype for dtype in FLOAT_TYPES[1:] if dtype in dtypes])
    opset = model.opset_imports[""]
    normalize(loss, opsets=range(opset, opset + 1), ir_version=model.ir_version)
    # Check that the file is a loss for this output.
    scores, labels, result = _ports(loss, path)
    picking = _picking(loss, labels, path)
    if prediction.dtype in FLOAT_TYPES:
        prediction = builder.cast(prediction, ir.DataType.FLOAT)
    lengths = _match(scores, prediction, path, source_name(model))
    _merge_opsets(model, loss, path)
    # The network's names for dimensions; one that only the labels have is renamed.
    dims = [
        lengths.get(dim, f"{dim}_of_labels") if isinstance(dim, str) else dim
        for dim in known_shape(labels) or ()
    ]
    target = ir.val(labels.name, shape=dims, type=labels.type)
    graph = loss.graph
    # Its weights become constants of the network's graph, which are not trained.
    for value in list(graph.initializers.values()):
        graph.initializers.pop(value.name or "")
        value.name = builder.unique(f"{_PREFIX}/{value.name}")
        value.metadata_props[ROLE_MARK] = "constant"
        model.graph.register_initializer(value)
    # Its nodes get names that no tensor of the network has.
    for node in graph.all_nodes():
        node.name = f"{_PREFIX}/{node.name}"
        for output in node.outputs:
            output.name = builder.unique(f"{_PREFIX}/{output.name}") if output.name else ""
            output.shape = None  # its dimensions have other names; inferred again
    # Its scores are the prediction, and its labels a new value.
    graph.outputs.clear()
    scores.replace_all_uses_with(prediction)
    labels.replace_all_uses_with(target)
    nodes = list(graph)
    graph.remove(nodes)  # a node belongs to one graph
    builder.nodes.extend(nodes)
    result = builder.cast(result, ir.DataType.FLOAT)
    return target, builder.op("Reshape", result, builder.ints(), shape=()), picking


def class_inputs(model: ir.Model) -> dict[str, tuple[int, int | None, int]]:
    """Input that a model's own loss reads as class indices, to what is known about them.

    Their number, the ignored one, and the class axis of the scores, for metrics: that of the output
    with the scores, which the loss may read in another shape.
    """
    found: dict[str, tuple[int, int | None, int]] = {}
    for node in find_nodes(model.graph.all_nodes(), *_PICKING):
        labels, scores = source_before(node.inputs[1], *_MOVING), known_shape(node.inputs[0])
        count = scores[1] if scores is not None and len(scores) > 1 else None  # [N, C, ...]
        if labels is not None and labels.is_graph_input() and isinstance(count, int):
            name = labels.name or ""
            count = min(count, found.get(name, (count, None, 1))[0])
            ignored = node.attributes.get_int("ignore_index", None)
            found[name] = (count, ignored, _axis_of_output(model, node))
    return found


def _axis_of_output(model: ir.Model, node: ir.Node) -> int:
    output = source_before(node.inputs[0], *_MOVING)
    if output is not None and output in model.graph.outputs:
        with contextlib.suppress(ModelError):
            return find_class_axis(model, output)
    return 1


def _ports(loss: ir.Model, path: str) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The scores, labels and loss of a loss model."""
    inputs, outputs = loss.graph.inputs, loss.graph.outputs
    if len(inputs) != 2 or len(outputs) != 1:
        raise ModelError(
            f"The loss has {len(inputs)} inputs and {len(outputs)} outputs; 2 and 1 are needed.",
            where=f"{path}: {', '.join(str(v.name) for v in (*inputs, *outputs))}",
            fix=_FIX,
        )
    scores, labels, result = inputs[0], inputs[1], outputs[0]
    names = [(value.name or "").lower() for value in inputs]
    if names[0] in _LABELS and names[1] not in _LABELS:
        raise ModelError(
            f"The first input of the loss is called '{scores.name}', and the second is not.",
            where=f"{path}: {scores.name}, {labels.name}",
            fix=_FIX,
        )
    shape = known_shape(result)
    if result.dtype not in FLOAT_TYPES or shape is None or any(dim != 1 for dim in shape):
        raise ModelError(
            f"The output '{result.name}' of the loss is not a float scalar.",
            where=f"{path}: {result.dtype} {format_shape(shape)}",
            fix="Let it end with a ReduceMean or ReduceSum over all axes, keepdims=0.",
        )
    if result.producer() is None:
        raise ModelError("The loss computes nothing.", where=path, fix=_FIX)
    if labels.dtype is None or known_shape(labels) is None:
        raise ModelError(
            f"The labels '{labels.name}' of the loss have no type or shape.",
            where=path,
            fix="Declare them, for example float[N, K] or int64[N].",
        )
    return scores, labels, result


def _picking(loss: ir.Model, labels: ir.Value, path: str) -> ir.Node | None:
    """The node that uses the labels, not indices computed from them, as class indices."""
    found = find_nodes(loss.graph.all_nodes(), *_PICKING)
    for node in found:
        if source_before(node.inputs[1], *_MOVING) is not labels:
            raise ModelError(
                f"The {node.op_type} of the loss does not read the labels directly.",
                where=f"{path}: node '{node.name}'",
                fix="Store class indices in the data, and let the loss read them from its second "
                "input.",
            )
    return found[0] if found else None


def _match(
    scores: ir.Value, prediction: ir.Value, path: str, source: str
) -> dict[str, int | str | None]:
    """Match the scores to the output: symbolic dimension of the loss to that of the network."""
    expected, found = known_shape(scores), known_shape(prediction)
    where = (
        f"{path}: '{scores.name}' {scores.dtype} {format_shape(expected)}; "
        f"{source}: '{prediction.name}' {prediction.dtype} {format_shape(found)}"
    )
    fix = "Export the loss for this output, or name another one with --output."
    if prediction.dtype != ir.DataType.FLOAT or scores.dtype != prediction.dtype:
        raise ModelError("The loss expects scores of another type.", where=where, fix=fix)
    if expected is None or found is None:
        return {}
    lengths: dict[str, int | str | None] = {}
    if len(expected) != len(found):
        raise ModelError("The loss expects scores of another rank.", where=where, fix=fix)
    for dim, actual in zip(expected, found, strict=True):
        # The first axis with a name binds it, the others must have the same length.
        known = lengths.setdefault(dim, actual) if isinstance(dim, str) else dim
        if isinstance(known, int) and isinstance(actual, int) and known != actual:
            raise ModelError("The loss expects scores of another shape.", where=where, fix=fix)
    return lengths


def _merge_opsets(model: ir.Model, loss: ir.Model, path: str) -> None:
    for domain, version in loss.opset_imports.items():
        if model.opset_imports.setdefault(domain, version) != version:
            raise UsageError(
                f"The loss and the network use different versions of '{domain}'.",
                where=f"{path}: {version}; network: {model.opset_imports[domain]}",
                fix="Export both with the same version.",
            )
