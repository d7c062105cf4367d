"""Conversion of BatchNormalization to its training form.

Exporters write BatchNormalization in inference form, torch's dynamo exporter even from ``train()``.
In this form the statistics are never updated and the gradients are those of a fixed affine map.
:func:`to_training` switches the nodes to training mode and computes the next running statistics in
the graph; :func:`~ortboost.transforms.inference_norm.to_inference` reverts this for evaluation and
export.

The statistics are computed beside the node, ``next = old * momentum + batch * (1 - momentum)``,
with ``momentum = 0`` on the node itself, which then outputs the statistics of the batch: otherwise
onnxruntime would overwrite the stored statistics in place, even in a skipped step, which must keep
them.

ONNX does so with the *biased* variance of the batch, ``sum((x - mean)^2) / N``. PyTorch and
MindSpore use the unbiased one, ``/ (N - 1)``, which is the default here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import (
    find_nodes,
    is_read,
    known_shape,
    label,
    source_before,
    static_shape,
)
from ortboost.graph.weights.origins import origin_of

__all__ = [
    "MOMENTUM_KEY",
    "NEXT",
    "OWN_PREFIX",
    "VARIANCE_KEY",
    "BatchNormState",
    "batch_norms",
    "body_norms",
    "has_no_momentum",
    "is_training",
    "next_name",
    "running_statistics",
    "to_training",
]

NEXT = "ortboost/next/"
"""Prefix of the name of the next value of a state tensor."""

OWN_PREFIX = "ortboost/batch_norm/"
"""Prefix of the names of the nodes that compute the next statistics."""

MOMENTUM_KEY = "ortboost.momentum"
"""Metadata key of a node: its momentum before :func:`to_training`."""

VARIANCE_KEY = "ortboost.running_variance"
"""Metadata key of a node: ``unbiased`` or ``onnx``, the variance that it keeps."""

_DEFAULT_MOMENTUM = 0.9  # of the standard

RunningVariance = Literal["unbiased", "onnx"]


@dataclass(frozen=True)
class BatchNormState:
    """The result of :func:`to_training`.

    Args:
        report: Nodes changed (now in training mode) and kept (frozen), with reasons.
        next_of: Buffer (running mean or variance) to the name of the value with its next state. The
            values are in the graph, but not yet among its outputs.
    """

    report: Report
    next_of: dict[str, str] = field(default_factory=dict)


def next_name(state: str) -> str:
    """The name of the output with the next value of a state, here of a running statistic.

    Example:
        >>> next_name("bn1.running_mean")
        'ortboost/next/bn1.running_mean'
    """
    return f"{NEXT}{state}"


def batch_norms(model: ir.Model) -> list[ir.Node]:
    """The BatchNormalization nodes of the main graph, in graph order."""
    return find_nodes(model.graph, "BatchNormalization")


def body_norms(model: ir.Model) -> list[ir.Node]:
    """The BatchNormalization nodes in the bodies of If, Loop and Scan."""
    nodes = find_nodes(model.graph.all_nodes(), "BatchNormalization")
    return [node for node in nodes if node.graph is not model.graph]


def running_statistics(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Running mean and variance of a node, if both are initializers or graph inputs.

    They may be read through Identity nodes: the TorchScript exporter stores equal tensors once.
    """
    found = []
    for index in (3, 4):
        value = source_before(node.inputs[index], "Identity")
        if value is None or not (value.is_initializer() or value.is_graph_input()):
            return None
        found.append(value)
    return found[0], found[1]


def to_training(
    model: ir.Model,
    *,
    frozen: Callable[[ir.Node], bool] = lambda _: False,
    running_variance: RunningVariance = "unbiased",
) -> BatchNormState:
    """Put BatchNormalization nodes of the main graph in training mode, in place.

    A node in training mode normalizes by the statistics of the batch and computes the next running
    mean and variance, shape ``[C]`` each, named ``ortboost/next/<buffer>``. If a module is applied
    twice (two nodes share scale, bias and both statistics), the second update starts from the
    result of the first, as in PyTorch. If nodes share only the statistics (exporters store equal
    tensors once), each gets its own copy. The rewrite is idempotent.

    ``frozen`` returns whether a node keeps its running statistics and stays in inference form.

    Raises:
        ModelError: Running statistics are computed in the graph instead of stored, or a node in a
            body of If, Loop or Scan is not frozen; the error lists all such nodes.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3] y) {
        ...   [bn] y = BatchNormalization(x, s, b, m, v)
        ... }''')
        >>> to_training(model).next_of
        {'m': 'ortboost/next/m', 'v': 'ortboost/next/v'}
    """
    state = BatchNormState(Report("batch_norm_to_training"))
    nodes = _nodes_to_change(model, frozen, state.report)
    _freeze_bodies(model, frozen, state.report)
    builder = Builder(model.graph, OWN_PREFIX.rstrip("/"))
    _separate(model, nodes, builder, state.report)
    # A module that is applied again continues from the result of its node before.
    factors: dict[Hashable, ir.Value] = {}
    latest: dict[ir.Value, ir.Value] = {}  # buffer to newest value: a module may be applied twice
    for node in nodes:
        statistics = running_statistics(node)
        if statistics is None:  # excluded above
            continue
        what = "outputs its running statistics" if is_training(node) else "put in training mode"
        if statistics[0] in latest:
            what += ", continues the statistics of the node before it"
        state.report.changed[label(node)] = f"{what} (running variance: {running_variance})"
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
        stored = [latest.get(buffer, buffer) for buffer in statistics]
        following = _add_statistics(model, node, stored, builder, running_variance, factors)
        latest.update(zip(statistics, following, strict=True))
    _name_next(latest, builder)
    # Also the names that an earlier call has given.
    names = [output.name or "" for node in model.graph for output in node.outputs]
    state.next_of.update((n.removeprefix(NEXT), n) for n in names if n.startswith(NEXT))
    return state


