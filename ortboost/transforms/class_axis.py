"""Inference of the class axis of the predictions.

Predictions of rank 2 are ``[samples, classes]``. For higher ranks there are two conventions:
``[batch, classes, height, width]`` for images and ``[batch, sequence, classes]`` for language
models. Labels have the same rank in both, so the data do not distinguish them, and if both lengths
are equal, a wrong guess would train without an error. Therefore the axis is inferred from the
graph:

1. from the operator that computes the predictions: for a product with a stored matrix (MatMul,
   Gemm) it is the last axis, for a convolution, pooling or DepthToSpace axis 1; the search goes
   back through operators that keep or move axes, and a Softmax or LogSoftmax names its own axis;
2. otherwise from the lengths: the number of classes is fixed, so the class axis is the only fixed
   axis if all others are dimensions of an input.

If the two disagree, or neither gives an axis, the user has to name it.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.errors import ModelError, UsageError
from ortboost.graph.query import format_shape, is_standard, known_shape, permutation
from ortboost.graph.source import source_name

__all__ = ["find_class_axis"]

_CHANNELS_FIRST = frozenset(
    "AveragePool Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool "
    "GroupNormalization InstanceNormalization LpPool MaxPool SpaceToDepth Upsample".split()
)
"""Operators for which ONNX defines axis 1 as the channels."""

_AS_THE_FIRST = frozenset(
    "BatchNormalization Cast CastLike Celu Clip Dropout Elu Exp Gelu HardSigmoid HardSwish "
    "Identity LayerNormalization LeakyRelu Log Mish Neg PRelu Pad Relu Resize Sigmoid Slice "
    "Softplus Tanh".split()
)
"""Operators whose output has the same axes as their first input."""

_AS_ALL = frozenset(("Add", "Concat", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum", "Where"))
"""Operators whose output has the same axes as every operand of the same rank."""

_Known = dict[ir.Value | None, int | None]
"""The feature axis of each value, or ``None`` if its operators do not determine it."""


def find_class_axis(model: ir.Model, prediction: ir.Value, given: int | None = None) -> int:
    """Find the class axis of the predictions, an output of a normalized model: 1 or more.

    The predictions are float ``[batch, ...]`` of a known rank of at least 2. An axis that the user
    gave may be counted from the end.

    Raises:
        UsageError: The given axis does not exist, or is the batch axis.
        ModelError: The axis is ambiguous; the error gives both interpretations.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,s,8] x, float[8,5] w) => (float[n,s,5] y) { y = MatMul(x, w) }''')
        >>> find_class_axis(model, model.graph.outputs[0])
        2
    """
    shape = known_shape(prediction) or ()
    rank = len(shape)
    if given is not None:
        axis = given + rank if given < 0 else given
        if not 1 <= axis < rank:
            raise UsageError(
                f"{given} cannot be the class axis of the output '{prediction.name}'.",
                where=f"{source_name(model)}: '{prediction.name}' {format_shape(shape)}",
                fix=f"Give 1 to {rank - 1}, or -1 for the last; axis 0 is the batch.",
            )
        return axis
    if rank == 2:
        return 1
    known = _Known()
    for node in model.graph:  # in graph order, each after what it reads
        known.update((output, _of_node(output, known)) for output in node.outputs)
    by_operator, by_lengths = known.get(prediction), _by_lengths(model, shape)
    # The operators may also give 0, the batch axis: that is no class axis, and the lengths never
    # agree with it.
    if by_operator and by_lengths in (None, by_operator):
        return by_operator
    if by_operator is None and by_lengths is not None:
        return by_lengths
    raise ModelError(
        f"The class axis of the output '{prediction.name}' is ambiguous.",
        where=f"{source_name(model)}: {format_shape(shape)} has {_length(shape[1])} classes with "
        f"labels {format_shape((shape[0], *shape[2:]))}, or {_length(shape[-1])} classes with "
        f"labels {format_shape(shape[:-1])}",
        fix="Give it with --class-axis 1 (images) or --class-axis -1 (language models).",
    )


def _of_node(value: ir.Value, known: _Known) -> int | None:
    """The feature axis of ``value`` according to the node that computes it, if certain."""
    node, shape = value.producer(), known_shape(value)
    if node is None or shape is None or not is_standard(node):
        return None
    op, rank = node.op_type, len(shape)
    if op in _CHANNELS_FIRST:
        return 1
    if op in ("Softmax", "LogSoftmax"):  # the default axis depends on the opset
        given = node.attributes.get_int("axis", None)
        return None if given is None or not rank else given % rank
    if op == "Gemm":
        return rank - 1
    if op == "MatMul":
        matrix = node.inputs[1]
        stored = matrix is not None and _rank(matrix) == 2 and _constant(matrix)
        return rank - 1 if stored else None
    if op in _AS_THE_FIRST:
        return known.get(node.inputs[0]) if _rank(node.inputs[0]) == rank else None
    if op in _AS_ALL:
        # All operands but constants must agree; one whose axis is unknown (`None`) counts.
        operands = [v for v in node.inputs if v is not None and _rank(v) == rank]
        found = {known.get(operand) for operand in operands if not _constant(operand)}
        return found.pop() if len(found) == 1 else None
    if op in ("Transpose", "Reshape", "Squeeze", "Unsqueeze"):
        return _moved(node, value, known)
    return None


def _moved(node: ir.Node, value: ir.Value, known: _Known) -> int | None:
    """The axis after an operator that moves axes; ``None`` if it may have been split or merged."""
    source, after = node.inputs[0], known_shape(value)
    before, axis = known_shape(source), known.get(source)
    if before is None or after is None or axis is None:
        return None
    if (perm := permutation(node)) is not None:
        return perm.index(axis)
    # A reshape keeps the axis if all before it, or all after it, stay together.
    # Axes are recognized by their lengths.
    if not isinstance(before[axis], int):
        return None
    # All axes before it were regrouped among themselves.
    if axis == len(before) - 1 and after[-1] == before[axis]:
        return len(after) - 1
    # All axes after it were.
    if axis == 1 and len(after) > 1 and after[:2] == before[:2] and after[0] is not None:
        return 1
    return None


def _constant(value: ir.Value, depth: int = 8) -> bool:
    """Whether a value depends only on stored tensors."""
    node = value.producer()
    if node is None:
        return value.is_initializer()
    return depth > 0 and all(v is None or _constant(v, depth - 1) for v in node.inputs)


def _rank(value: ir.Value | None) -> int | None:
    shape = known_shape(value)
    return None if shape is None else len(shape)


def _by_lengths(model: ir.Model, shape: tuple[int | str | None, ...]) -> int | None:
    """The only axis with a fixed length, if all others are dimensions of an input."""
    fixed = [axis for axis in range(1, len(shape)) if isinstance(shape[axis], int)]
    named = {dim for value in model.graph.inputs for dim in known_shape(value) or ()} - {None}
    others = {shape[axis] for axis in range(1, len(shape)) if axis not in fixed}
    if len(fixed) != 1 or not others <= named:
        return None
    # An axis in the middle is neither convention.
    return fixed[0] if fixed[0] in (1, len(shape) - 1) else None


def _length(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim)
