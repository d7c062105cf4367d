"""Inference of the batch axis of each input, along which data are split into batches.

Most inputs are ``[batch, ...]``, but a recurrent state is ``[layers, batch, features]``, a sampling
rate is a scalar, and a graph network reads nodes and edges that belong together. The axis is
inferred from the predictions, whose first dimension is the batch:

1. If that dimension has a name that occurs in the inputs, or all inputs begin with the same name,
   the batch axis of an input is the axis with that name.
2. If it has a fixed length, the batch axis is the first axis of that length.
3. If the batch length is open, an input with a fixed shape is the same for all samples.
4. An input with an open first dimension, whatever its name, is batched along it.

If an input selects rows of values computed from other inputs (an edge list), splitting would
separate related rows: nothing is batched, and data are fed whole. An axis that no rule decides is
:data:`UNKNOWN`, and its data are rejected until the user gives the axis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import onnx_ir as ir

from ortboost.core.errors import UsageError
from ortboost.graph.query import format_shape, known_shape
from ortboost.graph.reach import descendants
from ortboost.graph.shapes.input_config import Dims, require_input

__all__ = ["UNKNOWN", "BatchAxis", "find_batch_axes", "model_batch_axes", "row_picker"]

UNKNOWN: Final = "unknown"
"""The batch axis of an input for which no rule applies."""

BatchAxis: TypeAlias = int | Literal["unknown"] | None

_BATCH_NAME = re.compile(r"(batch.*|.*batch(_size)?|bs|b|n)", re.IGNORECASE)
_MOVES = frozenset(
    "Cast Clip Expand Flatten Gather GatherND Identity Reshape Slice Split Squeeze Transpose "
    "Unsqueeze".split()
)
"""Operators that pass on row indices from their first input to their output."""
_JOINS = frozenset(("Add", "Concat", "Max", "Min", "Where"))
"""Operators that pass on row indices from any input.

