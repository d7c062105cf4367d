"""Questions about a graph: its tensors, its trainable parameters, its buffers.

Whether an initializer is a parameter is nowhere written in an ONNX file. :func:`find_parameters`
decides by where the tensor is used, not by its name, and says why, so that
``ortboost inspect --params`` can show it and ``--trainable`` / ``--freeze`` can overrule it.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

__all__ = [
    "FLOAT_TYPES",
    "ROLE_MARK",
    "Parameter",
    "all_tensors",
    "find_parameters",
    "known_shape",
    "match_names",
    "static_shape",
]

FLOAT_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)

ROLE_MARK = "ortboost.role"
"""Metadata key of a tensor that a rewrite added: its role, where its place in the graph does not say it."""

_NORM_OPS = {
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "RMSNormalization": (1,),
}
# Positions where a float tensor is a weight whatever its size.
_WEIGHTS = {
    "Conv": ((1, "weight"), (2, "bias")),
    "ConvTranspose": ((1, "weight"), (2, "bias")),
    "Gemm": ((0, "weight"), (1, "weight"), (2, "bias")),
    "MatMul": ((0, "weight"), (1, "weight")),
    "Einsum": ((0, "weight"), (1, "weight")),
    "Gather": ((0, "weight"),),
    "PRelu": ((1, "weight"),),
    "LSTM": ((1, "weight"), (2, "weight"), (3, "bias")),
    "GRU": ((1, "weight"), (2, "weight"), (3, "bias")),
    "RNN": ((1, "weight"), (2, "weight"), (3, "bias")),
}
# Positions that set how an operator works; never learned.
_SETTINGS = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "Dropout": (1, 2),
    "Pad": (1, 2),
    "Pow": (1,),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "OneHot": (2,),
    "Range": (0, 1, 2),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
}
_PREPROCESSING = "normalizes the raw input"
# Through these a weight is still the same weight.
_TRANSPARENT = {
    "Transpose",
    "Identity",
    "Cast",
    "CastLike",
    "Reshape",
    "Unsqueeze",
    "Squeeze",
    "Expand",
}
# Exporters cut the weights of a recurrent layer up and put the gates in another order.
_CUTTING = {"Slice", "Split"}


@dataclass(frozen=True)
class Parameter:
    """What a float initializer of a model is.

    Args:
        name: Its name in the file.
        shape: Static shape.
        dtype: Element type.
        role: ``weight``, ``bias``, ``norm_scale``, ``norm_shift`` (these four are trainable by
            default), ``running_mean``, ``running_var`` (buffers) or ``constant``.
        reason: Why, in a few words: the node and input that decided.
    """

    name: str
    shape: tuple[int, ...]
    dtype: ir.DataType
    role: str
    reason: str

    @property
    def trainable(self) -> bool:
        """Whether this is trained unless the user says otherwise."""
        return self.role in ("weight", "bias", "norm_scale", "norm_shift")

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


def all_tensors(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Every initializer of the model and its subgraphs, with its tensor."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value


def known_shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """The shape as ints, names and ``None``; ``None`` if even the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape if every dimension is a number."""
    shape = known_shape(value)
    if shape is None:
        return None
    numbers = tuple(dim for dim in shape if isinstance(dim, int))
    return numbers if len(numbers) == len(shape) else None


def find_parameters(model: ir.Model) -> dict[str, Parameter]:
    """Classify every float initializer of the main graph.

    A tensor that feeds a weight position of an operator (also through Transpose, Reshape, Cast..., or cut up
    and put together again, as torch does with the weights of an LSTM)
    is a weight, bias, or the scale or shift of a normalization. Inputs 3 and 4 of a
    BatchNormalization are running statistics. What is subtracted from the raw input, or divides it, is
    a constant, the mean and deviation of a preprocessing, if the model has other weights. Any other float tensor with more than one element
    that meets an activation in an Add, Mul, Sub, Div or Concat (position embeddings, layer scales)
    is a weight; scalars and tensors with non-finite values (masks) are constants.

    Returns:
        Name to :class:`Parameter`, in the order in which the graph first uses them.
    """
    found: dict[str, Parameter] = {}
    for value in _initializers_by_first_use(model.graph):
        name = value.name or ""
        if value.dtype not in FLOAT_TYPES or value.const_value is None:
            continue
        role, reason = _classify(value)
        found[name] = Parameter(name, _tensor_shape(value.const_value), value.dtype, role, reason)
    if not any(parameter.trainable for parameter in found.values()):
        for name, parameter in found.items():
            if parameter.reason.startswith(
                _PREPROCESSING
            ):  # what else would the model have learned
                found[name] = dataclasses.replace(parameter, role="weight")
    return found


def _initializers_by_first_use(graph: ir.Graph) -> list[ir.Value]:
    """Exporters order initializers in their own ways; the order of use is that of the layers."""
    ordered: dict[str, ir.Value] = {}
    for node in graph.all_nodes():
        for value in node.inputs:
            if value is not None and value.name in graph.initializers:
                ordered.setdefault(value.name or "", value)
    for initializer in graph.initializers.values():
        ordered.setdefault(initializer.name or "", initializer)
    return list(ordered.values())


def _classify(value: ir.Value) -> tuple[str, str]:
    uses = list(_effective_uses(value))
    if not uses:
        return "constant", "not used"
    if ROLE_MARK in value.metadata_props:
        return value.metadata_props[ROLE_MARK], f"added as such, {_position(*uses[0])}"
    found: tuple[str, str] | None = None
    for node, index in uses:
        where = _position(node, index)
        if node.op_type == "BatchNormalization" and index in (3, 4):
            return ("running_mean" if index == 3 else "running_var"), where
        if index in _SETTINGS.get(node.op_type, ()):
            continue
        norm = _NORM_OPS.get(node.op_type, ())
        if index in norm and _is_neutral(value, index) and _normalizes_groups(node):
            return "constant", f"the groups of a normalization are scaled behind it, {where}"
        if index in norm:
            return ("norm_scale" if index == 1 else "norm_shift"), where
        for position, role in _WEIGHTS.get(node.op_type, ()):
            if index == position and found is None:
                found = (role, where)
    if found is not None:
        return found
    node, index = uses[0]
    where = _position(node, index)
    tensor = value.const_value
    shape = () if tensor is None else _tensor_shape(tensor)
    elements = int(np.prod(shape, dtype=np.int64))
    if elements <= 1:
        return "constant", f"a single number, {where}"
    if all(i in _SETTINGS.get(n.op_type, ()) for n, i in uses):
        return "constant", f"a setting, {where}"
    if tensor is not None and not bool(np.isfinite(tensor.numpy().astype(np.float32)).all()):
        return "constant", f"holds non-finite values, as masks do, {where}"
    if all(n.op_type in ("Sub", "Div") and i == 1 and _is_raw(n.inputs[0]) for n, i in uses):
        return "constant", f"{_PREPROCESSING}, {where}"
    for cut, index in _effective_uses(value, cut=True):
        for position, role in _WEIGHTS.get(cut.op_type, ()):
            if index == position:
                return role, f"in parts, {_position(cut, index)}"
    if any(n.op_type in ("Add", "Sub", "Mul", "Div", "Concat", "Where", "Sum") for n, _ in uses):
        return ("bias" if len(shape) == 1 and node.op_type == "Add" else "weight"), where
    return "constant", f"not a weight position, {where}"


def _is_neutral(value: ir.Value, index: int) -> bool:
    """Whether a scale is all 1, or a shift all 0."""
    tensor = value.const_value
    return tensor is not None and bool((tensor.numpy() == (1 if index == 1 else 0)).all())


def _normalizes_groups(node: ir.Node) -> bool:
    """Whether it is the inner part of torch's GroupNorm: channels laid together, normalized, apart again."""
    source = None if node.inputs[0] is None else node.inputs[0].producer()
    readers = [usage.node.op_type for usage in node.outputs[0].uses()]
    together = source is not None and source.op_type == "Reshape"
    return node.op_type == "InstanceNormalization" and together and set(readers) == {"Reshape"}


