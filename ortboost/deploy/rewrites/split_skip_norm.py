"""Keep ONNX Runtime's CPU from fusing a residual sum into the normalization after it.

Its fused kernel, SkipLayerNormalization, is slower there than Add and LayerNormalization: an encoder of the
size of BERT base took 7 % longer with it (onnxruntime 1.31, one thread, 24 of them; 1.19 shows no
difference). The fusion looks for Add, so the sum is written as Sum, which is the same for two operands.
Done for the CPU only; on a GPU the fused kernel is the better one.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.dimensions import same_shape
from ortboost.deploy.rewrites.helpers import is_standard, label, only_user
from ortboost.graph.build import Builder

__all__ = ["split_skip_norm"]


def split_skip_norm(model: ir.Model) -> Report:
    """Write the Add that only a LayerNormalization reads as Sum, in place, in the main graph."""
    report = Report("split_skip_norm")
    builder = Builder(model.graph, "ortboost/residual")
    for node in list(model.graph):
        if not is_standard(node, "Add") or any(
            v is None or v.is_initializer() for v in node.inputs
        ):
            continue
        reader = only_user(node.outputs[0])
        if reader is None or not is_standard(reader, "LayerNormalization"):
            continue
        if reader.inputs[0] is not node.outputs[0]:
            continue
        if not same_shape(*node.inputs):
            report.kept[label(node)] = "its operands may differ in shape, so it is not fused"
            continue
        out = node.outputs[0]
        made = builder.op("Sum", *node.inputs, dtype=out.dtype, shape=out.shape)
        for new in builder.take():
            model.graph.insert_before(node, new)
        ir.convenience.replace_all_uses_with(out, made)
        name = out.name
        model.graph.remove(node, safe=True)
        made.name = name
        report.changed[label(node)] = "written as Sum"
    return report
