"""Axes of inputs that may have length 0, as the model only joins them with values it computes.

For example, a decoder appends the keys and values of its tokens to those of earlier tokens, of
which there may be none. All kernels but those of Concat and of nodes that only copy (a Slice of the
last few tokens, for a sliding window) read the joined array, which is not empty.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import is_standard, known_shape

__all__ = ["joined_axes"]

_COPYING = ("Identity", "Cast", "CastLike", "Slice", "Concat")
"""Operators whose kernels accept empty arrays; a Concat here has only inputs and stored values."""


def joined_axes(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """Input to the axis along which each use joins it with a value that the model computes.

    Inputs without such an axis are left out.

    Example:
        >>> joined_axes(ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,past,8] cache, float[n,t,8] x) => (float[n,k,8] y) {
        ...     key = Neg(x) y = Concat<axis = 1>(cache, key) }'''))
        {'cache': (1,)}
    """
    found = {value.name or "": _axis(value) for value in model.graph.inputs}
    return {name: (axis,) for name, axis in found.items() if axis is not None}


def _axis(value: ir.Value) -> int | None:
    shape = known_shape(value)
    axes = _axes(value)
    if shape is None or axes is None or len({axis % len(shape) for axis in axes}) != 1:
        return None
    axis = axes[0] % len(shape)
    return None if isinstance(shape[axis], int) else axis


def _axes(value: ir.Value) -> list[int] | None:
    """The axes of all Concat that read a value; ``None`` if it has another use."""
    found: list[int] = []
    for node, index in value.uses():
        computed = [other for other in node.inputs if other is not value and _is_computed(other)]
        if is_standard(node, "Concat") and computed:
            found.append(node.attributes.get_int("axis", 0))
        elif is_standard(node, *_COPYING) and (index == 0 or node.op_type == "Concat"):
            behind = _axes(node.outputs[0])
            if behind is None:
                return None
            found += behind
        elif not is_standard(node, "Shape"):
            return None
    return None if value.is_graph_output() else found


def _is_computed(value: ir.Value | None) -> bool:
    return value is not None and value.producer() is not None
