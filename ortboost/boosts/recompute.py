r"""Activation checkpointing: less memory for about a third more time.

The backward pass reads the activations of the forward pass, so all are kept until then. With this
boost only a few *checkpoints* are kept: tensors that alone determine the rest of the computation.
The part between two of them, a *segment*, is computed again from the first checkpoint when the
backward pass arrives at the second:

    forward     x -> [segment 1] -> c1 -> [segment 2] -> c2 -> [segment 3] -> loss   c1, c2 are kept
    backward    [segment 3] -> g2,  c1 -> [segment 2 again] -> g1,  x -> [segment 1 again] -> ...

The last segment is not computed again: the backward pass starts there. The results are equal, and
bitwise equal if the runtime fuses the copies like the originals. Outputs of random operators are
kept, because a second draw would differ.

The graph prevents a runtime from undoing this, with standard operators only. The copy of a segment
reads its checkpoint through ``Reshape(c, Shape(c) + 0)``, where this 0 is computed from the
arriving gradient: the copy cannot run earlier, and is not a common subexpression of the original.

Choice of checkpoints: with the bytes `s_i` stored by each segment and `c_i` of each checkpoint, the
memory is about `sum(c_i) + max(s_i)`. ``every="best"`` minimizes that over the budgets of a
segment.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, Algorithms 2 and 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Key, Stage
from ortboost.boosts.roles import BOUNDARY, EXCHANGE_POINT
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.delay import false_after
from ortboost.graph.query import (
    FLOAT_TYPES,
    has_subgraph,
    is_random,
    is_standard,
    known_shape,
    static_shape,
)
from ortboost.graph.reach import ancestors, values_by_name, values_read

__all__ = ["Recompute"]

_UNKNOWN = 32  # assumed for unknown lengths when sizes are compared
_WORTH = 4  # a block stores at least this multiple of its checkpoint
_BUDGETS = 40
_CHECKPOINTS = Key[tuple[str, ...]]("checkpoints")


@dataclass(frozen=True)
class Recompute(Boost):
    """Activation checkpointing.

    Args:
        every: Where to place checkpoints: ``best`` for the least estimated memory; ``block`` after
            each block (a layer of a transformer, a residual block).

    Example:
        >>> Recompute(every="block").to_dict()
        {'name': 'recompute', 'every': 'block'}
    """

    every: Literal["best", "block"] = "best"

    name: ClassVar[str] = "recompute"
    stage: ClassVar[Stage] = "gradients"
    card: ClassVar[str] = "recompute"

    def rewrite_decomposed(self, graph: GraphContext) -> Report:
        """Choose the checkpoints."""
        report = Report(self.name)
        places = _places(graph)
        total = sum(place.stored + place.size for place in places)
        if self.every == "block":  # wherever a block has stored enough to make it worthwhile
            chosen = _greedy(places, lambda stored, place, _: stored >= _WORTH * place.size)
        else:
            chosen = _best(places)
        graph.memory[_CHECKPOINTS] = tuple(place.name for place in chosen)
        for place in chosen:
            report.changed[place.name] = "kept; the segment before it is computed again"
        if chosen:
            kept = sum(place.size for place in chosen) + max(_segments(places, chosen))
            guess = f" (unknown lengths counted as {_UNKNOWN})" if _has_unknown(graph) else ""
            report.notes.append(
                f"{len(chosen) + 1} segments; about {100 * kept / total:.0f} % of the activations "
                f"are held at once{guess}"
            )
        else:
            report.notes.append(
                "no single tensor determines the rest of the computation, or none would save memory"
            )
        return report

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Make the backward pass read copies of the segments."""
        values = values_by_name(graph.model.graph)
        checkpoints = [values[name] for name in graph.memory[_CHECKPOINTS] if name in values]
        if checkpoints:
            _Rewrite(graph, checkpoints).run()


