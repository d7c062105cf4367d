r"""DFT as a product with the matrix of the transform, STFT as a convolution with its windowed rows.

With `N` values along the axis, a transform of length `L` and `M = min(N, L)`:

    y[k] = c * sum over n < M of x[n] * exp(-+ 2 pi i k n / L),  c = 1, or 1 / L for the inverse

The inverse transform of one side, `N = floor(L / 2) + 1`, has a real result: the other side of the
spectrum is the conjugate of this one, so each value but the first, and the last if `L` is even,
counts twice, and the real part remains.

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
from ortboost.autodiff.sizes import length
from ortboost.core.report import Report
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes

__all__ = ["write_out_real_inverses"]

_AXIS_IS_INPUT = 20  # opset
_LARGEST = 1 << 26  # elements of the matrix


@decomposes("DFT")
def _dft(site: Site) -> list[ir.Value | None]:
    """A product with the matrix of the transform, ``O(length^2)``."""
    rank, shape = site.rank(), site.shape()
    if site.opset >= _AXIS_IS_INPUT:
        place = site.array(2) if site.optional(2) is not None else np.array(-2)
        if place is None:
            raise Refusal("its axis is not constant")
        axis = int(place.reshape(-1)[0]) % rank
    else:
        axis = site.axis("axis", 1)
    parts = shape[-1]
    if parts not in (1, 2):
        raise Refusal("it is not known whether its input is real or complex")
    inverse, onesided = bool(site.integer("inverse", 0)), bool(site.integer("onesided", 0))
    values, given = shape[axis], site.array(1)
    # The default length is that of the axis, or of the signal that a one-sided spectrum is from.
    if site.optional(1) is None and isinstance(values, int):
        given = np.array(2 * (values - 1) if inverse and onesided else values)
    if isinstance(values, int) and given is not None:
        count = int(given.reshape(-1)[0])
        kept = count // 2 + 1 if onesided else count
        if values * parts * kept * 2 > _LARGEST:
            raise Refusal(f"a transform of {count} values is too long for a product with a matrix")
        if inverse and onesided:
            array = _matrix_of_one_side(values, count, parts)
        else:
            array = _matrix(values, count, kept, parts, inverse=inverse)
        matrix = site.const(array, site.dtype)
    elif inverse and onesided:
        raise Refusal("a one-sided inverse transform of unknown length")
    else:
        matrix = _matrix_at_run_time(site, axis, parts, inverse=inverse, onesided=onesided)

    # The axis and the parts become one, [..., N * parts], for the product.
    order = [i for i in range(rank - 1) if i != axis] + [axis, rank - 1]
    turned = _transposed(site, site.input(0), order)
    lead = [0] * (rank - 2)  # 0 keeps a dimension
    rows = site.op("Reshape", turned, site.ints(*lead, -1))
    product = site.op("MatMul", rows, matrix)
    result = site.op("Reshape", product, site.ints(*lead, -1, 1 if inverse and onesided else 2))
    return [_transposed(site, result, [order.index(i) for i in range(rank)])]


@decomposes("STFT")
def _stft(site: Site) -> list[ir.Value | None]:
    """A convolution with windowed sines and cosines, ``O(length)`` per frequency and frame."""
    signal, step, window = site.input(0), site.array(1), site.optional(2)
    shape = site.shape()
    if len(shape) == 3 and shape[2] != 1:
        raise Refusal("it is not known whether its signal is real or complex")
    given = site.array(3) if site.optional(3) is not None else None
    size = given if given is not None or window is None else np.array(site.shape(2)[0])
    if step is None or size is None or size.dtype.kind != "i":
        raise Refusal("its frame step or frame length is not constant")
    count = int(size.reshape(-1)[0])
    kept = count // 2 + 1 if site.integer("onesided", 1) else count
    if count * kept * 2 > _LARGEST:
        raise Refusal(f"a transform of {count} values is too long for a product with a matrix")
    # [2 * kept, 1, count]: real and imaginary part of each frequency are channels.
    waves = _matrix(count, count, kept, 1, inverse=False).T[:, None]
    kernel = site.const(waves, site.dtype)
    if window is not None:
        kernel = site.op("Mul", kernel, window, shape=waves.shape)
    row = site.op("Reshape", signal, site.ints(0, 1, -1))
    channels = site.op("Conv", row, kernel, strides=[int(step.reshape(-1)[0])])
    frames = site.op("Transpose", channels, perm=[0, 2, 1])
    return [site.op("Reshape", frames, site.ints(0, 0, kept, 2))]


def write_out_real_inverses(model: ir.Model) -> Report:
    """Decompose inverse transforms of one side, in place, also where no gradient passes.

    Evaluation needs it, too: onnxruntime 1.19 does not open a model with such a transform. The
    shapes of the normalized model have been inferred. The rewrite is idempotent.
    """

    def is_real_inverse(node: ir.Node) -> bool:
        return all(node.attributes.get_int(name, 0) for name in ("inverse", "onesided"))

    return rewrite_nodes(model, "write_out_real_inverses", {"DFT": _dft}, only=is_real_inverse)


def _transposed(site: Site, value: ir.Value, order: list[int]) -> ir.Value:
    return value if order == sorted(order) else site.op("Transpose", value, perm=order)


def _matrix_at_run_time(
    site: Site, axis: int, parts: int, *, inverse: bool, onesided: bool
) -> ir.Value:
    """The matrix for lengths that are known only when the step runs; see :func:`_matrix`."""
    int64 = ir.DataType.INT64
    zero, one = site.const(0, int64), site.const(1, int64)
    values = length(site, site.input(0), axis)
    size = values if isinstance(values, ir.Value) else site.ints(values)
    rows = site.op("Reshape", size, site.ints())  # a scalar, as Range needs it
    count = rows
    if site.optional(1) is not None:
        given = site.cast(site.input(1), int64)
        count = site.op("Reshape", given, site.ints())
    kept = count
    if onesided:
        kept = site.op("Add", site.op("Div", count, site.const(2, int64)), one)
    n = site.op("Unsqueeze", site.op("Range", zero, rows, one), site.ints(1))
    k = site.op("Unsqueeze", site.op("Range", zero, kept, one), site.ints(0))
    # Whole turns are dropped as integers: float32 would lose the angle of a long transform.
    turns = site.cast(site.op("Mod", site.op("Mul", n, k), count), site.dtype)
    angle = site.op("Div", site.op("Mul", turns, site.const(2 * np.pi)), site.cast(count))
    cos, sin = site.op("Cos", angle), site.op("Sin", angle)
    minus = site.op("Neg", sin)
    if inverse:
        sin, minus = minus, sin
    last, middle = site.ints(-1), site.ints(1)
    # Column pairs (real, imaginary) of the result, for the real and the imaginary part of x.
    pairs = []
    for pair in ((cos, minus), (sin, cos))[:parts]:
        columns = [site.op("Unsqueeze", value, last) for value in pair]
        pairs.append(site.op("Unsqueeze", site.op("Concat", *columns, axis=-1), middle))
    matrix = site.op("Flatten", site.op("Concat", *pairs, axis=1), axis=2)
    # Values beyond the length of the transform are ignored.
    used = site.cast(site.op("Less", n, count))
    if inverse:
        used = site.op("Div", used, site.cast(count))
    each = site.op("Expand", used, site.ints(1, parts)) if parts > 1 else used
    return site.op("Mul", matrix, site.op("Reshape", each, site.ints(-1, 1)))


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


def _matrix_of_one_side(values: int, count: int, parts: int) -> NDArray[np.floating[Any]]:
    """The matrix from one side of a spectrum, `[values, 2]` flattened, to `[count]` real values."""
    if parts != 2 or values != count // 2 + 1:
        raise Refusal(f"{values} one-sided values for {count} samples: runtimes disagree")
    k, n = np.arange(values)[:, None], np.arange(count)[None, :]
    angle = (2 * np.pi / count) * ((n * k) % count)
    times = np.where((k == 0) | (2 * k == count), 1, 2) / count
    return np.stack([times * np.cos(angle), -times * np.sin(angle)], 1).reshape(-1, count)
