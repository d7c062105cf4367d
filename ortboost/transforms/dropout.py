"""Dropout in training mode; exporters write it in inference form, where it is an identity."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import RANDOM_OPERATORS, find_nodes, input_at, label, scalar

__all__ = ["dropout_to_training"]


def dropout_to_training(model: ir.Model) -> Report:
    """Put the Dropout nodes of the main graph in training mode, in place.

    Without its third input, or with a false one, a Dropout is an identity. It gets a true one, and
    a mask output, bool with the shape of the data, which its gradient needs. A Dropout with a ratio
    of 0 is kept unchanged. The report notes other operators that draw random numbers, since these
    are not reproducible. The rewrite is idempotent.
    """
    report = Report("dropout_to_training")
    # Their kernels are seeded when a session is created; only Dropout can be seeded at each step.
    drawing = [node for node in model.graph.all_nodes() if node.op_type in RANDOM_OPERATORS]
    if drawing:
        report.notes.append(
            f"{drawing[0].op_type} '{drawing[0].name}' uses a random generator internal to the "
            "runtime: a resumed run draws other numbers than an uninterrupted one. Evaluation and "
            "exported files draw them, too, also if they are torch's Dropout2d or a stochastic "
            "depth, exported in train()"
        )
    builder = Builder(model.graph, "ortboost/dropout")
    for node in find_nodes(model.graph, "Dropout"):
        name = label(node)
        ratio = _number(node, 1, 0.5)
        mode = _number(node, 2, 0.0)
        if ratio == 0:
            report.kept[name] = "its ratio is 0"
        elif mode is None:
            report.kept[name] = "its training_mode is computed in the graph"
        elif mode and len(node.outputs) == 2:
            report.kept[name] = "already in training mode"
        else:
            # Written in training mode without a mask, it only needs the mask.
            if not mode:
                node.resize_inputs(3)
                node.replace_input_with(2, builder.const(True, ir.DataType.BOOL))
            _add_mask(node, builder)
            drawn = "a ratio from the graph" if ratio is None else f"ratio {ratio:g}"
            report.changed[name] = f"put in training mode ({drawn})"
    return report


def _add_mask(node: ir.Node, builder: Builder) -> None:
    """Add the second output to a Dropout that lacks it: its gradient reads it."""
    if len(node.outputs) >= 2 and node.outputs[1].name:
        return
    node.resize_outputs(2)
    node.outputs[1].name = builder.unique(f"{node.outputs[0].name}/mask")
    node.outputs[1].type = ir.TensorType(ir.DataType.BOOL)
    node.outputs[1].shape = node.outputs[0].shape


def _number(node: ir.Node, index: int, default: float) -> float | None:
    """A scalar input as a number; ``None`` if it is not a constant."""
    value = input_at(node, index)
    return default if value is None else scalar(value)
