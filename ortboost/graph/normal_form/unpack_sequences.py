"""Replace elements taken from a sequence by tensors.

``torch.split`` and ``chunk`` are exported as SplitToSequence, and a SequenceAt for each part; lists
that a script builds and stacks as SequenceInsert and ConcatFromSequence; ``torch.atleast_1d`` of a
list, which is part of ``column_stack``, as SequenceMap. Neither engine differentiates sequences,
and runtimes support them poorly.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.bodies import own_outputs, rename_values, unwrap
from ortboost.graph.build import Builder, detach, replace_node
from ortboost.graph.query import (
    constant,
    find_nodes,
    input_at,
    is_standard,
    known_shape,
    producer_of,
)

__all__ = ["unpack_sequences"]

_END = 2**63 - 1


def unpack_sequences(model: ir.Model, *, computed: bool = False) -> Report:
    """Replace what reads a sequence, in place, if index and sizes, or its elements, are known.

    This includes the bodies of If, Loop and Scan. With ``computed``, also sequences whose parts
    have one size that is computed when the model runs, for example from the batch. That adds
    nodes: use it last, when no more sizes can be inferred. The rewrite is idempotent.
    """
    report = Report("unpack_sequences")
    builder = Builder(model.graph, "ortboost/sequence")
    readers = ("ConcatFromSequence", "SequenceAt", "SequenceMap")
    for node in find_nodes(model.graph.all_nodes(), *readers):
        if node.op_type == "SequenceMap":
            if _map(node, builder):
                report.changed[node.name or ""] = "its body, once for each tensor"
            continue
        elements = _elements(node.inputs[0])
        if elements:
            read = _read(node, elements, builder)
            if read is not None:
                replace_node(node, [read], builder)
                report.changed[node.name or ""] = f"a sequence of {len(elements)} known tensors"
            continue
        split = producer_of(node.inputs[0], "SplitToSequence")
        if split is None or node.op_type != "SequenceAt":
            continue
        place, data = _numbers(node, 1), split.inputs[0]
        bounds = _bounds(split, place)
        size = _computed_size(split, place) if computed and bounds is None else None
        if (bounds is None and size is None) or not place or data is None:
            continue
        axis = split.attributes.get_int("axis", 0)
        if bounds is not None:
            start, end = (builder.ints(bound) for bound in bounds)
        else:
            wide = builder.op("Cast", size, dtype=ir.DataType.INT64, to=ir.DataType.INT64)
            length = builder.op("Reshape", wide, builder.ints(1))
            start, end = (builder.op("Mul", length, builder.ints(place[0] + i)) for i in (0, 1))
        part = builder.op("Slice", data, start, end, builder.ints(axis))
        # keepdims counts only where no sizes are given: then each part has length 1.
        if input_at(split, 1) is None and not split.attributes.get_int("keepdims", 1):
            part = builder.op("Squeeze", part, builder.ints(axis))
        replace_node(node, [part], builder)
        report.changed[node.name or ""] = f"a slice of the input of '{split.name}'"
    return report


def _elements(sequence: ir.Value | None) -> list[ir.Value] | None:
    """The tensors of a sequence that is built one by one; ``None`` if they are not known."""
    node = None if sequence is None else sequence.producer()
    inserts: list[ir.Node] = []
    while node is not None and is_standard(node, "SequenceInsert"):  # not recursive: lists are long
        inserts.append(node)
        node = producer_of(node.inputs[0], "SequenceInsert", "SequenceConstruct", "SequenceEmpty")
    if node is None or not is_standard(node, "SequenceConstruct", "SequenceEmpty"):
        return None
    elements = [value for value in node.inputs if value is not None]
    for insert in reversed(inserts):
        value, place = insert.inputs[1], [len(elements)]
        if input_at(insert, 2) is not None:
            place = _numbers(insert, 2) or []
        if value is None or not place:
            return None
        elements.insert(place[0], value)
    return elements


def _map(node: ir.Node, builder: Builder) -> bool:
    """Put the body of a SequenceMap in its place once for each tensor; whether they are known."""
    graph, lists = node.graph, [_elements(value) for value in node.inputs]
    is_list = [value and isinstance(value.type, ir.SequenceType) for value in node.inputs]
    unknown = any(given and not found for given, found in zip(is_list, lists, strict=True))
    lengths = {len(found) for found in lists if found}
    shown = any(output.is_graph_output() for output in node.outputs)
    if not isinstance(graph, ir.Graph) or unknown or shown or len(lengths) != 1:
        return False
    results = []
    for turn in range(lengths.pop()):
        body = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
        own_outputs(body)
        rename_values(body, builder.unique)
        for inner, value, found in zip(body.inputs, node.inputs, lists, strict=True):
            actual = found[turn] if found else value
            assert actual is not None  # inputs of a SequenceMap are not optional
            ir.convenience.replace_all_uses_with(inner, actual)
        results.append(unwrap(body, node))
    for output, tensors in zip(node.outputs, zip(*results, strict=True), strict=True):
        made = ir.node("SequenceConstruct", tensors)
        made.outputs[0].name, made.outputs[0].type = builder.unique(output.name or ""), output.type
        graph.insert_before(node, made)
        ir.convenience.replace_all_uses_with(output, made.outputs[0])
    for inner_node in node.attributes["body"].as_graph().all_nodes():
        detach(inner_node)
    graph.remove(node, safe=True)
    return True


def _read(node: ir.Node, elements: list[ir.Value], builder: Builder) -> ir.Value | None:
    """What a node takes from a sequence of these tensors."""
    if node.op_type == "SequenceAt":
        place = _numbers(node, 1)
        if not place or not -len(elements) <= place[0] < len(elements):
            return None
        return builder.op("Identity", elements[place[0]])
    axis = node.attributes.get_int("axis", 0)
    if node.attributes.get_int("new_axis", 0):
        elements = [builder.op("Unsqueeze", value, builder.ints(axis)) for value in elements]
    return builder.op("Concat", *elements, axis=axis)


def _computed_size(split: ir.Node, place: list[int] | None) -> ir.Value | None:
    """The size of all parts but the last, if it is one number and the part is counted from 0."""
    given = input_at(split, 1)
    single = given is not None and known_shape(given) == ()
    return given if single and place and place[0] >= 0 else None


def _bounds(split: ir.Node, place: list[int] | None) -> tuple[int, int] | None:
    """Start and end of the part at an index."""
    if not place:
        return None
    index, axis = place[0], split.attributes.get_int("axis", 0)
    shape = known_shape(split.inputs[0])
    length = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    given = input_at(split, 1)
    sizes = [1] if given is None else _numbers(split, 1)
    if not sizes:
        return None
    if given is not None and len(known_shape(given) or ()) == 1:  # the length of each part
        index += len(sizes) if index < 0 else 0
        return (sum(sizes[:index]), sum(sizes[: index + 1])) if 0 <= index < len(sizes) else None
    size = sizes[0]  # the same for all parts but the last, which may be shorter
    if index < 0:  # counted from the last part, whose place depends on the length
        if not isinstance(length, int) or size < 1:
            return None
        index += -(-length // size)
    return (index * size, min((index + 1) * size, _END)) if index >= 0 else None


def _numbers(node: ir.Node, index: int) -> list[int] | None:
    array = constant(input_at(node, index))
    return None if array is None else [int(number) for number in array.reshape(-1)]
