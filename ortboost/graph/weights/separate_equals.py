"""Store again the parameters that torch's TorchScript exporter merged because they were equal.

In a layer that is not trained yet, scales are 1, biases are 0, and the layers of a
``nn.TransformerEncoder`` are copies of one. The exporter stores equal tensors once, and puts an
Identity with the name of the other parameter in its place. Trained as one, they would stay equal.
Parameters that torch itself shares are one tensor in the file, without an Identity.

Source: ``deduplicate_initializers.cpp`` of PyTorch.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.evaluate import add_initializer
from ortboost.graph.query import FLOAT_TYPES, is_standard
from ortboost.graph.weights.origins import Origin, names_a_parameter, stamp_origin

__all__ = ["separate_equals"]


def separate_equals(model: ir.Model) -> Report:
    """Replace each such Identity by a tensor of its own, in place.

    Constants of the model are initializers. The rewrite is idempotent.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, producer_name: "pytorch",
        ... opset_import: ["" : 18]> net (float[N,2] x) => (float[N,2] y)
        ... <float[2] norm1_weight = {1, 1}> { norm2_weight = Identity(norm1_weight)
        ...   h = Mul(x, norm1_weight)  y = Mul(h, norm2_weight) }''')
        >>> separate_equals(model).changed
        {'norm2_weight': "equal to 'norm1_weight' when exported"}
    """
    report = Report("separate_equals")
    for node in list(model.graph):
        source, output = node.inputs[0] if node.inputs else None, node.outputs[0]
        if source is None or not is_standard(node, "Identity") or output.is_graph_output():
            continue
        tensor, name = source.const_value, output.name or ""
        if not source.is_initializer() or source.is_graph_input() or tensor is None:
            continue
        # Identities in the code of a module have no parameter's name, and are left alone.
        if source.dtype not in FLOAT_TYPES or not names_a_parameter(model, name):
            continue
        output.name = f"{name}/merged"
        copy = add_initializer(model.graph, name, tensor.numpy())
        stamp_origin(copy, Origin("module"))
        ir.convenience.replace_all_uses_with(output, copy)
        model.graph.remove(node, safe=True)
        report.changed[name] = f"equal to '{source.name}' when exported"
    if report.changed:
        first = next(iter(report.changed))
        report.notes.append(
            f"{count_of(len(report.changed), 'tensor')} of the torch module, first '{first}', "
            "equal to others when exported and merged by the exporter: trained separately"
        )
    return report
