"""Questions about a graph: values, shapes, constants, producers and consumers."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = [
    "FLOAT_TYPES",
    "RANDOM_OPERATORS",
    "ROLE_MARK",
    "SHORT_FLOATS",
    "all_graphs",
    "all_nodes",
    "all_tensors",
    "constant",
    "count_operators",
    "find_nodes",
    "find_schema",
    "fixed_lengths",
    "format_shape",
    "has_subgraph",
    "input_at",
    "is_random",
    "is_read",
    "is_standard",
    "is_unused",
    "known_shape",
    "label",
    "match_names",
    "matches_name",
    "permutation",
    "producer_of",
    "scalar",
    "sole_consumer",
    "source_before",
    "static_shape",
    "subgraphs",
]

FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
SHORT_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

ROLE_MARK = "ortboost.role"
"""Metadata key for the role of a tensor added by a rewrite, which the graph does not show."""

RANDOM_OPERATORS = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
"""Operators that draw random numbers: never folded, never merged. Dropout is handled separately."""


def is_random(node: ir.Node) -> bool:
    """Whether a node draws random numbers when a step runs, Dropout included."""
    return node.op_type in RANDOM_OPERATORS or node.op_type == "Dropout"


def all_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and all its subgraphs, in half the time of :meth:`onnx_ir.Graph.subgraphs`."""
    yield graph
    for node in graph:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph, each before those of its subgraphs.

    They come in the order of :meth:`onnx_ir.Graph.all_nodes`, in half the time.
    """
    for node in graph:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def all_tensors(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Every initializer of the model and its subgraphs, with its tensor."""
    for graph in all_graphs(model.graph):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value


def known_shape(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """The shape as ints, names and ``None``; ``None`` without a value or if the rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape if every dimension is an int, else ``None``."""
    shape = known_shape(value)
    return None if shape is None else fixed_lengths(shape)


def fixed_lengths(dims: Sequence[int | str | None]) -> tuple[int, ...] | None:
    """The dimensions if every one is an int, else ``None``."""
    lengths = tuple(dim for dim in dims if isinstance(dim, int))
    return lengths if len(lengths) == len(dims) else None


def format_shape(shape: Iterable[int | str | None] | None) -> str:
    """Format a shape for messages; ``None`` is a shape of unknown rank.

    Example:
        >>> format_shape(("batch", 3, None)), format_shape(None)
        ('[batch, 3, ?]', 'of unknown rank')
    """
    if shape is None:
        return "of unknown rank"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def matches_name(name: str, pattern: str) -> bool:
    """Whether a name matches a shell-style pattern or equals it, as ``blocks[0].w`` does."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def match_names(names: Iterable[str], patterns: Iterable[str]) -> tuple[set[str], list[str]]:
    """The names that patterns match, and the patterns that match nothing (usually typos).

    Example:
        >>> sorted(match_names(["fc1.weight", "fc1.bias", "fc2.weight"], ["fc1.*", "x*"])[0])
        ['fc1.bias', 'fc1.weight']
    """
    known = list(names)
    hits = {p: {name for name in known if matches_name(name, p)} for p in patterns}
    return set().union(*hits.values()), [pattern for pattern, found in hits.items() if not found]


def is_standard(node: ir.Node, *op_types: str) -> bool:
    """Whether a node is a standard ONNX operator, and one of ``op_types`` if any are given."""
    return node.domain in ("", "ai.onnx") and (not op_types or node.op_type in op_types)


def permutation(node: ir.Node | None) -> list[int] | None:
    """The axes of a Transpose in their new order; ``None`` for any other node, or if not known."""
    if node is None or not is_standard(node, "Transpose"):
        return None
    shape, perm = known_shape(input_at(node, 0)), node.attributes.get_ints("perm", None)
    if perm is None:  # the axes are reversed
        return None if shape is None else list(range(len(shape)))[::-1]
    return list(perm)


def find_nodes(nodes: Iterable[ir.Node], *op_types: str) -> list[ir.Node]:
    """The standard operators of these types among nodes, which may then be replaced."""
    return [node for node in nodes if is_standard(node, *op_types)]


def label(node: ir.Node) -> str:
    """A name for reports: that of the node, else of its first output, else the operator."""
    if node.name:
        return node.name
    return next((out.name for out in node.outputs if out.name), None) or node.op_type


def find_schema(op_type: str, version: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """The ONNX schema of an operator; ``None`` if this opset version lacks it."""
    try:
        return onnx.defs.get_schema(op_type, version, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return None


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs in the attributes of a node (If, Loop, Scan), in the order of the attributes."""
    for attribute in node.attributes.data.values():  # without UserDict's slow views
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def has_subgraph(node: ir.Node) -> bool:
    """Whether a node has a subgraph (If, Loop, Scan)."""
    return next(subgraphs(node), None) is not None


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node; ``None`` if it is omitted."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer_of(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that computes a value, if it is one of these standard operators, or any if none."""
    node = None if value is None else value.producer()
    if node is None or (op_types and not is_standard(node, *op_types)):
        return None
    return node


def source_before(value: ir.Value | None, *op_types: str) -> ir.Value | None:
    """The value before a chain of nodes of these operators, followed through their first inputs.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[2] x) => (float[2] y) { a = Identity(x)  y = Identity(a) }''')
        >>> source_before(model.graph.outputs[0], "Identity").name
        'x'
    """
    while (node := producer_of(value, *op_types)) is not None:
        value = node.inputs[0]
    return value


def sole_consumer(value: ir.Value) -> ir.Node | None:
    """The node that reads a value, if it is read exactly once and is not a graph output."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    return uses[0].node


def is_read(value: ir.Value) -> bool:
    """Whether any node reads a value, or it is a graph output."""
    return bool(value.uses()) or value.is_graph_output()


def is_unused(node: ir.Node) -> bool:
    """Whether nothing reads any output of a node."""
    return not any(map(is_read, node.outputs))


def constant(value: ir.Value | None, *, limit: int | None = None) -> NDArray[Any] | None:
    """The array of an initializer or of a Constant node; ``None`` if there is none.

    An initializer that is also a graph input is not constant: the caller can override it. Strings
    are not returned, nor arrays of more elements than the ``limit``: large weights stay on disk.
    """
    if value is None or value.is_graph_input():
        return None
    producer = value.producer()
    if producer is not None and producer.op_type != "Constant":
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    if limit is not None and tensor.size > limit:
        return None
    return np.asarray(tensor.numpy())


def scalar(value: ir.Value | None) -> float | None:
    """A constant with one element as a number, else ``None``."""
    array = constant(value, limit=1)
    return None if array is None or array.size != 1 else float(array.reshape(-1)[0])


def count_operators(model: ir.Model) -> dict[str, int]:
    """Number of nodes by operator, subgraphs included; other domains as ``domain::operator``."""
    return Counter(
        f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        for node in all_nodes(model.graph)
    )
