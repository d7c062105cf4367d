"""Chains of elementwise operators over large tensors, run in chunks.

An update by SGD with momentum has five operators. On a weight larger than the cache of a core, each
of them reads and writes memory: twelve passes where five suffice. A Scan over chunks of some ten
thousand elements keeps intermediate values in the cache: its slices are views, and its outputs are
written in place. For 23.6 million weights in onnxruntime 1.31, one thread:

    node by node                         81 ms
    in parts of 16, 32, 64 Ki elements   39, 36, 35 ms
    torch 2.13 (mul_, add_, add_)        46 ms

The results are bitwise equal: nothing is summed.

Activations, whose batch is symbolic, are cut into parts that divide the product of their known
lengths. A Gelu and its gradient (erf form, 13 operators in the backward pass) on one thread:

    4 x 128 x 3072, node by node                   14.0 ms
    in parts of 3, 12, 24, 48 Ki elements    9.5, 7.6, 7.4, 7.4 ms

Each connected group of such operators (:mod:`ortboost.runtime.cpu.chains`) becomes one Scan.

If a branch of an ``If`` outputs the result of a Scan, that output has the shape ``[parts, part]``
instead of its original one, because a Reshape would copy it. The caller binds it to the same
memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.core.cores import available_cores
from ortboost.graph.build import Builder
from ortboost.graph.query import static_shape, subgraphs
from ortboost.runtime.cpu.chains import Chain, Lengths, elementwise_chains, recompute_inputs

__all__ = ["chunked_chains"]

_PART = 32 * 1024  # elements per thread; about eight tensors of this size fit into 2 MiB
_LARGE = 8  # minimum number of parts; with fewer there is little to gain
_SLACK = 4  # factor by which a part may differ from the desired size
_LANES = 16  # of a vector register; onnxruntime 1.19 rounds square roots of a remainder otherwise
_SMALLER = 32  # _SLACK for smaller parts of activations, of which several may be joined
_NODES = 4  # minimum number of nodes over activations: one Scan costs as much as a few nodes


def chunked_chains(
    model: ir.Model, states: Collection[str] = (), threads: int | None = None
) -> bool:
    """Move chains of elementwise operators over large tensors into Scans; True if there was one.

    ``states`` are outputs that may get another shape with as many elements. ``threads``
    is the number of intra-op threads, by default the number of processors.
    """
    # The runtime divides each operator among its threads.
    wished = _PART * (threads or available_cores())
    builder = Builder(model.graph, "ortboost/chunks")
    changed = False
    branches = ((branch, node) for node in model.graph for branch in _branches(node))
    for graph, owner in [(model.graph, None), *branches]:
        found = [
            _Scan(chain, part, graph, owner, builder, wished)
            for chain in elementwise_chains(graph)
            if (part := _part(chain, wished)) is not None
        ]
        recompute_inputs([scan.chain for scan in found], builder)
        for scan in found:
            if len(scan.chain.nodes) > 1:
                scan.put(states)
                changed = True
        if found:
            graph.sort()
    return changed


def _numbers(shape: Lengths) -> list[int]:
    return [length for length in shape if isinstance(length, int)]


def _branches(node: ir.Node) -> list[ir.Graph]:
    return list(subgraphs(node)) if node.op_type == "If" else []


def _part(chain: Chain, wished: int) -> int | None:
    """The divisor of the number of known elements that is nearest to the desired part.

    For activations it may be smaller, as rows are joined.
    """
    known = _numbers(chain.shape)
    count, smallest = math.prod(known), wished // _SLACK
    symbolic = len(chain.shape) - len(known)
    if symbolic:
        smallest = wished // _SMALLER
        # A sample should not fit into the cache, or there may be many rows for each.
        enough = count >= 2 * _PART or symbolic > 1
        if len(chain.nodes) < _NODES or not enough:
            return None
    elif count < _LARGE * wished or len(chain.nodes) < 2:
        return None
    near = range(max(smallest, _LANES), wished * _SLACK + 1, _LANES)  # multiples of the lanes
    divisors = [part for part in near if count % part == 0]
    return min(divisors, key=lambda part: abs(math.log(part / wished)), default=None)


@dataclass(frozen=True)
class _Scan:
    """A chain that becomes a Scan, in a graph or in a branch of the node ``owner``.

    An iteration works on ``part`` elements.
    """

    chain: Chain
    part: int
    graph: ir.Graph
    owner: ir.Node | None
    builder: Builder
    wished: int

    @property
    def flat(self) -> tuple[int, int]:
        """The shape ``[parts, part]``; -1 for an unknown number of parts."""
        known = _numbers(self.chain.shape)
        symbolic = len(known) < len(self.chain.shape)
        return -1 if symbolic else math.prod(known) // self.part, self.part

    def put(self, states: Collection[str]) -> None:
        """Move the nodes into the body of a Scan, inserted at the place of the last of them."""
        builder, chain, taken = self.builder, self.chain, self.chain.tensors
        members = set(chain.nodes)
        # What is read outside of the chain. Scalars need no input: a body can read outer values.
        results = [
            value
            for value in chain.computed
            if value.is_graph_output() or {use.node for use in value.uses()} - members
        ]
        results.sort(key=lambda value: value.name or "")
        parts, part = self.flat
        flat, shape = self._flat(taken[0]), ir.Shape((parts, part) if parts > 0 else (None, None))
        columns = [builder.op("Reshape", value, flat, shape=shape, allowzero=1) for value in taken]
        inner, name = ir.Shape(shape[1:]), f"{builder.prefix}/slice"
        slices = [ir.Value(name=builder.unique(name), type=v.type, shape=inner) for v in taken]
        # The body follows at the end, when its nodes have been taken out of the graph.
        scan = builder.ops(
            "Scan",
            *columns,
            names=[f"{value.name}/parts" for value in results],
            shape=shape,
            num_scan_inputs=len(taken),
        )
        self.graph.insert_before(chain.nodes[-1], builder.take())
        for value, found in zip(results, scan, strict=True):
            found.type = value.type
            self._give_out(value, found, taken[0], states)
        self.graph.remove(chain.nodes)
        for member in chain.nodes:
            member.outputs[0].shape = inner
            for index, read in enumerate(member.inputs):
                if read is not None and read in taken:
                    member.replace_input_with(index, slices[taken.index(read)])
        body = ir.Graph(slices, results, nodes=chain.nodes, name=f"{scan[0].name}/body")
        node = scan[0].producer()
        assert node is not None  # the Scan
        node.attributes["body"] = ir.AttrGraph("body", body)

    def _flat(self, tensor: ir.Value) -> ir.Value:
        """The shape ``[parts, part]`` for Reshape, with parts joined until they have a good size.

        Of `n` parts, `min(n & -n, r)` are joined: the largest power of two that divides `n`, at
        most `r`. So texts of any length get parts of a good size, unless their number of tokens is
        odd. An empty batch is one part of no elements: onnxruntime refuses a Scan over nothing.
        """
        builder, (known, part) = self.builder, self.flat
        if known > 0:
            return builder.ints(known, part)
        joined = 2 ** int(math.log2(max(self.wished / part, 1)))  # r
        size = builder.op("Size", tensor, dtype=ir.DataType.INT64)
        count = builder.op("Reshape", size, builder.ints(1))
        parts = builder.op("Div", count, builder.ints(part))
        if joined > 1:
            power = builder.op("BitwiseAnd", parts, builder.op("Neg", parts))  # n & -n
            most = builder.op("Min", power, builder.ints(joined))
            parts = builder.op("Div", parts, builder.op("Max", most, builder.ints(1)))
        parts = builder.op("Max", parts, builder.ints(1))
        return builder.op("Concat", parts, builder.op("Div", count, parts), axis=0)

    def _back(self, parts: ir.Value, tensor: ir.Value) -> ir.Value:
        """Give the result of a Scan the shape of the tensors of its chain."""
        builder, shape = self.builder, self.chain.shape
        if len(_numbers(shape)) < len(shape) - 1:  # a -1 can stand for one unknown length only
            size = builder.op("Shape", tensor, dtype=ir.DataType.INT64)
            return builder.op("Reshape", parts, size, shape=shape, allowzero=1)
        size = builder.ints(*(length if isinstance(length, int) else -1 for length in shape))
        return builder.op("Reshape", parts, size, shape=shape)

    def _give_out(
        self, value: ir.Value, parts: ir.Value, tensor: ir.Value, states: Collection[str]
    ) -> None:
        """Redirect all readers of a result of the chain to the Scan."""
        graph, owner, builder = self.graph, self.owner, self.builder
        # Three kinds of readers: nodes get the original shape back by a Reshape; so do graph
        # outputs, unless they are states, which keep the shape of the parts (the caller binds their
        # memory).
        others = [use for use in value.uses() if use.node not in self.chain.nodes]
        index = graph.outputs.index(value) if value in graph.outputs else None
        shown = None if index is None else value if owner is None else owner.outputs[index]
        free = shown is not None and shown.is_graph_output() and shown.name in states
        if others or (shown is not None and not free):
            back = self._back(parts, tensor)
            graph.extend(builder.take())
            for use in others:
                use.node.replace_input_with(use.idx, back)
        if index is None:
            return
        new = parts if free else back
        graph.outputs[index] = new
        if owner is None:  # outputs of the main graph are known by name, of a branch by position
            value.name, new.name = builder.unique(f"{value.name}/part"), value.name
        elif free:
            self._reshape_output(owner, index)

    def _reshape_output(self, owner: ir.Node, index: int) -> None:
        """Give an output of an ``If`` the shape of its parts if one branch computes it in parts."""
        builder, flat = self.builder, self.flat
        shape = _numbers(self.chain.shape)  # a state, so all lengths are known
        for branch in _branches(owner):  # the other one, unless it is already in parts
            output = branch.outputs[index]
            if branch is not self.graph and static_shape(output) != flat:
                new = builder.op("Reshape", output, builder.ints(*flat), shape=flat)
                branch.outputs[index] = new
                branch.extend(builder.take())
        # Readers of the output in the outer graph still expect the shape of the state.
        result, outer = owner.outputs[index], owner.graph
        assert isinstance(outer, ir.Graph)  # steps have no functions
        uses = list(result.uses())
        if uses:
            back = builder.op("Reshape", result, builder.ints(*shape), shape=shape)
            outer.insert_after(owner, builder.take())
            for use in uses:
                use.node.replace_input_with(use.idx, back)
        result.shape = ir.Shape(flat)
