r"""Gathering and scattering: the gradient of an element is added at the position it came from.

Sums over repeated indices use ScatterElements, or for small tables a product with a one-hot matrix.
ScatterND is not used: the CPU kernel of onnxruntime (at least 1.19 to 1.31) adds from several
threads without a lock and loses updates if indices repeat.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import unknown_rank
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.sizes import (
    INT64,
    Size,
    joined,
    length,
    padded,
    product,
    reshape_like,
    zeros,
)
from ortboost.graph.formulas import Term
from ortboost.graph.query import known_shape
from ortboost.graph.rewriting import Refusal, Site

__all__ = ["add_at", "as_rows"]

# Number of table rows up to which a one-hot product is faster than ScatterElements, measured on a
# CPU with width 16 and 65,536 indices: 1.5 instead of 6.5 ms for 30 rows, 1.6 instead of 0.4 ms
# for 1,000.
_SMALL_TABLE = 64
_SEQUENCE_AXES = {"batch_axis": 1, "time_axis": 0}


refuses("Gather", "GatherND")(lambda node: unknown_rank(node, 0, 1))


@register("Gather")
def gather(b: Backward) -> Gradients:
    """`y = x[..., i, ...]` along an axis: `g` added at the indices `i`.

    For constant consecutive indices, `g` is padded with zeros. Otherwise `x` is reshaped to
    `[before, table, after]`.
    """
    x, g, axis = b.input(0), b.gradient(), b.axis("axis", 0)
    run = _as_run(b, axis)  # no sum is needed where no index repeats
    if run is not None:
        return [run]
    rank, width = b.rank(0), b.rank(1)
    table = length(b, x, axis)
    before = product(b, [length(b, x, i) for i in range(axis)])
    after = product(b, [length(b, x, i) for i in range(axis + 1, rank)])
    count = product(b, [length(b, b.input(1), i) for i in range(width)])
    index = b.input(1)
    if width != 1:
        index = b.op(
            "Reshape", index, b.ints(-1), shape=[count if isinstance(count, int) else None]
        )
    parts = [after] if axis == 0 else [before, after]
    flat_g = b.op("Reshape", g, joined(b, [*parts[:-1], count, parts[-1]]), allowzero=1)
    base = [*parts[:-1], table, parts[-1]]
    summed = add_at(b, base, index, flat_g, axis=len(base) - 2)
    return [reshape_like(b, summed, x)]


def _as_run(b: Backward, axis: int) -> ir.Value | None:
    """The gradient if the indices are constant and consecutive, as in `x[:, 0]`; else None."""
    indices, x, g = b.array(1), b.input(0), b.gradient()
    shape = known_shape(x) or ()
    size = shape[axis]
    if indices is None or indices.ndim > 1 or indices.size == 0:
        return None
    flat = [int(index) for index in indices.reshape(-1)]
    if isinstance(size, int):
        flat = [index + size if index < 0 else index for index in flat]
    steps = set(np.diff(flat).tolist())
    if not steps <= {1} or (flat[0] < 0 <= flat[-1]):  # -1, 0: the last and the first
        return None
    if indices.ndim == 0:
        dims_of_g = [*shape[:axis], 1, *shape[axis + 1 :]]
        g = b.op("Unsqueeze", g, b.ints(axis), shape=dims_of_g)
    taken = len(flat)
    if flat[0] >= 0:
        behind = length(b, x, axis)
        if isinstance(behind, int):
            pads: list[Size] = [flat[0], behind - flat[0] - taken]
        else:
            pads = [flat[0], b.op("Sub", behind, b.ints(flat[0] + taken))]
    else:  # counted from the end of an unknown length
        front = b.op("Add", joined(b, [length(b, x, axis)]), b.ints(flat[0]))
        pads = [front, -flat[0] - taken]
    if pads == [0, 0]:
        return g
    return padded(b, g, {axis: (pads[0], pads[1])}, len(shape), x.shape)


def add_at(b: Site, base: list[Size], index: ir.Value, updates: ir.Value, *, axis: int) -> ir.Value:
    """Zeros of shape `base`, with slices of `updates` added at indices of an axis.

    ``base`` is `[table, after]` or `[before, table, after]`; the indices are `[count]`, negative
    ones count from the end; ``updates`` has `count` in place of `table`, which is the length of the
    axis.
    """
    kind = updates.dtype or b.dtype
    table = base[axis]
    shape = known_shape(index)
    count = shape[0] if shape else None
    has_kernel = kind in (ir.DataType.FLOAT, ir.DataType.FLOAT16)  # of OneHot
    if isinstance(table, int) and 0 < table <= _SMALL_TABLE and count != 0 and has_kernel:
        one = b.builder.const([0.0, 1.0], kind)
        index = b.cast(index, INT64)  # the only type the kernel supports
        hot = b.op("OneHot", index, b.ints(table), one, axis=0, dtype=kind)  # [table, count]
        return b.op("MatMul", hot, updates)
    # ScatterElements needs an index for each element, not for each slice.
    empty = b.filled(0, joined(b, base), kind)
    column = b.op("Unsqueeze", index, b.ints(1))  # [count, 1]
    full = b.op("Expand", column, b.shape_of(updates))
    return b.op("ScatterElements", empty, full, updates, axis=axis, reduction="add")


@register("GatherElements")
def gather_elements(b: Backward) -> Gradients:
    """`y[.., j, ..] = x[.., i[.., j, ..], ..]`: `g` added at the indices `i`."""
    x, g, axis = b.input(0), b.gradient(), b.integer("axis", 0)
    options = {"axis": axis, "reduction": "add", "shape": x.shape}
    return [b.op("ScatterElements", zeros(b, x), b.input(1), g, **options)]


@register("GatherND")
def gather_nd(b: Backward) -> Gradients:
    """`y[batch, j] = x[batch, i[batch, j]]`: slices of `g` added at the indices `i`."""
    x, g = b.input(0), b.gradient()
    batch = b.integer("batch_dims", 0)
    base, index, updates = as_rows(b, x, b.input(1), g, batch)
    return [reshape_like(b, add_at(b, base, index, updates, axis=0), x)]


def as_rows(
    b: Site, x: ir.Value, indices: ir.Value, updates: ir.Value, batch: int = 0
) -> tuple[list[Size], ir.Value, ir.Value]:
    """Flatten indices over several axes to row indices: table shape, indices, rows."""
    shape, own = known_shape(indices) or (), known_shape(x) or ()
    depth = shape[-1]
    if not isinstance(depth, int):
        raise Refusal("the last dimension of its indices is unknown; export with fixed shapes")
    sizes = [length(b, x, axis) for axis in range(len(own))]
    picked = sizes[batch : batch + depth]
    rows = product(b, sizes[: batch + depth])
    width = product(b, sizes[batch + depth :])
    index = b.cast(indices, INT64)  # [batch..., ..., depth]
    negative = b.op("Less", index, b.ints(0))
    counted = b.op("Add", index, joined(b, picked))  # from the end
    index = b.op("Where", negative, counted, index)
    # Row-major: the place along an axis counts the product of the lengths after it.
    strides = joined(b, [product(b, picked[place + 1 :]) for place in range(depth)])
    flat = b.op("ReduceSum", b.op("Mul", index, strides), b.ints(-1), keepdims=0)
    if batch:  # add the index of the first row of each entry of the batch
        number = product(b, sizes[:batch])
        end = b.op("Squeeze", joined(b, [number]), b.ints(0))
        zero, one = (b.builder.const(n, INT64) for n in (0, 1))
        first = b.op("Range", zero, end, one)
        first = b.op("Mul", first, joined(b, [product(b, picked)]))
        apart = b.op("Unsqueeze", first, b.ints(1))
        flat = b.op("Reshape", flat, joined(b, [number, -1]))
        flat = b.op("Add", flat, apart)
    flat = b.op("Reshape", flat, b.ints(-1))
    count = product(b, [length(b, indices, axis) for axis in range(len(shape) - 1)])
    table = b.op("Reshape", updates, joined(b, [count, width]), allowzero=1)
    return [rows, width], flat, table


@refuses("GatherND", "ScatterND")
def _nd_refused(node: ir.Node) -> str | None:
    found = unknown_rank(node, 0, 1)
    if found:
        return found
    shape = known_shape(node.inputs[1]) if node.inputs[1] is not None else None
    if not shape or not isinstance(shape[-1], int):
        return "the last dimension of its indices is unknown; export with fixed shapes"
    return None


@register("ScatterElements", "ScatterND")
def scatter(b: Backward) -> Gradients:
    """`y = x` with elements or slices `u` written (or added) at the indices `i`.

    `gu = g[i]`; `gx = g`, with 0 at overwritten indices. ONNX does not allow repeated indices
    without a reduction.
    """
    g, index, op_type = b.gradient(), b.input(1), b.node.op_type
    options = {} if op_type == "ScatterND" else {"axis": b.integer("axis", 0)}
    reduction = b.text("reduction", "none")
    if reduction in ("max", "min"):
        return _scatter_extremum(b, options)
    if reduction == "mul":
        return _scatter_product(b, options)
    gx, gu = None, None
    if b.needs_gradient(0):
        gx = g
        # With addition, every element of x stays in y.
        if reduction == "none":
            nothing = zeros(b, b.input(2), b.dtype)
            gx = b.op(op_type, g, index, nothing, shape=b.input(0).shape, **options)
    if b.needs_gradient(2):
        gather_type = op_type.replace("Scatter", "Gather")
        gu = b.op(gather_type, g, index, shape=b.input(2).shape, **options)
    return [gx, None, gu]


def _scatter_extremum(b: Backward, options: dict[str, int]) -> Gradients:
    """`y = max(x, u at i)`: `g / n` where `x = y` and where `u = y[i]`, with n such elements.

    Equal elements share the gradient, as in ``torch.scatter_reduce``.
    """
    x, index, u, y = b.input(0), b.input(1), b.input(2), b.output()
    scatter_type = b.node.op_type
    gather_type = scatter_type.replace("Scatter", "Gather")
    reached = b.op(gather_type, y, index, shape=u.shape, **options)
    from_x = b.op("Equal", x, y, shape=x.shape)
    from_u = b.op("Equal", u, reached, shape=u.shape)
    ones = {"reduction": "add", "shape": x.shape, **options}
    count = b.op(scatter_type, b.cast(from_x), index, b.cast(from_u), **ones)
    share = b.op("Div", b.gradient(), count, shape=x.shape)
    picked = b.op(gather_type, share, index, shape=u.shape, **options)
    return [b.masked(from_x, share), None, b.masked(from_u, picked)]


def _scatter_product(b: Backward, options: dict[str, int]) -> Gradients:
    """`y = x * product of u at i`: `g` times the product of the other factors, even with zeros.

    As for ReduceProd, with `z` zeros among the factors of an element and `q` the product of those
    that are not 0: `g q / f` where a factor `f` is not 0 and z = 0, `g q` where f = 0 and z = 1.
    """
    index, scatter_type = b.input(1), b.node.op_type
    gather_type = scatter_type.replace("Scatter", "Gather")
    inputs = [Term(b, b.input(place)) for place in (0, 2)]
    are_zero = [f.call("Equal", 0.0) for f in inputs]
    factors = [zero.where(1.0, f) for f, zero in zip(inputs, are_zero, strict=True)]

    def scattered(reduction: str, x: ir.Value, u: ir.Value) -> Term:
        made = b.op(scatter_type, x, index, u, reduction=reduction, shape=x.shape, **options)
        return Term(b, made)

    zeros = scattered("add", *(b.cast(zero.value) for zero in are_zero))
    scaled = scattered("mul", *(f.value for f in factors)) * b.gradient()

    def only(count: float, shape: ir.Shape | None) -> list[Term]:
        found = zeros.call("Equal", count).where(scaled, 0.0)
        return [found, Term(b, b.op(gather_type, found.value, index, shape=shape, **options))]

    shape = b.input(2).shape
    none, one = only(0.0, shape), only(1.0, shape)
    gx, gu = (
        zero.where(alone, others / f).value
        for zero, alone, others, f in zip(are_zero, one, none, factors, strict=True)
    )
    return [gx, None, gu]


@register("ReverseSequence")
def reverse_sequence(b: Backward) -> Gradients:
    """`y` is `x` with the first steps of each sequence in reverse: so is `gx` of `g`."""
    x = b.input(0)
    options = {name: b.integer(name, default) for name, default in _SEQUENCE_AXES.items()}
    return [b.op("ReverseSequence", b.gradient(), b.input(1), shape=x.shape, **options)]


@register("TopK")
def top_k(b: Backward) -> Gradients:
    """`y, i = the k largest of x`: `g` written into zeros at the distinct indices `i`."""
    empty, axis = zeros(b, b.input(0)), b.integer("axis", -1)
    index = b.extra_output(1, INT64, b.output().shape)
    return [b.op("ScatterElements", empty, index, b.gradient(), axis=axis, shape=b.input(0).shape)]
