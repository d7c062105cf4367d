"""Proof on the graph that states may be updated in place.

Binding the input `S` and the output `next(S)` to one buffer saves the second copy of the state. The
runtime's memory planner does not take this into account: a node that reads `S` may run after the
one that writes `next(S)`, and training is silently wrong. It is safe if

1. `next(S)` is an output of a node `G` (in a step graph: the one ``If``), and every node outside
   `G` that reads `S` is an ancestor of `G`, so that it has run before `G` starts (not by a Shape
   alone, which a runtime computes in advance); and
2. within each branch of `G`, every reader of `S` is the node that computes the branch's output for
   `S`, or an ancestor of it, and that node is elementwise, so that it never reads an element after
   writing it, or a ScatterND into `S`, which in place only writes.

The second point alone suffices for a ScatterND in the graph itself: a table that a step without a
gate updates (:mod:`ortboost.boosts.sparse_embedding`).

Nodes that read `S` through a view such as Reshape also count as readers: the runtime gives such a
view the memory of its input. So do those that read it through a Transpose, which the runtime's
optimizer moves behind them, or fuses into them.

If the proof fails, ortboost's runtime alternates between two buffers.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import is_standard, subgraphs
from ortboost.graph.reach import ancestors, values_read
from ortboost.program.catalogue import Catalogue

__all__ = ["in_place_states"]

# Operators that write element i of the output from element i of their inputs, or from scalars.
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "Identity", "Neg"})

# Operators whose output may share the memory of their first input, or whose readers may read that.
_VIEWS = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast", "Transpose"}
)


def in_place_states(model: ir.Model, catalogue: Catalogue) -> frozenset[str]:
    """Find the states of a step graph whose input and next output may share one buffer, by name."""
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    before: dict[ir.Node, set[ir.Node]] = {}  # writer to its ancestors
    proven = set()
    for entry in catalogue.state:
        # Never written: there is nothing to share.
        if entry.next is None:
            continue
        source, target = inputs[entry.name], outputs[entry.next]
        writer = target.producer()
        if writer is None or not (writer.op_type == "If" or _scatters(writer, source)):
            continue
        if writer not in before:
            before[writer] = _run_before(writer)
        if _readers_precede(source, writer, before[writer]) and all(
            _branch_is_safe(branch, target.index() or 0, source) for branch in subgraphs(writer)
        ):
            proven.add(entry.name)
    return frozenset(proven)


def _scatters(node: ir.Node, source: ir.Value) -> bool:
    """Whether a node is a ScatterND into the state, and reads it in no other way."""
    uses = [usage for usage in source.uses() if usage.node is node]
    return is_standard(node, "ScatterND") and [usage.idx for usage in uses] == [0]


def _run_before(node: ir.Node) -> set[ir.Node]:
    """The nodes of its graph that must run before a node starts."""

    def past(other: ir.Node) -> bool:
        # A runtime folds Shape of a known length, and CastLike of a constant, which needs only the
        # type of the other input: the node before it may then run at any time.
        return other.graph is node.graph and not is_standard(other, "Shape", "Size", "CastLike")

    found = ancestors(values_read(node), past)
    return {other for other in found if other.graph is node.graph}


def _readers_precede(source: ir.Value, writer: ir.Node, before: set[ir.Node]) -> bool:
    branches = list(subgraphs(writer))
    for node in _readers(source):
        # A ScatterND into the state may read and write it in place.
        if node is writer and _scatters(node, source):
            continue
        if node.graph is writer.graph:
            if node not in before:
                return False
        elif node.graph not in branches:  # in a subgraph of some other node
            return False
    return True


def _readers(source: ir.Value) -> set[ir.Node]:
    """All nodes that read the value or a view of it."""
    found: set[ir.Node] = set()
    pending = [source]
    while pending:
        for usage in pending.pop().uses():
            node = usage.node
            if node not in found and node.op_type in _VIEWS and usage.idx == 0:
                pending.append(node.outputs[0])
            found.add(node)
    return found


def _branch_is_safe(branch: ir.Graph, index: int, source: ir.Value) -> bool:
    producer = branch.outputs[index].producer()
    if producer is None or producer.graph is not branch or len(producer.outputs) != 1:
        return False
    readers = {node for node in _readers(source) if node.graph is branch}
    # A MatMul, for example, reads an element again after another one was written.
    in_order = producer.op_type in _ELEMENTWISE or _scatters(producer, source)
    if producer in readers and not in_order:
        return False
    return readers <= {producer, *_run_before(producer)}
