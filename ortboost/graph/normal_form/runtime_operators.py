"""Operators of onnxruntime's optimizers, written out in operators of the standard.

``onnxruntime.transformers.optimizer``, and a session that saves its optimized graph, fuse a
network into operators of com.microsoft, most of which have no gradient. Attention is in
:mod:`ortboost.graph.normal_form.runtime_attention`, quantized weights in
:mod:`ortboost.graph.normal_form.runtime_quantized`. Gelu, BiasGelu, FastGelu and QuickGelu stay:
both engines differentiate them.

Source: ``docs/ContribOperators.md`` of https://github.com/microsoft/onnxruntime, and the results of
its CPU kernels where the document does not say.
"""

from __future__ import annotations

from typing import Any, Final

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.normal_form.runtime_attention import (
    attention,
    multi_head_attention,
    rotary_embedding,
)
from ortboost.graph.normal_form.runtime_quantized import BLOCKWISE_OPSET, matmul_n_bits
from ortboost.graph.query import is_read, is_standard
from ortboost.graph.rewriting import Refusal, Rule, Site, rewrite_nodes
from ortboost.graph.shapes.shape_inference import infer_shapes

__all__ = [
    "OLDEST_OPSET",
    "has_runtime_operators",
    "oldest_opset",
    "restore_runtime_domain",
    "write_out_runtime_operators",
]

_DOMAIN: Final = "com.microsoft"
_LAYER_NORM_SINCE: Final = 17
OLDEST_OPSET: Final = 18
"""The first opset in which these operators are written out; see also :func:`oldest_opset`."""

