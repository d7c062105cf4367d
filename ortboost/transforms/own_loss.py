"""A loss of the user's own: an ONNX model from scores and labels to one number.

    --loss my_loss.onnx        loss(scores, labels) -> scalar

The model has two inputs, in the order of ``torch.nn`` losses, ``loss(input, target)``: the scores, of the type and
shape of the output that is trained, and the labels, whose type and shape become those of the label input.
Its one output is a float scalar. Symbolic dimensions of the scores stand for those of the output, so
that labels ``[N]`` beside scores ``[N, K]`` have the length of the batch. Its weights (of the classes, say)
are constants: they are not trained.

Whether the scalar is a mean over the samples or a sum is what ``reduction`` says; the file is not asked.

A runtime reads past a row where a label is no class: if the loss picks scores by its labels, with
SoftmaxCrossEntropyLoss or NegativeLogLikelihoodLoss, data are held to the classes that there are.

The nodes are put into the graph of the network, opset for opset, and differentiated like the rest of it.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.errors import ModelError, UsageError
from ortboost.graph.build import Builder
from ortboost.graph.io import load_model, source_name
from ortboost.graph.normalize import normalize
from ortboost.graph.query import FLOAT_TYPES, ROLE_MARK, format_shape, is_standard, known_shape

__all__ = ["splice_loss"]

_PREFIX = "ortboost/loss"
_FIX = "It takes scores and labels, in this order, and answers one float scalar."
_PICKING = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_MOVING = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
_LABELS = ("y", "labels", "label", "targets", "target")


def splice_loss(
    model: ir.Model, prediction: ir.Value, path: str, builder: Builder
) -> tuple[ir.Value, ir.Value, ir.Node | None]:
    """Put a loss into a graph, after what it has.

    Args:
        model: The forward model; changed in place.
        prediction: The output that the loss is taken of.
        path: The file.
        builder: Makes what is added, and knows the names that are taken.

    Returns:
        The labels, a new value that is no input yet; the loss, a scalar; and the node that takes the
        labels for class numbers, if there is one.

    Raises:
        FileError: There is no such file, or it is no model.
        ModelError: It is no such loss, or does not fit the output.
    """
    loss = load_model(path)
    opset = model.opset_imports[""]
    normalize(loss, opsets=range(opset, opset + 1), ir_version=model.ir_version)
    scores, labels, answer = _ports(loss, path)
    picking = _picking(loss, labels, path)
    lengths = _match(scores, prediction, path, source_name(model))
    _merge_opsets(model, loss, path)
    target = ir.Value(
        name=labels.name,
        type=labels.type,
        shape=ir.Shape(_named(dim, lengths) for dim in known_shape(labels) or ()),
    )
    graph = loss.graph
    for value in list(graph.initializers.values()):
        graph.initializers.pop(value.name or "")
        value.name = builder.unique(f"{_PREFIX}/{value.name}")
        value.metadata_props[ROLE_MARK] = "constant"
        model.graph.register_initializer(value)
    for node in graph.all_nodes():
        node.name = f"{_PREFIX}/{node.name}"
        for output in node.outputs:
            output.name = builder.unique(f"{_PREFIX}/{output.name}") if output.name else ""
            output.shape = None  # its dimensions are called otherwise; inferred anew
    graph.outputs.clear()
    scores.replace_all_uses_with(prediction)
    labels.replace_all_uses_with(target)
    nodes = list(graph)
    graph.remove(nodes)
    builder.nodes.extend(nodes)
    return target, builder.op("Reshape", answer, builder.ints(), shape=()), picking


def _ports(loss: ir.Model, path: str) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Scores, labels and answer."""
    inputs, outputs = loss.graph.inputs, loss.graph.outputs
    if len(inputs) != 2 or len(outputs) != 1:
        raise ModelError(
            f"The loss has {len(inputs)} inputs and {len(outputs)} outputs; 2 and 1 are needed.",
            where=f"{path}: {', '.join(str(v.name) for v in (*inputs, *outputs))}",
            fix=_FIX,
        )
    scores, labels, answer = inputs[0], inputs[1], outputs[0]
    names = [(value.name or "").lower() for value in inputs]
    if names[0] in _LABELS and names[1] not in _LABELS:
        raise ModelError(
            f"The first input of the loss is called '{scores.name}', and the second is not.",
            where=f"{path}: {scores.name}, {labels.name}",
            fix=_FIX,
        )
    shape = known_shape(answer)
    if answer.dtype not in FLOAT_TYPES or shape is None or any(dim != 1 for dim in shape):
        said = "unknown" if shape is None else format_shape(shape)
        raise ModelError(
            f"The loss answers '{answer.name}', which is no float scalar.",
            where=f"{path}: {answer.dtype}, shape {said}",
            fix="Let it end with a ReduceMean or ReduceSum over all axes, keepdims=0.",
        )
    if answer.producer() is None:
        raise ModelError("The loss computes nothing.", where=path, fix=_FIX)
    if labels.dtype is None or known_shape(labels) is None:
        raise ModelError(
            f"The labels '{labels.name}' of the loss have no type or shape.",
            where=path,
            fix="Declare them: float[N, K] or int64[N], say.",
        )
    return scores, labels, answer


