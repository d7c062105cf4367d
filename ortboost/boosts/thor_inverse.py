r"""Inverses of damped factors, computed with matrix products and elementwise operators only.

ONNX has no operator that inverts or factorizes a matrix. Let `A` be symmetric, positive definite
and float64; `[count, n, n]` matrices are inverted together.

**Halves.** Recurse with the blockwise inverse (Schur complement) until a matrix has 32 rows:

    [A11  A12]^-1    [X11 + B X22 B^T   -B X22]         X11 = A11^-1,   B = X11 A12
    [A21  A22]     = [   -(B X22)^T        X22],        X22 = (A22 - A21 B)^-1

`B` is refined once, `B <- B + X11 (A12 - A11 B)`: a factor estimated from few samples has low
rank, so that the Schur complement may be as small as the damping, and an error of `B` would
dominate it. Then one Newton step, `X <- X (2 I - A X)`, recovers the digit that each level loses.

**Leaves.** Newton-Schulz, with the optimal step for eigenvalues of `A X` between `m` and `2 - m`:

    X <- c X (2 I - A X),     c = 2 / (1 + m (2 - m)),     m <- c m (2 - m)

`m` starts from known bounds of the spectrum: the damping, and the largest absolute row sum. Both
also hold for Schur complements. While `m` is small, each step multiplies it by about four; after
that, each step squares the error. 18 steps suffice for condition numbers up to 1e8. For 128 rows,
the total cost is `7.2 n^3` multiply-accumulates; Newton-Schulz on the whole matrix would need
`37 n^3`.

**Check.** `X` is accepted if `|A X - I| <= 1e-5` in the Frobenius norm, which bounds its relative
error. float32 would not be sufficient: a condition number of 1e6 leaves one digit.

Sources: Higham, "Functions of Matrices", 2008, sections 5.3 and 7.3 (Newton-Schulz); Pan and
Schreiber, "An improved Newton iteration for the generalized inverse of a matrix", 1991 (the scaled
step); Boyd and Vandenberghe, "Convex Optimization", 2004, appendix A.5.5 (Schur complement).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.formulas import Term

__all__ = [
    "ACCURACY",
    "LEAF",
    "Factor",
    "damped_inverses",
    "inverse_cost",
    "inverted_factors",
    "padded_rows",
    "split_stack",
]

LEAF: Final = 32
"""Maximum rows of a matrix inverted by Newton-Schulz; larger sizes are multiples of it."""
ACCURACY: Final = 1e-5
"""Bound on the relative error of an accepted inverse."""

_STEPS: Final = 18
_SMALLEST: Final = 2e-8  # lower limit of m, for which the steps suffice
_DOUBLE, _FLOAT = ir.DataType.DOUBLE, ir.DataType.FLOAT


@dataclass(frozen=True)
class Factor:
    """A factor to be inverted.

    Args:
        key: Names of the weight and the side.
        shape: ``(blocks, rows, rows)``.
        blocks: The blocks of the factor, float32, of this shape.
        damping: Added to the diagonal, float64 scalar.
        gain: A factor for the inverses; ``None`` for 1.
    """

    key: tuple[str, str]
    shape: tuple[int, ...]
    blocks: ir.Value
    damping: ir.Value
    gain: ir.Value | None


def padded_rows(size: int) -> int:
    """Rows to which a block is padded: few distinct sizes, so few chains of nodes."""
    # 16, 32, 64, 96, 128, and then multiples of 128.
    step = LEAF // 2 if size <= LEAF // 2 else LEAF if size <= 4 * LEAF else 4 * LEAF
    return step * -(-size // step)


def inverted_factors(
    b: Builder, factors: Sequence[Factor], size: int, places: ir.Value | None = None
) -> tuple[ir.Value, ir.Value]:
    """Invert the blocks of factors, numbered in this order, in one batched chain of products.

    All blocks are padded to ``size`` rows, see :func:`padded_rows`. ``places`` are the numbers of
    the blocks to invert, an int64 vector; ``None`` for all. The results are those of
    :func:`damped_inverses`, in float32.
    """
    matrices, dampings, gains = [], [], []
    for factor in factors:
        missing = size - factor.shape[1]
        padding = b.ints(0, 0, 0, 0, missing, missing)
        matrices.append(b.op("Pad", factor.blocks, padding) if missing else factor.blocks)
        each = b.ints(factor.shape[0], 1, 1)
        dampings.append(b.op("Expand", factor.damping, each))
        gain = b.const(1.0) if factor.gain is None else factor.gain
        gains.append(b.op("Expand", gain, each))

    def chosen(parts: Sequence[ir.Value]) -> ir.Value:
        joined = b.combined("Concat", parts, axis=0)
        return joined if places is None else b.op("Gather", joined, places, axis=0)

    stack = b.cast(chosen(matrices), _DOUBLE)
    inverses, accurate = damped_inverses(b, stack, size, chosen(dampings))
    if any(factor.gain is not None for factor in factors):
        inverses = b.op("Mul", inverses, b.cast(chosen(gains), _DOUBLE))
    return b.cast(inverses, _FLOAT), accurate


def split_stack(b: Builder, factors: Sequence[Factor], stack: ir.Value) -> list[ir.Value]:
    """Split the stack of all inverses into those of each factor, without padding."""
    found, start = [], 0
    for factor in factors:
        count, rows, _ = factor.shape
        starts, ends = b.ints(start, 0, 0), b.ints(start + count, rows, rows)
        found.append(b.op("Slice", stack, starts, ends, b.ints(0, 1, 2), shape=factor.shape))
        start += count
    return found


def damped_inverses(
    b: Builder, matrices: ir.Value, size: int, damping: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Append nodes for `(A + d I)^-1`.

    The matrices are float64 ``[count, size, size]``, symmetric and positive semidefinite, of at
    most :data:`LEAF` rows or a multiple of it; the damping `d > 0` is float64 ``[count, 1, 1]``.

    Returns:
        The inverses, float64 ``[count, size, size]``, and whether each is accurate, bool
        ``[count, 1, 1]``. Inverses that are not accurate have arbitrary values, including NaN.
    """
    eye = _eye(b, size)
    damped = b.op("Add", matrices, b.op("Mul", eye, damping))
    # The bounds of the spectrum: the damping, and the largest absolute row sum (Gershgorin).
    rows = b.op("ReduceSum", b.op("Abs", damped), b.ints(-1), keepdims=1)
    largest = b.op("ReduceMax", rows, b.ints(-2), keepdims=1)
    start, steps = _steps(b, damping, largest)
    inverse = _inverse(b, damped, size, start, steps)
    # The check, squared: no root is needed to compare.
    error = b.op("Sub", b.op("MatMul", damped, inverse), eye)
    square = b.op("ReduceSumSquare", error, b.ints(-2, -1), keepdims=1)
    bound = b.const(ACCURACY**2, _DOUBLE)
    accurate = b.op("LessOrEqual", square, bound)  # false for NaN
    return inverse, accurate


