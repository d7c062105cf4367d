"""Drop zero initial states of LSTM, GRU and RNN: zero is the default in the standard.

Exporters compute them in the shape of the batch: ``ConstantOfShape(Concat([2], Shape(x), [12]))``.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import constant, input_at, is_standard, label
from ortboost.graph.uniform import UniformValues

__all__ = ["drop_zero_states"]

_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}  # initial_h, initial_c


def drop_zero_states(model: ir.Model) -> Report:
    """Drop zero initial states, in place, including subgraphs."""
    report = Report("drop_zero_states")
    uniform = UniformValues(model.opset_imports.get("", 0))
    for node in model.graph.all_nodes():
        if not is_standard(node, *_STATES):
            continue
        for place in _STATES[node.op_type]:
            value = input_at(node, place)
            stored = constant(value)  # of any size
            number = uniform.number(value) if stored is None else stored
            if value is not None and number is not None and not number.any():
                node.replace_input_with(place, None)
                report.changed[f"{label(node)}[{place}]"] = f"'{value.name}' is zero"
    return report
