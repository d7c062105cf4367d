"""Attention of onnxruntime's optimizers, written out in operators of the standard.

Rules of :mod:`ortboost.graph.normal_form.runtime_operators`, for attention over a whole sequence. A
cache of earlier tokens is refused: a training step has none.

Source: ``docs/ContribOperators.md`` of https://github.com/microsoft/onnxruntime, and the results of
its CPU kernels where the documentation does not say.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import is_read, known_shape
from ortboost.graph.rewriting import Refusal, Site

__all__ = ["attention", "multi_head_attention", "rotary_embedding"]

_BY_HEAD = (0, 2, 1, 3)  # [batch, length, heads, size] to [batch, heads, length, size], and back
_CACHE = "it reads a cache of earlier tokens; export the model without a cache"
_START_OVER = "start from the unoptimized export"


def attention(site: Site) -> list[ir.Value | None]:
    """Self-attention with its projection: ``[Q K V] = input weights + bias``.

    Inputs: input [batch, length, width], weights, bias, mask_index, past, attention_bias.
    """
    node = site.node
    if site.optional(4) is not None:
        raise Refusal(_CACHE)
    if len(node.outputs) > 1 and is_read(node.outputs[1]):
        raise Refusal("its keys and values are read; export the model without a cache")
    if site.integer("do_rotary", 0):
        raise Refusal(f"it rotates queries and keys (do_rotary); {_START_OVER}")
    projected = site.op("MatMul", site.input(0), site.input(1))
    if site.optional(2) is not None:
        projected = site.op("Add", projected, site.input(2))
    widths = site.integers("qkv_hidden_sizes") or _thirds(site)
    query, key, value = site.ops("Split", projected, site.ints(*widths), count=3, axis=-1)
    heads = site.integer("num_heads", 0)
    if not heads or any(width % heads for width in widths):
        raise Refusal(
            f"{heads} heads do not divide its widths {widths}; the file is not valid, export it "
            "again"
        )
    q, k, v = (_by_head(site, part, heads) for part in (query, key, value))
    return [_attend(site, q, k, v, site.optional(3), widths[0] // heads)]


def multi_head_attention(site: Site) -> list[ir.Value | None]:
    """Attention of projected queries, keys and values, each [batch, length, width].

    Inputs: query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value. Keys
    and values may also be [batch, heads, length, size].
    """
    node, heads = site.node, site.integer("num_heads", 0)
    if any(site.optional(index) is not None for index in range(6, len(node.inputs))):
        raise Refusal(_CACHE)
    if len(node.outputs) > 3 and is_read(node.outputs[3]):
        raise Refusal(f"its scores are read; {_START_OVER}")
    if site.rank(0) != 3 or site.optional(1) is None or site.optional(2) is None:
        raise Refusal(f"queries, keys and values are packed in one tensor; {_START_OVER}")
    width, bias = site.shape(0)[2], site.optional(3)
    if not isinstance(width, int) or not heads:
        raise Refusal("its width is unknown; give the shapes of the model's inputs")
    parts = [site.input(index) for index in range(3)]
    if bias is not None:
        total = (known_shape(bias) or (None,))[0]
        if not isinstance(total, int) or site.rank(1) != 3 or site.rank(2) != 3:
            raise Refusal(f"its bias does not fit its keys and values; {_START_OVER}")
        widths = site.ints(width, width, total - 2 * width)
        shifts = site.ops("Split", bias, widths, count=3, axis=0)
        parts = [site.op("Add", part, shift) for part, shift in zip(parts, shifts, strict=True)]
    ranks = [site.rank(index) for index in range(3)]
    if not {3, 4}.issuperset(ranks):
        raise Refusal(f"keys and values are packed in one tensor; {_START_OVER}")
    q, k, v = (
        _by_head(site, part, heads) if rank == 3 else part
        for part, rank in zip(parts, ranks, strict=True)
    )
    parts = [_attend(site, q, k, v, site.optional(4), width // heads), k, v]
    return list(parts[: len(node.outputs)])


def rotary_embedding(site: Site) -> list[ir.Value]:
    """Rotate pairs of features by angles that grow with the position.

    With the cosines ``c`` and sines ``s`` of a position, ``(a, b)`` becomes ``(a c - b s,
    b c + a s)``; a pair consists of neighbours if interleaved, else of one feature of each half.
    Inputs: input [batch, length, width] or [batch, heads, length, size], position ids [batch,
    length] or the first position [1], cosines and sines [positions, half].
    """
    x, places, rank = site.input(0), site.input(1), site.rank()
    half = site.shape(2)[-1]
    if site.number("scale", 1.0) != 1 or site.integer("is_packed_batching", 0):
        raise Refusal(f"its scale or is_packed_batching is not known; {_START_OVER}")
    if not isinstance(half, int) or rank not in (3, 4):
        raise Refusal("its sizes are unknown; give the shapes of the model's inputs")
    turned = site.integer("rotary_embedding_dim", 0) or 2 * half
    heads = site.integer("num_heads", 0)
    if rank == 3:
        if turned != 2 * half or (site.integer("rotary_embedding_dim", 0) and not heads):
            raise Refusal("its sizes contradict each other; the file is not valid, export it again")
        split = (0, 0, heads, -1) if site.integer("rotary_embedding_dim", 0) else (0, 0, -1, turned)
        x = site.op("Reshape", x, site.ints(*split))
    if site.rank(1) == 1:  # the first position, of all samples
        steps = _places(site, x, rank - 2)
        places = site.op("Unsqueeze", site.op("Add", steps, places), site.ints(0))
    axis = site.ints(2 if rank == 3 else 1)  # that of the heads
    cos, sin = (
        site.op("Unsqueeze", site.op("Gather", site.input(index), places), axis) for index in (2, 3)
    )
    x, rest = _cut(site, x, turned)
    if site.integer("interleaved", 0):
        pairs = site.op("Reshape", x, site.ints(0, 0, 0, half, 2))
        parts = site.ops("Split", pairs, site.ints(1, 1), count=2, axis=-1)
        first, second = (site.op("Squeeze", part, site.ints(-1)) for part in parts)
    else:
        first, second = site.ops("Split", x, site.ints(half, half), count=2, axis=-1)
    real = site.op("Sub", site.op("Mul", first, cos), site.op("Mul", second, sin))
    imaginary = site.op("Add", site.op("Mul", second, cos), site.op("Mul", first, sin))
    if site.integer("interleaved", 0):
        ends = [site.op("Unsqueeze", part, site.ints(-1)) for part in (real, imaginary)]
        made = site.op("Reshape", site.op("Concat", *ends, axis=-1), site.ints(0, 0, 0, turned))
    else:
        made = site.op("Concat", real, imaginary, axis=-1)
    if rest is not None:
        made = site.op("Concat", made, rest, axis=-1)
    return [site.op("Reshape", made, site.ints(0, 0, -1)) if rank == 3 else made]


def _cut(site: Site, x: ir.Value, turned: int) -> tuple[ir.Value, ir.Value | None]:
    """The features that are rotated, and the others if there are any."""
    if not site.integer("rotary_embedding_dim", 0):
        return x, None
    end, last = site.ints(2**63 - 1), site.ints(-1)
    head = site.op("Slice", x, site.ints(0), site.ints(turned), last)
    return head, site.op("Slice", x, site.ints(turned), end, last)


def _thirds(site: Site) -> tuple[int, int, int]:
    total = site.shape(1)[1]
    if not isinstance(total, int) or total % 3:
        raise Refusal("the width of its weights is unknown or not a multiple of 3")
    return (total // 3,) * 3


def _by_head(site: Site, x: ir.Value, heads: int) -> ir.Value:
    """[batch, length, width] to [batch, heads, length, width / heads]."""
    return site.op("Transpose", site.op("Reshape", x, site.ints(0, 0, heads, -1)), perm=_BY_HEAD)


def _attend(
    site: Site, q: ir.Value, k: ir.Value, v: ir.Value, mask: ir.Value | None, size: int
) -> ir.Value:
    """``softmax(scale Q Kᵀ + attention_bias + mask) V``, heads joined.

    The mask says which keys each query may see, all without one. Both operators have the
    attention_bias as input 5.
    """
    added = site.optional(5)
    scale = site.number("scale", 0.0) or 1 / math.sqrt(size)
    scores = site.op("MatMul", q, site.op("Transpose", k, perm=(0, 1, 3, 2)))
    scores = site.op("Mul", scores, site.const(scale))
    if added is not None:
        scores = site.op("Add", scores, added)
    if mask is not None:
        scores = site.op("Add", scores, _hidden_keys(site, mask, k))
    if site.integer("unidirectional", 0):
        scores = site.op("Add", scores, _later_keys(site, q, k))
    result = site.op("MatMul", site.op("Softmax", scores, axis=-1), v)
    joined = site.op("Transpose", result, perm=_BY_HEAD)
    return site.op("Reshape", joined, site.ints(0, 0, -1))


def _hidden_keys(site: Site, mask: ir.Value, k: ir.Value) -> ir.Value:
    """What is added to the scores: ``mask_filter_value`` where the mask hides a key, else 0.

    A mask [batch, keys] or [batch, queries, keys] has a 1 where a key is seen; one of shape [batch]
    has the number of keys that are seen.
    """
    shape = known_shape(mask)
    if shape is None or len(shape) not in (1, 2, 3):
        raise Refusal(f"the rank of its mask '{mask.name}' is unknown or 4; {_START_OVER}")
    if len(shape) == 1:
        batch = site.shape(0)[0]
        if batch is None or shape[0] != batch:
            raise Refusal(
                f"its mask '{mask.name}' may hold more than a length for each sample; start from "
                "the export"
            )
        ends = site.op("Unsqueeze", mask, site.ints(1))
        places = site.cast(_places(site, k, 2), ends.dtype)
        seen = site.op("Less", places, ends, dtype=ir.DataType.BOOL)
        axes = [1, 2]
    else:
        zero = site.const(0, mask.dtype or ir.DataType.INT32)
        seen = site.op("Greater", mask, zero, dtype=ir.DataType.BOOL)
        axes = [1, 2] if len(shape) == 2 else [1]
    filled = site.number("mask_filter_value", -10000.0)
    added = site.op("Where", seen, site.const(0), site.const(filled), dtype=site.dtype)
    return site.op("Unsqueeze", added, site.ints(*axes))


def _later_keys(site: Site, q: ir.Value, k: ir.Value) -> ir.Value:
    """[queries, keys], the lowest number above the diagonal, else 0."""
    sizes = site.op("Concat", *(site.shape_of(value, 2, 3) for value in (q, k)), axis=0)
    lowest = float(np.finfo(np.float16 if site.dtype == ir.DataType.FLOAT16 else np.float32).min)
    return site.op("Trilu", site.filled(lowest, sizes), _int(site, 1), upper=1)


def _places(site: Site, x: ir.Value, axis: int) -> ir.Value:
    """The positions 0, 1, ... along an axis."""
    length = site.op("Squeeze", site.shape_of(x, axis, axis + 1))
    return site.op("Range", _int(site, 0), length, _int(site, 1), dtype=ir.DataType.INT64)


def _int(site: Site, value: int) -> ir.Value:
    return site.const(value, ir.DataType.INT64)
