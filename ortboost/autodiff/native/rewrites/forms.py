"""Rare forms of common operators for which the builder is wrong or fails.

Each is replaced by the ordinary form of the same operator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import fixed_axes, reduced_axes
from ortboost.autodiff.decompose.fake_quantization import straight_through
from ortboost.autodiff.native.rewrites.pools import max_pool, pool
from ortboost.autodiff.sizes import INT64, joined, length
from ortboost.core.report import Report
from ortboost.graph.formulas import Term
from ortboost.graph.query import FLOAT_TYPES, producer_of, source_before
from ortboost.graph.rewriting import Refusal, Rule, Site, rewrite_nodes
from ortboost.graph.weights.fake_quantization import is_fake_quantizer

__all__ = ["ordinary_forms"]


def ordinary_forms(model: ir.Model) -> Report:
    """Rewrite rare forms in place; see the functions of this module for each operator."""
    return rewrite_nodes(model, "ordinary_forms", _FORMS)


def _matmul(site: Site) -> list[ir.Value | None] | None:
    """Turn a vector into a matrix of one row or column: gradients of vectors are wrong or fail."""
    left, right = site.input(0), site.input(1)
    ranks = [site.rank(0), site.rank(1)]
    if 1 not in ranks:
        return None
    dropped = []
    if ranks[0] == 1:
        left = site.op("Unsqueeze", left, site.ints(0))
        dropped.append(-2)
    if ranks[1] == 1:
        right = site.op("Unsqueeze", right, site.ints(1))
        dropped.append(-1)
    return [site.op("Squeeze", site.op("MatMul", left, right), site.ints(*dropped))]


def _gemm(site: Site) -> list[ir.Value | None] | None:
    """Turn a scalar C into a vector, as its gradient has shape [1]; refuse alpha or beta of 0."""
    alpha, beta = site.number("alpha", 1.0), site.number("beta", 1.0)
    left, right, added = site.input(0), site.input(1), site.optional(2)
    scalar = added is not None and site.rank(2) == 0
    if alpha and (beta or added is None) and not scalar:
        return None
    if not alpha or (added is not None and not beta):
        raise Refusal("alpha or beta is 0, so some of its inputs have no effect; remove them")
    if added is not None:
        added = site.op("Unsqueeze", added, site.ints(0))
    return [site.op("Gemm", left, right, added, **site.node.attributes)]


def _reduce(site: Site) -> list[ir.Value | None] | None:
    """Keep the dimensions of ReduceL2 and ReduceLogSumExp, then squeeze them.

    With ``keepdims=0`` over all axes or repeated ones, the gradient has one dimension too many, or
    fails.
    """
    if site.integer("keepdims", 1):
        return None
    axes = fixed_axes(site)
    if not axes or (len(axes) < site.rank() and not _repeated(site, axes)):
        return None
    whole = site.ints(*axes)
    kept = site.op(site.node.op_type, site.input(0), whole, keepdims=1)
    return [site.op("Squeeze", kept, whole)]


def _sum(site: Site) -> list[ir.Value | None] | None:
    """Replace ReduceSum and ReduceMean over no axes by an Identity; name each axis once."""
    axes = reduced_axes(site)
    if axes == ():
        return [site.op("Identity", site.input(0))]
    if axes is None or not _repeated(site, axes):
        return None
    once = site.ints(*axes)
    return [site.op(site.node.op_type, site.input(0), once, **site.node.attributes)]


def _repeated(site: Site, axes: tuple[int, ...]) -> bool:
    given = site.array(1)
    return given is not None and given.size > len(axes)


def _scalar(site: Site) -> list[ir.Value | None] | None:
    """Compute Cos and Erf of a scalar as a vector: their gradient has shape [1]."""
    if site.rank() != 0:
        return None
    vector = site.op("Unsqueeze", site.input(0), site.ints(0))
    return [site.op("Squeeze", site.op(site.node.op_type, vector), site.ints(0))]


def _clip(site: Site) -> list[ir.Value | None] | None:
    """Write a lower bound of 0 as a Relu: the gradient of Clip is 1 where `x` equals a bound."""
    low = site.array(1)
    if low is None or low.any() or site.dtype not in FLOAT_TYPES:  # integers have no gradient
        return None
    rectified = site.op("Relu", site.input(0), shape=site.shape())
    high = site.optional(2)
    return [rectified if high is None else site.op("Clip", rectified, None, high)]


def _leaky_relu(site: Site) -> list[ir.Value | None] | None:
    """``alpha * x + (1 - alpha) * relu(x)``.

    The gradient uses the sign of the output, which is wrong for a negative slope.
    """
    alpha = site.number("alpha", 0.01)
    if alpha >= 0:
        return None
    x = Term(site, site.input(0))
    positive = x.call("Relu") * (1.0 - alpha)
    return [(x * alpha + positive).value]


def _gelu(site: Site) -> list[ir.Value | None] | None:
    """Write out the tanh form, which gets the gradient of the erf form, wrong by up to 2e-3.

    ``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``, written with a sigmoid:
    ``x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3))``.
    """
    if site.text("approximate", "none") != "tanh":
        return None
    x = Term(site, site.input(0))
    inner = x * (x * x * 0.044715 + 1.0)
    return [(x * (inner * (2.0 * np.sqrt(2.0 / np.pi))).call("Sigmoid")).value]


def _conv(site: Site) -> list[ir.Value | None] | None:
    """Write a grouped 1-d convolution as a 2-d one: its gradient writes out of bounds."""
    spatial, group = site.rank() - 2, site.integer("group", 1)
    if group == 1 or spatial == 2:
        return None
    if site.text("auto_pad", "NOTSET") != "NOTSET":
        return None  # explicit_padding refused it: its pads are unknown
    if spatial != 1:
        raise Refusal(f"{spatial}-d and in groups: its gradient writes out of bounds")
    data, weight = (site.op("Unsqueeze", site.input(k), site.ints(2)) for k in (0, 1))
    attributes: dict[str, Any] = dict(site.node.attributes)
    attributes.pop("pads", None)
    for name in ("kernel_shape", "strides", "dilations"):
        given = site.integers(name)
        if given is not None:
            attributes[name] = [1, *given]
    begin, end = site.integers("pads") or (0, 0)
    pads = [0, begin, 0, end]
    wide = site.op("Conv", data, weight, site.optional(2), **{**attributes, "pads": pads})
    return [site.op("Squeeze", wide, site.ints(2))]


def _slice(site: Site) -> list[ir.Value | None] | None:
    """Gather the elements if a step is negative: along the last axis, SliceGrad fails when it runs.

    Along each axis, the indices are the same slice of 0, 1, ...
    """
    steps, given = site.array(4), site.array(3)
    if steps is None or (steps > 0).all() or site.dtype not in FLOAT_TYPES:
        return None
    if given is None and site.optional(3) is not None:
        raise Refusal("it has negative steps along computed axes; export with fixed axes")
    axes = range(steps.size) if given is None else [int(axis) % site.rank() for axis in given]
    result = site.input(0)
    zero, one, first = site.const(0, INT64), site.const(1, INT64), site.ints(0)
    for k, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        count = joined(site, [length(site, site.input(0), axis)])
        count = site.op("Squeeze", count, first)
        places = site.op("Range", zero, count, one)
        bounds = (site.cast(site.input(index), INT64) for index in (1, 2))
        start, end = (site.op("Slice", v, site.ints(k), site.ints(k + 1)) for v in bounds)
        index = site.op("Slice", places, start, end, first, site.ints(int(step)))
        result = site.op("Gather", result, index, axis=axis)
    return [result]


def _transpose(site: Site) -> list[ir.Value | None] | None:
    """Make ``perm`` explicit: without it the builder fails."""
    if site.integers("perm") is not None:
        return None
    order = list(reversed(range(site.rank())))
    return [site.op("Transpose", site.input(0), perm=order)]


def _cast_like(site: Site) -> list[ir.Value | None] | None:
    """Replace CastLike, which has no gradient, by a Cast to the known type."""
    target = site.input(1).dtype
    if target is None:
        raise Refusal(f"the element type of '{site.input(1).name}' is unknown")
    if target == site.input(0).dtype:
        site.note = "CastLike: changes nothing: replaced by Identity"
        return [site.op("Identity", site.input(0))]
    return [site.cast(site.input(0), target)]


def _cast(site: Site) -> list[ir.Value | None] | None:
    """Replace a Cast that changes nothing; Keras on torch writes many.

    The builder fails if a node reads one value through two such casts: ``Argument mismatch when
    removing edge``.
    """
    if site.input(0).dtype != site.integer("to", 0):
        return None
    return [site.op("Identity", site.input(0))]


def _scatter(site: Site) -> list[ir.Value | None] | None:
    """``data + scatter(zeros, updates)``.

    With ``reduction="add"``, the gradient of the data is wrongly set to zero at the indices; the
    gradient of the updates is correct.
    """
    reduction = site.text("reduction", "none")
    if reduction == "none":
        return None
    if reduction != "add":
        raise Refusal(f"reduction='{reduction}' has a wrong gradient; use 'none' or 'add'")
    data = site.input(0)
    if producer_of(data, "ConstantOfShape") is not None:
        return None  # the zeros below
    zeros = site.filled(0, site.shape_of(data), shape=data.shape)
    added = site.op(site.node.op_type, zeros, site.input(1), site.input(2), **site.node.attributes)
    return [site.op("Add", data, added)]


def _fake_quantization(site: Site) -> list[ir.Value | None] | None:
    """The builder's optimizer expects a QuantizeLinear of an older opset, and stops otherwise."""
    quantizer = producer_of(source_before(site.input(0), "Clip"), "QuantizeLinear")
    fake = quantizer is not None and is_fake_quantizer(quantizer)
    return straight_through(site) if fake else None