# ---- choice of checkpoints --------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A tensor that alone determines the rest of the computation, or the end of the graph.

    Args:
        name: Its name.
        size: Its size in bytes.
        stored: Bytes of the activations after the previous place, excluding this tensor.
    """

    name: str
    size: int
    stored: int


def _places(graph: GraphContext) -> list[_Place]:
    """All places in topological order, and the end."""
    nodes = _ancestors(graph.model.graph, [graph.objective])
    activations = _activations(graph, nodes)
    last_use = {id(v): i for i, node in enumerate(nodes) for v in values_read(node)}
    live: dict[int, ir.Value] = {}
    found: list[_Place] = []
    stored = 0
    for index, node in enumerate(nodes):
        # Activations that are still read after this node: if there is only one, it is a place.
        live = {key: value for key, value in live.items() if last_use[key] > index}
        made = [v for v in node.outputs if id(v) in activations and last_use.get(id(v), 0) > index]
        live.update({id(value): value for value in made})
        stored += sum(map(_bytes, made))
        # No scalar, such as the loss, and no tensor of unknown rank: its size would be a guess.
        if len(live) == 1 and made:
            (value,) = live.values()
            if value is made[0] and value.dtype in FLOAT_TYPES and known_shape(value):
                found.append(_Place(value.name or "", _bytes(value), stored - _bytes(value)))
                stored = 0
    return [*found, _Place("", 0, stored)]


def _segments(places: Sequence[_Place], chosen: Sequence[_Place]) -> list[int]:
    """The bytes that each segment stores."""
    sums = [0]
    for place in places:
        sums[-1] += place.stored
        if place in chosen:
            sums.append(0)
        else:
            # A place that is not chosen is one of the segment's activations.
            sums[-1] += place.size
    return sums


def _best(places: Sequence[_Place]) -> list[_Place]:
    """The choice with the least memory over all budgets; empty if recomputing does not help."""
    total = sum(place.stored + place.size for place in places)  # without recomputing
    # The budget that is best is not known: try shares of the whole.
    best: tuple[int, list[_Place]] = (total, [])
    for step in range(1, _BUDGETS):
        chosen = _within(places, total * step // _BUDGETS)
        needed = sum(place.size for place in chosen) + max(_segments(places, chosen))
        best = min(best, (needed, chosen), key=lambda pair: pair[0])
    return best[1]


def _within(places: Sequence[_Place], budget: int) -> list[_Place]:
    """The fewest checkpoints that keep each segment within the budget, if possible."""
    # Without a checkpoint at a place, the segment grows up to the next place at least.
    return _greedy(
        places,
        lambda stored, place, following: stored + place.size + following.stored > budget,
    )


def _greedy(places: Sequence[_Place], ends: Callable[[int, _Place, _Place], bool]) -> list[_Place]:
    """Go through the places; ``ends`` decides from the bytes stored since the last checkpoint."""
    chosen: list[_Place] = []
    stored = 0
    for place, following in itertools.pairwise(places):
        stored += place.stored
        if ends(stored, place, following):
            chosen.append(place)
            stored = 0
        else:
            stored += place.size
    return chosen


def _activations(graph: GraphContext, nodes: Sequence[ir.Node]) -> set[int]:
    """Float values that depend on both the data and a parameter."""
    inputs, weights = graph.model.graph.inputs, graph.parameters
    both = _depending(nodes, (v for v in inputs if v.name not in weights))
    both &= _depending(nodes, (v for v in inputs if v.name in weights))
    outputs = (value for node in nodes for value in node.outputs)
    return {id(v) for v in outputs if id(v) in both and v.dtype in (*FLOAT_TYPES, None)}


def _has_unknown(graph: GraphContext) -> bool:
    """Whether any length of a float tensor is not known."""
    outputs = (value for node in graph.model.graph for value in node.outputs)
    return any(value.dtype in FLOAT_TYPES and static_shape(value) is None for value in outputs)


def _bytes(value: ir.Value) -> int:
    lengths = [n if isinstance(n, int) else _UNKNOWN for n in known_shape(value) or ()]
    return math.ceil(math.prod(lengths) * (4 if value.dtype is None else value.dtype.itemsize))


def _ancestors(graph: ir.Graph, names: Collection[str]) -> list[ir.Node]:
    """The nodes that the named values depend on, in graph order."""
    needed = ancestors(v for node in graph for v in node.outputs if v.name in names)
    return [node for node in graph if node in needed]


# ---- the copies -------------------------------------------------------------------------------


class _Rewrite:
    """Inserts copies of the segments into one gradient graph."""

    def __init__(self, graph: GraphContext, checkpoints: Sequence[ir.Value]) -> None:
        self.graph = graph.model.graph
        self.b = Builder(self.graph, "ortboost/recompute")
        # The forward pass is what the other outputs depend on: loss, prediction, statistics.
        results = {v.name or "" for v in self.graph.outputs}
        results = {name for name in results if not name.endswith("_grad")} | {graph.objective}
        self.forward = _ancestors(self.graph, results)
        self.activations = _activations(graph, self.forward)
        inputs = (value for value in self.graph.inputs if value.name not in graph.parameters)
        self.data = _depending(self.graph, inputs)
        self.checkpoints = {id(value): index for index, value in enumerate(checkpoints)}
        self.segment: dict[int, int] = {}  # of each value of the forward pass
        for node in self.forward:
            index = max(map(self._after, values_read(node)), default=0)
            self.segment.update({id(value): index for value in node.outputs})
        self.inside = {id(node) for node in self.forward}
        self.backward = self._outside()
        self.place = {id(node): index for index, node in enumerate(self.graph)}

    def _outside(self) -> list[ir.Node]:
        """All nodes outside of the forward pass, including copies, in order."""
        return [node for node in self.graph if id(node) not in self.inside]

    def _after(self, value: ir.Value) -> int:
        """The segment of the readers of a value."""
        checkpoint = self.checkpoints.get(id(value))
        return self.segment.get(id(value), 0) if checkpoint is None else checkpoint + 1

    def run(self) -> None:
        """Copy all segments but the last."""
        last = len(self.checkpoints)
        # `flow`: the part of the backward pass that runs before the current segment's. It starts
        # with the readers of the last segment, which is not copied.
        starts = [
            node for node in self.backward if any(self._after(v) == last for v in values_read(node))
        ]
        nodes = self.backward
        flow = _descendants(nodes, starts)
        for index in reversed(range(last)):  # in the order of the backward pass
            readers = [
                (node, place, value)
                for node in self.backward
                for place, value in enumerate(node.inputs)
                if value is not None and self._is_copied(value, index)
            ]
            # What can run only after this segment was computed again.
            after = _descendants(nodes, [node for node, _, _ in readers])
            gradient = self._arriving(flow, after)
            if gradient is None:
                continue
            self._copy(readers, index, gradient)
            flow |= after
            # Move the copies from the end of the graph to their places.
            self.graph.sort()
            nodes = self._outside()  # readers of a copy come after the gradient it waits for

    def _is_copied(self, value: ir.Value, index: int) -> bool:
        return (
            id(value) in self.activations
            and id(value) not in self.checkpoints
            and self.segment[id(value)] == index
            and not _is_kept(value.producer())
        )

    def _arriving(self, flow: Collection[int], after: Collection[int]) -> ir.Value | None:
        """The last gradient that arrives in this segment from later ones."""
        # The values on the edge from `flow` into `after`.
        found = [
            value
            for node in self.backward
            if id(node) in after
            for value in node.inputs
            if value is not None and value.dtype in FLOAT_TYPES
            if (made := value.producer()) is not None and id(made) in flow and id(made) not in after
            if id(made) in self.place  # a copy is not a gradient
        ]
        return max(found, key=lambda v: self.place[id(v.producer())], default=None)

    def _copy(
        self, readers: Sequence[tuple[ir.Node, int, ir.Value]], index: int, gradient: ir.Value
    ) -> None:
        """Redirect readers to copies that are computed after the gradient has arrived."""
        copies: dict[int, ir.Value] = {}
        needed = self._needed([value for _, _, value in readers], index)
        zero = self.b.cast(false_after(self.b, gradient), ir.DataType.INT64)
        for node in needed:
            inputs = [None if v is None else self._input(v, copies, zero) for v in node.inputs]
            outputs = self.b.ops(
                node.op_type,
                *inputs,
                names=[f"{value.name}/again" for value in node.outputs],
                domain=node.domain,
                **{key: attribute.value for key, attribute in node.attributes.items()},
            )
            for old, new in zip(node.outputs, outputs, strict=True):
                new.type, new.shape = old.type, old.shape
                copies[id(old)] = new
        for node, place, value in readers:
            node.replace_input_with(place, copies[id(value)])
        self.b.flush()

    def _needed(self, values: Iterable[ir.Value], index: int) -> list[ir.Node]:
        """The nodes of a segment that these values need, in order."""
        wanted = {id(value) for value in values}
        found = []
        for node in reversed(self.forward):
            if any(id(value) in wanted for value in node.outputs):
                found.append(node)
                wanted.update(id(v) for v in values_read(node) if self._is_copied(v, index))
        return found[::-1]

    def _input(self, value: ir.Value, copies: dict[int, ir.Value], zero: ir.Value) -> ir.Value:
        """The input of a copied node: a copy, a weight, or data delayed until the gradient."""
        if id(value) not in copies:
            if id(value) not in self.data:
                return value
            shape = self.b.op("Shape", value)
            later = self.b.op("Add", shape, zero)
            copies[id(value)] = self.b.op("Reshape", value, later, shape=value.shape)
        return copies[id(value)]


def _is_kept(node: ir.Node | None) -> bool:
    """Whether a node would give another result the second time, or cannot be copied.

    Boundaries and exchange points are products only until they are resolved, which happens after
    this rewrite: a copy would multiply the value.
    """
    return (
        node is None
        or has_subgraph(node)
        or not is_standard(node)
        or is_random(node)
        or (node.outputs[0].name or "").startswith((BOUNDARY, EXCHANGE_POINT))
    )


def _depending(nodes: Iterable[ir.Node], sources: Iterable[ir.Value]) -> set[int]:
    """The sources and the values that depend on them; the nodes are in topological order."""
    found = {id(value) for value in sources}
    for node in nodes:
        if any(id(value) in found for value in values_read(node)):
            found.update(id(value) for value in node.outputs)
    return found


def _descendants(nodes: Sequence[ir.Node], starts: Iterable[ir.Node]) -> set[int]:
    """The starts and the nodes that depend on them; all are in ``nodes``, in topological order."""
    values = _depending(nodes, (value for node in starts for value in node.outputs))
    return {id(node) for node in nodes if id(node.outputs[0]) in values}
