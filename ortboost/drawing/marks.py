"""Nodes that a rewrite made or changed: from reports, or by comparison with the original graph."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import input_at, label, producer_of, sole_consumer

__all__ = ["BOOKKEEPING", "marks_against", "marks_of_reports"]

BOOKKEEPING = ("choose_trainable", "strip_training", "weights_are_not_inputs")
"""Rewrites whose reports name weights, without a change of the nodes that use them."""

_ADDING = ("lora",)
"""Rewrites whose reports name unchanged weights, next to which nodes were added."""

_FOLDED = frozenset(("BatchNormalization", "Mul", "Add", "Sub", "Div", "Pad", "Relu", "Clip"))


def marks_of_reports(
    model: ir.Model, reports: Iterable[Report]
) -> tuple[dict[str, str], dict[str, int]]:
    """Descriptions of the changes of a graph's nodes, from reports.

    A report names nodes or tensors. A tensor stands for its producer, or, if it is a weight, for
    the nodes that use it. Nodes that are called after a rewrite are new.

    Returns:
        Node to the description of its change; and rewrite to the number of names in its report that
        are not in this graph.
    """
    known: dict[str, set[str]] = {}  # name of a node or of what it computes, to nodes
    for node in model.graph:
        own = label(node)
        # onnxruntime's rewrites append the new operator to a name ("bn1_BatchNormInternal").
        before = own.removesuffix(f"_{node.op_type}")
        for name in (own, before, *(out.name for out in node.outputs if out.name)):
            known.setdefault(name, set()).add(own)
    used: dict[str, set[str]] = {}  # name of a weight or input, to its readers
    for node in model.graph:
        for value in node.inputs:
            if value is not None and value.producer() is None:
                used.setdefault(value.name or "", set()).add(label(node))
    marks: dict[str, str] = {}
    missing: dict[str, int] = {}
    for report in reports:
        made = [name for name in map(label, model.graph) if f"/{report.rewrite}/" in f"/{name}"]
        for name in made if report.changed else ():
            marks.setdefault(name, f"{report.rewrite}: new")
        for name, what in report.changed.items():
            if report.rewrite in BOOKKEEPING and name not in known:  # it would mark all readers
                continue
            if report.rewrite in _ADDING and name in used:
                continue
            text = f"{report.rewrite}: {what}"
            for node_name in known.get(name) or used.get(name, set()):
                earlier = marks.get(node_name)
                marks[node_name] = text if earlier is None else f"{earlier}; {text}"
            if name not in known and name not in used:
                missing[report.rewrite] = missing.get(report.rewrite, 0) + 1
    return marks, missing


def marks_against(before: ir.Model, after: ir.Model) -> tuple[dict[str, str], dict[str, str]]:
    """The new and the different nodes of a graph.

    Nodes are matched by name and operator; then by output and operator; then in order among nodes
    with the same operator, attributes and weights; then among nodes with the same operator; and
    last by output or name alone. A node that only reads from another node is not different.

    Returns:
        Node of ``after`` to the description of its change; and removed nodes of ``before`` to their
        operator.
    """
    old, new = ([n for n in m.graph if n.op_type != "Constant"] for m in (before, after))
    pairs = _paired(old, new)
    kept = set(pairs.values())
    lost = {n for i, n in enumerate(old) if i not in kept}
    marks = {}
    for index, node in enumerate(new):
        if index not in pairs:
            marks[label(node)] = "new"
            continue
        what = _different(old[pairs[index]], node, lost)
        if what:
            marks[label(node)] = what
    return marks, {label(n): n.op_type for n in old if n in lost}


def _paired(old: Sequence[ir.Node], new: Sequence[ir.Node]) -> dict[int, int]:
    """Index of a new node to that of the matching old one."""
    pairs: dict[int, int] = {}
    free = set(range(len(old)))

    def output(node: ir.Node) -> str | None:
        return node.outputs[0].name if node.outputs else None

    def pair(key: Callable[[ir.Node], Hashable]) -> None:
        """Pair free nodes with equal keys; nodes with an empty key stay free."""
        # From the last to the first, so that of equal keys the first one remains.
        places = {key(old[index]): index for index in sorted(free, reverse=True)}
        for index, node in enumerate(new):
            found = places.get(key(node)) if key(node) else None
            if index not in pairs and found in free:
                pairs[index] = found
                free.discard(found)

    def align(key: Callable[[ir.Node], Hashable]) -> None:
        """Pair free nodes in order: runs of equal keys, as in a comparison of texts."""
        rest_old = sorted(free)
        rest_new = [index for index in range(len(new)) if index not in pairs]
        sides = [key(old[i]) for i in rest_old], [key(new[i]) for i in rest_new]
        matcher = difflib.SequenceMatcher(None, *sides, autojunk=False)
        for block in matcher.get_matching_blocks():
            for offset in range(block.size):
                pairs[rest_new[block.b + offset]] = rest_old[block.a + offset]
                free.discard(rest_old[block.a + offset])

    pair(lambda node: node.name and (node.name, node.op_type))
    pair(lambda node: output(node) and (output(node), node.op_type))
    align(_signature)
    align(_op)
    pair(output)
    pair(lambda node: node.name)
    return pairs


def _signature(node: ir.Node) -> Hashable:
    digests = enumerate(map(_constant_digest, node.inputs))
    return (_op(node), _attributes(node), tuple(d for d in digests if d[1] is not None))


def _different(old: ir.Node, new: ir.Node, lost: Collection[ir.Node]) -> str | None:
    found = [] if _op(old) == _op(new) else [f"was {old.op_type}"]
    names = {name for name, _ in _attributes(old) ^ _attributes(new)}
    if names and not found:  # another operator has other attributes anyway
        found.append("attributes: " + ", ".join(sorted(names)))
    # A node that only reads from another one is not different: values are not compared by name.
    other = len(old.inputs) != len(new.inputs) or _reweighted(old, new)
    folded = _folded(old, lost) if other or found else []
    if folded:
        found.append(", ".join(f"{n.op_type} '{label(n)}'" for n in folded) + " folded in")
    elif len(old.inputs) != len(new.inputs):
        found.append(f"{len(old.inputs)} inputs became {len(new.inputs)}")
    elif other and _op(old) == _op(new):
        found.append("different weights")
    return "; ".join(found) or None


def _reweighted(old: ir.Node, new: ir.Node) -> bool:
    """Whether two nodes with as many inputs have different weights."""
    for first, second in zip(old.inputs, new.inputs, strict=True):
        before, after = _constant_digest(first), _constant_digest(second)
        if before == after:
            continue
        if before is not None and after is not None:
            return True
        # The weights of a program are inputs, without values.
        lone = second if after is None else first
        names = {value.name for value in (first, second) if value is not None}
        if lone is None or not lone.is_graph_input() or len(names) > 1:
            return True
    return False


def _folded(node: ir.Node, lost: Collection[ir.Node]) -> list[ir.Node]:
    """Removed foldable nodes in an unbranched chain before or after a changed node."""
    gone = {n for n in lost if n.op_type in _FOLDED}
    before: list[ir.Node] = []
    producer = producer_of(input_at(node, 0))
    while producer in gone and sole_consumer(producer.outputs[0]) is not None:
        before.insert(0, producer)
        producer = producer_of(input_at(producer, 0))
    after: list[ir.Node] = []
    reader = sole_consumer(node.outputs[0]) if node.outputs else None
    while reader in gone:
        after.append(reader)
        reader = sole_consumer(reader.outputs[0])
    return [*before, *after]


def _op(node: ir.Node) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


def _attributes(node: ir.Node) -> frozenset[tuple[str, Hashable]]:
    return frozenset(
        (attribute.name, _hashable(attribute.value)) for attribute in node.attributes.values()
    )


def _hashable(value: Any) -> Hashable:
    if isinstance(value, ir.Graph):
        return tuple(_signature(node) for node in value)
    if isinstance(value, ir.TensorProtocol):
        return _digest(value)
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        return tuple(_hashable(item) for item in value)
    return value if isinstance(value, Hashable) else repr(value)


def _constant_digest(value: ir.Value | None) -> str | None:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else _digest(tensor)


def _digest(tensor: ir.TensorProtocol) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tensor.shape}".encode())
    digest.update(
        repr(tensor.numpy().tolist()).encode()
        if tensor.dtype == ir.DataType.STRING
        else np.ascontiguousarray(tensor.numpy()).tobytes()
    )
    return digest.hexdigest()
