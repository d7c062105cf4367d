r"""Gradients of matrix products."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.conditions import unknown_rank
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.sizes import Size, joined, length, reshape_like
from ortboost.graph.query import known_shape

__all__: list[str] = []


@register("Gemm")
def gemm(b: Backward) -> Gradients:
    r"""`y = alpha A' B' + beta C`, with `A'`, `B'` transposed or not.

        gA' = alpha g B'^T    gB' = alpha A'^T g    gC = beta g, summed to the shape of C

    or their transposes if the input was transposed; each is one Gemm without a Transpose.
    """
    g, left, right = b.gradient(), b.input(0), b.input(1)
    alpha, beta = b.number("alpha", 1.0), b.number("beta", 1.0)
    ta, tb = b.integer("transA", 0), b.integer("transB", 0)

    def product(x: ir.Value, y: ir.Value, tx: int, ty: int, like: ir.Value) -> ir.Value:
        return b.op("Gemm", x, y, alpha=alpha, transA=tx, transB=ty, shape=like.shape)

    grads: list[ir.Value | None] = [None, None, None]
    if b.needs_gradient(0):
        grads[0] = product(right, g, tb, 1, left) if ta else product(g, right, 0, 1 - tb, left)
    if b.needs_gradient(1):
        grads[1] = product(g, left, 1, ta, right) if tb else product(left, g, 1 - ta, 0, right)
    if b.needs_gradient(2):
        scaled = g if beta == 1.0 else b.op("Mul", g, b.const(beta), shape=b.output().shape)
        grads[2] = b.sum_to_shape(scaled, b.input(2))
    return grads


refuses("MatMul")(lambda node: unknown_rank(node, 0, 1))


@register("MatMul")
def matmul(b: Backward) -> Gradients:
    r"""`y = a c`; a vector is treated as a matrix of one row or column.

        ga = g c^T    gc = a^T g

    summed over the batch axes along which the input was broadcast. If `c` is one matrix for the
    whole batch, the batch is flattened into the rows of one product: `ga = [g] c^T`, `gc = [a]^T
    [g]`.
    """
    g, left, right = b.gradient(), b.input(0), b.input(1)
    ranks = (b.rank(0), b.rank(1))
    if ranks[1] == 2 and ranks[0] >= 2:  # a linear layer: no sum over the batch afterwards
        return _one_matrix(b)
    shapes = [list(known_shape(value) or ()) for value in (left, right)]
    gone = []
    if ranks[0] == 1:
        left = b.op("Unsqueeze", left, b.ints(0), shape=[1, *shapes[0]])
        gone.append(-2)
    if ranks[1] == 1:
        right = b.op("Unsqueeze", right, b.ints(1), shape=[*shapes[1], 1])
        gone.append(-1)
    if gone:  # the product lacks the axes of vectors
        g = b.op("Unsqueeze", g, b.ints(*gone))
    grads: list[ir.Value | None] = []
    for own, index in ((left, 0), (right, 1)):
        if not b.needs_gradient(index):
            grads.append(None)
            continue
        if index == 0:
            grown = b.op("MatMul", g, _transposed(b, right, max(ranks[1], 2)))
        else:
            grown = b.op("MatMul", _transposed(b, left, max(ranks[0], 2)), g)
        grown.shape = _batched(b, own, grown)  # without it, the sum would be found at run time
        summed = b.sum_to_shape(grown, own)
        given = b.input(index)
        grads.append(summed if own is given else reshape_like(b, summed, given))
    return grads


def _batched(b: Backward, own: ir.Value, grown: ir.Value) -> ir.Shape | None:
    """Shape of a gradient before it is summed: batch of the output, matrix of the input."""
    output, mine = known_shape(b.output()), known_shape(own)
    if output is None or mine is None:
        return grown.shape
    vectors = sum(1 for index in (0, 1) if b.rank(index) == 1)
    return ir.Shape([*output[: len(output) - 2 + vectors], *mine[-2:]])


def _transposed(b: Backward, value: ir.Value, rank: int) -> ir.Value:
    perm = [*range(rank - 2), rank - 1, rank - 2]
    shape = known_shape(value)
    transposed = None if shape is None else [shape[axis] for axis in perm]
    return b.op("Transpose", value, perm=perm, shape=transposed)


def _one_matrix(b: Backward) -> Gradients:
    """`a` of rank 2 or more and a matrix `c`: two Gemms on `[rows, k]` and `[rows, n]`."""
    g, left, right = b.gradient(), b.input(0), b.input(1)
    flat_g = _rows(b, g, length(b, right, 1), b.rank(0))
    grads: list[ir.Value | None] = [None, None]
    if b.needs_gradient(0):
        product = b.op("Gemm", flat_g, right, transB=1)
        if b.rank(0) == 2:
            product.shape = left.shape
        grads[0] = product if b.rank(0) == 2 else reshape_like(b, product, left)
    if b.needs_gradient(1):
        flat = _rows(b, left, length(b, right, 0), b.rank(0))
        grads[1] = b.op("Gemm", flat, flat_g, transA=1, shape=right.shape)
    return grads


def _rows(b: Backward, value: ir.Value, columns: Size, rank: int) -> ir.Value:
    """`[..., n]` as `[rows, n]`."""
    if rank == 2:
        return value
    if columns == 0:  # -1 would be ambiguous
        return b.op("Flatten", value, axis=rank - 1)
    return b.op("Reshape", value, joined(b, [-1, columns]))
