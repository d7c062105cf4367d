"""Limits: nodes with functions inlined, depth of subgraphs, bytes of declared tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from ortboost.core.errors import FileError
from ortboost.core.limits import LIMITS_VARIABLE, Limits
from ortboost.graph.structure.walk import STANDARD, all_graphs, damaged, label, subgraphs

__all__ = ["check_bytes", "check_constants", "check_sizes"]

_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")
# Operator to the input that determines how large its output is at least. Shape inference iterates
# over the values of a Reshape, and over the elements of a Range that is cast.
_FILLS = {
    **dict.fromkeys(("ConstantOfShape", *_WINDOWS), 0),
    **dict.fromkeys(("Expand", "OneHot", "Reshape", "Tile"), 1),
}
_ASSEMBLES = frozenset({"Cast", "Concat", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_COMPUTES = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract}
_LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})
_CHECKED = _LOSSES | {"Div", "Mod"}
_MOST = 64  # more values than any shape has dimensions
_MOST_ELEMENTS = 2**62
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE})
_INTEGERS = frozenset(
    onnx.TensorProto.DataType.Value(f"{kind}{bits}")
    for kind in ("INT", "UINT")
    for bits in (8, 16, 32, 64)
)
_Constants = Mapping[str, onnx.TensorProto]


def check_sizes(proto: onnx.ModelProto, where: str, limits: Limits) -> None:
    """Raise a FileError if a limit is exceeded; the fix names the setting that raises it."""
    total = _count_nodes(proto, where, limits)
    if total > limits.nodes:
        what = f"The model has more than {limits.nodes:,} nodes once its functions are inlined."
        raise _exceeded(what, where, f"nodes={total}")
    for graph in all_graphs(proto):
        for value in graph.input:  # arrays of these shapes are created
            shape = value.type.tensor_type.shape
            dims = [dim.dim_value for dim in shape.dim if dim.HasField("dim_value")]
            check_bytes(dims, f"{where}: input '{value.name}'", limits)


def _count_nodes(proto: onnx.ModelProto, where: str, limits: Limits) -> int:
    functions = {(f.domain, f.name): f for f in proto.functions}
    sizes: dict[tuple[str, str], int] = {}
    active: list[tuple[str, str]] = []

    def count(nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        if depth > limits.depth:
            what = f"Subgraphs are nested more than {limits.depth} deep."
            raise _exceeded(what, where, f"depth={2 * limits.depth}")
        total = 0
        for node in nodes:
            total += 1 + sum(count(graph.node, depth + 1) for graph in subgraphs(node))
            if (node.domain, node.op_type) in functions:
                total += inlined((node.domain, node.op_type))
        return total

    def inlined(key: tuple[str, str]) -> int:
        if key in active:
            raise FileError(
                f"The function '{key[1]}' calls itself.",
                where=f"{where}: {' -> '.join(name for _, name in (*active, key))}",
                fix="ONNX has no recursion; export the model again.",
            )
        if key not in sizes:  # counted once: calls may multiply exponentially
            active.append(key)
            sizes[key] = count(functions[key].node, 0)
            active.pop()
        return sizes[key]

    return count(proto.graph.node, 0)


def check_constants(
    graph: onnx.GraphProto,
    where: str,
    limits: Limits,
    outer: Mapping[str, onnx.TensorProto] | None = None,
    turns: int = 1,
) -> None:
    """Reject too large constant sizes and numbers of iterations, and integers divided by 0.

    Args:
        graph: A graph, whose tensors have passed
            :func:`~ortboost.graph.structure.tensors.check_tensors`.
        where: Name of the model, for errors.
        limits: The limits.
        outer: For a body: the constants around it, by name.
        turns: For a body: the number of iterations of the loops around it.
    """
    known = {**(outer or {}), **{tensor.name: tensor for tensor in graph.initializer}}
    # Constants first: the nodes need not be in order.
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in STANDARD and node.output:
            known.update((node.output[0], tensor) for tensor in _stored(node))
    for node in graph.node:
        at = f"{where}: {label(node)}"
        if node.domain in STANDARD:
            check_bytes(_least_shape(node, known), at, limits)
            if node.op_type in _CHECKED and len(node.input) > 1:
                _check_numbers(node, _integers(known.get(node.input[1])), at)
            # A shape may be put together by several nodes before a Reshape or Expand reads it.
            if (sizes := _assembled(node, known)) is not None:
                known[node.output[0]] = sizes
        inside = turns * _turns(node, known)
        if inside > limits.turns:
            raise _exceeded(f"A loop runs {inside:,} times.", at, f"turns={inside}")
        for inner in subgraphs(node):
            check_constants(inner, where, limits, known, inside)


def _least_shape(node: onnx.NodeProto, known: _Constants) -> list[int]:
    """A lower bound of the shape of a node's output, as far as constants determine it."""
    if node.op_type == "Range":
        bounds = [number for name in node.input for number in _scalar(known.get(name))]
        if len(bounds) != 3 or not bounds[2]:
            return []
        return [int(min(max((bounds[1] - bounds[0]) / bounds[2], 0), _MOST_ELEMENTS))]
    inputs = [_integers(known.get(name)) for name in node.input]
    if node.op_type == "Pad" and len(inputs) > 1 and inputs[1] is not None:
        return [int(inputs[1].max(initial=0))]
    place = _FILLS.get(node.op_type, len(inputs))
    shape = inputs[place] if place < len(inputs) else None
    return [] if shape is None else shape.reshape(-1).tolist()


