"""Symbolic shape inference, where ONNX's own inference gives up.

ONNX invents a name for each length that it does not know (``unk__7``): for the length of a
``Range(0, n)``, for what a Reshape computes at run time (``[batch, 16, 64] -> [unk__7, 16, 4,
16]``), and wherever two such names are combined. Equal lengths with different names are expensive:
the gradient needs nodes that compare them at run time and sum what was broadcast.

Here a length is called by what it equals:

- the dimension of an input, such as ``batch``;
- a product of such lengths: ``4·batch``, ``batch·sequence``;
- ``sequence≤512``, for a table of 512 rows that is cut to the length of the sequence.

Equal names mean equal lengths in every run. The signs differ from those that exporters and users
write: a dimension of a file called ``4*n`` is a name like any other, and says nothing about ``n``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

import onnx_ir as ir

from ortboost.graph.query import constant, input_at, is_standard, known_shape, producer_of, scalar
from ortboost.graph.shapes.dimensions import Key, elements

__all__ = ["is_cut", "is_of_inputs", "is_placeholder", "name_lengths"]

Dim: TypeAlias = int | str | None
Dims: TypeAlias = tuple[Dim, ...]

_FAR = 1 << 30  # "to the end", as exporters write it
_PLACEHOLDER = re.compile(r"unk__\d+")
_TIMES, _AT_MOST = "·", "≤"
_CUT = re.compile(rf"(.+){_AT_MOST}\d+")


def name_lengths(model: ir.Model) -> None:
    """Name the unknown lengths of the main graph by what they equal, in place.

    Constants of the model are initializers, and its shapes inferred.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[batch,8,4] x) => (float[unk__0,4] y)
        ... <int64[2] shape = {-1, 4}> { y = Reshape(x, shape) }''')
        >>> name_lengths(model)
        >>> known_shape(model.graph.outputs[0])
        ('8·batch', 4)
    """
    given = {dim for value in model.graph.inputs for dim in known_shape(value) or ()}
    renamed: dict[str, Dim] = {}
    for node in model.graph:
        for value in node.outputs:
            _rename(value, renamed)
        output, rule = node.outputs[0], _RULES.get(node.op_type)
        old = known_shape(output)
        # Only where a dimension has no name, or one that inference invented.
        known = old is not None and not any(dim is None or _is_invented(dim, given) for dim in old)
        if rule is None or not is_standard(node) or known:
            continue
        if output.type is None:  # of a runtime's own operator: a file cannot store its shape
            continue
        new = rule(node, given)
        if new is None or (old is not None and len(old) != len(new)):
            continue
        for was, now in zip(old or (), new, strict=False):
            if now is not None and now != was and _is_invented(was, given):
                renamed[str(was)] = now
        if old is None:
            output.shape = ir.Shape(new)
        elif None in old:
            pairs = zip(old, new, strict=True)
            output.shape = ir.Shape(now if was is None else was for was, now in pairs)
        _rename(output, renamed)


def is_cut(dim: Dim, whole: Dim) -> bool:
    """Whether a length is ``n≤512``, and the other is ``n``.

    Where they broadcast they are equal: the first is 1 only if the second is.
    """
    found = _CUT.fullmatch(dim) if isinstance(dim, str) else None
    return found is not None and found[1] == whole


def is_placeholder(dim: Dim) -> bool:
    """Whether a dimension has a name that ONNX invented for a length that it does not know."""
    return isinstance(dim, str) and bool(_PLACEHOLDER.fullmatch(dim))


def is_of_inputs(dim: Dim, given: set[Dim]) -> bool:
    """Whether a length is one of the inputs', a product of such lengths, or one of them cut."""
    if not isinstance(dim, str):
        return False
    cut = _CUT.fullmatch(dim)
    factors = (cut[1] if cut else dim).split(_TIMES)
    return dim in given or all(factor.isdecimal() or factor in given for factor in factors)


def _is_invented(dim: Dim, given: set[Dim]) -> bool:
    return dim not in given and is_placeholder(dim)


def _is_simple(dim: Dim, given: set[Dim]) -> bool:
    """Whether a dimension has a name that is not a product, so that products can contain it."""
    return isinstance(dim, str) and _TIMES not in dim and not _is_invented(dim, given)


def _rename(value: ir.Value, renamed: dict[str, Dim]) -> None:
    shape = known_shape(value)
    if shape is not None and any(dim in renamed for dim in shape if isinstance(dim, str)):
        value.shape = ir.Shape(
            [renamed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape]
        )


# Products of lengths: a number, and how often each name occurs.
_Product: TypeAlias = tuple[int, Counter[str]]


def _product(dims: Iterable[Dim], given: set[Dim]) -> _Product | None:
    """The product of lengths; ``None`` if one is unknown.

    Invented names are unknown, too: the next inference may use them for other lengths.
    """
    number, names = 1, Counter[str]()
    for dim in dims:
        if dim is None or _is_invented(dim, given):
            return None
        if isinstance(dim, int):
            number *= dim
            continue
        # A user's name is one length, even if it looks like a number or a product.
        if dim in given and (dim.isdecimal() or _TIMES in dim):
            return None
        for factor in dim.split(_TIMES):
            if factor.isdecimal():
                number *= int(factor)
            else:
                names[factor] += 1
    return number, names


def _quotient(product: _Product, divisor: _Product) -> Dim:
    """The length that is missing in a product; ``None`` if there is no such length."""
    (number, names), (by, others) = product, divisor
    if not by or number % by or others - names:
        return None
    return _spelled((number // by, names - others))


def _times(dims: Iterable[Dim], given: set[Dim]) -> Dim:
    """The product of lengths as a length."""
    product = _product(dims, given)
    return None if product is None else _spelled(product)


def _spelled(product: _Product) -> Dim:
    number, names = product
    factors = sorted(names.elements())
    if number < 0:  # not a length
        return None
    if not factors or not number:
        return number
    return _TIMES.join(([str(number)] if number != 1 else []) + factors)


def _named(key: Key, given: set[Dim]) -> Dim:
    """A computed length as a dimension."""
    if isinstance(key, int):
        return key
    if isinstance(key, tuple) and key[0] == "name":
        return str(key[1])
    if isinstance(key, tuple) and key[0] == "Mul":
        return _times([_named(part, given) for part in key[1:]], given)
    return None


def _shape_of(node: ir.Node, place: int = 0) -> Dims | None:
    return known_shape(input_at(node, place))


def _lengths(value: ir.Value | None, given: set[Dim]) -> list[Dim] | None:
    """The elements of a shape that the graph computes."""
    keys = elements(value)
    return None if keys is None else [_named(key, given) for key in keys]


def _broadcast(shapes: Iterable[Dims | None]) -> list[Dim] | None:
    """The shape that operands broadcast to, with ``None`` where it is uncertain."""
    known = list(shapes)
    rank = max((len(shape) for shape in known if shape is not None), default=0)
    if None in known:
        return None
    padded = [(1,) * (rank - len(shape)) + shape for shape in known if shape is not None]
    return [_meet(set(dims)) for dims in zip(*padded, strict=True)]


def _meet(dims: set[Dim]) -> Dim:
    """The length that lengths broadcast to."""
    dims = dims - {1} or {1}
    dims = {dim for dim in dims if not any(is_cut(dim, other) for other in dims)}
    return dims.pop() if len(dims) == 1 else None


def _elementwise(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    return _broadcast(known_shape(value) for value in node.inputs if value is not None)


def _matmul(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    left, right = _shape_of(node), _shape_of(node, 1)
    if left is None or right is None or min(len(left), len(right)) < 2:
        return None
    batch = _broadcast((left[:-2], right[:-2]))
    return None if batch is None else [*batch, left[-2], right[-1]]


def _gemm(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    left, right = _shape_of(node), _shape_of(node, 1)
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return None
    turned = [node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB")]
    return [left[turned[0]], right[1 - turned[1]]]


def _reshape(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    source = _shape_of(node)
    wanted = _lengths(input_at(node, 1), given)
    if wanted is None:  # it depends on more than shapes, but inference may know a part
        known = known_shape(node.outputs[0]) or ()
        wanted = [None if _is_invented(dim, given) else dim for dim in known]
    elif not node.attributes.get_int("allowzero", 0) and 0 in wanted:
        if source is None or 0 in wanted[len(source) :]:
            return None
        wanted = [source[i] if dim == 0 else dim for i, dim in enumerate(wanted)]
    wanted = [None if dim == -1 else dim for dim in wanted]
    if wanted.count(None) != 1 or source is None:
        return wanted or None
    # The number of elements determines the one length that is missing.
    size = _product(source, given)
    others = _product([dim for dim in wanted if dim is not None], given)
    if size is None or others is None or not all((size[0], others[0])):
        return wanted
    missing = _quotient(size, others)
    return [missing if dim is None else dim for dim in wanted]


def _flatten(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    source = _shape_of(node)
    if source is None:
        return None
    axis = node.attributes.get_int("axis", 1)
    return [_times(part, given) for part in (source[:axis], source[axis:])]


def _expand(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    source = _shape_of(node)
    wanted = _lengths(node.inputs[1], given)
    return None if wanted is None else _broadcast((source, tuple(wanted)))


def _range(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    start, limit, step = node.inputs
    length = _lengths(limit, given)
    if length is None or len(length) != 1 or _number(start) != 0 or _number(step) != 1:
        return None
    return [max(dim, 0) if isinstance(dim, int) else dim for dim in length]


def _number(value: ir.Value | None) -> float | None:
    node = producer_of(value, "Cast", "CastLike")
    return scalar(value if node is None else node.inputs[0])


def _tile(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    source, repeats = _shape_of(node), _lengths(node.inputs[1], given)
    if source is None or repeats is None or len(source) != len(repeats):
        return None
    return [_times(pair, given) for pair in zip(source, repeats, strict=True)]


def _slice(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    source = _shape_of(node)
    starts, ends = (_lengths(input_at(node, place), given) for place in (1, 2))
    if source is None or starts is None or ends is None or len(starts) != len(ends):
        return None
    axes, steps = (constant(input_at(node, place)) for place in (3, 4))
    if (axes is None and input_at(node, 3)) or (steps is None and input_at(node, 4)):
        return None
    found = list(source)
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = place if axes is None else int(axes[place])
        whole = start == 0 and (steps is None or steps[place] == 1)
        length = source[axis]
        if not whole:
            found[axis] = None
        elif length == end or (isinstance(end, int) and end >= _FAR):
            found[axis] = length
        elif isinstance(length, int) and length > 1 and _is_simple(end, given):
            found[axis] = f"{end}{_AT_MOST}{length}"
        else:
            found[axis] = None
    return found


def _pad(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    source, pads = _shape_of(node), constant(input_at(node, 1))
    if source is None or pads is None or input_at(node, 3) is not None:
        return None
    if len(pads) != 2 * len(source):
        return None
    both = pads.reshape(2, -1)
    return [dim if not both[:, axis].any() else None for axis, dim in enumerate(source)]


def _resize(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    source, scales = _shape_of(node), constant(input_at(node, 2))
    if {"axes", "keep_aspect_ratio_policy"} & node.attributes.keys():
        return None
    if input_at(node, 3) is not None:
        return _lengths(input_at(node, 3), given)
    if source is None or scales is None or len(scales) != len(source):
        return None
    return [dim if scale == 1 else None for dim, scale in zip(source, scales, strict=True)]


def _conv(node: ir.Node, given: set[Dim]) -> list[Dim] | None:
    source, weight = _shape_of(node), _shape_of(node, 1)
    if source is None or weight is None or len(source) != len(weight):
        return None
    axes = len(source) - 2
    kernel, pads = weight[2:], node.attributes.get_ints("pads", [0] * 2 * axes)
    strides, dilations = (node.attributes.get_ints(n, [1] * axes) for n in ("strides", "dilations"))
    same = node.attributes.get_string("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    if (len(pads), len(strides), len(dilations)) != (2 * axes, axes, axes):
        return None
    found: list[Dim] = [source[0], weight[0]]
    for axis, size in enumerate(kernel):
        kept = (
            isinstance(size, int)
            and strides[axis] == 1
            and (same or pads[axis] + pads[axes + axis] == dilations[axis] * (size - 1))
        )
        found.append(source[2 + axis] if kept else None)
    return found


_ELEMENTWISE = (
    "Add And BitwiseAnd Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or "
    "Pow Sub Sum Where Xor"
)
_RULES: dict[str, Callable[[ir.Node, set[Dim]], list[Dim] | None]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    "ConstantOfShape": lambda node, given: _lengths(node.inputs[0], given),
    "Conv": _conv,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Tile": _tile,
}
