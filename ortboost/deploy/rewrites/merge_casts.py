"""``Cast(Cast(x: A -> B) -> C)`` is ``Cast(x -> C)`` where every value of A is one of B.

float32 to float16 and back is not taken out: it rounds.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.helpers import bypass, is_standard, label

__all__ = ["merge_casts"]

_T = ir.DataType
_HOLDS = {
    _T.BOOL: {_T.UINT8, _T.INT8, _T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE},
    _T.UINT8: {_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE},
    _T.INT8: {_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE},
    _T.INT16: {_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE},
    _T.INT32: {_T.INT64, _T.DOUBLE},
    _T.FLOAT16: {_T.FLOAT, _T.DOUBLE},
    _T.BFLOAT16: {_T.FLOAT, _T.DOUBLE},
    _T.FLOAT: {_T.DOUBLE},
}
"""Type to the types that hold all its values exactly."""


def merge_casts(model: ir.Model) -> Report:
    """Merge Cast nodes, in place, subgraphs included."""
    report = Report("merge_casts")
    for node in list(model.graph.all_nodes()):
        if node.graph is None or not is_standard(node, "Cast") or node.inputs[0] is None:
            continue
        first = node.inputs[0].producer()
        if first is None or not is_standard(first, "Cast") or first.inputs[0] is None:
            continue
        source = first.inputs[0]
        middle, wanted = (ir.DataType(n.attributes.get_int("to", 0)) for n in (first, node))
        if source.dtype is None:
            continue
        name = label(node)
        if middle not in _HOLDS.get(source.dtype, set()):
            report.kept[name] = f"{source.dtype.name} does not fit into {middle.name} unchanged"
            continue
        if source.dtype == wanted and bypass(node, source):
            report.changed[name] = f"undoes '{label(first)}'"
        elif source.dtype != wanted:
            node.replace_input_with(0, source)
            report.changed[name] = f"reads '{source.name}' directly"
        if first.graph is not None and not any(
            o.uses() or o.is_graph_output() for o in first.outputs
        ):
            first.graph.remove(first, safe=True)
    return report
