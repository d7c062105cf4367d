r"""Split the gradient graph into segments, to overlap the backward pass with communication.

Let ``A(g)`` be the ancestor nodes of a gradient `g`. Sorting gradients by ``|A(g)|`` gives the
order of the backward pass. They are divided into groups of about equal size in bytes, and segment
`i` is::

    A(groups 0..i)  without  A(groups 0..i-1)

A value that a later segment reads from an earlier one (mostly activations) becomes an output of the
earlier and an input of the later one, with the same name. The segments compute exactly what the
whole graph does, each node once, except constants, which every segment computes itself.

Exchange points (:mod:`ortboost.boosts.sync_batch_norm`) need segments, too: a value is summed over
the processes before the nodes that read the sum can run. Level 0 are the exchange points that
depend on no other, level `i` those that depend on level `i - 1` at most. The points of a level are
summed together, between segments `i` and `i + 1`.

Source: Li et al., PyTorch Distributed (VLDB 2020), section 3.2.3, for sending a bucket as soon as
its gradients are ready.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx_ir as ir

from ortboost.graph.query import is_random
from ortboost.graph.reach import uses_inside, values_read
from ortboost.program.split import cut_name

__all__ = [
    "UNKNOWN_SIZES",
    "Segment",
    "cut_segments",
    "order_exchanges",
    "order_gradients",
    "place_gradients",
]

UNKNOWN_SIZES: Final = {"NonZero", "Unique", "Compress", "NonMaxSuppression", "Loop", "If"}
"""Operators with outputs whose shapes depend on data; those of a Scan do if its body has one."""


@dataclass(frozen=True)
class Segment:
    """A segment of a graph.

    Args:
        model: The graph of the segment.
        passed_in: Inputs that earlier segments produce.
        passed_on: Outputs for later segments, besides outputs of the whole graph.
    """

    model: ir.Model
    passed_in: tuple[str, ...]
    passed_on: tuple[str, ...]


def order_gradients(model: ir.Model, sizes: Mapping[str, int], number: int) -> list[list[str]]:
    """Divide gradients into groups of about equal size, in the order in which they become ready.

    ``sizes`` has the size of each gradient in bytes. There are fewer groups if there are fewer
    gradients, and only one if the graph has operators with data-dependent shapes, whose results
    must not pass between segments.
    """
    if min(number, len(sizes)) < 2 or any(
        node.op_type in UNKNOWN_SIZES for node in model.graph.all_nodes()
    ):
        return [list(sizes)]
    needs = _needs(model.graph)
    made = {value.name: value for value in model.graph.outputs}
    # Fewer ancestors, ready earlier.
    ready = sorted(sizes, key=lambda name: needs[_producer(made[name])].bit_count())
    groups: list[list[str]] = []
    total, passed = sum(sizes.values()), 0
    for name in ready:
        middle = passed + sizes[name] / 2
        # A gradient opens group i if its middle lies beyond i / number of all bytes.
        if len(groups) < number and middle * number >= total * len(groups):
            groups.append([])
        groups[-1].append(name)
        passed += sizes[name]
    return groups


def order_exchanges(model: ir.Model, exchanged: Iterable[str]) -> list[list[str]]:
    """Divide exchange points of a gradient graph into levels that can be summed together, in order.

    The values of the process are outputs ``X/cut``, the sums over the processes inputs ``X``;
    ``exchanged`` are the names ``X``, and so are the results.
    """
    pending = list(exchanged)
    if not pending:
        return []
    needs = _needs(model.graph)
    readers = _readers(model.graph, pending)
    outputs = {value.name: value for value in model.graph.outputs}
    nodes = {name: needs[_producer(outputs[cut_name(name)])] for name in pending}
    levels: list[list[str]] = []
    while pending:
        # Ready are the points that need no node which reads a sum that is still missing.
        waiting = _union(readers[name] for name in pending)
        levels.append([name for name in pending if not nodes[name] & waiting])
        assert levels[-1], "exchange points depend on each other"
        pending = [name for name in pending if nodes[name] & waiting]
    return levels


def place_gradients(
    model: ir.Model, levels: Sequence[Iterable[str]], groups: Sequence[list[str]]
) -> list[list[list[str]]]:
    """The groups of gradients of each segment: the first after which all of a group are ready.

    ``levels`` are those of :func:`order_exchanges`, ``groups`` those of :func:`order_gradients`.
    The result has a list of groups, possibly empty, for each level and for the last segment.
    """
    needs = _needs(model.graph)
    made = {value.name: value for value in model.graph.outputs}
    after = [_union(_readers(model.graph, names).values()) for names in levels]
    found: list[list[list[str]]] = [[] for _ in range(len(levels) + 1)]
    for group in groups:
        # After the last level whose sums any of its nodes reads.
        nodes = _union(needs[_producer(made[name])] for name in group)
        found[max((i + 1 for i, mask in enumerate(after) if nodes & mask), default=0)].append(group)
    return found


def cut_segments(
    model: ir.Model, groups: Sequence[Iterable[str]], *, draws_first: bool = True
) -> list[Segment]:
    """Split a graph into segments, each of which produces one group of outputs.

    Args:
        model: The graph; it is not modified.
        groups: Names of outputs, by segment. Any other output belongs to the first segment that has
            everything it needs.
        draws_first: Whether all random numbers are drawn in the first segment; otherwise where they
            are used.

    Returns:
        One segment per group.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 8, opset_import: ["" : 18]>
        ... g (float[2] x) => (float[2] late, float[2] soon) {
        ...    h = Neg(x)  soon = Abs(h)  late = Exp(h) }''')
        >>> [(s.passed_in, s.passed_on) for s in cut_segments(model, [["soon"], ["late"]])]
        [((), ('h',)), (('h',), ())]
    """
    model = model.clone()
    graph = model.graph
    graph.sort()
    outputs = {value.name: value for value in graph.outputs if value.name}
    copies = _part_readers(graph, [outputs[name] for group in groups for name in group])
    ends = [[_producer(outputs[name]) for name in group] for group in groups]
    segment_of = _segments_of(graph, ends, copies, draws_first=draws_first)
    # What passes between segments: values made in one and read in a later one, but no constants.
    last_read: dict[ir.Value, int] = {}
    for node, number in segment_of.items():
        for value in values_read(node):
            last_read[value] = max(number, last_read.get(value, 0))
    # Outputs of no group go to the first segment that has everything they need.
    final = [{*group} for group in groups]
    chosen = {name for group in final for name in group}
    for name, value in outputs.items():
        if name not in chosen:
            final[segment_of[_producer(value)]].add(name)
    fixed = _fixed(list(segment_of))
    made = [(i, v) for node, i in segment_of.items() if node not in fixed for v in node.outputs]
    found = []
    for i in range(len(groups)):
        passed_on = [v for at, v in made if at == i < last_read.get(v, -1)]
        passed_in = [v for at, v in made if at < i <= last_read.get(v, -1)]
        shown = [value for name, value in outputs.items() if name in final[i]]
        part = ir.convenience.extract(graph, [*graph.inputs, *passed_in], [*shown, *passed_on])
        # `extract` took all inputs and passed values as possible inputs.
        part.inputs[:] = [value for value in part.inputs if value.uses()]
        read = {value.name for value in part.inputs}
        found.append(
            Segment(
                ir.Model(part, ir_version=model.ir_version),
                tuple(v.name or "" for v in passed_in if v.name in read),
                tuple(v.name or "" for v in passed_on),
            )
        )
    return found


def _segments_of(
    graph: ir.Graph,
    ends: Sequence[Sequence[ir.Node]],
    copies: Mapping[ir.Node, ir.Node],
    *,
    draws_first: bool,
) -> dict[ir.Node, int]:
    """The segment of each node, in graph order: the first one that needs it.

    ``ends`` are the nodes that compute the outputs of each segment, ``copies`` the nodes that have
    to run in the segment of another.
    """
    needs, place = _needs(graph), {node: i for i, node in enumerate(graph)}
    # Bit i of a mask is node i; `upto[i]` are the nodes of the segments 0 to i.
    reached, upto = 0, []
    if draws_first:  # in a fixed order; random operators without inputs are not constants
        reached = _union(needs[node] for node in graph if is_random(node))
    for nodes in ends:
        reached |= _union(needs[node] for node in nodes)
        for copy, source in copies.items():  # before the gradient is sent
            reached |= (reached >> place[source] & 1) << place[copy]
        upto.append(reached)
    # Nodes that no segment needs are left to the last one.
    upto[-1] = (1 << len(place)) - 1
    return {
        node: next(number for number, mask in enumerate(upto) if mask >> i & 1)
        for node, i in place.items()
    }


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None, value.name
    return node


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


def _readers(graph: ir.Graph, names: Iterable[str]) -> dict[str, int]:
    """For each input, the nodes that read it, as a bit mask."""
    found = dict.fromkeys(names, 0)
    for i, node in enumerate(graph):
        for value in values_read(node):
            if value.is_graph_input() and value.name in found:
                found[value.name] |= 1 << i
    return found


def _needs(graph: ir.Graph) -> dict[ir.Node, int]:
    """Each node's ancestors and itself, as a bit mask over the nodes."""
    found: dict[ir.Node, int] = {}
    for i, node in enumerate(graph):
        bits = 1 << i
        for value in values_read(node):
            producer = value.producer()
            if producer is not None:
                bits |= found.get(producer, 0)
        found[node] = bits
    return found


def _fixed(nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """Constant nodes, which depend on no input: each segment has its own copy."""
    found: set[ir.Node] = set()
    for node in nodes:
        # A draw would differ in each copy, and what a branch reads is not looked at.
        if is_random(node) or list(uses_inside(node)):
            continue
        if all(v is None or v.is_initializer() or v.producer() in found for v in node.inputs):
            found.add(node)
    return found


def _part_readers(graph: ir.Graph, gradients: Sequence[ir.Value]) -> dict[ir.Node, ir.Node]:
    """Let nodes that read a gradient read a copy: the gradient itself is reduced in place.

    Returns:
        The node that makes each copy, to the producer of its gradient.
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
