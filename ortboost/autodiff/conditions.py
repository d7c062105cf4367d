"""Conditions on the form of a node, shared by the engines and the decompositions.

Each returns the reason why this form of a node has no gradient, or ``None``.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.graph.query import (
    constant,
    format_shape,
    input_at,
    is_read,
    is_standard,
    known_shape,
)
from ortboost.graph.rewriting import Refusal, Site

__all__ = [
    "column_major",
    "empty_axes",
    "fixed_axes",
    "reduced_axes",
    "refusal_of",
    "unfit_shapes",
    "unknown_axes",
    "unknown_rank",
]

_AXES = "its axes are not constant; export with fixed axes"
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def refusal_of(check: Callable[[Site], object], node: ir.Node) -> str | None:
    """Why a function that only reads the form of a node refuses it, or ``None``."""
    try:
        check(Site(node, None, 0))  # type: ignore[arg-type]  # it creates no nodes
    except Refusal as refusal:
        return str(refusal)
    return None


def unknown_rank(node: ir.Node, *indices: int) -> str | None:
    """Check that the ranks of the inputs at ``indices``, by default all, are known."""
    for index in indices or range(len(node.inputs)):
        value = input_at(node, index)
        if value is not None and known_shape(value) is None:
            return f"the rank of '{value.name}' is unknown; {_remedy(value)}"
    return None


def unfit_shapes(node: ir.Node) -> str | None:
    """Whether the inputs of a product or of elementwise arithmetic cannot be combined.

    A runtime does not load such a file; shape inference leaves all shapes after the node unknown.
    """
    if not is_standard(node, "Add", "Sub", "Mul", "Div", "MatMul"):
        return None
    one, other = (() if value is None else known_shape(value) or () for value in node.inputs)
    ends = [(one[-1:], other[-2:][:1])] if node.op_type == "MatMul" else []
    if not ends:
        ends = [((a,), (b,)) for a, b in zip(one[::-1], other[::-1], strict=False)]
    for left, right in ends:
        lengths = {dim for dim in (*left, *right) if isinstance(dim, int)}
        if len(lengths) == 2 and (node.op_type == "MatMul" or 1 not in lengths):
            return (
                f"its inputs of the shapes {format_shape(one)} and {format_shape(other)} cannot be "
                "combined, so no runtime loads the model; export it again, with another exporter"
            )
    return None


def _remedy(value: ir.Value) -> str:
    """The fix for a value of unknown rank: it names the node at which shape inference stopped."""
    pending, seen = [value], set[int]()
    for current in pending:
        node = current.producer()
        if node is None or id(node) in seen:
            continue
        if node.domain not in _KNOWN_DOMAINS:
            name = f"{node.domain}::{node.op_type}"
            return f"it comes from the custom operator '{name}': export without that"
        any_axes = is_standard(node, "Squeeze") and input_at(node, 1) is None
        if any_axes and known_shape(node.inputs[0]) is not None:
            return (
                f"'{node.name}' removes each axis of length 1, which the batch may have: "
                "export squeeze(dim) instead of squeeze()"
            )
        seen.add(id(node))
        pending += [source for source in node.inputs if source is not None]
    return "give the shapes of the model's inputs"


def unknown_axes(node: ir.Node, index: int = 1) -> str | None:
    """Check that the axes input is constant."""
    axes = input_at(node, index)
    return None if axes is None or constant(axes) is not None else _AXES


def empty_axes(node: ir.Node) -> str | None:
    """Check that a reduction with ``noop_with_empty_axes`` has constant, non-empty axes."""
    axes = constant(input_at(node, 1))
    if node.attributes.get_int("noop_with_empty_axes", 0) and (axes is None or axes.size == 0):
        return "noop_with_empty_axes without axes: implementations disagree; remove the node"
    return None


def column_major(node: ir.Node) -> str | None:
    """Check that the indices output of a MaxPool, if it is read, is row-major."""
    read = len(node.outputs) > 1 and is_read(node.outputs[1])
    if read and node.attributes.get_int("storage_order", 0) == 1:
        return "its indices are column-major (storage_order=1); export them row-major"
    return None


def reduced_axes(site: Site) -> tuple[int, ...] | None:
    """The non-negative axes that a reduction reduces; () for none, ``None`` if unknown.

    Raises:
        Refusal: The input has no such axis.
    """
    given, shape = site.array(1), known_shape(site.input(0))
    if site.optional(1) is not None and given is None:
        return None
    if given is None or given.size == 0:
        if site.integer("noop_with_empty_axes", 0):
            return ()
        return None if shape is None else tuple(range(len(shape)))
    flat = {int(axis) for axis in given.reshape(-1)}  # onnxruntime allows repeated axes
    if shape is not None:
        rank = len(shape)
        wrong = next((axis for axis in sorted(flat) if not -rank <= axis < rank), None)
        if wrong is not None:
            raise Refusal(f"its input of rank {rank} has no axis {wrong}")
        flat = {axis % rank for axis in flat}
    return tuple(sorted(flat)) if min(flat) >= 0 else None


def fixed_axes(site: Site) -> tuple[int, ...]:
    """The axes that a reduction reduces; () for none.

    Raises:
        Refusal: The axes are computed, the rank is unknown, or the input has no such axis.
    """
    site.rank()
    axes = reduced_axes(site)
    if axes is None:
        raise Refusal(_AXES)
    return axes
