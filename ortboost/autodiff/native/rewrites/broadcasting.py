"""Broadcasting that the builder's gradients fail to sum over.

The gradients of a broadcast branch of Where and of the base of Pow have the shape of the output;
with an explicit Expand they are summed. For other operators, the builder compares the static shapes
and treats dimensions with different names, or a name and a number, as equal, although one may be 1
at run time. For a shape of unknown rank it sums over the axes found at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ortboost.autodiff.broadcast_sum import Shape, broadcast_shape
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import FLOAT_TYPES, input_at, is_standard, known_shape, producer_of
from ortboost.graph.reach import Reach
from ortboost.graph.rewriting import Rule, Site, rewrite_nodes

__all__ = ["expanded_branches", "hide_uncertain_shapes", "show_hidden_shapes"]

_HIDDEN = "ortboost/native/shape"

_Operands: TypeAlias = dict[int, tuple[Shape | None, list[Shape | None]]]
"""Index of an input to its shape, and to the shapes that it is broadcast against."""


def expanded_branches(model: ir.Model) -> Report:
    """Expand broadcast float branches of Where and bases of Pow; cast integer exponents."""
    pow_what = "base expanded to the shape of the output, or exponent cast to its type"
    rules: dict[str, tuple[Rule, str]] = {
        "Where": (_where, "branch expanded to the shape of the output"),
        "Pow": (_pow, pow_what),
    }
    return rewrite_nodes(model, "expanded_branches", rules)


def _where(site: Site) -> list[ir.Value | None] | None:
    condition, *branches = (site.input(index) for index in range(3))
    if branches[0].dtype is not None and branches[0].dtype not in FLOAT_TYPES:
        return None
    full = broadcast_shape([condition, *branches])
    if full is not None and all(known_shape(branch) == full for branch in branches):
        return None
    if all(_is_expanded(branch, site.node) for branch in branches) or _only_shape(site.node):
        return None
    # The shape is taken from a Where whose values are unused; no gradient flows through Shape.
    shape = site.shape_of(site.op("Where", condition, *branches))
    expanded = [site.op("Expand", branch, shape, shape=full) for branch in branches]
    return [site.op("Where", condition, *expanded, shape=full)]


def _pow(site: Site) -> list[ir.Value | None] | None:
    base, exponent = site.input(0), site.input(1)
    cast = exponent.dtype is not None and base.dtype is not None and exponent.dtype != base.dtype
    full = broadcast_shape([base, exponent])
    narrow = (full is None or known_shape(base) != full) and not _is_expanded(base, site.node)
    # The usual exponent, a scalar constant, broadcasts nothing.
    single = site.array(1)
    if single is not None and single.size == 1 and single.ndim <= len(known_shape(base) or ()):
        narrow = False
    if (not cast and not narrow) or _only_shape(site.node):
        return None
    if narrow:
        shape = site.shape_of(site.op("Pow", base, exponent))
        base = site.op("Expand", base, shape, shape=full)
    if cast and single is not None:
        exponent = site.const(single)
    elif cast and base.dtype is not None:
        exponent = site.cast(exponent, base.dtype)
    return [site.op("Pow", base, exponent, shape=full)]


def _only_shape(node: ir.Node) -> bool:
    """Whether only the shape of the output is read, as for the nodes made here."""
    uses = node.outputs[0].uses()
    return bool(uses) and all(usage.node.op_type == "Shape" for usage in uses)


def _is_expanded(value: ir.Value, node: ir.Node) -> bool:
    """Whether this rewrite has expanded the value to the shape of the output of ``node``."""
    source: ir.Value | None = value
    for op_type, index in (("Expand", 1), ("Shape", 0)):
        producer = producer_of(source)
        if producer is None or producer.op_type != op_type:
            return False
        source = producer.inputs[index]
    model = producer_of(source)
    return model is not None and model.op_type == node.op_type and _only_shape(model)


def hide_uncertain_shapes(model: ir.Model, reached: Reach) -> None:
    """Hide the shape of values that may be broadcast at run time, in place.

    ``y`` becomes ``Reshape(y, Shape(y))``, whose shape is not inferred and which does not copy.
    Operands are unchanged if their shapes show whether they are broadcast: numbers, and names that
    are combined only with themselves and 1. Shapes must not be inferred again.
    """
    builder = Builder(model.graph, _HIDDEN)
    for node in reached.nodes:
        rule = _SHAPES.get(node.op_type) if is_standard(node) else None
        if rule is None:
            continue
        for index, (own, others) in rule(node).items():
            value = node.inputs[index]
            if value is None or value.name not in reached.active or _certain(own, others):
                continue
            shape = builder.op("Shape", value)
            node.replace_input_with(index, builder.op("Reshape", value, shape, allowzero=1))
            model.graph.insert_before(node, builder.take())


def show_hidden_shapes(model: ir.Model) -> None:
    """Remove the forward nodes of :func:`hide_uncertain_shapes` from a built graph, in place."""
    for node in list(model.graph):
        value = node.outputs[0]
        hidden = (value.name or "").startswith(f"{_HIDDEN}/Reshape") and node.op_type == "Reshape"
        if hidden and not (value.name or "").endswith("_grad") and node.inputs[0] is not None:
            ir.convenience.replace_all_uses_with(value, node.inputs[0])
            model.graph.remove(node, safe=True)


def _certain(own: Shape | None, others: Sequence[Shape | None]) -> bool:
    """Whether the static shapes determine along which axes an operand is broadcast."""
    if own is None or any(other is None for other in others):
        return False
    for offset in range(1, len(own) + 1):
        dim = own[-offset]  # aligned at the last axis
        met = {other[-offset] for other in others if other is not None and offset <= len(other)}
        if dim is None or (isinstance(dim, str) and not met <= {1, dim}):
            return False
    return True


def _elementwise(node: ir.Node) -> _Operands:
    shapes = [None if value is None else known_shape(value) for value in node.inputs]
    return {k: (own, [*shapes[:k], *shapes[k + 1 :]]) for k, own in enumerate(shapes)}


def _product(node: ir.Node) -> _Operands:
    """MatMul broadcasts the axes before the last two."""
    shapes = [None if value is None else known_shape(value) for value in node.inputs]
    batch = [None if shape is None else shape[:-2] for shape in shapes]
    return {0: (batch[0], [batch[1]]), 1: (batch[1], [batch[0]])}


def _onto_output(index: int) -> Callable[[ir.Node], _Operands]:
    """Gemm and Expand broadcast one operand to the output."""

    def rule(node: ir.Node) -> _Operands:
        value = input_at(node, index)
        if value is None:
            return {}
        return {index: (known_shape(value), [known_shape(node.outputs[0])])}

    return rule


_SHAPES: dict[str, Callable[[ir.Node], _Operands]] = {
    **dict.fromkeys(("Add", "Div", "Max", "Min", "Mul", "Sub"), _elementwise),
    "Expand": _onto_output(0),
    "Gemm": _onto_output(2),
    "MatMul": _product,
}
