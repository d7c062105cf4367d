"""Give the states of loops their shapes, where a file does not declare them.

The states of a Loop may change their shapes from step to step, so ONNX's inference assumes nothing
about them. Most never do, but onnxscript and spox declare no shapes in the body::

    Loop(n, cond, h [N,16]) { h' = Tanh(h) }  -> [N,16]

A state has the shape of its initial value if each step leaves that shape as it is: the first step
gets it, and each other one gets what the one before returns. States that grow stay without shapes.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import input_at, is_standard, known_shape
from ortboost.graph.shape_inference import infer_shapes

__all__ = ["shape_loop_states"]

_ROUNDS = 8  # a state may depend on another one that grows


def shape_loop_states(model: ir.Model) -> None:
    """Set the shapes of the states and results of loops in place, and infer what follows from them.

    Args:
        model: A model with its shapes inferred.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,2] x, int64 n, bool go) => (y) { y = Loop(n, go, x) <body =
        ...   step (int64 i, bool c, float h) => (bool d, float k) { d = Identity(c) k = Neg(h) }> }
        ... ''')
        >>> model.graph[0].attributes["body"].as_graph().inputs[2].shape = None
        >>> shape_loop_states(model)
        >>> model.graph.outputs[0].shape
        Shape([SymbolicDim('N'), 2])
    """
    for _ in range(_ROUNDS):  # a loop may start with the result of another one
        guesses = _first_shapes(model)
        if not guesses or not (shapes := _lasting(model, guesses)):
            return
        _apply(model, shapes)
        infer_shapes(model)


_Shapes = dict[tuple[int, int], tuple[int | str | None, ...]]  # of a loop and a state, by position


def _loops(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if is_standard(node, "Loop")]


def _first_shapes(model: ir.Model) -> _Shapes:
    """The shapes of the initial values of states whose own shape, or result, has none."""
    found: _Shapes = {}
    for place, loop in enumerate(_loops(model)):
        for index, state in enumerate(loop.attributes["body"].as_graph().inputs[2:]):
            first = input_at(loop, 2 + index)
            dims = None if first is None else known_shape(first)
            missing = None in (state.shape, loop.outputs[index].shape)
            if missing and dims is not None and None not in dims:
                found[place, index] = tuple(dims)
    return found


def _lasting(model: ir.Model, shapes: _Shapes) -> _Shapes:
    """Those of the shapes that a step returns if it is given all of them."""
    while shapes:
        trial = model.clone()
        _apply(trial, shapes)
        infer_shapes(trial)
        loops, lasting = _loops(trial), _Shapes()
        for (place, index), dims in shapes.items():
            body = loops[place].attributes["body"].as_graph()
            if known_shape(body.outputs[1 + index]) == dims:
                lasting[place, index] = dims
        if lasting == shapes:
            return shapes
        shapes = lasting
    return {}


def _apply(model: ir.Model, shapes: _Shapes) -> None:
    loops = _loops(model)
    for (place, index), dims in shapes.items():
        body = loops[place].attributes["body"].as_graph()
        body.inputs[2 + index].shape = ir.Shape(dims)
        loops[place].outputs[index].shape = ir.Shape(dims)
