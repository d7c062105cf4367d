r"""Pad in all modes: padding is removed, gradients of copied elements are summed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import unknown_axes, unknown_rank
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.rules.indexing import add_at
from ortboost.autodiff.sizes import INT64, Size, joined, length, product, reshape_like

__all__: list[str] = []


@refuses("Pad")
def _refused(node: ir.Node) -> str | None:
    constant_mode = node.attributes.get_string("mode", "constant") == "constant"
    return unknown_rank(node, 0) or (None if constant_mode else unknown_axes(node, 3))


@register("Pad")
def pad(b: Backward) -> Gradients:
    """Constant mode: `g` without the padding, that is, padded by `-pads`.

    Reflect, wrap and edge mode: along one axis after another, `y[j] = x[i_j]`, with `i` the indices
    `0, 1, ...` padded in the same way; `g` is added at the indices `i`.
    """
    x, g = b.input(0), b.gradient()
    mode = b.text("mode", "constant")
    if mode == "constant":
        return [_cut(b)]
    rank, given, pads = b.rank(), b.array(3), b.array(1)
    axes = list(range(rank)) if given is None else [int(a) % rank for a in given.reshape(-1)]
    sizes = [length(b, b.output(), axis) for axis in range(rank)]  # of g, while it shrinks
    for k, axis in enumerate(axes):
        margins = None if pads is None else (int(pads[k]), int(pads[k + len(axes)]))
        if margins == (0, 0):
            continue
        own = length(b, x, axis)
        index = _padded_indices(b, own, margins, k, len(axes), mode)
        before, after = product(b, sizes[:axis]), product(b, sizes[axis + 1 :])
        flat = b.op("Reshape", g, joined(b, [before, sizes[axis], after]), allowzero=1)
        sizes[axis] = own
        g = add_at(b, [before, own, after], index, flat, axis=1)
    return [g if g is b.gradient() else reshape_like(b, g, x)]


def _cut(b: Backward) -> ir.Value:
    x, g, pads, axes = b.input(0), b.gradient(), b.array(1), b.optional(3)
    known = [] if pads is None else [int(margin) for margin in pads.reshape(-1)]
    half = len(known) // 2
    # What negative pads cut off gets zeros: a Pad does both. A Slice only cuts.
    if pads is None or min(known, default=0) < 0:
        inverse = b.op("Neg", b.input(1)) if pads is None else b.ints(*(-m for m in known))
        return b.op("Pad", g, inverse, None, axes, shape=x.shape)
    if not any(known):
        return g
    fixed = b.array(3)
    if fixed is None and axes is not None:
        return b.op("Pad", g, b.ints(*(-m for m in known)), None, axes, shape=x.shape)
    where = list(range(half)) if fixed is None else [int(a) for a in fixed.reshape(-1)]
    padded = [k for k in range(half) if known[k] or known[half + k]]
    starts = [known[k] for k in padded]
    ends = [-known[half + k] or 2**62 for k in padded]  # -0 would be the start
    cut = (b.ints(*starts), b.ints(*ends), b.ints(*(where[k] for k in padded)))
    return b.op("Slice", g, *cut, shape=x.shape)


def _padded_indices(
    b: Backward, size: Size, margins: tuple[int, int] | None, k: int, count: int, mode: str
) -> ir.Value:
    """The indices `0, 1, ...` of the `k`-th of ``count`` padded axes, padded like the data."""
    if isinstance(size, int) and margins is not None:
        before, after = margins
        kept = np.arange(max(-before, 0), size - max(-after, 0), dtype=np.int64)
        around = (max(before, 0), max(after, 0))
        return b.ints(*np.pad(kept, around, mode=mode).tolist())  # type: ignore[call-overload]
    zero, one = (b.builder.const(n, INT64) for n in (0, 1))
    end = b.op("Squeeze", joined(b, [size]), b.ints(0))
    numbers = b.op("Range", zero, end, one, shape=[None])
    if margins is None:
        both = b.op("Gather", b.input(1), b.ints(k, k + count), axis=0, dtype=INT64)
    else:
        both = b.ints(*margins)
    return b.op("Pad", numbers, both, mode=mode, shape=[None])
