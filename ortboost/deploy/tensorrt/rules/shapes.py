"""Shapes: profiles, zeros, and shapes that depend on data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import onnx_ir as ir

from ortboost.core.errors import UsageError
from ortboost.deploy.tensorrt.profiles import settle_profiles, suggestion
from ortboost.deploy.tensorrt.rules.registry import Context, Finding, rule
from ortboost.graph.query import is_standard, known_shape, label

__all__: list[str] = []

_DATA_DEPENDENT: Final = ("NonZero", "NonMaxSuppression")


@rule("TRT040", "dynamic dimensions and their profiles")
def profiles(context: Context) -> Iterator[Finding]:
    """Every dynamic input needs a profile."""
    shapes = {value.name or "": known_shape(value) for value in context.inputs}
    if context.profiles is not None:
        try:
            settle_profiles(shapes, context.profiles.values())
        except UsageError as error:
            yield Finding("TRT040", "error", error.where, "input", error.what, error.fix)
        return
    for name, dims in shapes.items():
        if dims is None or any(not isinstance(dim, int) for dim in dims):
            yield Finding(
                "TRT040",
                "warn",
                name,
                "input",
                "It has dimensions that are not fixed: the engine needs a profile.",
                f"Build with --shape {suggestion(name, dims)}",
            )


@rule("TRT041", "dimensions of length 0")
def empty(context: Context) -> Iterator[Finding]:
    """Inputs and stored tensors without an element."""
    for value in context.inputs:
        dims = known_shape(value)
        if dims is not None and 0 in dims:
            yield Finding(
                "TRT041",
                "error",
                value.name or "?",
                "input",
                "It has a dimension of length 0.",
                "Export with the real shape.",
            )


@rule("TRT042", "shapes that depend on data")
def data_dependent(context: Context) -> Iterator[Finding]:
    """The size of their outputs is known only after they ran."""
    for node in context.nodes:
        if not is_standard(node) or node.op_type not in _DATA_DEPENDENT:
            continue
        if all(context.constness(out) == "folds" for out in node.outputs):
            continue
        yield Finding(
            "TRT042",
            "warn",
            label(node),
            node.op_type,
            "The size of its output is known only after it ran.",
            "Run the engine with an output allocator, or pad to a fixed size (TopK).",
        )


@rule("TRT043", "branches and loops")
def control_flow(context: Context) -> Iterator[Finding]:
    """Branches of other ranks, loops that grow."""
    for node in context.nodes:
        if not is_standard(node):
            continue
        if node.op_type == "If":
            yield from _branches(node)
        elif node.op_type == "Loop":
            yield from _loop(node, context)


def _branches(node: ir.Node) -> Iterator[Finding]:
    if not {"then_branch", "else_branch"} <= set(node.attributes):
        return
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    for one, two in zip(then.outputs, other.outputs, strict=False):
        shapes = known_shape(one), known_shape(two)
        if None not in shapes and len(shapes[0] or ()) != len(shapes[1] or ()):
            yield Finding(
                "TRT043",
                "error",
                label(node),
                node.op_type,
                f"Its branches give outputs of rank {len(shapes[0] or ())} and {len(shapes[1] or ())}.",
                "Reshape one of them.",
            )
        if one.name == two.name:
            yield Finding(
                "TRT043",
                "error",
                label(node),
                node.op_type,
                f"Its branches call their outputs alike: '{one.name}'.",
                "Give them different names.",
            )


def _loop(node: ir.Node, context: Context) -> Iterator[Finding]:
    if "body" not in node.attributes:
        return
    body = node.attributes["body"].as_graph()
    carried = len(node.inputs) - 2
    for inner, outer in zip(body.inputs[2:], body.outputs[1 : carried + 1], strict=False):
        before, after = known_shape(inner), known_shape(outer)
        if before is not None and after is not None and before != after:
            yield Finding(
                "TRT043",
                "error",
                label(node),
                node.op_type,
                f"The shape of '{inner.name}' changes from turn to turn.",
                "Carry a tensor of a fixed shape.",
            )
    trips = node.inputs[0] if node.inputs else None
    if len(body.outputs) > carried + 1 and (
        trips is None or context.constness(trips) == "computed"
    ):
        yield Finding(
            "TRT043",
            "error",
            label(node),
            node.op_type,
            "It collects outputs over a number of turns that is not fixed.",
            "Export with a fixed number of turns, or unroll it.",
        )
