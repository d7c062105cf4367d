"""Shapes of the states and results of loops, which ONNX's inference leaves open.

It infers neither the shape nor the rank of a state of a Loop, since an iteration may change them,
nor those of values computed from a state. Here each length is first assumed to keep its initial
value. If the body then returns a state with the same length, this holds for all iterations, by
induction; otherwise the length is unknown.
"""

from __future__ import annotations

from typing import TypeAlias

import onnx_ir as ir

from ortboost.graph.bodies import as_model, own_outputs, states_of
from ortboost.graph.query import is_standard, known_shape
from ortboost.graph.shapes.shape_inference import infer_shapes

__all__ = ["Dims", "infer_body", "infer_loops"]

Dims: TypeAlias = list[int | str | None] | None
"""A shape; ``None`` if even the rank is unknown."""


def infer_loops(model: ir.Model) -> None:
    """Infer the shapes of what the Loops of the main graph return, and what follows, in place.

    All other shapes of the model have been inferred.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,2] x, int64 steps) => (y) { y = Loop(steps, "", x) <
        ...   body = step (int64 i, bool c, float[a,b] s) => (bool go, float[c,d] t) {
        ...     go = Identity(c) t = Tanh(s) }> }''')
        >>> infer_shapes(model)
        >>> infer_loops(model)
        >>> str(model.graph.outputs[0].shape)
        '[n,2]'
    """
    for node in list(model.graph):
        if is_standard(node, "Loop") and any(value.shape is None for value in node.outputs):
            body = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
            own_outputs(body)
            alone = as_model(body, model).model
            states = infer_body(alone, node)
            known = {dim for value in node.inputs if value for dim in known_shape(value) or ()}
            results = [known_shape(value) for value in alone.graph.outputs[1 + len(states) :]]
            shapes = [*states, *(None if dims is None else [None, *dims] for dims in results)]
            for value, dims in zip(node.outputs, shapes, strict=True):
                if value.shape is None and dims is not None:
                    # A name from within the body means nothing outside.
                    value.shape = ir.Shape(
                        [dim if isinstance(dim, int) or dim in known else None for dim in dims]
                    )
            infer_shapes(model)


def infer_body(body: ir.Model, node: ir.Node) -> list[Dims]:
    """Infer the shapes of a body from those of the inputs of its node, in place.

    The body of an If, Loop or Scan is a model of its own (:func:`ortboost.graph.bodies.as_model`).

    Returns:
        The shape of each state, which every iteration keeps.
    """
    if node.op_type == "If":
        _infer(body)
        return []
    before, first, count = states_of(node)
    inputs = list(body.graph.inputs)
    if node.op_type == "Loop":
        inputs[0].type, inputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        inputs[1].type, inputs[1].shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    for index in range(len(node.inputs) - count - before):  # the slices of a Scan
        _describe_slice(inputs[count + index], node, count, index)
    states = inputs[before : before + count]
    guessed = [_guess(*pair) for pair in zip(node.inputs[before:], states, strict=False)]
    results = body.graph.outputs[first : first + count]
    _forget_shapes(body, keep_numbers=True)  # names that an exporter gave may differ for one length
    while True:
        for inner, dims in zip(states, guessed, strict=True):
            inner.shape = None if dims is None else ir.Shape(dims)
        _infer(body)
        kept = [_agreement(dims, value) for dims, value in zip(guessed, results, strict=True)]
        if kept == guessed:
            return guessed
        guessed = kept
        _forget_shapes(body)  # inferred from a wrong guess


def _guess(initial: ir.Value | None, inner: ir.Value) -> Dims:
    """The shape that a state starts with; unknown lengths get names, to recognize them again."""
    if initial is None:
        return None
    inner.type = initial.type
    shape = known_shape(initial)
    if shape is None:
        return None
    return [f"{inner.name}/{axis}" if dim is None else dim for axis, dim in enumerate(shape)]


def _agreement(dims: Dims, result: ir.Value) -> Dims:
    """The lengths that a state still has after an iteration."""
    found = known_shape(result)
    if dims is None or found is None or len(found) != len(dims):
        return None
    return [dim if dim == after else None for dim, after in zip(dims, found, strict=True)]


def _forget_shapes(body: ir.Model, *, keep_numbers: bool = False) -> None:
    for node in body.graph.all_nodes():
        for output in node.outputs:
            dims = known_shape(output) if keep_numbers else None
            numbers = [dim if isinstance(dim, int) else None for dim in dims or ()]
            output.shape = None if dims is None else ir.Shape(numbers)


def _describe_slice(inner: ir.Value, node: ir.Node, count: int, index: int) -> None:
    outer = node.inputs[count + index]
    if outer is None:
        return
    inner.type = outer.type
    shape = known_shape(outer)
    if shape is not None:
        axes = node.attributes.get_ints("scan_input_axes", None) or [0] * (index + 1)
        axis = axes[index] % len(shape)
        inner.shape = ir.Shape([d for a, d in enumerate(shape) if a != axis])


def _infer(model: ir.Model) -> None:
    infer_shapes(model)
    infer_loops(model)
