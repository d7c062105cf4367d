"""Give symbolic dimensions that must be equal the same name.

Shape inference invents a name for a dimension that a Reshape computes at run time, `[batch, 16, 64]
-> [unk__7, 16, 4, 16]`, and for combinations of such names. As the number of elements is the same,
`batch` and `unk__7` are equal; with one name, rules need no nodes to compare them at run time.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ortboost.graph.query import known_shape

__all__ = ["name_equal_lengths"]

_BROADCAST = frozenset(
    "Add Div Equal Greater Less MatMul Max Mean Min Mul Pow Sub Sum Where".split()
)


def name_equal_lengths(model: ir.Model) -> None:
    """Rename dimensions in the shapes of inner values, in place."""
    graph = model.graph
    given = {
        dim for value in graph.inputs for dim in known_shape(value) or () if isinstance(dim, str)
    }
    names: dict[str, str] = {}
    multiples: dict[str, tuple[str, int]] = {}  # name: (base, factor), for `unk = 4 batch`
    canonical: dict[tuple[str, int], str] = {}  # the reverse: the one name for `4 batch`
    for node in graph:
        for output in node.outputs:
            _rename(output, names)
        if node.op_type in _BROADCAST:
            _meet(node, names, given)
        if node.op_type != "Reshape" or node.inputs[0] is None:
            continue
        # With one unknown length on each side, the number of elements determines one by the other.
        known = _single(known_shape(node.inputs[0]))
        found = _single(known_shape(node.outputs[0]))
        if known is None or found is None or known[0] is None:
            continue
        # base * times * known[1] = unknown * found[1]
        base, times = multiples.get(known[0], (known[0], 1))
        factor, rest = divmod(times * known[1], found[1])
        if rest:
            continue
        same = base if factor == 1 else canonical.get((base, factor), found[0])
        if found[0] is None and same is not None:  # no name yet
            shape = known_shape(node.outputs[0]) or ()
            node.outputs[0].shape = ir.Shape([same if dim is None else dim for dim in shape])
        elif found[0] is not None and same == found[0]:  # the first name of this multiple
            if factor != 1 and same not in multiples:
                canonical[base, factor] = same
                multiples[same] = (base, factor)
        elif found[0] is not None and same is not None and found[0] not in given:
            names[found[0]] = same
            _rename(node.outputs[0], names)


def _meet(node: ir.Node, names: dict[str, str], given: set[str]) -> None:
    """Unify an output dimension with the only operand dimension other than 1."""
    output = node.outputs[0]
    shape = known_shape(output)
    shapes = [known_shape(value) for value in node.inputs if value is not None]
    if shape is None:
        return
    last = 2 if node.op_type == "MatMul" else 0
    for place in range(last + 1, len(shape) + 1):
        # Broadcast lengths are 1 or that of the output, so a single other one is the output's.
        dim, own = shape[-place], set[int | str | None]()  # place: from the end, as broadcasting
        for other in shapes:
            if other is None or (last and len(other) < 2):
                return
            own.add(other[-place] if place <= len(other) else 1)
        own.discard(1)
        same = own.pop() if len(own) == 1 else None
        if isinstance(dim, str) and isinstance(same, str) and dim != same and dim not in given:
            names[dim] = same
    _rename(output, names)


def _single(shape: tuple[int | str | None, ...] | None) -> tuple[str | None, int] | None:
    """The unknown length of a shape with exactly one, and the product of the others."""
    unknown = [dim for dim in shape or () if not isinstance(dim, int)]
    rest = math.prod(dim for dim in shape or () if isinstance(dim, int))
    return (unknown[0], rest) if len(unknown) == 1 and rest else None


def _rename(value: ir.Value, names: dict[str, str]) -> None:
    shape = known_shape(value)
    if shape is not None and any(dim in names for dim in shape if isinstance(dim, str)):
        value.shape = ir.Shape(
            [names.get(dim, dim) if isinstance(dim, str) else dim for dim in shape]
        )
