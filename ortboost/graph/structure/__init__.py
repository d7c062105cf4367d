"""Validate a model before any library processes it.

Libraries trust their input: a stride of 0 divides by zero inside shape inference, a function that
calls itself recurses forever, forty functions that each call the next one twice expand to 2^40
nodes. None of these raises an exception. Every model passes these checks when it is loaded:

1. ``sizes``: number of nodes with functions inlined, depth of subgraphs, bytes of computed or
   declared tensors (:class:`~ortboost.core.limits.Limits`); integers divided by a constant 0;
2. ``tensors``: stored data has the length that its shape requires;
3. ``names``: text is UTF-8, each name is defined once, and every name that a node reads is defined;
4. nodes have as many inputs and outputs as their operators allow; attributes that must be positive;
5. everything else by ``onnx.checker`` (:func:`check_standard`), once external data has been found.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from ortboost.core.errors import first_line
from ortboost.core.limits import Limits
from ortboost.graph.query import find_schema
from ortboost.graph.structure.names import check_names, check_text
from ortboost.graph.structure.sizes import check_constants, check_sizes
from ortboost.graph.structure.tensors import check_tensors
from ortboost.graph.structure.walk import STANDARD, all_graphs, damaged, graphs_of

__all__ = ["check_standard", "check_structure"]

_POSITIVE = frozenset(
    {"strides", "dilations", "kernel_shape", "group", "blocksize", "num_groups", "num_outputs"}
)
_AXES = frozenset({"axis", "axes", "batch_axis", "perm", "time_axis"})
_COUNTED = frozenset({"batch_dims"})
_TEXTS = (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS)
_PROTOBUF_LIMIT = (1 << 31) - 1
_TOLERATED = (
    "in initializer but not in graph input",  # before IR version 4; runtimes accept it
    "topologically sorted",  # the caller sorts
    "Field 'shape' of 'type' is required",  # of inputs and outputs; inference may find it
    "GroupNormalization is deprecated",  # that of opset 18, which runtimes compute
    "Field 'name' of 'graph' is required",  # runtimes do without it; the caller gives it one
    "No opset import for domain 'com.microsoft'",  # there is only one; the caller adds it
    "No Op registered",  # such as MaxPoolGrad of the native engine; later checks report others
)
_UNTYPED = "Field 'type' of 'value_info' is required"  # inference finds it, except that of an input


def check_structure(proto: onnx.ModelProto, where: str, limits: Limits | None = None) -> bool:
    """Reject a model that is invalid or exceeds the limits.

    Args:
        proto: The model; external data need not be loaded.
        where: Name of the model, for errors.
        limits: The limits; those of the environment if not given.

    Returns:
        Whether the nodes are in topological order. Models with unsorted nodes are accepted, as
        runtimes sort them.

    Raises:
        FileError: The first fault found, with its node or tensor.

    Example:
        >>> node = onnx.helper.make_node("Relu", ["missing"], ["y"])
        >>> graph = onnx.helper.make_graph([node], "g", [], [])
        >>> check_structure(onnx.helper.make_model(graph), "net.onnx")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.FileError: A node reads 'missing', which is not defined.
          where: net.onnx: Relu that computes 'y'
          fix:   Export the model again, or check that the download or copy is complete.
    """
    limits = limits or Limits.from_environment()
    # The order matters: errors show names, so text comes first; the depth is limited before other
    # checks recurse into subgraphs; tensors are sound before check_constants reads them.
    check_text(proto, where)
    check_sizes(proto, where, limits)
    for graph in all_graphs(proto):
        check_tensors(graph, where)
    in_order = check_names(proto, where)
    for nodes, opset in _scopes(proto):
        if opset < 1:  # nothing would be known of its operators
            raise damaged(f"The model imports opset {opset}.", where)
        for node in nodes:
            _check_counts(node, opset, where)
            _check_attributes(node, opset, where)
    if proto.graph.node and not proto.graph.output:
        raise damaged("The graph has no output.", where)
    check_constants(proto.graph, where, limits)
    return in_order


def _scopes(proto: onnx.ModelProto) -> Iterator[tuple[Iterable[onnx.NodeProto], int]]:
    """All nodes, with the standard opset that they are of: functions have their own."""
    for owner, nodes in ((proto, proto.graph.node), *((f, f.node) for f in proto.functions)):
        imports = (*owner.opset_import, *proto.opset_import)
        opset = next((entry.version for entry in imports if entry.domain in STANDARD), 1)
        yield nodes, opset
        yield from ((graph.node, opset) for graph in graphs_of(nodes))


def _check_counts(node: onnx.NodeProto, opset: int, where: str) -> None:
    if node.domain not in STANDARD:
        return
    counts = _counts(node.op_type, opset)
    given = (("inputs", node.input), ("outputs", node.output))
    for (what, names), (least, most) in zip(given, counts, strict=True):
        if not least <= len(names) <= most:
            raise damaged(f"A {node.op_type} has {len(names)} {what}.", where, node)
    statistics = any(a.name == "training_mode" and a.i for a in node.attribute)
    if "" in node.output and (node.op_type == "Split" or statistics):  # onnxruntime crashes
        raise damaged(f"A {node.op_type} has an output without a name.", where, node)


def _check_attributes(node: onnx.NodeProto, opset: int, where: str) -> None:
    # Empty for operators without a schema, whose attributes may be of any type.
    kinds = _attribute_types(node.op_type, opset) if node.domain in STANDARD else {}
    if node.op_type == "Constant" and kinds and len(node.attribute) != 1:
        raise damaged(f"A Constant has {len(node.attribute)} values.", where, node)
    for attribute in node.attribute:
        if attribute.type != kinds.get(attribute.name, attribute.type):
            raise damaged(f"'{attribute.name}' of {node.op_type} has the wrong type.", where, node)
        if kinds and attribute.type in _TEXTS:
            _check_texts(node, attribute, where)
        numbers = [*attribute.ints, *([attribute.i] if attribute.HasField("i") else [])]
        # Also of other domains: their operators take these attributes from the standard ones.
        fault = _fault(attribute.name, numbers)
        if fault is not None:
            value = numbers if attribute.ints else numbers[0]
            raise damaged(f"'{attribute.name}' of {node.op_type} is {value}; {fault}.", where, node)


def _fault(name: str, numbers: Iterable[int]) -> str | None:
    if name in _POSITIVE and any(number <= 0 for number in numbers):
        return "it must be positive"
    if name in _COUNTED and any(number < 0 for number in numbers):
        return "it must not be negative"
    known = name in _POSITIVE | _AXES | _COUNTED
    if known and any(abs(number) >= 1 << 31 for number in numbers):  # libraries drop the upper half
        return "it must fit 32 bits"
    return None


def _check_texts(node: onnx.NodeProto, attribute: onnx.AttributeProto, where: str) -> None:
    """Texts of standard operators are UTF-8; those of others may hold anything."""
    try:
        for text in (attribute.s, *attribute.strings):
            text.decode()
    except UnicodeDecodeError as error:
        what = f"'{attribute.name}' of {node.op_type} is not UTF-8."
        raise damaged(what, where, node) from error


@functools.cache
def _counts(op: str, opset: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Least and most inputs, and outputs; any number for an operator that is not known."""
    schema = find_schema(op, opset)
    if schema is None:
        return (0, sys.maxsize), (0, sys.maxsize)
    return (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)


