"""Separate a float16 MatMul with a stored matrix from a preceding Transpose of batch axes.

onnxruntime fuses the two for ``Transpose (1, 0, 2)`` or ``(1, 2, 0)`` (likewise with more axes),
and 1.31 then crashes on opening the file on a CPU. torch's attention layers begin this way.
Therefore:

    MatMul(Transpose_p(x), W) = Transpose_p(MatMul(x, W))     if p keeps the last axis last
    MatMul(Transpose_p(x), W) = MatMul(Transpose_p(x), W[None])   otherwise, and with W on the left

The second form is not fused either, but onnxruntime takes twice as long for it as for the first.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import label, permutation, producer_of
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["separate_transposes"]


@rewrites("MatMul")
def separate_transposes(site: Site) -> list[ir.Value | None] | None:
    """Separate float16 MatMul nodes from the Transpose before them, in place, in the main graph."""
    for place in (0, 1):
        transpose, stored = producer_of(site.input(place), "Transpose"), site.input(1 - place)
        perm = permutation(transpose) or []
        if transpose is None or not _is_fused(perm) or not _is_half_matrix(stored):
            continue
        out, source = site.node.outputs[0], transpose.inputs[0]
        if place == 0 and perm[-1] == len(perm) - 1:
            site.note = f"computed before '{label(transpose)}'"
            shape = None
            if source is not None and source.shape is not None and out.shape is not None:
                shape = ir.Shape([*source.shape[:-1], out.shape[-1]])
            product = site.op("MatMul", source, stored, dtype=out.dtype, shape=shape)
            return [site.op("Transpose", product, dtype=out.dtype, shape=out.shape, perm=perm)]
        site.note = "its matrix has as many axes as the other input"
        array = np.asarray(site.array(1 - place))
        batched = site.const(array.reshape((1,) * (len(perm) - 2) + array.shape), stored.dtype)
        site.node.replace_input_with(1 - place, batched)
        return list(site.node.outputs)
    return None


def _is_fused(perm: list[int]) -> bool:
    """Whether a Transpose moves the first axis to one of the last two places."""
    rank = len(perm)
    return rank > 2 and perm in ([*range(1, rank - 1), 0, rank - 1], [*range(1, rank), 0])


def _is_half_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or value.is_graph_input():
        return False
    return tensor.dtype == ir.DataType.FLOAT16 and len(tensor.shape) == 2
