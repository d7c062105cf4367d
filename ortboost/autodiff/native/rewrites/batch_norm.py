"""BatchNormalization, which the builder gets wrong in both forms.

``get_optimized_model`` puts the inference form into training mode, which changes the loss itself.
In training mode its kernel writes the running statistics into the memory of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortboost.graph.formulas import Term
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["frozen_batch_norm", "guarded_statistics"]


@rewrites("BatchNormalization", what="inference form, replaced by a multiplication and an addition")
def frozen_batch_norm(site: Site) -> list[ir.Value | None] | None:
    """Write inference-mode BatchNormalization as ``x * a + c`` per channel.

    ``y = x * a + (bias - mean * a)``, ``a = scale / sqrt(var + epsilon)``.
    """
    if site.integer("training_mode", 0):
        return None
    data, scale, bias, mean, variance = (site.input(index) for index in range(5))
    dtype = variance.dtype or site.dtype  # float32 beside float16 data: few values, kept exact
    deviation = (Term(site, variance) + site.number("epsilon", 1e-5)).call("Sqrt")
    scale, bias = (site.cast(value, dtype) for value in (scale, bias))
    factor = Term(site, scale) / deviation
    offset = Term(site, bias) - Term(site, mean) * factor
    trailing = site.rank() - 2
    if trailing > 0:
        axes = site.ints(*range(1, 1 + trailing))
        factor, offset = (term.call("Unsqueeze", axes) for term in (factor, offset))
    return [(Term(site, data) * factor.cast(site.dtype) + offset.cast(site.dtype)).value]


@rewrites("BatchNormalization", what="works on a copy of its running statistics")
def guarded_statistics(site: Site) -> Sequence[ir.Value] | None:
    """Copy running statistics before a training-mode BatchNormalization overwrites them."""
    if not site.integer("training_mode", 0):
        return None
    statistics = [site.input(3), site.input(4)]
    if all(_is_scratch(value) for value in statistics):
        return None
    # A Sum of one tensor is a copy that onnxruntime's optimizers do not remove, unlike Identity.
    copies = [v if _is_scratch(v) else site.op("Sum", v, shape=v.shape) for v in statistics]
    given = [*(site.input(index) for index in range(3)), *copies]
    outputs = site.ops("BatchNormalization", *given, count=3, **site.node.attributes)
    for output, like in zip(outputs[1:], statistics, strict=True):
        output.type, output.shape = like.type, like.shape
    return outputs[: len(site.node.outputs)]


def _is_scratch(value: ir.Value) -> bool:
    """Whether the value is computed and read only by this node."""
    producer = value.producer()
    if producer is None or producer.op_type in ("Identity", "Reshape", "Squeeze", "Unsqueeze"):
        return False
    return len(value.uses()) == 1 and not value.is_graph_output()