@functools.cache
def _attribute_types(op: str, opset: int) -> Mapping[str, int]:
    """Attribute to ``AttributeProto.AttributeType``; empty for an unknown operator."""
    schema = find_schema(op, opset)
    if schema is None:
        return {}
    kinds = {name: str(a.type).rpartition(".")[2] for name, a in schema.attributes.items()}
    return {name: onnx.AttributeProto.AttributeType.Value(kind) for name, kind in kinds.items()}


def check_standard(proto: onnx.ModelProto, where: str, path: Path | None = None) -> None:
    """Run ``onnx.checker`` on a model, or the file of one, that has passed the checks above.

    External data is looked for beside the file.

    Raises:
        FileError: The model is invalid; with the first line of the checker's message.
    """
    if not proto.graph.node:
        return
    if path is None and proto.ByteSize() > _PROTOBUF_LIMIT:  # the checker would serialize it
        return
    try:
        onnx.checker.check_model(proto if path is None else str(path))
    except onnx.checker.ValidationError as error:
        message = first_line(error)
        typed = all(value.HasField("type") for value in proto.graph.input)
        if any(words in message for words in (*_TOLERATED, *([_UNTYPED] if typed else []))):
            return
        raise damaged("The file is not a valid ONNX model.", f"{where}: {message}") from error