def _is_raw(value: ir.Value | None) -> bool:
    """Whether a value comes from the model's inputs through no operator that has weights."""
    pending, seen = [value], set[int]()
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        node = current.producer()
        if node is None:
            continue
        if node.op_type in _WEIGHTS or node.op_type in _NORM_OPS:
            return False
        pending.extend(node.inputs)
    return True


def _position(node: ir.Node, index: int) -> str:
    return f"input {index} of {node.op_type} '{node.name or node.outputs[0].name}'"


def _tensor_shape(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(dim for dim in tensor.shape if isinstance(dim, int))  # a stored tensor has numbers


def _effective_uses(value: ir.Value, *, cut: bool = False) -> Iterator[tuple[ir.Node, int]]:
    """Uses of a value, looking through nodes that only reshape or cast it.

    With ``cut`` also through those that take a part of it, and that put stored parts together.
    """
    pending = [value]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for usage in current.uses():
            op = usage.node.op_type
            through = op in _TRANSPARENT or (cut and op in _CUTTING)
            if (through and usage.idx == 0) or (cut and op == "Concat" and _is_stored(usage.node)):
                pending.extend(usage.node.outputs)
            else:
                yield usage.node, usage.idx


def _is_stored(node: ir.Node) -> bool:
    """Whether a node makes its answer of initializers alone, by moving numbers about."""
    if node.op_type != "Concat" and node.op_type not in _TRANSPARENT | _CUTTING:
        return False
    data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    for value in data:
        producer = None if value is None else value.producer()
        if value is None or (value.is_graph_input() and not value.is_initializer()):
            return False
        if producer is not None and not _is_stored(producer):
            return False
    return True


def match_names(names: Iterable[str], patterns: Iterable[str]) -> tuple[set[str], list[str]]:
    """Match names against shell-style patterns.

    Returns:
        The matched names, and the patterns that matched nothing (usually a typing mistake).

    Example:
        >>> sorted(match_names(["fc1.weight", "fc1.bias", "fc2.weight"], ["fc1.*", "x*"])[0])
        ['fc1.bias', 'fc1.weight']
    """
    known = list(names)
    matched: set[str] = set()
    idle: list[str] = []
    for pattern in patterns:
        hits = fnmatch.filter(known, pattern)
        matched.update(hits)
        if not hits:
            idle.append(pattern)
    return matched, idle
