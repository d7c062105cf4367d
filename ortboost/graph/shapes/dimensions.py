"""Dimensions as comparable keys: a number, a name, or "that axis of that value".

Equal keys mean equal lengths in every run. Names come from the graph's inputs and from shape
inference, which gives every unknown length a unique name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import constant, is_standard, known_shape

__all__ = [
    "REST",
    "Key",
    "as_reshape",
    "dimensions",
    "elements",
    "is_flat",
    "same_shape",
    "same_view",
]

Key: TypeAlias = Hashable
REST: Final = ("rest",)
"""The dimension for which the model has a -1 in the shape of a Reshape."""
_LARGEST = 64  # elements of a tensor that could be a shape
_DEPTH = 24  # nodes between a shape and what it is computed from


def dimensions(value: ir.Value | None) -> tuple[Key, ...] | None:
    """One key for each dimension of a value; ``None`` if the rank is unknown."""
    shape = known_shape(value)
    if shape is None:
        return None
    keys: list[Key] = []
    for axis, dim in enumerate(shape):
        name = ("axis", id(value), axis) if dim is None else ("name", dim)
        keys.append(dim if isinstance(dim, int) else name)
    return tuple(keys)


def same_shape(one: ir.Value | None, other: ir.Value | None) -> bool:
    """Whether two values are known to have the same shape."""
    left, right = dimensions(one), dimensions(other)
    return left is not None and left == right


def same_view(have: Sequence[Key] | None, want: Sequence[Key] | None) -> bool:
    """Whether a view, which keeps the number of elements, also keeps the shape.

    If all dimensions but one are equal, so is the last one, because the products are equal. Two
    different numbers there mean that a name is wrong.
    """
    if have is None or want is None or len(have) != len(want):
        return False
    pairs = [pair for pair in zip(have, want, strict=True) if pair[0] != pair[1]]
    return not pairs or (len(pairs) == 1 and not all(isinstance(key, int) for key in pairs[0]))


def as_reshape(wanted: Sequence[Key], source: Sequence[Key]) -> list[int] | None:
    """A constant shape for a Reshape with ``allowzero=0`` that turns ``source`` into ``wanted``.

    A number stands for itself, 0 copies the dimension at the same index, -1 (once) is the
    remainder. The remainder of an empty tensor is not defined, so a -1 stands beside a copied
    dimension, which may be 0, only where the model itself has it (:data:`REST`). If copied
    dimensions and numbers alone do not give the same number of elements, a name may be wrong, and
    the dimension is not copied.

    Returns:
        The shape, or ``None`` if constants cannot express it.

    Example:
        >>> as_reshape([("name", "n"), ("name", "s"), 12, 64], [("name", "n"), ("name", "s"), 768])
        [0, 0, 12, 64]
    """
    shape: list[int] = []
    left = list(source)  # dimensions that are not copied, to be distributed over the others
    for place, key in enumerate(wanted):
        if isinstance(key, int):
            if key <= 0:  # an empty tensor: 0 and -1 have another meaning in a Reshape
                return None
            shape.append(key)
        elif place < len(source) and source[place] == key:
            shape.append(0)
            left.remove(key)
        else:
            shape.append(-1)
    if -1 not in shape:  # then the numbers must be the product of the dimensions that are left
        numbers = [key for key in left if isinstance(key, int)]
        size = math.prod(length for length in shape if length)
        if len(numbers) < len(left) or math.prod(numbers) != size:
            if shape.count(0) != 1:
                return None
            shape[shape.index(0)] = -1  # the remainder, whatever its name
    elif 0 in shape and wanted[shape.index(-1)] != REST:
        return None
    return shape if shape.count(-1) <= 1 else None


def is_flat(wanted: Sequence[Key], source: Sequence[Key]) -> bool:
    """Whether a view is ``Flatten(axis=1)`` of ``source``; that is defined for empty tensors."""
    return len(wanted) == 2 and len(source) > 1 and wanted[0] == source[0]


def elements(value: ir.Value | None) -> list[Key] | None:
    """The elements of a small integer tensor, a vector or scalar, that is computed from shapes.

    Returns:
        One key for each element, or ``None`` if it depends on more than shapes.
    """
    return _elements(value, _DEPTH)


def _elements(value: ir.Value | None, depth: int) -> list[Key] | None:
    """See :func:`elements`; the rules below give the elements of one operator each."""
    if value is None or depth == 0:
        return None
    stored = constant(value, limit=_LARGEST)
    if stored is not None:
        if stored.ndim > 1 or stored.dtype.kind not in "iub":
            return None
        return list(stored.reshape(-1).tolist())
    node = value.producer()
    if node is None or not is_standard(node, *_RULES):
        return None
    found = _RULES[node.op_type](node, depth - 1)
    return None if found is None or len(found) > _LARGEST else found


def _shape(node: ir.Node, depth: int) -> list[Key] | None:
    keys = dimensions(node.inputs[0])
    if keys is None:
        return None
    return list(keys[node.attributes.get_int("start", 0) : node.attributes.get_int("end", None)])


def _concat(node: ir.Node, depth: int) -> list[Key] | None:
    parts = [_elements(value, depth) for value in node.inputs]
    return None if None in parts else [key for part in parts for key in part or ()]


def _gather(node: ir.Node, depth: int) -> list[Key] | None:
    data, index = _elements(node.inputs[0], depth), constant(node.inputs[1], limit=_LARGEST)
    if data is None or index is None or index.ndim > 1 or node.attributes.get_int("axis", 0) != 0:
        return None
    places = [int(i) for i in index.reshape(-1)]
    return [data[i] for i in places] if all(-len(data) <= i < len(data) for i in places) else None


def _slice(node: ir.Node, depth: int) -> list[Key] | None:
    data = _elements(node.inputs[0], depth)
    bounds = [constant(value, limit=1) for value in node.inputs[1:]]
    if data is None or any(bound is None or bound.size != 1 for bound in bounds):
        return None
    begin, end, *rest = (int(bound.reshape(-1)[0]) for bound in bounds if bound is not None)
    step = rest[1] if len(rest) > 1 else 1  # rest[0] is the axis, and there is only one
    return data[begin:end:step] if step > 0 else None


def _through(node: ir.Node, depth: int) -> list[Key] | None:
    """The same elements, with or without a dimension around them."""
    shape = node.outputs[0].shape
    if shape is None or len(shape) > 1:
        return None
    return _elements(node.inputs[0], depth)


def _cast(node: ir.Node, depth: int) -> list[Key] | None:
    integers = (ir.DataType.INT64, ir.DataType.INT32)
    source, example = node.inputs[0], node.inputs[-1]  # of a Cast, one value
    to = node.attributes.get_int("to", 0) or (example and example.dtype)
    if to not in integers or source is None or source.dtype not in integers:
        return None
    return _elements(source, depth)


def _arithmetic(node: ir.Node, depth: int) -> list[Key] | None:
    one, other = (_elements(value, depth) for value in node.inputs)
    if not one or not other:  # unknown or empty
        return None
    # One element is broadcast; any other difference in length is an error of the model.
    length = max(len(one), len(other)) if min(len(one), len(other)) == 1 else len(one)
    if len(one) not in (1, length) or len(other) not in (1, length):
        return None
    pairs = zip(one * (length // len(one)), other * (length // len(other)), strict=True)
    return [_result(node.op_type, a, b) for a, b in pairs]


def _result(op: str, a: Key, b: Key) -> Key:
    if isinstance(a, int) and isinstance(b, int):
        if op == "Div":  # truncates toward zero, exact in float64; by zero: left to the runtime
            return int(np.trunc(a / b)) if b and abs(a) < 1 << 50 else (op, a, b)
        return {"Add": a + b, "Sub": a - b, "Mul": a * b}[op]
    # An expression of lengths is a key, too: equal expressions are equal lengths.
    if op == "Mul" and 1 in (a, b):
        return b if a == 1 else a
    if op == "Add" and 0 in (a, b):
        return b if a == 0 else a
    if (op == "Sub" and b == 0) or (op == "Div" and b == 1):
        return a
    return (op, a, b)


def _equal(node: ir.Node, depth: int) -> list[Key] | None:
    one, other = (_elements(value, depth) for value in node.inputs)
    if one is None or other is None or len(one) != len(other):
        return None
    found: list[Key] = []
    for a, b in zip(one, other, strict=True):
        numbers = isinstance(a, int) and isinstance(b, int)
        length = isinstance(a, tuple) and a[0] in ("name", "axis")  # a length is never negative
        if numbers or a == b:
            found.append(a == b)
        elif length and isinstance(b, int) and b < 0:
            found.append(False)
        else:
            return None
    return found


def _where(node: ir.Node, depth: int) -> list[Key] | None:
    which, yes, no = (_elements(value, depth) for value in node.inputs)
    if which is None or yes is None or no is None or not len(which) == len(yes) == len(no):
        return None
    return [a if w else b for w, a, b in zip(which, yes, no, strict=True)]


_RULES: dict[str, Callable[[ir.Node, int], list[Key] | None]] = {
    "Shape": _shape,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    **dict.fromkeys(("Identity", "Squeeze", "Unsqueeze", "Reshape"), _through),
    "Cast": _cast,
    "CastLike": _cast,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _arithmetic),
    "Equal": _equal,
    "Where": _where,
}
