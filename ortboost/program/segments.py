r"""The graph of gradients in segments, so that gradients travel while others are still being computed.

With ``A(g)`` the nodes that a gradient `g` needs, gradients sorted by ``|A(g)|`` come in the order
of the backward pass. They are dealt into groups of about equal bytes, and segment `i` is::

    A(groups 0..i)  without  A(groups 0..i-1)

What a later segment reads of an earlier one (activations, mostly) becomes an output of that one and
an input of this one, of the same name. Nothing is computed twice or otherwise than in one graph,
except constants, which every segment has for itself.

Source: Li et al., PyTorch Distributed (VLDB 2020), section 3.2.3, for sending a bucket as soon as
    its gradients are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx_ir as ir

from ortboost.graph.reach import uses_inside
from ortboost.program.split import slice_step

__all__ = ["Segment", "cut_segments", "order_gradients"]

_UNKNOWN_SIZES: Final = {"NonZero", "Unique", "Compress", "NonMaxSuppression", "Loop", "Scan", "If"}
_RANDOM: Final = {"Dropout", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}


@dataclass(frozen=True)
class Segment:
    """A part of a graph.

    Args:
        model: The part.
        takes: Inputs that earlier parts make.
        gives: Outputs that later parts take, besides those of the whole.
    """

    model: ir.Model
    takes: tuple[str, ...]
    gives: tuple[str, ...]


def order_gradients(model: ir.Model, sizes: Mapping[str, int], number: int) -> list[list[str]]:
    """Deal gradients into groups of about equal bytes, in the order in which they can be there.

    Args:
        model: The graph of gradients.
        sizes: Output to bytes.
        number: How many groups; fewer come back where there are fewer gradients, and one where a
            segment cannot be cut off: sizes that only a run knows must not pass between segments.
    """
    if min(number, len(sizes)) < 2 or any(node.op_type in _UNKNOWN_SIZES for node in model.graph):
        return [list(sizes)]
    needs = _needs(model.graph)
    made = {value.name: value for value in model.graph.outputs}
    ready = sorted(sizes, key=lambda name: needs[_producer(made[name])].bit_count())
    groups: list[list[str]] = []
    total, passed = sum(sizes.values()), 0
    for name in ready:
        middle = passed + sizes[name] / 2
        if len(groups) < number and middle * number >= total * len(groups):
            groups.append([])
        groups[-1].append(name)
        passed += sizes[name]
    return groups


def cut_segments(model: ir.Model, groups: Sequence[Iterable[str]]) -> list[Segment]:
    """Cut a graph into segments, each of which ends with a group of its outputs.

    Args:
        model: The graph; it is not changed.
        groups: Outputs, by segment. Other outputs come from the first segment that has all they
            need.

    Returns:
        As many segments as groups.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 8, opset_import: ["" : 18]>
        ... g (float[2] x) => (float[2] late, float[2] soon) { h = Neg(x)  soon = Abs(h)  late = Exp(h) }''')
        >>> [(s.takes, s.gives) for s in cut_segments(model, [["soon"], ["late"]])]
        [((), ('h',)), (('h',), ())]
    """
    model = model.clone()
    graph = model.graph
    graph.sort()
    outputs = {value.name: value for value in graph.outputs if value.name}
    copies = _part_readers(graph, [outputs[name] for group in groups for name in group])
    needs = _needs(graph)
    nodes = list(graph)
    place = {node: i for i, node in enumerate(nodes)}
    drawn = sum(1 << place[node] for node in nodes if node.op_type in _RANDOM)
    for node in nodes:
        if node.op_type in _RANDOM:  # all draws in the first run, in one order
            drawn |= needs[node]
    reached, upto = drawn, []
    for group in groups:
        for name in group:
            reached |= needs[_producer(outputs[name])]
        for copy, source in copies.items():  # before the gradient is on its way
            reached |= (reached >> place[source] & 1) << place[copy]
        upto.append(reached)
    upto[-1] = (1 << len(nodes)) - 1

    def segment_of(node: ir.Node) -> int:
        return next(i for i, mask in enumerate(upto) if mask >> place[node] & 1)

    fixed = _fixed(nodes)
    last_read: dict[ir.Value, int] = {}
    for node in nodes:
        number = segment_of(node)
        for value in (*node.inputs, *uses_inside(node)):
            if value is not None:
                last_read[value] = max(number, last_read.get(value, 0))
    final = [{*group} for group in groups]
    chosen = {name for group in final for name in group}
    for name, value in outputs.items():
        if name not in chosen:
            final[segment_of(_producer(value))].add(name)
    made = [
        (segment_of(node), value) for node in nodes if node not in fixed for value in node.outputs
    ]
    found = []
    for i in range(len(groups)):
        gives = [v.name or "" for at, v in made if at == i < last_read.get(v, -1)]
        takes = [v.name or "" for at, v in made if at < i <= last_read.get(v, -1)]
        shown = [name for name in outputs if name in final[i]]
        part = slice_step(model, [*shown, *gives], takes)
        read = {value.name for value in part.graph.inputs}
        found.append(Segment(part, tuple(n for n in takes if n in read), tuple(gives)))
    return found


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None, value.name
    return node


def _needs(graph: ir.Graph) -> dict[ir.Node, int]:
    """The nodes that each node needs, itself included, as bits."""
    found: dict[ir.Node, int] = {}
    for i, node in enumerate(graph):
        bits = 1 << i
        for value in (*node.inputs, *uses_inside(node)):
            producer = None if value is None else value.producer()
            if producer is not None:
                bits |= found.get(producer, 0)
        found[node] = bits
    return found


def _fixed(nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """Nodes that depend on no input: each segment has them for itself."""
    found: set[ir.Node] = set()
    for node in nodes:
        if node.op_type in _RANDOM or list(uses_inside(node)):
            continue
        if all(v is None or v.is_initializer() or v.producer() in found for v in node.inputs):
            found.add(node)
    return found


def _part_readers(graph: ir.Graph, gradients: Sequence[ir.Value]) -> dict[ir.Node, ir.Node]:
    """Whatever reads a gradient reads a copy of it: the gradient itself is changed while it travels.

    Returns:
        What makes the copies, and what makes the gradients.
    """
    found = {}
    for value in gradients:
        readers = list(value.uses())
        if not readers:
            continue
        copy = ir.Node("", "Identity", [value])
        copy.outputs[0].name = f"{value.name}/kept"
        copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
        graph.insert_after(_producer(value), copy)
        for node, index in readers:
            node.replace_input_with(index, copy.outputs[0])
        found[copy] = _producer(value)
    return found
