"""Replace elements taken from a split sequence by slices.

``torch.split`` and ``chunk`` are exported as SplitToSequence, and a SequenceAt for each part.
Neither engine differentiates sequences, and runtimes support them poorly.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import constant, input_at, is_standard, known_shape, producer_of

__all__ = ["unpack_sequences"]

_END = 2**63 - 1


def unpack_sequences(model: ir.Model, *, computed: bool = False) -> Report:
    """Replace each SequenceAt after a SplitToSequence, in place, if index and sizes are known.

    Args:
        model: The model.
        computed: Also where the one size of all parts is computed when the model runs, for example
            from the batch. Once everything that can be known is: it costs nodes.

    Returns:
        A report of the replaced nodes; others are kept. The rewrite is idempotent.
    """
    report = Report("unpack_sequences")
    builder: Builder | None = None
    for node in list(model.graph):
        if not is_standard(node, "SequenceAt"):
            continue
        split = producer_of(node.inputs[0], "SplitToSequence")
        if split is None:
            continue
        place, data = _numbers(node, 1), split.inputs[0]
        bounds = _bounds(split, place)
        size = _computed_size(split, place) if computed and bounds is None else None
        if (bounds is None and size is None) or not place or data is None:
            continue
        builder = builder or Builder(model.graph, "ortboost/sequence")
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
    shape = None if split.inputs[0] is None else known_shape(split.inputs[0])
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
