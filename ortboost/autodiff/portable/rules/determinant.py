r"""Determinants of matrices.

Shapes: `x` ``[..., n, n]``, `y` and `g` ``[...]``. Source: Petersen, Pedersen, "The Matrix
Cookbook", 2012, equation 49, with the cofactors of equation 146.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.graph.query import known_shape

__all__: list[str] = []

_LARGEST = 64  # rows; the rule computes a determinant for each element


@refuses("Det")
def _size_unknown(node: ir.Node) -> str | None:
    size = _size(node)
    if size is None:
        return "the size of its matrices is unknown; export with fixed shapes"
    return f"matrices of more than {_LARGEST} rows are not supported" if size > _LARGEST else None


@register("Det")
def det(b: Backward) -> Gradients:
    """`y` is the determinant of `x`: `gx = g cof(x)`, right for singular matrices, too.

    The cofactor of an element is the determinant of `x` with a unit vector in place of its row.
    """
    n = _size(b.node)
    if n is None:  # checked by the condition
        raise TypeError("Det of unknown size")
    x, rows, columns = b.input(0), np.eye(n).reshape(n, 1, n, 1), np.eye(n).reshape(1, n, 1, n)
    rank = len(x.shape or ())
    inner = b.ints(rank - 2, rank - 1)
    others = b.op("Mul", b.op("Unsqueeze", x, inner), b.const(1 - rows))
    cofactors = b.op("Det", b.op("Add", others, b.const(rows * columns)))
    return [b.op("Mul", b.op("Unsqueeze", b.gradient(), inner), cofactors, shape=x.shape)]


def _size(node: ir.Node) -> int | None:
    shape = None if node.inputs[0] is None else known_shape(node.inputs[0])
    return next((n for n in (shape or ())[-2:] if isinstance(n, int)), None)
