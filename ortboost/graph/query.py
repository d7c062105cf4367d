"""Questions about a graph: its tensors, their shapes, names that match patterns."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator

import onnx_ir as ir

__all__ = [
    "FLOAT_TYPES",
    "ROLE_MARK",
    "all_tensors",
    "known_shape",
    "match_names",
    "static_shape",
]

FLOAT_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)

ROLE_MARK = "ortboost.role"
"""Metadata key of a tensor that a rewrite added: its role, where its place in the graph does not say it."""


def all_tensors(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Every initializer of the model and its subgraphs, with its tensor."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value


def known_shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """The shape as ints, names and ``None``; ``None`` if even the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape if every dimension is a number."""
    shape = known_shape(value)
    if shape is None:
        return None
    numbers = tuple(dim for dim in shape if isinstance(dim, int))
    return numbers if len(numbers) == len(shape) else None


def match_names(names: Iterable[str], patterns: Iterable[str]) -> tuple[set[str], list[str]]:
    """Match names against shell-style patterns.

    Returns:
        The matched names, and the patterns that matched nothing (usually a typing mistake).

    Example:
        >>> sorted(match_names(["fc1.weight", "fc1.bias", "fc2.weight"], ["fc1.*", "x*"])[0])
        ['fc1.bias', 'fc1.weight']
    """
    known = list(names)
    matched: set[str] = set()
    idle: list[str] = []
    for pattern in patterns:
        hits = fnmatch.filter(known, pattern)
        matched.update(hits)
        if not hits:
            idle.append(pattern)
    return matched, idle
