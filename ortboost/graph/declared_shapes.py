"""Declared shapes of outputs: put aside while a graph is rewritten, and corrected.

A file declares the shapes of its outputs, and nothing checks them: many call the first dimension of
every tensor ``batch``, or still have the numbers from before an input was made dynamic;
onnxruntime runs such files. All other shapes are inferred. So that rewrites rely on inferred shapes
only, the declared ones are removed before, and come back afterwards where inference does not
contradict them.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import format_shape, known_shape
from ortboost.graph.shape_inference import infer_shapes
from ortboost.graph.symbolic_shapes import is_placeholder

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
    """Give the outputs their declared shapes again, in place; the report names wrong ones.

    Names of dimensions come back, other than for lengths that are known as numbers. A shape does
    not if inference contradicts it: another number of axes, another number, a number where the
    length is a dynamic one, or the name of another dimension of an input.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,8] x) => (float[1,8] y) { y = Relu(x) }''')
        >>> declared = declared_shapes(model)
        >>> _ = forget_declared(model)
        >>> print(restore_declared(model, declared))
        declared_shapes: 1 changed, 0 kept
          y: declared as [1, 8], is [N, 8]
    """
    report = Report("declared_shapes")
    given = {dim for value in model.graph.inputs for dim in known_shape(value) or ()}
    for value in model.graph.outputs:
        shape, inferred = declared.get(value.name or ""), known_shape(value)
        if shape is None:
            continue
        if inferred is None:
            value.shape = shape
            continue
        dims = tuple(dim if isinstance(dim, int) else dim.value for dim in shape)
        places = list(zip(dims, inferred, strict=False))
        if len(dims) != len(inferred) or any(_contradicts(*place, given) for place in places):
            change = f"declared as {format_shape(dims)}, is {format_shape(inferred)}"
            report.changed[value.name or ""] = change
        else:
            # A number says more than a name; a name of the file more than one that ONNX invented.
            value.shape = ir.Shape(
                [now if isinstance(now, int) or was is None else was for was, now in places]
            )
    return report


def _contradicts(
    declared: int | str | None, inferred: int | str | None, given: set[int | str | None]
) -> bool:
    """Whether a dimension cannot be what the file declares; ``given`` are those of the inputs."""
    if declared is None or inferred is None or is_placeholder(inferred):
        return False
    if isinstance(declared, int):
        return declared != inferred
    return not isinstance(inferred, int) and declared in given and declared != inferred
