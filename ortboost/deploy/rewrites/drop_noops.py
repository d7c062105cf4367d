"""Take out what changes nothing: each operator with the condition under which it does nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.dimensions import dimensions, same_shape, same_view
from ortboost.deploy.rewrites.helpers import bypass, constant, is_standard, label, number

__all__ = ["drop_noops"]

_FAR = 1 << 30  # "to the end", as exporters write it


def drop_noops(model: ir.Model) -> Report:
    """Remove nodes that pass their input on, in place, subgraphs included.

    A node whose output is an output of the model stays where its input cannot take over the name.
    """
    report = Report("drop_noops")
    for node in list(model.graph.all_nodes()):
        if not is_standard(node, *_RULES) or node.inputs[0] is None:
            continue
        value = _RULES[node.op_type](node)
        if value is None:
            continue
        name = label(node)
        if bypass(node, value):
            report.changed[name] = f"{node.op_type} that does nothing"
        elif len(node.outputs) == 1 and node.op_type != "Identity":
            report.kept[name] = "it gives an output of the model its name"
    return report


Rule = Callable[[ir.Node], "ir.Value | None"]


def _first(node: ir.Node) -> ir.Value | None:
    return node.inputs[0]


def _when(condition: Callable[[ir.Node], bool]) -> Rule:
    return lambda node: node.inputs[0] if condition(node) else None


def _optional(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if len(node.inputs) > index else None


def _dropout(node: ir.Node) -> bool:
    ratio, mode = _optional(node, 1), _optional(node, 2)
    return mode is None or number(mode) == 0 or (ratio is not None and number(ratio) == 0)


def _cast(node: ir.Node) -> bool:
    source = node.inputs[0]
    return source is not None and source.dtype == node.attributes.get_int("to", 0)


def _cast_like(node: ir.Node) -> bool:
    source, like = node.inputs[0], _optional(node, 1)
    return source is not None and like is not None and source.dtype is not None and (
        source.dtype == like.dtype
    )  # fmt: skip


def _transpose(node: ir.Node) -> bool:
    perm = node.attributes.get_ints("perm", None)
    source = node.inputs[0]
    if perm is None:
        return source is not None and source.shape is not None and len(source.shape) < 2
    return list(perm) == list(range(len(perm)))


def _same(node: ir.Node) -> bool:
    return same_shape(node.inputs[0], node.outputs[0])


def _view(node: ir.Node) -> bool:
    out = node.outputs[0]
    return same_view(dimensions(node.inputs[0]), dimensions(out), claimed=out.is_graph_output())


def _slice(node: ir.Node) -> bool:
    data = node.inputs[0]
    if data is None or data.shape is None or len(node.inputs) < 3:
        return False
    starts, ends = constant(node.inputs[1]), constant(node.inputs[2])
    if starts is None or ends is None:
        return False
    axes, steps = _optional(node, 3), _optional(node, 4)
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
    pads = constant(_optional(node, 1))
    return pads is not None and not pads.any()


def _tile(node: ir.Node) -> bool:
    repeats = constant(_optional(node, 1))
    return repeats is not None and bool((repeats == 1).all())


def _single(node: ir.Node) -> bool:
    return len(node.inputs) == 1


def _neutral(one: float, *, either: bool) -> Rule:
    """An operand that is ``one`` everywhere and does not widen the other."""

    def rule(node: ir.Node) -> ir.Value | None:
        for index in (1, 0) if either else (1,):
            array, other = constant(node.inputs[index]), node.inputs[1 - index]
            if array is None or other is None or not bool((array == one).all()):
                continue
            if same_shape(other, node.outputs[0]) or (
                other.shape is not None and array.size == 1 and array.ndim <= len(other.shape)
            ):
                return other
        return None

    return rule


_RULES: dict[str, Rule] = {
    "Identity": _first,
    "Dropout": _when(_dropout),
    "Cast": _when(_cast),
    "CastLike": _when(_cast_like),
    "Transpose": _when(_transpose),
    "Expand": _when(_same),
    "Reshape": _when(_view),
    "Flatten": _when(_view),
    "Slice": _when(_slice),
    "Pad": _when(_pad),
    "Tile": _when(_tile),
    "Concat": _when(_single),
    "Sum": _when(_single),
    "Max": _when(_single),
    "Min": _when(_single),
    "Mean": _when(_single),
    "Add": _neutral(0, either=True),
    "Sub": _neutral(0, either=False),
    "Mul": _neutral(1, either=True),
    "Div": _neutral(1, either=False),
    "Pow": _neutral(1, either=False),
}
