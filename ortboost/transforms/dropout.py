"""Dropout in training mode: exporters write it so that it does nothing."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import RANDOM_OPERATORS, is_standard

__all__ = ["add_mask", "dropout_to_training"]


def dropout_to_training(model: ir.Model) -> Report:
    """Switch the Dropout nodes of the main graph on, in place.

    Without its third input, or with a false one, a Dropout is an identity. It gets a true one, and
    its mask output ``[like the data]``, bool, which its gradient needs. A ratio of 0 is left alone.

    Args:
        model: Model whose main graph is changed.

    Returns:
        The report; it says of other operators that draw random numbers that their draws cannot be
        repeated. A second call changes nothing.
    """
    report = Report("dropout_to_training")
    # Their kernels are seeded when a session is opened; only Dropout can be seeded at each step.
    drawing = [node for node in model.graph.all_nodes() if node.op_type in RANDOM_OPERATORS]
    if drawing:
        report.notes.append(
            f"{drawing[0].op_type} '{drawing[0].name}' draws from a generator that the runtime keeps "
            "for itself: a run that is resumed draws other numbers than one that never stopped"
        )
    builder = Builder(model.graph, "ortboost/dropout")
    for node in model.graph:
        if not is_standard(node, "Dropout"):
            continue
        name = node.name or "?"
        ratio = _number(node, 1, 0.5)
        mode = _number(node, 2, 0.0)
        if ratio == 0:
            report.kept[name] = "its ratio is 0"
        elif mode is None:
            report.kept[name] = "its training_mode is computed in the graph"
        elif mode and len(node.outputs) == 2:
            report.kept[name] = "in training mode already"
        else:
            if not mode:
                node.resize_inputs(3)
                node.replace_input_with(2, builder.const(True, ir.DataType.BOOL))
            add_mask(node, builder)
            drawn = "a ratio from the graph" if ratio is None else f"ratio {ratio:g}"
            report.changed[name] = f"put in training mode ({drawn})"
    return report


def add_mask(node: ir.Node, builder: Builder) -> bool:
    """Give a Dropout its second output; whether that was needed."""
    if len(node.outputs) >= 2 and node.outputs[1].name:
        return False
    node.resize_outputs(2)
    node.outputs[1].name = builder.unique(f"{node.outputs[0].name}/mask")
    node.outputs[1].type = ir.TensorType(ir.DataType.BOOL)
    node.outputs[1].shape = node.outputs[0].shape
    return True


def _number(node: ir.Node, index: int, default: float) -> float | None:
    """A scalar input as a number; ``None`` if it is not a constant."""
    if index >= len(node.inputs) or node.inputs[index] is None:
        return default
    value = node.inputs[index]
    tensor = None if value is None else value.const_value
    return None if tensor is None else float(tensor.numpy().reshape(-1)[0])
