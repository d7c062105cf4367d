"""Chains of elementwise operators over large tensors, run in chunks.

An update by SGD with momentum has five operators. On a weight larger than the cache of a core, each
of them reads and writes memory: twelve passes where five suffice. A Scan over chunks of some ten
thousand elements keeps intermediate values in the cache: its slices are views, and its outputs are
written in place. For 23.6 million weights in onnxruntime 1.31, one thread:

    node by node                         81 ms
    in parts of 16, 32, 64 Ki elements   39, 36, 35 ms
    torch 2.13 (mul_, add_, add_)        46 ms

The results are bitwise equal: nothing is summed. Activations of fixed lengths (``--dim``)
are chained, too: a step of BERT base on 4 texts of 128 tokens takes 0.86 times the processor time
of one with only the update in chunks.

Nodes on tensors of one shape are fused if no other node lies between them (Kennedy and McKinley,
"Maximizing Loop Parallelism and Improving Data Locality via Loop Fusion and Distribution", 1993):
each node gets the number of other nodes before it on a path, and connected nodes with the same
number become one Scan.

If a branch of an ``If`` outputs the result of a Scan, that output has the shape ``[parts, part]``
instead of its original one, because a Reshape would copy it. The caller binds it to the same
memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.query import is_standard, static_shape
from ortboost.graph.reach import uses_inside

__all__ = ["chunked_chains"]

_BINARY = ("Add", "Div", "Max", "Min", "Mul", "Sub")
_UNARY = ("Abs", "Clip", "Erf", "Exp", "Neg", "Reciprocal", "Sigmoid", "Sign", "Sqrt", "Tanh")
_OF_NUMBERS = (*_BINARY, *_UNARY, "Cast", "Identity", "Pow", "Where")
_PART = 32 * 1024  # elements per thread; about eight tensors of this size fit into 2 MiB
_LARGE = 8  # minimum number of parts; with fewer there is little to gain
_SLACK = 4  # factor by which a part may differ from the desired size
_LANES = (
    16  # of a vector register; onnxruntime 1.19 rounds square roots differently in the remainder
)

_Shape = tuple[int, ...]


def chunked_chains(
    model: ir.Model, states: Collection[str] = (), threads: int | None = None
) -> bool:
    """Move each chain of elementwise operators over a large tensor into a Scan, in place.

    Args:
        model: The step graph.
        states: Outputs that may get another shape with as many elements.
        threads: Intra-op threads; the number of processors if not given.

    Returns:
        Whether there was one.
    """
    wished = _PART * (threads or _cores())
    builder = Builder(model.graph, "ortboost/chunks")
    changed = False
    for graph, owner in _graphs(model.graph):
        found = [
            _Chain(nodes, shape, part)
            for nodes, shape in _chains(graph)
            if len(nodes) > 1 and (part := _part(math.prod(shape), wished)) is not None
        ]
        for chain in found:
            _put_into_scan(chain, graph, owner, states, builder)
        if found:
            graph.sort()
            changed = True
    return changed


@dataclass(frozen=True)
class _Chain:
    nodes: list[ir.Node]
    shape: _Shape
    part: int

    @property
    def flat(self) -> _Shape:
        """The shape ``[parts, part]``."""
        return math.prod(self.shape) // self.part, self.part


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _graphs(graph: ir.Graph) -> list[tuple[ir.Graph, ir.Node | None]]:
    """The graph, and the branches of its ``If`` nodes with their owners."""
    return [(graph, None)] + [(b, node) for node in graph for b in _branches(node)]


def _branches(node: ir.Node) -> list[ir.Graph]:
    graphs = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return graphs if node.op_type == "If" else []


def _part(count: int, wished: int) -> int | None:
    """The divisor of the number of elements that is nearest to the desired part."""
    if count < _LARGE * wished:
        return None
    near = range(max(wished // _SLACK, _LANES), wished * _SLACK + 1, _LANES)
    divisors = [part for part in near if count % part == 0]
    return min(divisors, key=lambda part: abs(math.log(part / wished)), default=None)


# ---- selection of nodes------------------------------------------------------------------------


def _chains(graph: ir.Graph) -> list[tuple[list[ir.Node], _Shape]]:
    """Connected elementwise nodes over tensors of one shape, in graph order."""
    depths: dict[int, int] = {}  # how often the paths to a node leave a chain, at most
    chain_of: dict[int, list[ir.Node]] = {}
    readers: dict[tuple[int, int], ir.Node] = {}  # the first reader of a tensor at a depth
    for node in graph:
        if is_standard(node, *_OF_NUMBERS) and {*map(_shape, node.inputs)} == {()}:
            node.outputs[0].shape = ir.Shape(())
        shape = _elementwise(node)
        depth = 0
        for value in (*node.inputs, *uses_inside(node)):
            made = _maker(value, graph)
            if made is not None:
                leaves = id(made) in chain_of and static_shape(made.outputs[0]) != shape
                depth = max(depth, depths[id(made)] + leaves)
        depths[id(node)] = depth
        if shape is None:
            continue
        node.outputs[0].shape = ir.Shape(shape)  # later nodes need it
        chain_of[id(node)] = [node]
        for value in node.inputs:
            if _shape(value) != shape:
                continue
            made = _maker(value, graph)
            if made is None or id(made) not in chain_of or depths[id(made)] != depth:
                made = readers.setdefault((id(value), depth), node)
            if chain_of[id(made)] is not chain_of[id(node)]:
                chain_of[id(made)].extend(chain_of[id(node)])
                chain_of.update({id(n): chain_of[id(made)] for n in chain_of[id(node)]})
    found = {id(chain): chain for chain in chain_of.values()}
    order = {id(node): index for index, node in enumerate(graph)}
    return [
        (sorted(chain, key=lambda node: order[id(node)]), static_shape(chain[0].outputs[0]) or ())
        for chain in found.values()
    ]


def _maker(value: ir.Value | None, graph: ir.Graph) -> ir.Node | None:
    producer = None if value is None else value.producer()
    return producer if producer is not None and producer.graph is graph else None


def _shape(value: ir.Value | None) -> _Shape | None:
    return None if value is None else static_shape(value)


def _elementwise(node: ir.Node) -> _Shape | None:
    """The shape that an elementwise node works on; ``None`` for other nodes."""
    if not is_standard(node, *_BINARY, *_UNARY):
        return None
    found = [_shape(value) for value in node.inputs]
    known = [shape for shape in found if shape is not None]
    tensors = {shape for shape in known if math.prod(shape) != 1}
    scalars = [shape for shape in known if math.prod(shape) == 1]
    if len(known) < len(found) or len(tensors) != 1 or any(len(shape) > 1 for shape in scalars):
        return None
    return tensors.pop()


# ---- rewriting --------------------------------------------------------------------------------


def _put_into_scan(
    chain: _Chain,
    graph: ir.Graph,
    owner: ir.Node | None,
    states: Collection[str],
    builder: Builder,
) -> None:
    """Move nodes into the body of a Scan, inserted at the place of the last of them."""
    members = set(chain.nodes)
    made = {node.outputs[0] for node in chain.nodes}
    results = [v for v in made if v.is_graph_output() or {use.node for use in v.uses()} - members]
    results.sort(key=lambda value: value.name or "")
    taken = [
        value
        for value in dict.fromkeys(v for node in chain.nodes for v in node.inputs)
        if value is not None and value not in made and static_shape(value) == chain.shape
    ]
    flat = builder.ints(*chain.flat)
    columns = [builder.op("Reshape", value, flat, shape=chain.flat) for value in taken]
    slices = [
        ir.Value(
            name=builder.unique(f"{builder.prefix}/slice"),
            type=value.type,
            shape=ir.Shape([chain.part]),
        )
        for value in taken
    ]
    scan = builder.ops(
        "Scan",
        *columns,
        names=[f"{value.name}/parts" for value in results],
        shape=chain.flat,
        num_scan_inputs=len(taken),
    )
    graph.insert_before(chain.nodes[-1], builder.take())
    for value, parts in zip(results, scan, strict=True):
        parts.type = value.type
        _give_out(value, parts, chain, graph, owner, states, builder)
    graph.remove(chain.nodes)
    for member in chain.nodes:
        member.outputs[0].shape = ir.Shape([chain.part])
        for index, read in enumerate(member.inputs):
            if read is not None and read in taken:
                member.replace_input_with(index, slices[taken.index(read)])
    body = ir.Graph(slices, results, nodes=chain.nodes, name=f"{scan[0].name}/body")
    (node,) = {id(p): p for v in scan if (p := v.producer()) is not None}.values()
    node.attributes["body"] = ir.AttrGraph("body", body)


def _give_out(
    value: ir.Value,
    parts: ir.Value,
    chain: _Chain,
    graph: ir.Graph,
    owner: ir.Node | None,
    states: Collection[str],
    builder: Builder,
) -> None:
    """Redirect all readers of a result of the chain to the Scan."""
    others = [use for use in value.uses() if use.node not in chain.nodes]
    index = graph.outputs.index(value) if value in graph.outputs else None
    shown = None if index is None else value if owner is None else owner.outputs[index]
    free = shown is not None and shown.is_graph_output() and shown.name in states
    if others or (shown is not None and not free):
        back = builder.op("Reshape", parts, builder.ints(*chain.shape), shape=chain.shape)
        graph.extend(builder.take())
        for use in others:
            use.node.replace_input_with(use.idx, back)
    if index is None:
        return
    new = parts if free else back
    graph.outputs[index] = new
    if owner is None:
        value.name, new.name = builder.unique(f"{value.name}/part"), value.name
    elif free:
        _reshape_output(owner, index, chain, graph, builder)


def _reshape_output(
    owner: ir.Node, index: int, chain: _Chain, graph: ir.Graph, builder: Builder
) -> None:
    """Give an output of an ``If`` the shape of its parts if one branch computes it in parts."""
    flat = builder.ints(*chain.flat)
    for branch in _branches(owner):
        output = branch.outputs[index]
        if branch is not graph and static_shape(output) != chain.flat:
            branch.outputs[index] = builder.op("Reshape", output, flat, shape=chain.flat)
            branch.extend(builder.take())
    result, outer = owner.outputs[index], owner.graph
    assert isinstance(outer, ir.Graph)  # steps have no functions
    uses = list(result.uses())
    if uses:
        back = builder.op("Reshape", result, builder.ints(*chain.shape), shape=chain.shape)
        outer.insert_after(owner, builder.take())
        for use in uses:
            use.node.replace_input_with(use.idx, back)
    result.shape = ir.Shape(chain.flat)
