"""Chains: connected elementwise operators over tensors of one shape.

Nodes are fused if no other node lies between them (Kennedy and McKinley, "Maximizing Loop
Parallelism and Improving Data Locality via Loop Fusion and Distribution", 1993): each node gets the
number of other nodes before it on a path, and connected nodes with the same number become one
chain.

A chain of the backward pass often reads intermediate values of a chain of the forward pass: that of
a Gelu reads `erf(x / sqrt 2)` beside `x`. What elementwise operators compute from values that are
read anyway costs less than storing it and reading it again, so it is computed a second time
(rematerialization; Briggs, Cooper and Torczon, 1992), and the first chain need not store it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.query import is_standard, is_unused, known_shape
from ortboost.graph.reach import values_read

__all__ = ["Chain", "Lengths", "elementwise_chains", "recompute_inputs"]

_BINARY = ("Add", "Div", "Max", "Min", "Mul", "Sub")
_UNARY = ("Abs", "Clip", "Erf", "Exp", "Neg", "Reciprocal", "Sigmoid", "Sign", "Sqrt", "Tanh")
_OF_SCALARS = (*_BINARY, *_UNARY, "Cast", "Identity", "Pow", "Where")  # of scalars, give scalars

Lengths = tuple[int | str, ...]
"""A shape whose symbolic lengths have names; equal names mean equal lengths."""


@dataclass(frozen=True)
class Chain:
    """Connected elementwise nodes.

    Args:
        nodes: The nodes, in the order of the graph.
        shape: The shape of all tensors that they read and compute; they also read scalars.
    """

    nodes: list[ir.Node]
    shape: Lengths

    @property
    def computed(self) -> list[ir.Value]:
        """What its nodes compute, in their order."""
        return [node.outputs[0] for node in self.nodes]

    @property
    def tensors(self) -> list[ir.Value]:
        """The tensors that it reads, without scalars, each once."""
        made = set(self.computed)
        read = dict.fromkeys(value for node in self.nodes for value in node.inputs)
        return [
            value
            for value in read
            if value is not None and value not in made and _lengths(value) == self.shape
        ]


def elementwise_chains(graph: ir.Graph) -> list[Chain]:
    """All chains of a graph, each in the order of the graph."""
    depths: dict[int, int] = {}  # how often the paths to a node leave a chain, at most
    chain_of: dict[int, list[ir.Node]] = {}  # lists are shared: extending one extends the chain
    readers: dict[tuple[int, int], ir.Node] = {}  # the first reader of a tensor at a depth
    for node in graph:
        # Needed below: a node with an operand of unknown shape is not elementwise.
        if is_standard(node, *_OF_SCALARS) and {*map(_lengths, node.inputs)} == {()}:
            node.outputs[0].shape = ir.Shape(())
        shape = _elementwise(node)
        # A path leaves a chain at a node that is not elementwise, or of another shape.
        depth = 0
        for read in values_read(node):
            made = _maker(read, graph)
            if made is not None:
                leaves = id(made) in chain_of and _lengths(made.outputs[0]) != shape
                depth = max(depth, depths[id(made)] + leaves)
        depths[id(node)] = depth
        if shape is None:
            continue
        # Two nodes may share a chain if they are connected and have the same depth: then no path
        # between them leads through another node, which would have to run in between.
        output, source = node.outputs[0], node.inputs[0]
        output.shape = ir.Shape(shape)  # later nodes need it
        if output.type is None and source is not None:
            output.type = source.type  # which all of these keep
        chain_of[id(node)] = [node]
        for value in node.inputs:
            if _lengths(value) != shape:
                continue
            made = _maker(value, graph)
            # Connected to the maker, or else to the first reader: one chain reads the tensor once.
            if made is None or id(made) not in chain_of or depths[id(made)] != depth:
                made = readers.setdefault((id(value), depth), node)
            if chain_of[id(made)] is not chain_of[id(node)]:
                chain_of[id(made)].extend(chain_of[id(node)])
                chain_of.update({id(n): chain_of[id(made)] for n in chain_of[id(node)]})
    found = {id(chain): chain for chain in chain_of.values()}
    order = {id(node): index for index, node in enumerate(graph)}
    return [
        Chain(sorted(chain, key=lambda node: order[id(node)]), _lengths(chain[0].outputs[0]) or ())
        for chain in found.values()
    ]


def recompute_inputs(chains: list[Chain], builder: Builder) -> None:
    """Let chains recompute values that they read from others, if they then read fewer tensors.

    A chain is left alone if it would then read a state, which may already have been written. Nodes
    whose results are no longer read are removed.
    """
    home = {id(value): chain for chain in chains for value in chain.computed}
    for chain in chains:
        read = set(chain.tensors)
        # What it reads of other chains, and the nodes that compute that from their tensors.
        cones = {value: _cone(value, home[id(value)]) for value in read if id(value) in home}
        needed = (read - cones.keys()).union(*(cone.tensors for cone in cones.values()))
        if len(needed) < len(read) and not any(map(_reads_states, cones.values())):
            _repeat(cones.values(), chain, builder)
    for chain in chains:
        for node in reversed(chain.nodes.copy()):  # readers first
            if node.graph is not None and is_unused(node):
                chain.nodes.remove(node)
                node.graph.remove(node, safe=True)


def _cone(value: ir.Value, chain: Chain) -> Chain:
    """The nodes of a chain that compute a value from the tensors that the chain reads."""
    found: set[ir.Node] = set()
    wanted = {value}
    for node in reversed(chain.nodes):
        if node.outputs[0] in wanted:
            found.add(node)
            wanted.update(read for read in node.inputs if read is not None)
    return Chain([node for node in chain.nodes if node in found], chain.shape)


def _reads_states(cone: Chain) -> bool:
    """Whether it reads an input of the graph that may be a state; no state has symbolic lengths."""
    return any(
        value is not None
        and value.is_graph_input()
        and all(isinstance(length, int) for length in _lengths(value) or ())
        for node in cone.nodes
        for value in node.inputs
    )


def _repeat(cones: Iterable[Chain], chain: Chain, builder: Builder) -> None:
    """Copy nodes in front of a chain, and let it read their results."""
    copies: dict[ir.Value | None, ir.Value] = {}
    nodes = []
    for node in dict.fromkeys(node for cone in cones for node in cone.nodes):
        (old,) = node.outputs
        new = ir.Value(name=builder.unique(f"{old.name}/again"), type=old.type, shape=old.shape)
        inputs = [copies.get(value, value) for value in node.inputs]
        attributes = node.attributes.values()
        nodes.append(ir.Node(node.domain, node.op_type, inputs, attributes, outputs=[new]))
        copies[old] = new
    for member in chain.nodes:
        for index, value in enumerate(member.inputs):
            if value in copies:
                member.replace_input_with(index, copies[value])
    graph = chain.nodes[0].graph
    assert isinstance(graph, ir.Graph)  # steps have no functions
    graph.insert_before(chain.nodes[0], nodes)
    chain.nodes[:0] = nodes


def _maker(value: ir.Value | None, graph: ir.Graph) -> ir.Node | None:
    producer = None if value is None else value.producer()
    return producer if producer is not None and producer.graph is graph else None


def _lengths(value: ir.Value | None) -> Lengths | None:
    """The shape, if all of its lengths are numbers or have names."""
    shape = None if value is None else known_shape(value)
    if shape is None:
        return None
    lengths = tuple(length for length in shape if length is not None)
    return lengths if len(lengths) == len(shape) else None


def _is_scalar(shape: Lengths) -> bool:
    return all(length == 1 for length in shape)


def _elementwise(node: ir.Node) -> Lengths | None:
    """The shape that an elementwise node works on; ``None`` for other nodes."""
    if not is_standard(node, *_BINARY, *_UNARY):
        return None
    found = [_lengths(value) for value in node.inputs]
    known = [shape for shape in found if shape is not None]
    tensors = {shape for shape in known if not _is_scalar(shape)}
    scalars = [shape for shape in known if _is_scalar(shape)]
    if len(known) < len(found) or len(tensors) != 1 or any(len(shape) > 1 for shape in scalars):
        return None
    return tensors.pop()
