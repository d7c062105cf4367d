r"""Sign and rounding where they are a factor of their own argument, piecewise constant.

Their derivative is zero almost everywhere. Elsewhere they are refused: they may be the forward pass
of a straight-through estimator whose ``torch.autograd.Function`` an exporter did not write. But in

    sign(x) f(|x|)           a signed root, power or logarithm; ``lp_pool``
    x - sign(x) c            ``softshrink``
    x - floor(x / c) c       ``remainder``, the wrapping of an angle
    floor(x) + 1 - x         the weights of an interpolation between the points of a grid, from
                             which its indices are computed, too

nothing else can be meant. The gradient is stopped before the operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.refused import REFUSED
from ortboost.graph.query import FLOAT_TYPES, constant, is_standard, producer_of
from ortboost.graph.reach import CONTROLS, STOP_MARK, STOPS
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []

_MAPS = ("Clip", "Exp", "Identity", "Log", "Neg", "Reciprocal", "Relu", "Sqrt", "Tanh")
_PASSING = tuple("Cast Clip Div Dropout Identity Mul Neg Reshape Transpose Where".split())
_AFFINE = ("Add", "Clip", "Div", "Max", "Min", "Mul", "Sub")
_ARITHMETIC = ("Add", "Div", "Mul", "Pow", "Sub")


@decomposes("Sign")
def _sign(site: Site) -> list[ir.Value | None]:
    """As a constant, in ``sign(x) * f(|x|)`` and ``x - sign(x) * c``; refused elsewhere."""
    x, sign = site.input(0), site.node.outputs[0]
    if sign.is_graph_output():
        raise Refusal(REFUSED["Sign"])
    # Every use has to be of a known form: one other use might be an estimator.
    for usage in sign.uses():
        other = _other_factor(usage)
        if other is None or not (
            _is_function_of_abs(other, x)
            or (constant(other) is not None and _only_subtracted(usage.node.outputs[0], [x]))
        ):
            raise Refusal(REFUSED["Sign"])
    return [_stopped(site)]


@decomposes("Ceil", "Floor", "Round")
def _rounding(site: Site) -> list[ir.Value | None]:
    """As a constant, in ``x - floor(x / c) * c`` and the weights of a grid; refused elsewhere."""
    argument, rounded = site.input(0), site.node.outputs[0]
    quotient = producer_of(argument, "Div")
    if not _only_subtracted(rounded, _affine_sources(argument)):
        refusal = Refusal(REFUSED[site.node.op_type])
        if quotient is None:
            raise refusal
        # Each use as x - floor(x / c) c with the divisor of the quotient, if it is not constant.
        x, divisor = quotient.inputs
        for usage in rounded.uses():
            factor = _other_factor(usage)
            if factor is not divisor or not _only_subtracted(usage.node.outputs[0], [x]):
                raise refusal
    return [_stopped(site)]


def _stopped(site: Site) -> ir.Value:
    x = site.op("Identity", site.input(0), shape=site.input(0).shape)
    site.builder.nodes[-1].metadata_props[STOP_MARK] = "true"
    return site.op(site.node.op_type, x, shape=site.input(0).shape)


def _other_factor(usage: tuple[ir.Node, int]) -> ir.Value | None:
    """The other factor of the product that uses a value; ``None`` for another node."""
    node, index = usage
    return node.inputs[1 - index] if is_standard(node, "Mul") else None


def _only_subtracted(value: ir.Value, xs: Sequence[ir.Value | None]) -> bool:
    """Whether a value is used only in differences with one of `xs`, and in indices.

    The value may be scaled, shifted and bounded before. The differences are not added to `x` again:
    ``x + (q - x)`` is how a straight-through estimator looks without its ``detach``.
    """
    if not value.uses() or value.is_graph_output():
        return False
    for usage in value.uses():
        node, made = usage.node, usage.node.outputs[0]
        if _is_for_indices(usage):
            continue
        if is_standard(node, "Sub") and node.inputs[1 - usage.idx] in xs:
            if _rejoins(made, xs):
                return False
        elif not _is_affine(node, value) or not _only_subtracted(made, xs):
            return False
    return True


def _affine_sources(value: ir.Value | None) -> list[ir.Value | None]:
    """A value, and those that it is computed from by scaling and shifting."""
    found = [value]
    while (node := producer_of(value)) is not None:
        value = next((v for v in node.inputs if not _is_constant(v)), None)
        if not _is_affine(node, value):
            break
        found.append(value)
    return found


def _is_affine(node: ir.Node, value: ir.Value | None) -> bool:
    """Whether a node scales, shifts or bounds a value by constants."""
    others = (v for v in node.inputs if v is not None and v is not value)
    return is_standard(node, *_AFFINE) and all(map(_is_constant, others))


def _is_for_indices(usage: tuple[ir.Node, int]) -> bool:
    """Whether all that is computed from the use of a value becomes integers or conditions."""
    pending, seen = [usage], {usage}
    while pending:
        node, index = pending.pop()
        if node.op_type in STOPS or index in CONTROLS.get(node.op_type, ()) or _to_integers(node):
            continue
        uses = node.outputs[0].uses()
        if not is_standard(node, *_AFFINE) or not uses or node.outputs[0].is_graph_output():
            return False
        pending += [further for further in uses if further not in seen]
        seen.update(uses)
    return True


def _to_integers(node: ir.Node) -> bool:
    return is_standard(node, "Cast") and node.attributes.get_int("to") not in FLOAT_TYPES


def _rejoins(difference: ir.Value, xs: Sequence[ir.Value | None]) -> bool:
    """Whether a difference, or a part or multiple of it, is added to one of `xs` again."""
    return any(
        any(v in xs for v in usage.node.inputs)
        if is_standard(usage.node, "Add", "Sub", "Sum")
        else is_standard(usage.node, *_PASSING) and _rejoins(usage.node.outputs[0], xs)
        for usage in difference.uses()
    )


def _is_function_of_abs(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether a value is computed elementwise from ``Abs(x)`` and constants."""
    while (node := producer_of(value)) is not None:
        if is_standard(node, "Abs"):
            return node.inputs[0] is x
        if is_standard(node, *_ARITHMETIC):
            inner = [v for v in node.inputs if not _is_constant(v)]
            value = inner[0] if len(inner) == 1 else None
        else:
            value = node.inputs[0] if is_standard(node, *_MAPS) else None
    return False


def _is_constant(value: ir.Value | None) -> bool:
    cast = producer_of(value, "CastLike")  # of torch's dynamo exporter
    return constant(value if cast is None else cast.inputs[0]) is not None
