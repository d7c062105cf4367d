r"""Loss operators.

Shapes: scores `x [N, C, d...]`, labels `t [N, d...]`, class weights `w [C]`; `d...` may be empty.
The weight of a label, `W = w[t]` or 1, is 0 for the label ``ignore_index``.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.conditions import unknown_rank
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.sizes import wider
from ortboost.core.report import Report
from ortboost.graph.rewriting import Rule, Site, rewrite_nodes

__all__ = ["LOWERINGS", "lower_losses"]

_INT64 = ir.DataType.INT64


refuses("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")(lambda node: unknown_rank(node, 0))


@register("SoftmaxCrossEntropyLoss")
def cross_entropy(b: Backward) -> Gradients:
    r"""`p = softmax(x)`, `l = -W log p[t]`: `gx = (p - onehot(t)) c`.

    The factor `c` has shape `[N, 1, d...]`:

        none: c = g W,    sum: c = g W,    mean: c = g W / sum(W)

    The second output, `log p` with gradient `h`, adds `h - p sum_C(h)`.
    """
    log_p = b.extra_output(1, b.dtype, b.input(0).shape)
    shape = b.input(0).shape
    p = b.op("Exp", log_p, shape=shape)
    total: ir.Value | None = None
    if b.gradients[0] is not None:
        total = b.op("Mul", _scattered(b, p, "add"), _factor(b), shape=shape)
    through = b.gradients[1] if len(b.gradients) > 1 else None
    if through is not None:
        through_softmax = b.op(
            "Mul", p, b.op("ReduceSum", through, b.ints(1), keepdims=1), shape=shape
        )
        part = b.op("Sub", through, through_softmax, shape=shape)
        total = part if total is None else b.op("Add", total, part, shape=shape)
    return [total]


@register("NegativeLogLikelihoodLoss")
def negative_log_likelihood(b: Backward) -> Gradients:
    """`l = -W x[t]`: `gx = -c` at the label and 0 elsewhere, `c` as for cross entropy."""
    x = b.input(0)
    zeros = b.filled(0, b.shape_of(x), shape=x.shape)
    return [b.op("Mul", _scattered(b, zeros, "none"), _factor(b), shape=x.shape)]


def _scattered(b: Backward, data: ir.Value, reduction: str) -> ir.Value:
    """``data [N, C, d...]`` with -1 written or added at the labels."""
    labels = b.op("Unsqueeze", _safe(b), b.ints(1))
    numbers = b.op("Expand", b.const(-1.0), b.shape_of(labels))
    options = {"axis": 1, "reduction": reduction, "shape": data.shape}
    return b.op("ScatterElements", data, labels, numbers, **options)


def _factor(b: Backward) -> ir.Value:
    """The factor of the gradient of the scores, `[N, 1, d...]` or a scalar."""
    g, reduction = b.gradient(0), b.text("reduction", "mean")
    weights = _weights(b)
    # Without weights, a sum or mean has one factor for all labels.
    if weights is None:
        if reduction == "none":
            return b.op("Unsqueeze", g, b.ints(1))
        if reduction == "sum":
            return g
        dtype, labels = wider(b.dtype), b.op("Size", b.input(1), shape=())
        return b.cast(b.op("Div", b.cast(g, dtype), b.cast(labels, dtype)))
    if reduction == "mean":
        g = b.op("Div", g, _total_weight(b, weights))
    # an ignored label has no effect even if g is not finite
    scaled = b.op("Mul", g, weights)
    ignored = _ignored(b)
    if ignored is not None:
        scaled = b.op("Where", ignored, b.const(0.0), scaled)
    return b.op("Unsqueeze", scaled, b.ints(1))


def _total_weight(b: Site, weights: ir.Value) -> ir.Value:
    """Sum of the weights, or 1 if it is 0, so that the mean over no labels is 0."""
    total = b.op("ReduceSum", weights, keepdims=0, shape=())
    none = b.op("Equal", total, b.const(0.0), shape=())
    return b.op("Where", none, b.const(1.0), total, shape=())


def _ignored(b: Site) -> ir.Value | None:
    """Mask of ignored labels, `[N, d...]`; ``None`` if there is no ``ignore_index``."""
    if b.node.attributes.get("ignore_index") is None:
        return None
    # Labels, weights and factor all need it: one node.
    mark = b.builder.const(b.integer("ignore_index", -1), b.input(1).dtype or _INT64)
    return b.builder.shared(
        ("ignored", id(b.node)),
        lambda: b.op("Equal", b.input(1), mark, shape=b.input(1).shape),
    )


def _weights(b: Site) -> ir.Value | None:
    """Weight of each label, `[N, d...]`; ``None`` if all are 1."""
    ignored, by_class, t = _ignored(b), b.optional(2), b.input(1)
    if by_class is None:
        if ignored is None:
            return None
        zero, one = b.const(0.0), b.const(1.0)
        return b.op("Where", ignored, zero, one, shape=t.shape)
    found = b.op("Gather", by_class, _safe(b), axis=0, dtype=b.dtype, shape=t.shape)
    if ignored is None:
        return found
    return b.op("Where", ignored, b.const(0.0), found, shape=t.shape)


def _safe(b: Site) -> ir.Value:
    """The labels, with 0 in place of ignored ones."""
    ignored, t = _ignored(b), b.cast(b.input(1), _INT64)
    if ignored is None:
        return t
    zero = b.builder.const(0, _INT64)
    return b.op("Where", ignored, zero, t, shape=t.shape)


def _lower_cross_entropy(site: Site) -> list[ir.Value | None]:
    """LogSoftmax and the negative log-likelihood: stock runtimes have no kernel for the loss."""
    log_p = site.op("LogSoftmax", site.input(0), axis=1, shape=site.input(0).shape)
    outputs = [_picked(site, log_p), log_p]
    return list(outputs[: len(site.node.outputs)])


def _lower_likelihood(site: Site) -> list[ir.Value | None]:
    """``-w[label] * x[label]``, 0 for ignored labels; the mean is over the sum of weights."""
    return [_picked(site, site.input(0))]


def _picked(site: Site, log_p: ir.Value) -> ir.Value:
    index = site.op("Unsqueeze", _safe(site), site.ints(1))
    gathered = site.op("GatherElements", log_p, index, axis=1)
    losses = site.op("Neg", site.op("Squeeze", gathered, site.ints(1)))
    weights, reduction = _weights(site), site.text("reduction", "mean")
    if weights is not None:
        losses = site.op("Mul", losses, weights)
        # The product is NaN where the score of class 0, read for an ignored label, is infinite.
        ignored = _ignored(site)
        if ignored is not None:
            losses = site.op("Where", ignored, site.const(0.0), losses)
    if reduction == "none":
        return losses
    if reduction == "mean" and weights is None:
        return site.op("ReduceMean", losses, keepdims=0, shape=())
    total = site.op("ReduceSum", losses, keepdims=0, shape=())
    if reduction == "sum" or weights is None:
        return total
    return site.op("Div", total, _total_weight(site, weights), shape=())


LOWERINGS: dict[str, Rule] = {
    "NegativeLogLikelihoodLoss": _lower_likelihood,
    "SoftmaxCrossEntropyLoss": _lower_cross_entropy,
}
"""Loss to the rule that replaces it by operators of every runtime, after differentiation."""


def lower_losses(model: ir.Model, only: Callable[[ir.Node], bool] = lambda _: True) -> Report:
    """Replace losses, by default all, by operators that every runtime has kernels for, in place.

    It runs after differentiation: a rule has the loss as one operator, the runtime never does.

    onnxruntime expands losses itself, but into twice the nodes, and to NaN if all labels are
    ignored; here the loss is 0 in that case, as in onnxruntime-training.
    """
    what = "written out for stock runtimes"
    return rewrite_nodes(model, "lower_losses", LOWERINGS, what, only=only)
