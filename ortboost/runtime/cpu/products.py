"""Weight gradients as products without a transposed operand.

The gradient of a weight is `x^T d`. For a transposed left operand the runtime's kernel packs each
block again for each stripe of the result; a transposed copy of the smaller `x` and a plain product
are faster. GFLOP/s in onnxruntime 1.31, one thread, with 512 rows (torch 2.13: 155 to 161):

    x          d           x^T d    copy and product
    768        3072        116      136
    3072       768         120      125
    768        768         132      142
    768        16000       115      142

The runtime would fuse a plain Transpose into the product again, but not one in three dimensions.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import permutation, producer_of, sole_consumer, static_shape
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["plain_products"]

_ROWS, _COLUMNS = 128, 512  # minimum size of the result that makes a copy worthwhile


def plain_products(model: ir.Model) -> bool:
    """Replace a large `Gemm(x, d, transA=1)` by a copy and a MatMul; True if there was one."""
    # First transposed results (torch's weights), `d^T x`: the second rewrite replaces their Gemm.
    transposed = rewrite_nodes(model, "products", {"Transpose": _transposed_result})
    return rewrite_nodes(model, "products", {"Gemm": _result}).modified or transposed.modified


def _transposed_result(site: Site) -> list[ir.Value | None] | None:
    """`(x^T d)^T = d^T x`."""
    product = producer_of(site.input(0), "Gemm")
    if product is None or permutation(site.node) != [1, 0]:
        return None
    if sole_consumer(product.outputs[0]) is not site.node or not _is_plain(product):
        return None
    x, d = product.inputs[:2]
    return _product(site, d, x)


def _result(site: Site) -> list[ir.Value | None] | None:
    return _product(site, *site.node.inputs[:2]) if _is_plain(site.node) else None


def _is_plain(gemm: ir.Node) -> bool:
    """Whether a Gemm is just `x^T d`."""
    attributes = gemm.attributes
    return (
        attributes.get_int("transA", 0) == 1
        and attributes.get_int("transB", 0) == 0
        and attributes.get_float("alpha", 1.0) == 1.0
        and (len(gemm.inputs) < 3 or gemm.inputs[2] is None)
        and gemm.outputs[0].dtype == ir.DataType.FLOAT
    )


def _product(
    site: Site, left: ir.Value | None, right: ir.Value | None
) -> list[ir.Value | None] | None:
    """`left^T right`, with a transposed copy of `left`."""
    shape = static_shape(site.node.outputs[0])
    if left is None or right is None or shape is None or len(shape) != 2:
        return None
    rows, columns = shape
    if rows < _ROWS or columns < _COLUMNS:
        return None
    # In three dimensions, and back: see the module.
    stacked = site.op("Reshape", left, site.ints(1, -1, rows))
    copied = site.op("Transpose", stacked, perm=[0, 2, 1])
    return [site.op("MatMul", site.op("Reshape", copied, site.ints(rows, -1)), right, shape=shape)]