def _nodes_to_change(
    model: ir.Model, frozen: Callable[[ir.Node], bool], report: Report
) -> list[ir.Node]:
    """The nodes that are neither frozen nor in training mode since an earlier call."""
    nodes = []
    for node in batch_norms(model):
        names = [output.name or "" for output in node.outputs]
        if is_training(node) and len(names) == 3 and names[1].startswith((NEXT, OWN_PREFIX)):
            report.kept[label(node)] = "already in training mode"
        elif frozen(node):
            _freeze(node, report)
        else:
            nodes.append(node)
    bad = [label(node) for node in nodes if running_statistics(node) is None]
    if bad:
        raise ModelError(
            "Running statistics of BatchNormalization are computed, not stored.",
            where=", ".join(bad),
            fix="Freeze these nodes, or export the model with its running_mean and running_var.",
        )
    return nodes


def _name_next(latest: Mapping[ir.Value, ir.Value], builder: Builder) -> None:
    """Give the newest value of each buffer the name of its next value."""
    for buffer, new in latest.items():
        if new.is_graph_output():  # keep its name, and add another value
            same = builder.op("Identity", new)
            producer = new.producer()
            assert producer is not None  # the Add of the next statistic
            builder.graph.insert_after(producer, builder.take())
            new = same
        new.name = builder.unique(next_name(buffer.name or ""))
        new.type, new.shape = buffer.type, buffer.shape


def _freeze_bodies(model: ir.Model, frozen: Callable[[ir.Node], bool], report: Report) -> None:
    """Refuse nodes in bodies, which cannot pass on their statistics, unless they are frozen."""
    moving = [label(node) for node in body_norms(model) if not frozen(node)]
    if moving:
        raise ModelError(
            "The running statistics of BatchNormalization in a body of If, Loop or Scan cannot be "
            "updated.",
            where=", ".join(moving),
            fix=f"Keep them as they are with --frozen-bn '{moving[0]}', or export the model with "
            "these layers outside of the body.",
        )
    for node in body_norms(model):
        _freeze(node, report)


def _freeze(node: ir.Node, report: Report) -> None:
    """Keep a node in inference form, or put it in that form."""
    if not is_training(node):
        report.kept[label(node)] = "frozen: it keeps its running statistics"
    elif any(map(is_read, node.outputs[1:])):
        report.kept[label(node)] = "frozen: it keeps its running statistics"
        report.notes.append(f"'{label(node)}' is frozen, but its running statistics are used")
    else:
        node.resize_outputs(1)
        node.attributes.pop("training_mode", None)
        report.changed[label(node)] = "put in inference mode: frozen"


def has_no_momentum(node: ir.Node) -> bool:
    """Whether the running statistics would never move: the momentum is 1.

    torch's exporters write it for ``momentum=None``, a cumulative average
    (https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html).
    """
    return node.attributes.get_float("momentum", _DEFAULT_MOMENTUM) == 1


