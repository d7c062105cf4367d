"""Remove no-op nodes: a table of operators and the conditions under which they do nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.dimensions import dimensions, same_shape, same_view
from ortboost.graph.query import constant, input_at, is_read, label, scalar
from ortboost.graph.rewriting import Rule as SiteRule
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["drop_noops"]

_FAR = 1 << 30  # "to the end", as exporters write it
_LARGEST = 1 << 16  # elements: larger operands are weights


def drop_noops(model: ir.Model) -> Report:
    """Remove nodes that only forward an input, in place, including subgraphs.

    A node that computes an output of the model is kept if its input cannot take over the name.
    """
    rules: dict[str, SiteRule] = {op: _removal(find) for op, find in _PASSED_ON.items()}
    report = rewrite_nodes(model, "drop_noops", rules, subgraphs=True, bypass=True)
    # An Identity before a model output only serves to name it.
    identities = {label(node) for node in model.graph.all_nodes() if node.op_type == "Identity"}
    report.kept = {name: why for name, why in report.kept.items() if name not in identities}
    return report


def _removal(find: Finder) -> SiteRule:
    def rule(site: Site) -> list[ir.Value | None] | None:
        value = None if site.optional(0) is None else find(site.node)
        # Such as the mask of a Dropout, which nothing else computes.
        if value is None or any(map(is_read, site.node.outputs[1:])):
            return None
        site.note = f"{site.node.op_type} that does nothing"
        return [value]

    return rule


Finder = Callable[[ir.Node], "ir.Value | None"]
"""Maps a node to the value that it forwards; ``None`` if it is not a no-op."""


def _when(condition: Callable[[ir.Node], bool]) -> Finder:
    return lambda node: node.inputs[0] if condition(node) else None


def _dropout(node: ir.Node) -> bool:
    ratio, mode = input_at(node, 1), input_at(node, 2)
    return mode is None or scalar(mode) == 0 or (ratio is not None and scalar(ratio) == 0)


def _cast(node: ir.Node) -> bool:
    source = node.inputs[0]
    return source is not None and source.dtype == node.attributes.get_int("to", 0)


def _cast_like(node: ir.Node) -> bool:
    source, like = node.inputs[0], input_at(node, 1)
    if source is None or like is None or source.dtype is None:
        return False
    return source.dtype == like.dtype


def _transpose(node: ir.Node) -> bool:
    perm = node.attributes.get_ints("perm", None)
    source = node.inputs[0]
    if perm is None:  # it reverses the axes
        return source is not None and source.shape is not None and len(source.shape) < 2
    return list(perm) == list(range(len(perm)))


def _view(node: ir.Node) -> bool:
    return same_view(dimensions(node.inputs[0]), dimensions(node.outputs[0]))


def _slice(node: ir.Node) -> bool:
    data = node.inputs[0]
    if data is None or data.shape is None or len(node.inputs) < 3:
        return False
    starts, ends = constant(node.inputs[1]), constant(node.inputs[2])
    if starts is None or ends is None:
        return False
    axes, steps = input_at(node, 3), input_at(node, 4)
    given = np.arange(len(starts)) if axes is None else constant(axes)
    stride = np.ones(len(starts)) if steps is None else constant(steps)
    if given is None or stride is None or (stride != 1).any() or (starts != 0).any():
        return False
    for axis, end in zip(given, ends, strict=True):
        length = data.shape[int(axis)]
        if not (end >= _FAR or (isinstance(length, int) and end >= length)):
            return False
    return True


def _pad(node: ir.Node) -> bool:
    pads = constant(input_at(node, 1))
    return pads is not None and not pads.any()


def _tile(node: ir.Node) -> bool:
    repeats = constant(input_at(node, 1))
    return repeats is not None and bool((repeats == 1).all())


def _neutral(element: float, *, commutative: bool) -> Finder:
    """Find the other operand of a neutral element, if that does not broadcast it."""

    def rule(node: ir.Node) -> ir.Value | None:
        for index in (1, 0) if commutative else (1,):
            array, other = constant(node.inputs[index], limit=_LARGEST), node.inputs[1 - index]
            if array is None or other is None or not bool((array == element).all()):
                continue
            rank = -1 if other.shape is None else len(other.shape)
            # One element cannot broadcast another operand, unless it adds dimensions.
            if (array.size == 1 and array.ndim <= rank) or same_shape(other, node.outputs[0]):
                return other
        return None

    return rule


_PASSED_ON: dict[str, Finder] = {
    "Identity": _when(lambda _: True),
    "Dropout": _when(_dropout),
    "Cast": _when(_cast),
    "CastLike": _when(_cast_like),
    "Transpose": _when(_transpose),
    "Expand": _when(lambda node: same_shape(node.inputs[0], node.outputs[0])),
    **dict.fromkeys(("Reshape", "Flatten"), _when(_view)),
    "Slice": _when(_slice),
    "Pad": _when(_pad),
    "Tile": _when(_tile),
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _when(lambda n: len(n.inputs) == 1)),
    "Add": _neutral(0, commutative=True),
    "Sub": _neutral(0, commutative=False),
    "Mul": _neutral(1, commutative=True),
    "Div": _neutral(1, commutative=False),
    "Pow": _neutral(1, commutative=False),
}