_ACTIVATIONS: Final = {
    "Clip": ("min", "max"),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""Activation of a fused operator to the names of its settings, in the order of FusedConv."""


def restore_runtime_domain(model: ir.Model) -> None:
    """Move normalizations that onnxruntime has put into the standard domain into its own, in place.

    The standard has no SimplifiedLayerNormalization, and LayerNormalization only since opset 17.
    """
    old = model.opset_imports.get("", _LAYER_NORM_SINCE) < _LAYER_NORM_SINCE
    foreign = ("SimplifiedLayerNormalization", *(["LayerNormalization"] if old else []))
    for node in model.graph.all_nodes():
        if is_standard(node, *foreign):
            node.domain = _DOMAIN
            model.opset_imports.setdefault(_DOMAIN, 1)


def has_runtime_operators(model: ir.Model) -> bool:
    """Whether there are operators that :func:`write_out_runtime_operators` replaces, or refuses."""
    return any(node.domain == _DOMAIN and node.op_type in _RULES for node in model.graph)


def oldest_opset(model: ir.Model) -> int:
    """The first opset in which all operators of onnxruntime in a model can be written out."""
    blocks = (n.domain == _DOMAIN and n.op_type == "MatMulNBits" for n in model.graph)
    return BLOCKWISE_OPSET if any(blocks) else OLDEST_OPSET


def write_out_runtime_operators(model: ir.Model) -> Report:
    """Replace operators of com.microsoft by operators of the standard, in place.

    A model of an opset below 18 is left alone. The rewrite is idempotent.

    Example:
        >>> model = ir.from_onnx_text('''
        ... <ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        ... net (float[N,3] x, float[3,2] w) => (float[N,2] y) {
        ...   y = com.microsoft.FusedMatMul <alpha = 0.5> (x, w) }''')
        >>> write_out_runtime_operators(model).modified
        True
        >>> [node.op_type for node in model.graph]
        ['MatMul', 'Mul']
    """
    report = Report("write_out_runtime_operators")
    if model.opset_imports.get("", 0) < OLDEST_OPSET:
        return report
    while has_runtime_operators(model):
        infer_shapes(model)  # it stops at the next operator that it does not know
        found = rewrite_nodes(
            model, report.rewrite, _RULES, "written out in standard operators", domain=_DOMAIN
        )
        report.changed.update(found.changed)
        report.kept = found.kept
        if not found.modified:
            break
    return report


def _layer_norm(site: Site) -> list[ir.Value]:
    """LayerNormalization of onnxruntime is that of the standard."""
    node = site.node
    return list(
        site.ops("LayerNormalization", *node.inputs, count=len(node.outputs), **node.attributes)
    )


def _skip_layer_norm(site: Site) -> list[ir.Value | None]:
    """``LayerNormalization(input + skip + bias) * gamma + beta``; the sum is the fourth output."""
    _refuse_read(site, 1, 2)
    total = _sum(site, 0, 1, 4)
    return _outputs(site, _normalized(site, total, 2, 3), None, None, total)


def _skip_simplified_layer_norm(site: Site) -> list[ir.Value | None]:
    """Like SkipLayerNormalization, but divided by the root mean square, and without beta."""
    _refuse_read(site, 1, 2)
    total = _sum(site, 0, 1, 3)
    y, _ = _root_mean_square_norm(site, total, site.input(2), -1, 1e-12)
    return _outputs(site, y, None, None, total)


def _simplified_layer_norm(site: Site) -> list[ir.Value | None]:
    """``x / sqrt(mean(x²) + epsilon) * scale``, and the reciprocal of the root."""
    y, inverse = _root_mean_square_norm(
        site, site.input(0), site.input(1), site.integer("axis", -1), 1e-5
    )
    return _outputs(site, y, inverse)


def _root_mean_square_norm(
    site: Site, x: ir.Value, scale: ir.Value, axis: int, epsilon: float
) -> tuple[ir.Value, ir.Value]:
    last = [-1] if axis == -1 else list(range(site.axis(), site.rank()))
    wide = site.cast(x, ir.DataType.FLOAT) if site.dtype.itemsize < 4 else x
    # With Pow, as torch exports it: mixed precision keeps that in float32, not a product.
    square = site.op("Pow", wide, site.const(2.0, wide.dtype))
    mean = site.op("ReduceMean", square, site.ints(*last), keepdims=1)
    added = site.op("Add", mean, site.const(site.number("epsilon", epsilon), wide.dtype))
    inverse = site.op("Reciprocal", site.op("Sqrt", added))
    return site.op("Mul", site.cast(site.op("Mul", wide, inverse)), scale), inverse


def _embed_layer_norm(site: Site) -> list[ir.Value | None]:
    """LayerNormalization of the sum of word, position and segment embeddings.

    Inputs: ids, segment ids, the three tables, gamma, beta, mask, position ids. Outputs: the
    result, the number of ones in each row of the mask, the sum.
    """
    ids, segments, positions = site.input(0), site.optional(1), site.optional(8)
    total = site.op("Gather", site.input(2), ids, dtype=site.input(2).dtype)
    table = site.input(3)
    if positions is not None:
        place = site.op("Gather", table, positions)
    else:
        place = site.op("Slice", table, site.ints(0), site.shape_of(ids, 1, 2), site.ints(0))
    total = site.op("Add", total, place)
    if segments is not None:
        total = site.op("Add", total, site.op("Gather", site.input(4), segments))
    count: ir.Value | None = None
    if len(site.node.outputs) > 1 and is_read(site.node.outputs[1]):
        count = _mask_index(site, ids)
    return _outputs(site, _normalized(site, total, 5, 6), count, total)


def _mask_index(site: Site, ids: ir.Value) -> ir.Value:
    """The number of ones in each row of the mask, 0 without one, as int32 of shape [batch]."""
    integer, mask = ir.DataType.INT32, site.optional(7)
    batch = site.shape(0)[:1]
    if mask is None:
        return site.filled(0, site.shape_of(ids, 0, 1), integer, batch)
    ones = site.cast(
        site.op("Equal", mask, site.const(1, mask.dtype), dtype=ir.DataType.BOOL), integer
    )
    return site.op("ReduceSum", ones, site.ints(1), shape=batch, keepdims=0)


def _fused_matmul(site: Site) -> list[ir.Value]:
    """``alpha A B``, each factor transposed first.

    ``trans`` swaps the last two axes, ``transBatch`` moves the first axis before the last. With
    both, the result has the axes ``1, ..., rank - 2, rank - 1, 0``.
    """
    factors = []
    for index, name in enumerate("AB"):
        rank, swapped = site.rank(index), site.integer(f"trans{name}", 0)
        axes = list(range(rank))
        if site.integer(f"transBatch{name}", 0) and rank > 2:
            axes = [*axes[1:-1], 0, axes[-1]]
        if swapped and rank > 1:
            axes[-2:] = axes[:-3:-1]
        factor = site.input(index)
        moved = axes != sorted(axes)
        factors.append(site.op("Transpose", factor, perm=axes) if moved else factor)
    product = site.op("MatMul", *factors)
    alpha = site.number("alpha", 1.0)
    return [product if alpha == 1 else site.op("Mul", product, site.const(alpha))]


def _fused_gemm(site: Site) -> list[ir.Value]:
    """Gemm, then an activation; an attribute for each of its settings."""
    given = {
        name.removeprefix("activation_"): site.number(name, 0.0)
        for name in site.node.attributes
        if name.startswith("activation_")
    }
    return [_activated(site, _plain(site, "Gemm"), given)]


def _fused_conv(site: Site) -> list[ir.Value]:
    """Conv, plus a tensor, then an activation; its settings are a list."""
    result, added = _plain(site, "Conv"), site.optional(3)
    if added is not None:
        result = site.op("Add", result, added)
    numbers = site.node.attributes.get_floats("activation_params", None) or ()
    names = _ACTIVATIONS.get(site.text("activation", ""), ())
    return [_activated(site, result, dict(zip(names, map(float, numbers), strict=False)))]


def _plain(site: Site, op_type: str) -> ir.Value:
    """The standard operator, of three inputs, within a fused one."""
    settings = {k: v for k, v in site.node.attributes.items() if not k.startswith("activation")}
    return site.op(op_type, *site.node.inputs[:3], **settings)


def _activated(site: Site, value: ir.Value, settings: dict[str, float]) -> ir.Value:
    name = site.text("activation", "")
    if not name:
        return value
    if name not in _ACTIVATIONS or not settings.keys() <= set(_ACTIVATIONS[name]):
        raise Refusal(
            f"its activation '{name}' with {', '.join(settings) or 'no settings'} is not known; "
            "start from the unoptimized export"
        )
    if name == "Clip":  # its limits are inputs
        limits: list[Any] = [settings.get(key) for key in _ACTIVATIONS[name]]
        return site.op(name, value, *(None if v is None else site.const(v) for v in limits))
    return site.op(name, value, **settings)


def _outputs(site: Site, *values: ir.Value | None) -> list[ir.Value | None]:
    """As many values as the node has outputs."""
    return list(values[: len(site.node.outputs)])


def _sum(site: Site, *indices: int) -> ir.Value:
    """The sum of those inputs that are given."""
    total = site.input(indices[0])
    for index in indices[1:]:
        value = site.optional(index)
        total = total if value is None else site.op("Add", total, value)
    return total


def _normalized(site: Site, total: ir.Value, scale: int, bias: int) -> ir.Value:
    """LayerNormalization of the last axis, scaled and shifted by these inputs."""
    epsilon, shift = site.number("epsilon", 1e-12), site.optional(bias)
    return site.op("LayerNormalization", total, site.input(scale), shift, axis=-1, epsilon=epsilon)


def _refuse_read(site: Site, *indices: int) -> None:
    for output in (site.node.outputs[i] for i in indices if i < len(site.node.outputs)):
        if is_read(output):
            raise Refusal(
                f"its statistics '{output.name}' are read; start from the unoptimized export"
            )


_RULES: Final[dict[str, Rule]] = {
    "Attention": attention,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "LayerNormalization": _layer_norm,
    "MatMulNBits": matmul_n_bits,
    "MultiHeadAttention": multi_head_attention,
    "RotaryEmbedding": rotary_embedding,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
    "TransposeMatMul": _fused_matmul,
}
