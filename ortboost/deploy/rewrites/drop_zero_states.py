"""Drop zero initial states of LSTM, GRU and RNN: zero is the default in the standard.

Exporters compute them in the shape of the batch: ``ConstantOfShape(Concat([2], Shape(x), [12]))``.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import constant, input_at, is_standard, label

__all__ = ["drop_zero_states"]

_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}  # initial_h, initial_c
_MOVES = ("Cast", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile")
_DEPTH = 8  # nodes between a state and the constant that it is made of


def drop_zero_states(model: ir.Model) -> Report:
    """Drop zero initial states, in place, including subgraphs."""
    report = Report("drop_zero_states")
    for node in model.graph.all_nodes():
        if not is_standard(node, *_STATES):
            continue
        for place in _STATES[node.op_type]:
            value = input_at(node, place)
            if value is not None and _is_zero(value, _DEPTH):
                node.replace_input_with(place, None)
                report.changed[f"{label(node)}[{place}]"] = f"'{value.name}' is zero"
    return report


def _is_zero(value: ir.Value | None, depth: int) -> bool:
    """Whether all elements of a value are known to be zero."""
    if value is None or not depth:
        return False
    stored = constant(value)
    if stored is not None:
        return stored.dtype.kind in "iuf" and not stored.any()
    node = value.producer()
    if node is None:
        return False
    if is_standard(node, "ConstantOfShape"):
        fill = node.attributes.get_tensor("value", None)
        return fill is None or not fill.numpy().any()
    if is_standard(node, "Concat"):
        return all(_is_zero(part, depth - 1) for part in node.inputs)
    if is_standard(node, *_MOVES, "Transpose", "Unsqueeze"):
        return _is_zero(node.inputs[0], depth - 1)
    return False