_FORMS: dict[str, tuple[Rule, str]] = {
    "AveragePool": (pool, "written as a convolution; float16: computed in float32"),
    "Cast": (_cast, "changes nothing: replaced by Identity"),
    "CastLike": (_cast_like, "written as Cast"),
    "Clip": (_clip, "lower bound of 0 written as a Relu, whose gradient is 0 there"),
    "Conv": (_conv, "1-d in groups: written as 2-d"),
    "Cos": (_scalar, "scalar: computed as a vector of one element"),
    "DequantizeLinear": (_fake_quantization, "computed in floats: the builder fails on quantizers"),
    "Erf": (_scalar, "scalar: computed as a vector of one element"),
    "Gelu": (_gelu, "tanh form, written out"),
    "Gemm": (_gemm, "scalar C turned into a vector"),
    "LeakyRelu": (_leaky_relu, "negative slope, written out"),
    "MatMul": (_matmul, "vectors turned into matrices"),
    "MaxPool": (max_pool, "indices row-major; float16: computed in float32"),
    "ReduceL2": (_reduce, "dimensions kept, then squeezed"),
    "ReduceLogSumExp": (_reduce, "dimensions kept, then squeezed"),
    "ReduceMean": (_sum, "reduces no axis: replaced by Identity; repeated axes named once"),
    "ReduceSum": (_sum, "reduces no axis: replaced by Identity; repeated axes named once"),
    "ScatterElements": (_scatter, "written as an addition"),
    "ScatterND": (_scatter, "written as an addition"),
    "Slice": (_slice, "negative steps: written as Gather"),
    "Transpose": (_transpose, "perm made explicit"),
}