def _add_statistics(
    model: ir.Model,
    node: ir.Node,
    stored: list[ir.Value],
    builder: Builder,
    running_variance: RunningVariance,
    factors: dict[Hashable, ir.Value],
) -> list[ir.Value]:
    """Let the node output the batch statistics, and compute the next running ones beside it.

        next mean = momentum mean + (1 - momentum) batch mean
        next var  = momentum var  + (1 - momentum) N / (N - 1) batch var     (unbiased)

    ``factors`` caches the factors ``(1 - momentum) N / (N - 1)`` by element count, which layers of
    the same size share.
    """
    momentum = _DEFAULT_MOMENTUM
    if not has_no_momentum(node):
        momentum = float(node.attributes.get_float("momentum", _DEFAULT_MOMENTUM))
    node.metadata_props[MOMENTUM_KEY] = repr(momentum)
    node.metadata_props[VARIANCE_KEY] = running_variance
    node.attributes["momentum"] = ir.AttrFloat32("momentum", 0.0)
    node.resize_outputs(3)
    for index, old in enumerate(stored, 3):
        # onnxruntime writes outputs 1 and 2 into the memory of inputs 3 and 4, even if these are
        # the caller's arrays. Therefore the inputs become temporaries; with momentum 0 their
        # values have no effect.
        half = builder.const(0.5, old.dtype or ir.DataType.FLOAT)
        node.replace_input_with(index, builder.op("Mul", old, half, shape=old.shape))
    model.graph.insert_before(node, builder.take())
    following = []
    for kind, old, batch in zip(("mean", "var"), stored, node.outputs[1:], strict=True):
        readers = list(batch.uses())  # of the running statistic, which this output was
        batch.type, batch.shape = old.type, old.shape
        dtype = old.dtype or ir.DataType.FLOAT
        kept = builder.op("Mul", old, builder.const(momentum, dtype), shape=old.shape)
        weight = builder.const(1.0 - momentum, dtype)
        if kind == "var" and running_variance == "unbiased":
            key = (_element_count(node), momentum, dtype)
            # Two unknown counts are not the same count.
            if key[0] is None or key not in factors:
                factors[key] = _unbiased(node, old, 1.0 - momentum, builder, dtype)
            weight = factors[key]
        share = builder.op("Mul", batch, weight, shape=old.shape)
        new = builder.op("Add", kept, share, shape=old.shape)
        for usage in readers:
            usage.node.replace_input_with(usage.idx, new)
        for index, output in enumerate(model.graph.outputs):
            if output is batch:
                model.graph.outputs[index], new.name = new, batch.name
        batch.name = builder.unique(f"{OWN_PREFIX}{label(node)}/{kind}")
        following.append(new)
    model.graph.insert_after(node, builder.take())
    return following


def _element_count(node: ir.Node) -> tuple[int | str, ...] | None:
    """The dimensions that a statistic is computed over; ``None`` if one of them is unknown."""
    shape = known_shape(node.inputs[0]) or ()
    dims = tuple(dim for dim in (*shape[:1], *shape[2:]) if dim is not None)
    return dims if dims and len(dims) == len(shape) - 1 else None


def _unbiased(
    node: ir.Node, like: ir.Value, weight: float, builder: Builder, dtype: ir.DataType
) -> ir.Value:
    """``weight * N / max(N - 1, 1)``, where N is the number of elements per channel.

    For a single element, the biased variance is 0 and remains 0.
    """
    data = node.inputs[0]
    shape = static_shape(data)
    if shape is not None:
        # Elements per channel; 1 in place of no channel, for an empty tensor.
        count = int(np.prod(shape, dtype=np.int64)) // max(shape[1] if len(shape) > 1 else 1, 1)
        return builder.const(weight * count / max(count - 1, 1), dtype)
    int64 = ir.DataType.INT64
    # The same at run time; a statistic has one element per channel.
    size, channels = (builder.op("Size", v, dtype=int64, shape=[]) for v in (data, like))
    number = builder.cast(builder.op("Div", size, channels, shape=[]), dtype)
    less_one = builder.op("Sub", number, builder.const(1, dtype), shape=[])
    divisor = builder.op("Max", less_one, builder.const(1, dtype), shape=[])
    scaled = builder.op("Mul", number, builder.const(weight, dtype), shape=[])
    return builder.op("Div", scaled, divisor, shape=[])


def _separate(model: ir.Model, nodes: list[ir.Node], builder: Builder, report: Report) -> None:
    """Give nodes that share statistics, but are not the same module, separate tensors."""
    owner: dict[str, tuple[str | None, ...]] = {}
    for node in nodes:
        statistics = running_statistics(node)
        if statistics is None:
            continue
        given = [node.inputs[3], node.inputs[4]]
        # Nodes with the same scale, bias and statistics are one module that is applied twice; one
        # without scale and bias (affine=False) gets ones and zeros for each application.
        module = tuple(
            "" if value.producer() or origin_of(value).kind == "literal" else value.name
            for value in node.inputs[1:5]
            if value is not None
        )
        for index, value, direct in zip((3, 4), statistics, given, strict=True):
            key = value.name or ""
            # The node's own tensor, or shared only by applications of the same module.
            if direct is value and owner.setdefault(key, module) == module:
                continue
            # From a module in train(), torch's dynamo exporter passes it to the second application
            # through an Identity.
            if direct is not value and origin_of(value).kind == "buffer":
                continue
            # A copy needs the numbers, which a graph input does not hold.
            if not value.is_initializer() or value.const_value is None:
                raise ModelError(
                    "Two BatchNormalization nodes share running statistics, but not their scale.",
                    where=f"node '{label(node)}', tensor '{key}'",
                    fix="Convert from the model as exported, where the statistics are "
                    "initializers.",
                )
            if direct is value or direct is None:
                name = builder.unique(f"{key}/{node.name}")
            else:  # the Identity has the name of the exporter's other tensor
                name = direct.name or key
                direct.name = builder.unique(f"{name}/shared")
            copy = ir.val(name, const_value=value.const_value)
            model.graph.register_initializer(copy)
            node.replace_input_with(index, copy)
            owner[name] = module
            report.notes.append(
                f"'{name}' of node '{node.name}' shared its tensor with '{key}'; it now has its own"
            )


def is_training(node: ir.Node) -> bool:
    """Whether a BatchNormalization is in training mode."""
    return node.attributes.get_int("training_mode", 0) == 1
