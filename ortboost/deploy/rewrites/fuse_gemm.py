"""MatMul and Add of a bias are one Gemm, where both operands have two dimensions.

With more dimensions they are left alone: a Gemm would need a Reshape on either side, and ONNX Runtime
fuses those itself.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.helpers import constant, is_standard, label, only_user, replace_value
from ortboost.graph.build import Builder

__all__ = ["fuse_gemm"]

_ANY = 1 << 62
_MASK = 6e4  # nearly infinite in float16: in a Gemm it would keep the whole product in float32
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


def fuse_gemm(model: ir.Model) -> Report:
    """Fuse, in place, in the main graph."""
    report = Report("fuse_gemm")
    builder = Builder(model.graph, "ortboost/gemm")
    for node in list(model.graph):
        if not is_standard(node, "Add"):
            continue
        for index in (0, 1):
            value, bias = node.inputs[index], node.inputs[1 - index]
            product = value.producer() if value is not None else None
            if product is None or not is_standard(product, "MatMul") or bias is None:
                continue
            if product.graph is not node.graph or only_user(product.outputs[0]) is not node:
                continue
            reason = _obstacle(product, bias)
            if reason is not None:
                report.kept[label(node)] = reason
                continue
            made = builder.op(
                "Gemm", *product.inputs, bias, dtype=node.outputs[0].dtype,
                shape=node.outputs[0].shape,
            )  # fmt: skip
            for new in builder.take():
                model.graph.insert_before(node, new)
            replace_value(node.outputs[0], made)
            model.graph.remove(node, safe=True)
            model.graph.remove(product, safe=True)
            report.changed[label(node)] = f"fused with '{label(product)}'"
            break
    return report


def _obstacle(product: ir.Node, bias: ir.Value) -> str | None:
    for value in product.inputs:
        if value is None or value.shape is None or len(value.shape) != 2:
            return f"'{label(product)}' is not of two matrices"
        if value.dtype not in _FLOATS:
            return "it is of integers"
    stored = constant(bias, limit=_ANY)
    if stored is None:
        return "what is added is computed"
    if not bool((np.abs(stored) < _MASK).all()):
        return "what is added is a mask, which is better kept apart"
    columns = product.inputs[1].shape[1]  # type: ignore[union-attr,index]
    if stored.ndim > 2 or (stored.ndim == 2 and stored.shape[0] != 1):
        return "what is added is no bias"
    if stored.ndim and stored.shape[-1] not in (1, columns):
        return "what is added is no bias"
    return None
