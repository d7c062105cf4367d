"""Inputs that must be known when the engine is built."""

from __future__ import annotations

from collections.abc import Iterator

from ortboost.deploy.findings import Finding, error
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
                f"The input '{name}' must be a constant, and "
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
