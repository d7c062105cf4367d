"""Patterns of expressions, matched against a graph from the last node backwards.

    >>> erf = Op("Erf", Op("Div", "x", math.sqrt(2)))
    >>> gelu = Op("Mul", 0.5, Op("Mul", "x", Op("Add", erf, 1.0)))

A string is a variable, which stands for the same value everywhere; a number is a stored scalar; a
tuple holds alternatives. The operands of Add and Mul may come in either order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import SHORT_FLOATS, producer_of, scalar, sole_consumer

__all__ = ["Found", "Op", "Pattern", "match", "matches"]

Found: TypeAlias = Mapping[str, ir.Value]
"""Variable, or name of an :class:`Op`, to the value that it stands for."""

_COMMUTATIVE: Final = ("Add", "Mul")
_CLOSE: Final = 1e-6  # a number written with the digits of float32
_CLOSE_DOUBLE: Final = 1e-12


class Op:
    """The pattern of a standard operator.

    Args:
        op_type: Its name.
        *inputs: Patterns of its first inputs; further inputs may be anything.
        name: The name under which its result is returned.
        alone: Whether the result must have exactly one consumer.
    """

    def __init__(self, op_type: str, *inputs: Pattern, name: str = "", alone: bool = False) -> None:
        self.op_type, self.inputs, self.name, self.alone = op_type, inputs, name, alone


Pattern: TypeAlias = "Op | str | float | tuple[Pattern, ...]"


def match(value: ir.Value | None, pattern: Pattern) -> Found | None:
    """The first way in which a value matches a pattern."""
    return next(matches(value, pattern), None)


def matches(
    value: ir.Value | None, pattern: Pattern, found: Found | None = None
) -> Iterator[Found]:
    """All ways in which a value matches a pattern; ``found`` has the variables bound already."""
    known: dict[str, ir.Value] = dict(found or {})  # a copy: alternatives must not share bindings
    if value is None:
        return
    if isinstance(pattern, str):
        if known.setdefault(pattern, value) is value:
            yield known
    elif isinstance(pattern, tuple):
        for one in pattern:
            yield from matches(value, one, known)
    elif isinstance(pattern, Op):
        node = producer_of(value, pattern.op_type)
        if node is None or (pattern.alone and sole_consumer(value) is None):
            return
        if pattern.name:
            known[pattern.name] = value
        # With equal operands, the other order would only repeat the matches.
        orders = [tuple(node.inputs)]
        if pattern.op_type in _COMMUTATIVE and len(set(node.inputs)) > 1:
            orders.append(tuple(reversed(node.inputs)))
        for inputs in orders:
            if len(inputs) >= len(pattern.inputs):
                yield from _all(inputs, pattern.inputs, known)
    elif _is_number(value, pattern):
        yield known


def _all(
    values: tuple[ir.Value | None, ...], patterns: tuple[Pattern, ...], found: Found
) -> Iterator[Found]:
    if not patterns:
        yield found
        return
    for one in matches(values[0], patterns[0], found):
        yield from _all(values[1:], patterns[1:], one)


def _is_number(value: ir.Value, expected: float) -> bool:
    number = scalar(value)
    # By broadcasting, a constant of shape [1, 1] may add an axis that the pattern does not show.
    if number is None or value.shape is None or len(value.shape) > 1:
        return False
    if value.dtype in SHORT_FLOATS:  # the number itself, rounded
        return number == float(np.asarray(expected).astype(value.dtype.numpy()))
    close = _CLOSE_DOUBLE if value.dtype == ir.DataType.DOUBLE else _CLOSE
    return math.isclose(number, expected, rel_tol=close)
