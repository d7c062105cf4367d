"""BatchNormalization in training mode or half precision, rewritten so that all runtimes support it.

The CUDA provider of stock onnxruntime has no kernel for training mode
(microsoft/onnxruntime#16867). The statistics are computed beside the node, and the node normalizes
by them in inference mode: one kernel with one multiply-add per element. Half precision is
normalized in float32.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.rewrites.normalization import FLOAT, as_float, as_given
from ortboost.graph.query import SHORT_FLOATS, find_nodes, is_read, producer_of
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["batch_centered", "batch_normalizations", "batch_statistics"]


@rewrites("BatchNormalization", what="batch statistics computed separately, in float32")
def batch_statistics(site: Site) -> list[ir.Value | None] | None:
    """Split training-mode BatchNormalization into statistics and a normalization, in place.

    `mean = mean(x)`, `var = mean((x - mean)^2)` over all axes except the channels. Two passes are
    used, since the mean of the squares minus the square of the mean loses all accuracy if the mean
    is large. The running outputs are `old momentum + new (1 - momentum)`.
    """
    training = bool(site.integer("training_mode", 0))
    given = [site.input(index) for index in range(5)]
    if not training and all(value.dtype not in SHORT_FLOATS for value in given):
        return None
    dtype, (x, scale, bias, *stored) = given[0].dtype, (as_float(site, value) for value in given)
    shape, vector = site.shape(), scale.shape
    mean, variance = _statistics(site, x, vector) if training else stored
    epsilon = site.number("epsilon", 1e-5)
    inputs = (x, scale, bias, mean, variance)
    result = site.op("BatchNormalization", *inputs, epsilon=epsilon, shape=shape)
    outputs: list[ir.Value | None] = [as_given(site, result, dtype)]
    momentum = site.number("momentum", 0.9)
    # Not strict: the node may lack the running outputs, which are the last two.
    batch = zip(site.node.outputs[1:], given[3:], stored, (mean, variance), strict=False)
    for output, like, old, new in batch:
        if not is_read(output):
            outputs.append(None)
            continue
        value = new
        if momentum:  # 0 if the model's own momentum is applied beside the node
            before = site.op("Mul", old, site.builder.const(momentum, old.dtype or FLOAT))
            fresh = site.op("Mul", new, site.builder.const(1.0 - momentum, new.dtype or FLOAT))
            value = site.op("Add", before, fresh, shape=vector)
        outputs.append(as_given(site, value, like.dtype))
    return outputs


def _statistics(site: Site, x: ir.Value, vector: ir.Shape | None) -> tuple[ir.Value, ir.Value]:
    """Mean and variance of each channel, `[C]`."""
    rank, shape = site.rank(), site.shape()
    if rank < 2:
        raise Refusal("its input has no channel axis")
    axes = site.ints(0, *range(2, rank))
    kept = [1, shape[1], *[1] * (rank - 2)]
    mean = site.op("ReduceMean", x, axes, keepdims=1, shape=kept)  # [1, C, 1, ...]
    centered = site.op("Sub", x, mean, shape=shape)
    squares = site.op("Mul", centered, centered, shape=shape)
    variance = site.op("ReduceMean", squares, axes, keepdims=0, shape=vector)
    return site.op("Reshape", mean, site.ints(-1), shape=vector), variance


def batch_centered(node: ir.Node) -> ir.Value | None:
    """`x - mean`, if an inference-mode node normalizes by the statistics of its own input.

    ``None`` otherwise. This is the only form in which a BatchNormalization in training mode reaches
    the gradient rule and the forms of devices: :func:`batch_statistics` wrote it. It is recognized
    by its structure, as a marker would not survive copies of the model.
    """
    data = node.inputs[0]
    mean, *_ = _operands(node.inputs[3], "Reshape")  # [1, C, 1, ...]
    squares, *_ = _operands(node.inputs[4], "ReduceMean")
    centered, *others = _operands(squares, "Mul")
    if data is None or others != [centered] or _operands(centered, "Sub") != (data, mean):
        return None
    return centered if _operands(mean, "ReduceMean")[0] is data else None


def batch_normalizations(graph: ir.Graph) -> list[ir.Node]:
    """The nodes of a step that normalize by the statistics of their input, in its forward pass."""
    first: dict[ir.Value, ir.Node] = {}
    for node in find_nodes(graph, "BatchNormalization"):
        if (centered := batch_centered(node)) is not None:
            first.setdefault(centered, node)  # later ones of this value belong to its gradient
    return list(first.values())


def _operands(value: ir.Value | None, op_type: str) -> tuple[ir.Value | None, ...]:
    """The inputs of the node that computes a value, if it is of this operator."""
    node = producer_of(value, op_type)
    return (None,) if node is None else tuple(node.inputs)
