"""Fuse the decomposed training-mode BatchNormalization into one operator again.

The step contains it as six standard operators, because the CUDA provider has no kernel for training
mode. The CPU provider has one, which takes 43 microseconds for 32x24x16x16 elements; the six
operators take about 100.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortboost.autodiff.portable.rewrites.batch_norm import batch_normalizations
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import constant, static_shape

__all__ = ["fused_statistics"]

_FLOAT = ir.DataType.FLOAT


def fused_statistics(model: ir.Model) -> bool:
    """Fuse the operators of the portable engine's ``batch_statistics``; True if there was one.

    Only float32 nodes with a known number of channels are fused. With a momentum of 0 the running
    statistics returned by the operator are those of the batch.
    """
    nodes = [node for node in batch_normalizations(model.graph) if _channels(node)]
    if not nodes:
        return False
    # The kernel returns mean and variance too; what computed them before becomes unused.
    builder = Builder(model.graph, "ortboost/fused_statistics")
    old = _own_zeros(nodes, builder)
    model.graph.insert_before(nodes[0], builder.take())
    for place, node in enumerate(nodes):
        _fuse(node, old[2 * place], old[2 * place + 1], builder)
    model.graph.sort()  # statistics may have been read before the normalization
    return True


def _channels(node: ir.Node) -> int:
    """The number of channels of a node that can be fused, else 0."""
    scale = node.inputs[1]
    shape = None if scale is None or constant(scale) is not None else static_shape(scale)
    fits = shape is not None and node.outputs[0].dtype == _FLOAT
    return shape[0] if shape and fits else 0


def _own_zeros(nodes: Sequence[ir.Node], builder: Builder) -> Sequence[ir.Value]:
    """Initial running statistics of each node: zeros, but not constants.

    The kernel writes its results into the memory of its inputs, and NaN times a momentum of 0 stays
    NaN: a vector shared by several nodes or steps would be corrupted. The runtime must not fold
    them into constants either, so they depend on a weight by `w > w`.
    """
    sizes = [size for node in nodes for size in [_channels(node)] * 2]  # mean, variance
    one = builder.op("Slice", nodes[0].inputs[1], builder.ints(0), builder.ints(1))
    never = builder.op("Greater", one, one, dtype=ir.DataType.BOOL)
    zero = builder.op("Cast", never, dtype=_FLOAT, to=int(_FLOAT))
    zeros = builder.op("Expand", zero, builder.ints(sum(sizes)))
    names = [None] * len(sizes)
    return builder.ops("Split", zeros, builder.ints(*sizes), names=names, axis=0)


def _fuse(node: ir.Node, old_mean: ir.Value, old_variance: ir.Value, builder: Builder) -> None:
    x, scale, bias, mean, variance = node.inputs
    channels = _channels(node)
    assert mean is not None  # as of all these nodes
    assert variance is not None
    y, new_mean, new_variance = builder.ops(
        "BatchNormalization",
        *(x, scale, bias, old_mean, old_variance),
        names=[None] * 3,
        epsilon=node.attributes.get_float("epsilon", 1e-5),
        momentum=0.0,
        training_mode=1,
    )
    new_mean.shape = new_variance.shape = ir.Shape([channels])
    replace_node(node, [y], builder)
    for old, new in ((mean, new_mean), (variance, new_variance)):
        ir.convenience.replace_all_uses_with(old, new)
