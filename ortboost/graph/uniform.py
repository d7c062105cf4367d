"""Values that are the same number everywhere, whatever their shape.

Exporters compute masks that mask nothing: without an attention mask, transformers builds one of
``Where(Range(0, n, 1) >= 0, 0, -inf)`` for every sentence. Its shape is only known at run time, so
constant folding cannot store it; its only number, 0, can be known before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.evaluate import evaluate_node
from ortboost.graph.query import constant, is_standard

__all__ = ["UniformValues"]

_LARGEST: Final = 1 << 16  # elements of a stored tensor that is looked at
_DEPTH: Final = 32  # nodes between a value and what it is computed from
_VIEWS: Final = frozenset(
    "Expand Flatten Gather GatherElements GatherND Identity Reshape Slice Split Squeeze Tile "
    "Transpose Unsqueeze".split()
)
"""Operators whose outputs only have elements of their first input."""
_POINTWISE: Final = frozenset(
    "Abs Add And Cast CastLike Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mul Neg Not "
    "Or Sub Where Xor".split()
)
_AT_LEAST: Final = {"GreaterOrEqual": (0, True), "Less": (0, False), "LessOrEqual": (1, True)}
"""Comparison: the operand that may be known to be at least the other, and the result if it is."""


class UniformValues:
    """Finds the number of values that have only one, and remembers it.

    Args:
        opset: Version of the model's standard opset.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n] x) => (float[n] y) {
        ...   size = Shape(x)  zeros = ConstantOfShape(size)  y = Add(x, zeros)
        ... }''')
        >>> uniform = UniformValues(18)
        >>> [uniform.number(node.outputs[0]) for node in model.graph]
        [None, array(0., dtype=float32), None]
    """

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._numbers: dict[ir.Value, NDArray[Any] | None] = {}

    def number(self, value: ir.Value | None) -> NDArray[Any] | None:
        """The number that all elements of a value are, as an array without axes; or ``None``."""
        return self._number(value, _DEPTH)

    def _number(self, value: ir.Value | None, depth: int) -> NDArray[Any] | None:
        if value is None or depth == 0:
            return None
        if value not in self._numbers:
            self._numbers[value] = self._found(value, depth)
        return self._numbers[value]

    def _found(self, value: ir.Value, depth: int) -> NDArray[Any] | None:
        stored = constant(value, limit=_LARGEST)
        if stored is not None:
            return _only(stored)
        node = value.producer()
        if node is None or not is_standard(node):
            return None
        if node.op_type == "ConstantOfShape":
            filling = node.attributes.get_tensor("value", None)
            return np.zeros((), np.float32) if filling is None else _only(filling.numpy())
        if node.op_type in _VIEWS:
            return self._number(node.inputs[0], depth - 1)
        if node.op_type == "Concat":
            return self._joined(node.inputs, depth)
        if node.op_type in _POINTWISE:
            found = self._compared(node, depth)
            return self._computed(node, depth) if found is None else found
        return None

    def _joined(self, parts: Sequence[ir.Value | None], depth: int) -> NDArray[Any] | None:
        first, *rest = (self._number(part, depth - 1) for part in parts)
        return first if all(_equal(first, other) for other in rest) else None

    def _computed(self, node: ir.Node, depth: int) -> NDArray[Any] | None:
        numbers = [self._number(value, depth - 1) for value in node.inputs]
        if node.op_type == "Where" and numbers[0] is not None:
            return numbers[1] if numbers[0] else numbers[2]
        feeds = {
            value.name or "": number
            for value, number in zip(node.inputs, numbers, strict=True)
            if value is not None and number is not None
        }
        if len(feeds) < len(set(node.inputs)):
            return None
        results = evaluate_node(node, feeds, self._opset)
        if results is None or (_rounds(feeds, results[0]) and node.op_type.startswith("Cast")):
            return None
        return _only(results[0])

    def _compared(self, node: ir.Node, depth: int) -> NDArray[Any] | None:
        """The result of a comparison that a lower bound decides."""
        if node.op_type not in _AT_LEAST:
            return None
        place, result = _AT_LEAST[node.op_type]
        other = self._number(node.inputs[1 - place], depth - 1)
        least = None if other is None else self._least(node.inputs[place], depth - 1)
        if least is None or other is None or least < other:
            return None
        return np.array(result)

    def _least(self, value: ir.Value | None, depth: int) -> int | None:
        """A lower bound of the elements of an integer tensor, if known."""
        if value is None or depth == 0 or value.dtype is None or not value.dtype.is_integer():
            return None
        stored = constant(value, limit=_LARGEST)
        if stored is not None:
            return int(stored.min()) if stored.size else None
        node = value.producer()
        if node is None or not is_standard(node):
            return None
        if node.op_type in ("Shape", "Size"):
            return 0
        if node.op_type == "Range":
            step = self._number(node.inputs[2], depth - 1)
            return self._least(node.inputs[0], depth - 1) if step is not None and step > 0 else None
        return self._least(node.inputs[0], depth - 1) if node.op_type in _VIEWS else None


def _rounds(feeds: Mapping[str, NDArray[Any]], result: NDArray[Any]) -> bool:
    """Whether floats become integers; what large ones become depends on the processor."""
    return result.dtype.kind in "iu" and any(array.dtype.kind == "f" for array in feeds.values())


def _only(array: NDArray[Any]) -> NDArray[Any] | None:
    """The number of an array that holds only one."""
    if array.size == 0 or array.dtype.kind not in "biuf":
        return None
    first = np.asarray(array.reshape(-1)[0])
    return first if _equal(first, array) else None


def _equal(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    """Whether all are the same number: not NaN, which equals nothing, nor 0 and -0."""
    if one is None or other is None or not bool((one == other).all()):
        return False
    return one.dtype.kind != "f" or bool((np.signbit(one) == np.signbit(other)).all())
