"""Inputs that must be known when the engine is built."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from ortboost.deploy.tensorrt.rules.registry import Context, Finding, rule
from ortboost.graph.query import input_at, is_standard, known_shape, label

__all__: list[str] = []


@rule("TRT010", "inputs that must be constants")
def constants(context: Context) -> Iterator[Finding]:
    """Axes, depths and the like that a subgraph computes."""
    version = context.model.opset_imports.get("", 18)
    for node in context.nodes:
        known = context.target.operator(node.op_type) if is_standard(node) else None
        for name in [] if known is None else known.named("constant"):
            value = _input(node, name, version)
            verdict = context.constness(value)
            if value is None or verdict == "stored":
                continue
            folds = verdict == "folds"
            yield Finding(
                "TRT010",
                "error",
                label(node),
                node.op_type,
                f"The input '{name}' must be a constant, and "
                + ("is computed from constants." if folds else "depends on what the model is fed."),
                "Fold constants: ortboost check --fix does."
                if folds
                else f"Export with a fixed '{name}'.",
                fixable=folds,
            )


@rule("TRT011", "dimensions that must be known")
def static_dimensions(context: Context) -> Iterator[Finding]:
    """Operators that take the length of a dimension when the engine is built."""
    for node in context.nodes:
        known = context.target.operator(node.op_type) if is_standard(node) else None
        if known is None or not node.inputs or node.inputs[0] is None:
            continue
        dims = known_shape(node.inputs[0])
        if "static-axis" in known.limits:
            axis = node.attributes.get_int("axis", -1) or 0
            wrong = (
                dims is None
                or not -len(dims) <= axis < len(dims)
                or not isinstance(dims[axis], int)
            )
            what = f"The length of axis {axis}"
        elif "static-input" in known.limits:
            wrong = dims is None or any(not isinstance(dim, int) for dim in dims)
            what = "The shape of the input"
        else:
            continue
        if wrong:
            yield Finding(
                "TRT011",
                "error",
                label(node),
                node.op_type,
                f"{what} must be a number when the engine is built.",
                "Export with this dimension fixed.",
            )


def _input(node: ir.Node, name: str, version: int) -> ir.Value | None:
    """The input with this formal name; ``None`` if it is left out or no input in this opset."""
    try:
        schema = onnx.defs.get_schema(node.op_type, version)
    except onnx.defs.SchemaError:
        return None
    for position, formal in enumerate(schema.inputs):
        if formal.name == name:
            return input_at(node, position)
    return None
