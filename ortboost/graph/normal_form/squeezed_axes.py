"""Write the axes into a Squeeze without axes, which removes every axis of length 1.

``x.squeeze()`` of torch becomes such a node. It also removes the batch axis of a single sample, so
its rank depends on the data, and neither shape inference nor a gradient gets beyond it. torch's
dynamo exporter assumes that symbolic dimensions are not 1, and declares the shapes before and after
the node.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import find_nodes, input_at, known_shape

__all__ = ["state_squeezed_axes"]

_AXES_ARE_INPUTS = 13  # the opset


def state_squeezed_axes(model: ir.Model) -> Report:
    """Write the axes where the file declares both shapes, in place, in a model as loaded.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,4,1] x) => (float[n,4] y) { [s] y = Squeeze(x) }''')
        >>> print(state_squeezed_axes(model))
        state_squeezed_axes: 1 changed, 0 kept
          s: removes the axes [2], as the shapes in the file say, also if 'n' is 1
    """
    report = Report("state_squeezed_axes")
    if model.opset_imports.get("", 0) < _AXES_ARE_INPUTS:
        return report
    builder = Builder(model.graph, "axes")
    for node in find_nodes(model.graph, "Squeeze"):
        before, after = known_shape(node.inputs[0]), known_shape(node.outputs[0])
        open_ = [f"'{dim}'" for dim in before or () if isinstance(dim, str)]
        if input_at(node, 1) is not None or before is None or not open_:
            continue
        axes = [axis for axis, dim in enumerate(before) if dim == 1]
        # Old exporters declare the lengths of the trace: then no length has a name.
        if axes and after == tuple(dim for dim in before if dim != 1):
            node.resize_inputs(2)
            node.replace_input_with(1, builder.ints(*axes))
            which = " or ".join(dict.fromkeys(open_))
            report.changed[node.name or node.outputs[0].name or ""] = (
                f"removes the axes {axes}, as the shapes in the file say, also if {which} is 1"
            )
    return report
