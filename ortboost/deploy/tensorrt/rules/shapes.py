"""What must be known when the engine is built: constants, dimensions, shapes and profiles."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortboost.core.errors import UsageError
from ortboost.deploy.findings import Finding, error, warn
from ortboost.deploy.tensorrt.profiles import settle_profiles, suggestion
from ortboost.deploy.tensorrt.rules.registry import Context, rule
from ortboost.graph.query import input_at, known_shape

__all__: list[str] = []


@rule("TRT010", "inputs that must be constants")
def constants(context: Context) -> Iterator[Finding]:
    """Axes, depths and similar inputs that a subgraph computes."""
    for node, known in context.known():
        for name in known.named("constant"):
            value = context.given(node, name)
            verdict = context.constness(value)
            if value is None or verdict == "stored":
                continue
            folds = verdict == "folds"
            yield error(
                node,
                f"The input '{name}' must be a constant, but "
                + (
                    "is computed from constants."
                    if folds
                    else "depends on the inputs of the model."
                ),
                "Fold constants: ortboost check --fix does."
                if folds
                else f"Export with a fixed '{name}'.",
                fixable=folds,
            )


@rule("TRT011", "dimensions that must be known")
def static_dimensions(context: Context) -> Iterator[Finding]:
    """Operators that need the length of a dimension when the engine is built."""
    for node, known in context.known():
        first = input_at(node, 0)
        if first is None:
            continue
        dims = known_shape(first)
        if "static-axis" in known.limits:
            axis = node.attributes.get_int("axis", -1)
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
            yield error(
                node,
                f"{what} must be a number when the engine is built.",
                "Export with this dimension fixed.",
            )


@rule("TRT040", "dynamic dimensions and their profiles")
def profiles(context: Context) -> Iterator[Finding]:
    """Every dynamic input needs a profile."""
    shapes = {value.name or "": known_shape(value) for value in context.inputs}
    if context.profiles:
        try:
            settle_profiles(shapes, context.profiles)
        except UsageError as refused:
            yield error((refused.where, "input"), refused.what, refused.fix)
        return
    for name, dims in shapes.items():
        if dims is None or any(not isinstance(dim, int) for dim in dims):
            yield warn(
                (name, "input"),
                "It has dimensions that are not fixed: the engine needs a profile.",
                f"Build with --shape {suggestion(name, dims)}",
            )


@rule("TRT041", "dimensions of length 0")
def empty(context: Context) -> Iterator[Finding]:
    """Empty inputs."""
    for value in context.inputs:
        dims = known_shape(value)
        if dims is not None and 0 in dims:
            yield error(
                (value.name or "?", "input"),
                "It has a dimension of length 0.",
                "Export with the real shape.",
            )


@rule("TRT042", "shapes that depend on data")
def data_dependent(context: Context) -> Iterator[Finding]:
    """Operators whose output size is known only after they have run."""
    for node in context.standard("NonZero", "NonMaxSuppression"):
        if all(context.constness(out) == "folds" for out in node.outputs):
            continue
        yield warn(
            node,
            "The size of its output is known only after it has run.",
            "Run the engine with an output allocator, or pad to a fixed size (TopK).",
        )


@rule("TRT043", "branches and loops")
def control_flow(context: Context) -> Iterator[Finding]:
    """Branches with different ranks, loops with changing shapes."""
    for node in context.standard("If", "Loop"):
        yield from _branches(node) if node.op_type == "If" else _loop(node, context)


def _branches(node: ir.Node) -> Iterator[Finding]:
    if not {"then_branch", "else_branch"} <= set(node.attributes):
        return
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    for one, two in zip(then.outputs, other.outputs, strict=False):
        ranks = [len(shape) for v in (one, two) if (shape := known_shape(v)) is not None]
        if len(set(ranks)) > 1:
            yield error(
                node,
                f"Its branches give outputs of rank {ranks[0]} and {ranks[1]}.",
                "Reshape one of them.",
            )
        if one.name == two.name:
            yield error(
                node,
                f"Its branches use the same output name: '{one.name}'.",
                "Give them different names.",
            )


def _loop(node: ir.Node, context: Context) -> Iterator[Finding]:
    if "body" not in node.attributes:
        return
    body = node.attributes["body"].as_graph()
    # Inputs of a Loop: trip count, condition, carried values; its body gives the condition, the
    # carried values, and what is collected.
    carried = len(node.inputs) - 2
    for inner, outer in zip(body.inputs[2:], body.outputs[1 : carried + 1], strict=False):
        before, after = known_shape(inner), known_shape(outer)
        if before is not None and after is not None and before != after:
            yield error(
                node,
                f"The shape of '{inner.name}' changes between iterations.",
                "Carry a tensor of a fixed shape.",
            )
    trips = input_at(node, 0)
    fixed = trips is not None and context.constness(trips) != "computed"
    if len(body.outputs) > carried + 1 and not fixed:
        yield error(
            node,
            "It collects outputs over a number of iterations that is not fixed.",
            "Export with a fixed number of iterations, or unroll it.",
        )