They add offsets to negative indices, or self-loops to an edge list.
"""
_CUTS = frozenset(("Gather", "Slice", "Split"))
"""Operators that extract a single row from an edge list."""


def find_batch_axes(
    shapes: Mapping[str, Dims],
    first: int | str | None,
    given: Mapping[str, int | None] | None = None,
    *,
    whole: bool = False,
) -> dict[str, BatchAxis]:
    """The batch axis of each input; ``None`` for an input that is the same for all samples.

    Args:
        shapes: Input to shape.
        first: The first dimension of the predictions.
        given: Input to axis, as given by the user.
        whole: Whether the inputs belong together and are fed whole, see :func:`row_picker`.

    Raises:
        UsageError: An axis was given for an unknown input, or the input has no such axis.

    Example:
        >>> shapes = {"x": ("batch", 576), "state": (2, "batch", 128), "sr": ()}
        >>> find_batch_axes(shapes, "batch")
        {'x': 0, 'state': 1, 'sr': None}
    """
    settled = {name: _given_axis(name, axis, shapes) for name, axis in (given or {}).items()}
    # Exporters may name the batch differently in the outputs.
    if first not in {dim for shape in shapes.values() for dim in shape}:
        heads = {shape[0] for shape in shapes.values() if shape}
        named = [head for head in heads if isinstance(head, str)]
        first = named[0] if len(named) == 1 else None
    inferred = {name: None if whole else _axis(s, first, shapes) for name, s in shapes.items()}
    return {**inferred, **settled}


def _check_dims(shapes: Mapping[str, Dims], axes: Mapping[str, BatchAxis]) -> None:
    """Refuse batch axes along which equal names of dimensions would get different lengths."""
    batched = {n: shapes[n][axis] for n, axis in axes.items() if isinstance(axis, int)}
    batch = {name: dim for name, dim in batched.items() if isinstance(dim, str)}
    for name, dim in batch.items():
        other = next((n for n, own in batch.items() if own != dim and dim in shapes[n]), None)
        if other is not None:
            raise UsageError(
                f"The batch axes of '{name}' and '{other}' contradict each other: "
                f"'{other}' has the batch dimension '{dim}' in axis {shapes[other].index(dim)}.",
                where=", ".join(f"{n} {format_shape(shapes[n])}: axis {axes[n]}" for n in batch),
                fix=f"Give --batch-axis {other}={shapes[other].index(dim)}, or another for {name}.",
            )


def _given_axis(name: str, axis: int | None, shapes: Mapping[str, Dims]) -> int | None:
    """An axis that the user gave, counted from the front."""
    require_input(name, shapes, f"--batch-axis {name}")
    rank = len(shapes[name])
    if axis is None:
        return None
    if not -rank <= axis < rank:
        raise UsageError(
            f"The input '{name}' has no axis {axis}.",
            where=f"--batch-axis {name}={axis}: {format_shape(shapes[name])}",
            fix=f"Give 0 to {rank - 1}, or none." if rank else f"Give {name}=none.",
        )
    return axis % rank


def _axis(shape: Dims, first: int | str | None, shapes: Mapping[str, Dims]) -> BatchAxis:
    if not shape:
        return None
    axes = [axis for axis, dim in enumerate(shape) if dim == first and dim is not None]
    # Rule 1, unless another name is clearly that of the batch.
    if isinstance(first, str) and not _BATCH_NAME.fullmatch(first):
        others = {dim for s in shapes.values() for dim in s if isinstance(dim, str)} - {first}
        if any(_BATCH_NAME.fullmatch(dim) for dim in others):
            return UNKNOWN  # the predictions are [sequence, batch, ...]
    if axes:
        return axes[0]
    # Rule 2: no axis has the fixed length of the batch.
    fixed = all(isinstance(dim, int) for dim in shape)
    if isinstance(first, int):
        return None if fixed else UNKNOWN
    # Rule 4, then 3. If all shapes are fixed, equal first lengths are the batch.
    heads = [s[0] for s in shapes.values() if s]
    if not isinstance(shape[0], int):
        return 0  # lengths are compared when the data are known
    if fixed and any(not isinstance(head, int) for head in heads):
        return None
    return 0 if fixed and len(set(heads)) == 1 else UNKNOWN


def model_batch_axes(
    model: ir.Model,
    given: Mapping[str, int | None] | None = None,
    *,
    inputs: Mapping[str, Dims] | None = None,
    prediction: str | None = None,
    labels: str | None = None,
) -> dict[str, BatchAxis]:
    """The batch axis of each input of a model.

    Args:
        model: The model.
        given: Input to axis, as given by the user.
        inputs: The inputs that are data; all inputs of the model if not given.
        prediction: The output whose first dimension is the batch; the first output if not given.
        labels: The input with labels, whose batch axis is 0 like that of the predictions; a scalar
            has none.

    Raises:
        UsageError: See :func:`find_batch_axes`; or the axes contradict each other.
    """
    graph = model.graph
    output = next(
        (value for value in graph.outputs if prediction in (None, value.name)), graph.outputs[0]
    )
    shape = known_shape(output)
    data = [v for v in graph.inputs if not v.is_initializer()]
    if inputs is None:  # if the rank is unknown, axis 0 holds the samples
        known = {v.name or "": known_shape(v) for v in data}
        inputs = {name: (None,) if dims is None else dims for name, dims in known.items()}
    shapes = {name: dims for name, dims in inputs.items() if name != labels}
    whole = row_picker(model, set(shapes)) is not None
    given, own = dict(given or {}), dict[str, BatchAxis]()
    if labels is not None and labels in inputs:
        own[labels] = None if whole or not inputs[labels] else 0
        if labels in given:
            own[labels] = _given_axis(labels, given.pop(labels), inputs)
    found = find_batch_axes(shapes, shape[0] if shape else None, given, whole=whole)
    axes = {**found, **own}
    _check_dims(inputs, axes)
    return axes


def row_picker(model: ir.Model, data: set[str] | None = None) -> str | None:
    """Find an integer input that selects rows of values computed from other inputs.

    Such an input is an edge list or an assignment of nodes to graphs: it refers to rows of one
    batch by index. An input that selects rows of a stored table (token IDs) does not count, nor one
    that is not among the names of the ``data``, if these are given.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["" : 18]> net (float[n,3] x, int64[e] source)
        ...     => (float[e,3] y) { y = Gather(x, source) }'''
        >>> row_picker(ir.from_onnx_text(text))
        'source'
    """
    inputs = [v for v in model.graph.inputs if data is None or v.name in data]
    if len(inputs) < 2:
        return None
    fed = {
        *inputs,
        *(output for node in descendants(model.graph, inputs) for output in node.outputs),
    }
    for value in inputs:
        if value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
            continue
        pending, seen = [(value, False)], set[int]()  # joined: Concat made it rows of coordinates
        while pending:
            current, joined = pending.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            for usage in current.uses():
                node = usage.node
                if _picks(node, usage.idx, joined) and node.inputs[0] in fed:
                    return value.name
                if (node.op_type in _MOVES and usage.idx == 0) or node.op_type in _JOINS:
                    pairs = joined or (node.op_type == "Concat" and len(node.inputs) > 1)
                    pairs = pairs and node.op_type not in _CUTS
                    pending += [(output, pairs) for output in node.outputs]
    return None


def _picks(node: ir.Node, index: int, joined: bool) -> bool:
    """Whether this input of a node selects rows, along axis 0, of its first input."""
    if index != 1:
        return False
    op, axis = node.op_type, node.attributes.get_int("axis", 0)
    if op in ("Gather", "ScatterElements"):
        rows = node.inputs[0]
        return axis == 0 or (rows is not None and -axis == len(known_shape(rows) or ()))
    # Concatenated indices have several coordinates: this one may not be the row.
    return (
        op in ("GatherND", "ScatterND")
        and not joined
        and not node.attributes.get_int("batch_dims", 0)
    )
