r"""DFT as a product with the matrix of the transform.

With `N` values along the axis, a transform of length `L` and `M = min(N, L)`:

    y[k] = c * sum over n < M of x[n] * exp(-+ 2 pi i k n / L),  c = 1, or 1 / L for the inverse

The standard stores real and imaginary part in the last axis
(https://onnx.ai/onnx/operators/onnx__DFT.html), so real and imaginary part of `y` are the product
of one real matrix with those of `x`. It takes `O(N L)` operations per transform, not
`O(L log L)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []

_AXIS_IS_INPUT = 20  # opset
_LARGEST = 1 << 26  # elements of the matrix


@decomposes("DFT")
def _dft(site: Site) -> list[ir.Value | None]:
    """A product with the matrix of the transform, ``O(length^2)``; the length has to be fixed."""
    rank, shape = site.rank(), site.shape()
    if site.opset >= _AXIS_IS_INPUT:
        given = site.array(2) if site.optional(2) is not None else np.array(-2)
        if given is None:
            raise Refusal("its axis is not constant")
        axis = int(given.reshape(-1)[0]) % rank
    else:
        axis = site.axis("axis", 1)
    values, parts = shape[axis], shape[-1]
    length = values if site.optional(1) is None else site.array(1)
    if not isinstance(values, int) or length is None or isinstance(length, str):
        raise Refusal("it transforms an axis of unknown length; fix the length (--dim NAME=LENGTH)")
    if parts not in (1, 2):
        raise Refusal("it is not known whether its input is real or complex")
    inverse, onesided = bool(site.integer("inverse", 0)), bool(site.integer("onesided", 0))
    if inverse and onesided:
        raise Refusal("an inverse transform of one side")
    count = int(np.asarray(length).reshape(-1)[0])
    kept = count // 2 + 1 if onesided else count
    if values * parts * kept * 2 > _LARGEST:
        raise Refusal(f"a transform of {count} values is too long to be a product with a matrix")
    matrix = _matrix(values, count, kept, parts, inverse=inverse)

    order = [i for i in range(rank - 1) if i != axis] + [axis, rank - 1]
    turned = site.op("Transpose", site.input(0), perm=order)
    lead = [0] * (rank - 2)  # 0 keeps a dimension
    rows = site.op("Reshape", turned, site.ints(*lead, values * parts))
    product = site.op("MatMul", rows, site.const(matrix, site.dtype))
    result = site.op("Reshape", product, site.ints(*lead, kept, 2))
    back = [order.index(i) for i in range(rank)]
    return [site.op("Transpose", result, perm=back)]


def _matrix(
    values: int, count: int, kept: int, parts: int, *, inverse: bool
) -> NDArray[np.floating[Any]]:
    """The matrix from `[values, parts]` to `[kept, 2]`, both flattened."""
    n, k = np.arange(values)[:, None], np.arange(kept)[None, :]
    angle = (2 * np.pi / count) * ((n * k) % count)  # reduced: exact for long transforms
    cos, sin = np.cos(angle), np.sin(angle) * (-1.0 if inverse else 1.0)
    used = (n < count) / (count if inverse else 1)
    real = np.stack([cos, -sin], -1)  # of a real x
    imaginary = np.stack([sin, cos], -1)
    matrix = np.stack([real, imaginary][:parts], 1) * used[..., None, None]
    return matrix.reshape(values * parts, kept * 2)
