"""Declared shapes of outputs: put aside while a graph is rewritten, and corrected.

A file declares the shapes of its outputs, and nothing checks them: many call the first dimension of
every tensor ``batch``, or still have the numbers from before an input was made dynamic;
onnxruntime runs such files. All other shapes are inferred. So that rewrites rely on inferred shapes
only, the declared ones are removed before, and come back afterwards where inference does not
contradict them. For training, only those of outputs that no node reads come back; the others wait
in ``Graph.meta``, which is not written to files, until the graph is evaluated or exported.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import format_shape, known_shape
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.shapes.symbolic_shapes import is_of_inputs, is_placeholder

__all__ = ["declared_shapes", "forget_declared", "put_aside", "restore_declared", "restore_read"]

_META = "ortboost.declared"


def declared_shapes(model: ir.Model) -> dict[str, ir.Shape]:
    """The declared shapes of the outputs that nodes compute, by name."""
    return {
        value.name or "": value.shape
        for value in model.graph.outputs
        if value.shape is not None and value.producer() is not None
    }


def put_aside(model: ir.Model, declared: Mapping[str, ir.Shape]) -> None:
    """Keep shapes of outputs that nodes read with the graph, for :func:`restore_read`.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N] x) => (int64[1,K] i, int64[K,1] t) { i = NonZero(x) t = Transpose(i) }''')
        >>> put_aside(model, declared_shapes(model))
        >>> model.graph.outputs[0].shape = None
        >>> _ = restore_read(model)
        >>> print(model.graph.outputs[0].shape)
        [1,K]
    """
    model.graph.meta.setdefault(_META, dict(declared))  # a graph may be normalized again


def restore_read(model: ir.Model) -> Report:
    """Restore the shapes of outputs that nodes read, when no gradient can rely on them."""
    return restore_declared(model, model.graph.meta.get(_META, {}))


def forget_declared(model: ir.Model) -> Report:
    """Infer the shapes of the outputs instead of the declared ones, in place."""
    for value in model.graph.outputs:
        if value.producer() is not None and isinstance(value.type, ir.TensorType):
            value.shape = None
    infer_shapes(model)
    return Report("declared_shapes")


def restore_declared(model: ir.Model, declared: Mapping[str, ir.Shape]) -> Report:
    """Give the outputs their declared shapes again, in place; the report names wrong ones.

    A declared dimension is trusted where inference finds none. So leave out outputs that other
    nodes read: gradients would rely on it.

    The inferred shape stays if the declared one contradicts it: another number of axes, another
    number, a number for a length that depends on those of the inputs, or the name of another
    dimension of the inputs. Of the other shapes, numbers that inference finds replace names, and
    names that ONNX invents (``unk__1``) are not restored: they may stand for another length now.

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
        dims = tuple(None if is_placeholder(dim) else dim for dim in map(_plain, shape))
        if inferred is None:
            value.shape = ir.Shape(dims)
            continue
        places = list(zip(dims, inferred, strict=False))
        if len(dims) != len(inferred) or any(_contradicts(*place, given) for place in places):
            change = f"declared as {format_shape(dims)}, is {format_shape(inferred)}"
            report.changed[value.name or ""] = change
        else:
            # A number says more than a name; a name of the file more than one that ONNX invents.
            value.shape = ir.Shape(
                [now if isinstance(now, int) or was is None else was for was, now in places]
            )
    return report


def _plain(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def _contradicts(
    declared: int | str | None, inferred: int | str | None, given: set[int | str | None]
) -> bool:
    """Whether a dimension cannot be what the file declares; ``given`` are those of the inputs."""
    if isinstance(declared, int) and isinstance(inferred, int):
        return declared != inferred
    return (
        (isinstance(declared, int) or (declared is not None and declared in given))
        and is_of_inputs(inferred, given)
        and declared != inferred
    )
