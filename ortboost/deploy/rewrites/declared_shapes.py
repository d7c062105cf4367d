"""Declared shapes of outputs: put aside while a graph is rewritten.

A file declares the shapes of its outputs, and nothing checks them: many call the first dimension of
every tensor ``batch``, or still have the numbers from before an input was made dynamic. All other
shapes are inferred. So that rewrites rely on inferred shapes only, the declared ones are removed
before, and come back afterwards where inference does not contradict them.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import format_shape, known_shape
from ortboost.graph.shape_inference import infer_shapes

__all__ = ["declared_shapes", "forget_declared", "restore_declared"]


def declared_shapes(model: ir.Model) -> dict[str, ir.Shape]:
    """The declared shapes of the outputs that nodes compute, by name."""
    return {
        value.name or "": value.shape
        for value in model.graph.outputs
        if value.shape is not None and value.producer() is not None
    }


def forget_declared(model: ir.Model) -> Report:
    """Infer the shapes of the outputs instead of the declared ones, in place."""
    for value in model.graph.outputs:
        if value.producer() is not None and isinstance(value.type, ir.TensorType):
            value.shape = None
    infer_shapes(model)
    return Report("declared_shapes")


def restore_declared(model: ir.Model, declared: Mapping[str, ir.Shape]) -> Report:
    """Give the outputs their declared shapes again, in place; the report names wrong ones."""
    report = Report("declared_shapes")
    for value in model.graph.outputs:
        shape, inferred = declared.get(value.name or ""), known_shape(value)
        if shape is None:
            continue
        if inferred is not None and len(inferred) != len(shape):
            given = format_shape([d if isinstance(d, int) else d.value for d in shape])
            report.notes.append(
                f"'{value.name}' was declared as {given}, and has {len(inferred)} axes"
            )
            continue
        value.shape = shape
    return report