def inverse_cost(size: int) -> int:
    """Multiply-accumulates for inverting one matrix, including the check.

    Example:
        >>> inverse_cost(128) / 128**3
        7.15625
    """
    return size**3 + _cost(size)


def _cost(size: int) -> int:
    if size <= LEAF:
        return 2 * _STEPS * size**3
    top = _half(size)
    low = size - top
    # Seven products of [top, top] by [top, low], and two of [top, low] by [low, low].
    halves = top * low * (7 * top + 2 * low)
    return _cost(top) + _cost(low) + halves + 2 * size**3


def _half(size: int) -> int:
    # The upper half is rounded up to whole leaves.
    return LEAF * -(-size // (2 * LEAF))


def _steps(b: Builder, smallest: ir.Value, largest: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
    """The scale of the initial guess, and `c` of each step, all ``[count, 1, 1]``."""
    low = Term(b, smallest)
    # X = start I gives eigenvalues of A X between m = smallest start and 2 - m.
    start = Term(b, b.const(2.0, _DOUBLE)) / (low + largest)
    m = (low * start).call("Max", _SMALLEST)
    found = []
    for _ in range(_STEPS):
        reached = m * (2.0 - m)
        found.append(Term(b, b.const(2.0, _DOUBLE)) / (reached + 1.0))
        m = found[-1] * reached
    return start.value, [step.value for step in found]


def _inverse(
    b: Builder, a: ir.Value, size: int, start: ir.Value, steps: list[ir.Value]
) -> ir.Value:
    if size <= LEAF:
        return _newton_schulz(b, a, size, start, steps)
    top = _half(size)
    sizes = b.ints(top, size - top)
    upper, lower = b.ops("Split", a, sizes, names=[None, None], axis=1)
    a11, a12 = b.ops("Split", upper, sizes, names=[None, None], axis=2)
    a21, a22 = b.ops("Split", lower, sizes, names=[None, None], axis=2)
    # The bounds of the spectrum hold for both halves, so the steps are shared.
    x11 = Term(b, _inverse(b, a11, top, start, steps))
    product = x11 @ a12  # B, and its refinement
    product = product + x11 @ (Term(b, a12) - Term(b, a11) @ product)
    # B^T is computed anew: onnxruntime would fuse a Transpose into a MatMul that exists only in
    # float32.
    turned = Term(b, a21) @ x11
    turned = turned + (Term(b, a21) - turned @ a11) @ x11
    schur = Term(b, a22) - Term(b, a21) @ product
    x22 = Term(b, _inverse(b, schur.value, size - top, start, steps))
    x12 = -(product @ x22)
    above = (x11 - x12 @ turned).call("Concat", x12, axis=2)
    below = x12.call("Transpose", perm=[0, 2, 1]).call("Concat", x22, axis=2)
    x = above.call("Concat", below, axis=1)
    return (x + x @ (Term(b, _eye(b, size)) - Term(b, a) @ x)).value  # the Newton step


def _newton_schulz(
    b: Builder, a: ir.Value, size: int, start: ir.Value, steps: list[ir.Value]
) -> ir.Value:
    twice = Term(b, b.const(2 * np.eye(size)[None], _DOUBLE))
    x = Term(b, _eye(b, size)) * start
    for factor in steps:
        x = x @ (twice - Term(b, a) @ x) * factor
    return x.value


def _eye(b: Builder, size: int) -> ir.Value:
    return b.const(np.eye(size)[None], _DOUBLE)
