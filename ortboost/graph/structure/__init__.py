"""Check a file against the rules of ONNX before anything runs on it.

Libraries trust what they are given: a stride of 0 divides by zero inside shape inference, a
function that calls itself never ends, forty functions that each call the next one twice are 2^40
nodes. None of these ends in an exception. This is the one gate that every model passes when it is
loaded:

1. ``sizes``: nodes with functions inlined, depth of subgraphs, bytes of a tensor that is computed
   or declared (:class:`~ortboost.core.limits.Limits`); integers divided by a constant 0;
2. ``tensors``: their data has the length that their shape needs;
3. ``names``: text is UTF-8, each name is made once, and whatever a node reads is made somewhere;
4. nodes have as many inputs and outputs as their operators; attributes that must be positive are;
5. everything else by ``onnx.checker`` (:func:`check_standard`), once external data has been found.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from ortboost.core.errors import FileError
from ortboost.core.limits import Limits
from ortboost.graph.structure.names import check_names, check_text
from ortboost.graph.structure.sizes import check_constants, check_sizes
from ortboost.graph.structure.tensors import check_tensors
from ortboost.graph.structure.walk import EXPORT_AGAIN, STANDARD, all_graphs, graphs_of, label

__all__ = ["check_standard", "check_structure"]

_POSITIVE = frozenset(
    {"strides", "dilations", "kernel_shape", "group", "blocksize", "num_groups", "num_outputs"}
)
_TEXTS = (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS)
_PROTOBUF_ENDS = (1 << 31) - 1
_TOLERATED = (
    "in initializer but not in graph input",  # before IR version 4; no runtime minds
    "topologically sorted",  # the caller sorts
    "No Op registered",  # MaxPoolGrad in a step of the native engine; others are named where they matter
)


def check_structure(proto: onnx.ModelProto, where: str, limits: Limits | None = None) -> bool:
    """Refuse a model that breaks the rules of ONNX or asks for too much.

    Args:
        proto: The model; external data need not be loaded.
        where: What to call it in an error.
        limits: Those of the environment if not given.

    Returns:
        Whether its nodes are in order. Others are read, too: runtimes sort them.

    Raises:
        FileError: With the first fault found, and the node or tensor it is at.

    Example:
        >>> node = onnx.helper.make_node("Relu", ["nobody"], ["y"])
        >>> graph = onnx.helper.make_graph([node], "g", [], [])
        >>> check_structure(onnx.helper.make_model(graph), "net.onnx")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.FileError: A node reads 'nobody', which nothing makes.
          where: net.onnx: Relu that makes 'y'
          fix:   Export the model again, or check that the download or copy is complete.
    """
    limits = limits or Limits.from_environment()
    check_text(proto, where)
    check_sizes(proto, where, limits)
    for graph in all_graphs(proto):
        check_tensors(graph, where)
    in_order = check_names(proto, where)
    for nodes, opset in _scopes(proto):
        for node in nodes:
            _check_node(node, opset, where)
    if proto.graph.node and not proto.graph.output:
        raise FileError("The graph has no output.", where=where, fix=EXPORT_AGAIN)
    check_constants(proto, where, limits)
    return in_order


def _scopes(proto: onnx.ModelProto) -> Iterator[tuple[Iterable[onnx.NodeProto], int]]:
    """All nodes, with the standard opset that they are of: functions have their own."""
    for owner, nodes in ((proto, proto.graph.node), *((f, f.node) for f in proto.functions)):
        imports = (*owner.opset_import, *proto.opset_import)
        opset = next((entry.version for entry in imports if entry.domain in STANDARD), 1)
        yield nodes, opset
        yield from ((graph.node, opset) for graph in graphs_of(nodes))


def _check_node(node: onnx.NodeProto, opset: int, where: str) -> None:
    if node.domain in STANDARD:
        for what, names in (("inputs", node.input), ("outputs", node.output)):
            least, most = _counts(node.op_type, opset)[what]
            if not least <= len(names) <= most:
                raise FileError(
                    f"A {node.op_type} has {len(names)} {what}.",
                    where=f"{where}: {label(node)}",
                    fix=EXPORT_AGAIN,
                )
    kinds = _attribute_types(node.op_type, opset) if node.domain in STANDARD else {}
    if node.op_type == "Constant" and kinds and len(node.attribute) != 1:
        raise FileError(
            f"A Constant has {len(node.attribute)} values.",
            where=f"{where}: {label(node)}",
            fix=EXPORT_AGAIN,
        )
    for attribute in node.attribute:
        if attribute.type != kinds.get(attribute.name, attribute.type):
            raise FileError(
                f"'{attribute.name}' of {node.op_type} has the wrong type.",
                where=f"{where}: {label(node)}",
                fix=EXPORT_AGAIN,
            )
        if kinds and attribute.type in _TEXTS:
            _check_texts(node, attribute, where)
        if attribute.name not in _POSITIVE:
            continue
        numbers = [*attribute.ints, *([attribute.i] if attribute.HasField("i") else [])]
        if any(number <= 0 for number in numbers):
            said = numbers if attribute.ints else numbers[0]
            raise FileError(
                f"'{attribute.name}' of {node.op_type} is {said}; it must be positive.",
                where=f"{where}: {label(node)}",
                fix=EXPORT_AGAIN,
            )


def _check_texts(node: onnx.NodeProto, attribute: onnx.AttributeProto, where: str) -> None:
    """Texts of standard operators are UTF-8; those of others may hold anything."""
    try:
        for text in (attribute.s, *attribute.strings):
            text.decode()
    except UnicodeDecodeError as error:
        raise FileError(
            f"'{attribute.name}' of {node.op_type} is not UTF-8.",
            where=f"{where}: {label(node)}",
            fix=EXPORT_AGAIN,
        ) from error


@functools.cache
def _counts(op: str, opset: int) -> Mapping[str, tuple[int, int]]:
    """Least and most ``inputs`` and ``outputs``; any number for an operator that is not known."""
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return {"inputs": (0, sys.maxsize), "outputs": (0, sys.maxsize)}
    return {
        "inputs": (schema.min_input, schema.max_input),
        "outputs": (schema.min_output, schema.max_output),
    }


@functools.cache
def _attribute_types(op: str, opset: int) -> Mapping[str, int]:
    """Attribute to ``AttributeProto.AttributeType``; empty for an operator that is not known."""
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return {}
    kinds = {name: str(a.type).rpartition(".")[2] for name, a in schema.attributes.items()}
    return {name: onnx.AttributeProto.AttributeType.Value(kind) for name, kind in kinds.items()}


def check_standard(proto: onnx.ModelProto, where: str, path: Path | None = None) -> None:
    """Ask the checker of the onnx package.

    Args:
        proto: The model, which has passed :func:`check_structure`.
        where: What to call it in an error.
        path: Its file, if it has one; external data is looked for beside it.

    Raises:
        FileError: With the first line of what the checker says.
    """
    if not proto.graph.node:
        return
    if path is None and proto.ByteSize() > _PROTOBUF_ENDS:  # the checker would serialize it
        return
    try:
        onnx.checker.check_model(proto if path is None else str(path))
    except onnx.checker.ValidationError as error:
        said = str(error).strip().splitlines()[0]
        if any(words in said for words in _TOLERATED):
            return
        raise FileError(
            "The file is not a valid ONNX model.", where=f"{where}: {said}", fix=EXPORT_AGAIN
        ) from error