def _turns(node: onnx.NodeProto, known: _Constants) -> int:
    """The iterations of a Loop if their number is constant and the body cannot end it; else 1."""
    body = next(subgraphs(node), None)
    if node.op_type != "Loop" or body is None or len(body.input) < 2 or not body.output:
        return 1
    given = _integers(known.get(node.input[0])) if node.input else None
    passed = {body.input[1].name}
    passed |= {n.output[0] for n in body.node if n.op_type == "Identity" and n.input[0] in passed}
    endless = given is not None and given.size == 1 and body.output[0].name in passed
    return max(1, int(given.item())) if given is not None and endless else 1


def _stored(node: onnx.NodeProto) -> Iterable[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.name == "value":
            yield attribute.t
        elif attribute.name in ("value_int", "value_ints"):
            numbers = attribute.i if attribute.name == "value_int" else list(attribute.ints)
            yield numpy_helper.from_array(np.array(numbers, np.int64))
        elif attribute.name == "value_float":
            yield numpy_helper.from_array(np.array(attribute.f, np.float32))


def _assembled(node: onnx.NodeProto, known: _Constants) -> onnx.TensorProto | None:
    """The sizes that a node rearranges, joins or computes, as a vector, if all are constant."""
    compute = _COMPUTES.get(node.op_type)
    number = len(node.input) if compute or node.op_type == "Concat" else 1
    if not compute and node.op_type not in _ASSEMBLES:
        return None
    if not node.output or len(node.input) < number:
        return None
    parts = [_integers(known.get(name)) for name in node.input[:number]]
    found = [part.reshape(-1) for part in parts if part is not None and part.size <= _MOST]
    if not found or len(found) < number:
        return None
    if compute and any(part is not None and part.ndim > 1 for part in parts):
        return None
    if compute and len({part.size for part in found} - {1}) > 1:
        return None  # not broadcastable: the node fails at run time
    with np.errstate(over="ignore"):
        sizes = compute(*found) if compute else np.concatenate(found)
    return numpy_helper.from_array(sizes.astype(np.int64))


def _integers(tensor: onnx.TensorProto | None) -> NDArray[np.integer] | None:
    if tensor is None or tensor.data_type not in _INTEGERS:
        return None
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    return numpy_helper.to_array(tensor)


def _scalar(tensor: onnx.TensorProto | None) -> list[float]:
    """The single finite number in a tensor, in a list; empty if there is none."""
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return []
    if tensor.data_type not in _INTEGERS | _FLOATS or math.prod(tensor.dims) != 1:
        return []
    number = float(numpy_helper.to_array(tensor).item())
    return [number] if math.isfinite(number) else []


def _check_numbers(node: onnx.NodeProto, numbers: NDArray[np.integer] | None, at: str) -> None:
    """Reject divisors of 0, and stored labels below 0, which onnxruntime uses as indices."""
    if numbers is None:
        return
    ignored = next((a.i for a in node.attribute if a.name == "ignore_index"), None)
    wrong = numbers[(numbers < 0) & (numbers != ignored if ignored is not None else True)]
    if node.op_type in _LOSSES and wrong.size:
        raise damaged(f"The constant label {wrong.reshape(-1)[0]} is negative.", at)
    if node.op_type not in _LOSSES and (numbers == 0).any():
        raise FileError(
            "An integer is divided by a constant 0, which crashes the process.",
            where=at,
            fix="Fix the divisor in the network, and export it again.",
        )


def check_bytes(dims: list[int], where: str, limits: Limits) -> None:
    """Raise a FileError if a tensor of this shape exceeds the limits."""
    size = 4 * math.prod(max(dim, 1) for dim in dims)  # float32; 0 and -1 of a Reshape
    if size > limits.tensor_bytes:
        what = f"A tensor of shape {dims} needs at least {size:,} bytes."
        raise _exceeded(what, where, f"tensor_bytes={size}")


def _exceeded(what: str, where: str, setting: str) -> FileError:
    return FileError(
        what, where=where, fix=f"If that is intended, set {LIMITS_VARIABLE}={setting}."
    )
