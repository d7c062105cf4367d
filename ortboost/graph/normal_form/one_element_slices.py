"""A Slice of one element of a vector, as exporters write ``offsets[i:i+1]``, becomes a Gather.

Shape inference does not know the length of such a slice. If it is the ``starts`` of another Slice
(torch's EmbeddingBag), not even the number of axes that the other one cuts is known.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.bodies import states_of
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import (
    constant,
    find_nodes,
    input_at,
    is_standard,
    known_shape,
    scalar,
    source_before,
)

__all__ = ["gather_single_elements"]

_PASSES = ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_WHOLE = (ir.DataType.INT64, ir.DataType.INT32)


def gather_single_elements(model: ir.Model) -> Report:
    """Replace Slices ``x[i:i+1]`` in bodies of Loops, where ``i`` counts the steps, in place.

    ``i`` is proven not to be negative: a negative one would count from the end. Beyond the end, a
    Slice is empty, but a Gather fails. So only Loops that build a sequence are rewritten: the shape
    of its elements has to be known.
    """
    report = Report("one_element_slices")
    builder = Builder(model.graph, "ortboost/element")
    for loop in find_nodes(model.graph.all_nodes(), "Loop"):
        counters, body = _counters(loop), list(loop.attributes["body"].as_graph())
        if not any(is_standard(node, "SequenceInsert") for node in body):
            continue
        for node in find_nodes(body, "Slice"):
            steps, axes = constant(input_at(node, 4)), constant(input_at(node, 3))
            start, end = _place(node.inputs[1]), _place(node.inputs[2])
            if (
                len(known_shape(node.inputs[0]) or ()) == 1
                and (axes is None or axes.size == 1)
                and (steps is None or steps.tolist() == [1])
                and start[0] in counters
                and start[0] is end[0]
                and end[1] - start[1] == 1
                and start[1] >= 0
            ):
                replace_node(node, [builder.op("Gather", *node.inputs[:2], axis=0)], builder)
                report.changed[node.name or ""] = "reads one element, as a Gather"
    return report


def _counters(loop: ir.Node) -> list[ir.Value]:
    """The number of the step, and states that start at 0 or above and grow."""
    body, (before, first, count) = loop.attributes["body"].as_graph(), states_of(loop)
    found = [body.inputs[0]]
    for index in range(count):
        state, initial = body.inputs[before + index], scalar(loop.inputs[before + index])
        base, more = _place(body.outputs[first + index])
        if initial is not None and initial >= 0 and base is state and more >= 0:
            found.append(state)
    return found


def _place(value: ir.Value | None) -> tuple[ir.Value | None, int]:
    """A single number as another one plus a constant."""
    total = 0
    while value is not None and (node := value.producer()) is not None:
        if is_standard(node, *_PASSES):
            if node.outputs[0].dtype not in _WHOLE:  # others may change the number
                break
            value = node.inputs[0]
        elif is_standard(node, "Add") and (term := _number(node.inputs[1])) is not None:
            value, total = node.inputs[0], total + term
        else:
            break
    return value, total


def _number(value: ir.Value | None) -> int | None:
    """A constant integer, also one that a node casts."""
    number = scalar(source_before(value, *_PASSES))
    return None if number is None or number != int(number) else int(number)
