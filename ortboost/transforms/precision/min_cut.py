r"""Minimization of the number of casts as a minimum cut.

Some nodes have a fixed precision, low or fp32; the others are free. A value needs a Cast if its
producer is fp32 and some consumer is low, and another Cast if its producer is low and some consumer
is fp32. All consumers of a value share its casts:

    casts = sum over values  [producer fp32, some consumer low] + [producer low, some consumer fp32]

Each term is a cut in a graph with one extra vertex, so an optimal choice for the free nodes is a
minimum cut between "low" (source) and "fp32" (sink), which is found exactly (Picard and Ratliff,
"Minimum cuts and related problems", 1975; for the terms over sets of consumers, Kolmogorov and
Zabih, "What energy functions can be minimized via graph cuts?", 2004). The preferences of all
free nodes together cost less than a cast, so they only break ties.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Wire", "least_casts"]

_INFINITE = 1 << 40
_LOW, _FP32 = -1, -2


@dataclass(frozen=True)
class Wire:
    """One value with its producer and its consumers.

    Args:
        producer: A free node, ``True`` for low, ``False`` for fp32, or ``None`` for a constant,
            which never needs a cast.
        consumers: Likewise, one entry for each consumer.
    """

    producer: Hashable
    consumers: tuple[Hashable, ...]


def least_casts(
    free: Sequence[Hashable], wires: Iterable[Wire], preference: dict[Hashable, int]
) -> set[Hashable]:
    """Find an assignment with the fewest casts, and return the free nodes that are low in it.

    Args:
        free: The free nodes; none of them is a bool or ``None``.
        wires: The values that they produce or consume.
        preference: Free node to its preference for low; a negative number prefers fp32.

    Example:
        >>> least_casts(["relu"], [Wire(True, ("relu",)), Wire("relu", (True,))], {})
        {'relu'}
    """
    number = {node: index for index, node in enumerate(free)}
    touching = [
        wire
        for wire in wires
        if wire.producer is not None
        and any(end in number for end in (wire.producer, *wire.consumers))
    ]
    low: set[Hashable] = set()
    for component, members in _components(free, touching):
        low |= _cut(component, members, preference)
    return low


def _components(
    free: Sequence[Hashable], wires: list[Wire]
) -> Iterable[tuple[list[Hashable], list[Wire]]]:
    """Split the problem into connected components, which are independent."""
    root: dict[Hashable, Hashable] = {node: node for node in free}  # union-find

    def find(node: Hashable) -> Hashable:
        while root[node] != node:
            root[node] = root[root[node]]  # halve the path
            node = root[node]
        return node

    ends = [[end for end in (wire.producer, *wire.consumers) if end in root] for wire in wires]
    for found in ends:
        for end in found[1:]:
            root[find(end)] = find(found[0])
    nodes: dict[Hashable, list[Hashable]] = {}
    for node in free:
        nodes.setdefault(find(node), []).append(node)
    members: dict[Hashable, list[Wire]] = {key: [] for key in nodes}
    for wire, found in zip(wires, ends, strict=True):
        members[find(found[0])].append(wire)
    return [(component, members[key]) for key, component in nodes.items()]


def _cut(
    component: list[Hashable], wires: list[Wire], preference: dict[Hashable, int]
) -> set[Hashable]:
    index = {node: position for position, node in enumerate(component)}
    cast = 1 + sum(abs(preference.get(node, 0)) for node in component)  # more than all of them
    flow = _Flow(len(component))

    def vertex(end: Hashable) -> int:
        if end is True:
            return _LOW
        return _FP32 if end is False else index[end]

    for wire in wires:
        producer = vertex(wire.producer)
        consumers = {vertex(consumer) for consumer in wire.consumers if consumer is not None}
        # All on one side, whatever is chosen.
        if consumers <= {producer}:
            continue
        # The infinite edges force each extra vertex to the side on which its Cast is counted.
        down, up = flow.add_vertex(), flow.add_vertex()
        # `down` is low if any consumer is, and its edge is cut if the producer is fp32; `up` is the
        # mirror image for a low producer with an fp32 consumer.
        flow.add_edge(down, producer, cast)
        flow.add_edge(producer, up, cast)
        for consumer in consumers:
            flow.add_edge(consumer, down, _INFINITE)
            flow.add_edge(up, consumer, _INFINITE)
    for node in component:
        weight = preference.get(node, 0)
        if weight > 0:
            flow.add_edge(_LOW, index[node], weight)
        elif weight < 0:
            flow.add_edge(index[node], _FP32, -weight)
    reached = flow.source_side()
    return {node for node in component if index[node] in reached}


class _Flow:
    """A maximum flow by shortest augmenting paths (Edmonds and Karp, 1972)."""

    def __init__(self, size: int) -> None:
        self.residual: dict[int, dict[int, int]] = {_LOW: {}, _FP32: {}}
        for vertex in range(size):
            self.residual[vertex] = {}
        self.size = size

    def add_vertex(self) -> int:
        """Add a vertex and return its index."""
        self.residual[self.size] = {}
        self.size += 1
        return self.size - 1

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """Add capacity to an edge; a loop is ignored."""
        if start == end:
            return
        self.residual[start][end] = min(self.residual[start].get(end, 0) + capacity, _INFINITE)
        self.residual[end].setdefault(start, 0)

    def source_side(self) -> set[int]:
        """The vertices on the source side of a minimum cut."""
        while True:
            before = self._shortest_paths()
            if _FP32 not in before:
                return set(before)
            path = [_FP32]
            while path[-1] != _LOW:
                path.append(before[path[-1]])
            # The path was followed from the sink, so each pair is (end, start) in it.
            steps = list(zip(path[1:], path, strict=False))
            amount = min(self.residual[a][b] for a, b in steps)
            for a, b in steps:
                self.residual[a][b] -= amount
                self.residual[b][a] += amount

    def _shortest_paths(self) -> dict[int, int]:
        """Breadth-first search from the source: each reached vertex to its predecessor."""
        before = {_LOW: _LOW}
        waiting = deque([_LOW])
        while waiting and _FP32 not in before:
            node = waiting.popleft()
            for end, capacity in self.residual[node].items():
                if capacity > 0 and end not in before:
                    before[end] = node
                    waiting.append(end)
        return before