def _picking(loss: ir.Model, labels: ir.Value, path: str) -> ir.Node | None:
    """The node that takes the labels for class numbers.

    Raises:
        ModelError: The loss computes the class numbers of its labels, which cannot be checked then.
    """
    found = [node for node in loss.graph.all_nodes() if is_standard(node, *_PICKING)]
    for node in found:
        value = node.inputs[1]
        while value is not None and value is not labels:
            producer = value.producer()
            moved = producer is not None and is_standard(producer, *_MOVING)
            value = producer.inputs[0] if producer is not None and moved else None
        if value is None:
            raise ModelError(
                f"The {node.op_type} of the loss does not take the labels as they are.",
                where=f"{path}: node '{node.name}'",
                fix="Let data have the class numbers, and the loss take them from its second input.",
            )
    return found[0] if found else None


def _match(
    scores: ir.Value, prediction: ir.Value, path: str, source: str
) -> dict[str, int | str | None]:
    """Symbolic dimension of the scores to what it is in the network.

    Raises:
        ModelError: Types, ranks or lengths differ.
    """
    wanted, have = known_shape(scores), known_shape(prediction)
    where = (
        f"{path}: '{scores.name}' {scores.dtype} {'?' if wanted is None else format_shape(wanted)}; "
        f"{source}: '{prediction.name}' {prediction.dtype} {'?' if have is None else format_shape(have)}"
    )
    fix = "Export the loss for this output, or name another one with --output."
    if prediction.dtype not in FLOAT_TYPES or scores.dtype is not prediction.dtype:
        raise ModelError("The loss takes scores of another type.", where=where, fix=fix)
    if wanted is None or have is None:
        return {}
    lengths: dict[str, int | str | None] = {}
    for mine, its in zip(wanted, have, strict=False):
        known = lengths.setdefault(mine, its) if isinstance(mine, str) else mine
        if isinstance(known, int) and isinstance(its, int) and known != its:
            raise ModelError("The loss takes scores of another shape.", where=where, fix=fix)
    if len(wanted) != len(have):
        raise ModelError("The loss takes scores of another rank.", where=where, fix=fix)
    return lengths


def _named(dim: int | str | None, lengths: dict[str, int | str | None]) -> int | str | None:
    """A dimension of the labels, as the network calls it; one that only they have is theirs."""
    return lengths.get(dim, f"{dim}_of_labels") if isinstance(dim, str) else dim


def _merge_opsets(model: ir.Model, loss: ir.Model, path: str) -> None:
    for domain, version in loss.opset_imports.items():
        if model.opset_imports.setdefault(domain, version) != version:
            raise UsageError(
                f"The loss and the network use different versions of '{domain}'.",
                where=f"{path}: {version}; network: {model.opset_imports[domain]}",
                fix="Export both with one version.",
            )
