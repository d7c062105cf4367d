r"""The least number of casts, as a minimum cut.

Some nodes are fixed, low or wide; the others are free. For each value a Cast is needed if what makes it is
wide and somebody reads it low, and another if what makes it is low and somebody reads it wide; each is shared
by all readers:

    casts = sum over values  [maker wide and some reader low] + [maker low and some reader wide]

Both terms are cuts in a graph with one extra node each, so the least sum over all choices of the free nodes is
a minimum cut between "low" (source) and "wide" (sink) and is found exactly (Picard and Ratliff, "Minimum cuts
and related problems", 1975; for the terms over sets of readers, Kolmogorov and Zabih, "What energy functions
can be minimized via graph cuts?", 2004). A preference of a free node counts less than any cast: it breaks ties.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Wire", "least_casts"]

_CAST = 1000
"""The cost of a cast; preferences cost 1 to 3."""
_MANY = 1 << 40
_LOW, _WIDE = -1, -2


@dataclass(frozen=True)
class Wire:
    """One value between the one that makes it and those that read it.

    Args:
        maker: A free node, ``True`` for low, ``False`` for wide, ``None`` if either is free of cost (a constant).
        readers: Likewise.
    """

    maker: Hashable
    readers: tuple[Hashable, ...]


def least_casts(
    free: Sequence[Hashable], wires: Iterable[Wire], preference: dict[Hashable, int]
) -> set[Hashable]:
    """The free nodes that are low in a choice with the least number of casts.

    Args:
        free: The free nodes; none of them is a bool or ``None``.
        wires: The values they make or read.
        preference: Free node to how much it would rather be low; below 0, wide.

    Example:
        >>> least_casts(["relu"], [Wire(True, ("relu",)), Wire("relu", (True,))], {})
        {'relu'}
    """
    number = {node: index for index, node in enumerate(free)}
    touching = [
        wire
        for wire in wires
        if wire.maker is not None and any(end in number for end in (wire.maker, *wire.readers))
    ]
    low: set[Hashable] = set()
    for part, members in _parts(free, touching):
        low |= _cut(part, members, preference)
    return low


def _parts(
    free: Sequence[Hashable], wires: list[Wire]
) -> Iterable[tuple[list[Hashable], list[Wire]]]:
    """Free nodes that share no wire with others are decided by themselves."""
    root: dict[Hashable, Hashable] = {node: node for node in free}

    def find(node: Hashable) -> Hashable:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    ends = [[end for end in (wire.maker, *wire.readers) if end in root] for wire in wires]
    for found in ends:
        for end in found[1:]:
            root[find(end)] = find(found[0])
    nodes: dict[Hashable, list[Hashable]] = {}
    for node in free:
        nodes.setdefault(find(node), []).append(node)
    members: dict[Hashable, list[Wire]] = {key: [] for key in nodes}
    for wire, found in zip(wires, ends, strict=True):
        members[find(found[0])].append(wire)
    return [(part, members[key]) for key, part in nodes.items()]


def _cut(part: list[Hashable], wires: list[Wire], preference: dict[Hashable, int]) -> set[Hashable]:
    index = {node: position for position, node in enumerate(part)}
    flow = _Flow(len(part))

    def place(end: Hashable) -> int:
        if end is True:
            return _LOW
        return _WIDE if end is False else index[end]

    for wire in wires:
        maker = place(wire.maker)
        readers = {place(reader) for reader in wire.readers if reader is not None}
        if readers <= {maker}:
            continue
        down, up = flow.extra(), flow.extra()
        flow.edge(down, maker, _CAST)
        flow.edge(maker, up, _CAST)
        for reader in readers:
            flow.edge(reader, down, _MANY)
            flow.edge(up, reader, _MANY)
    for node in part:
        wish = preference.get(node, 0)
        if wish > 0:
            flow.edge(_LOW, index[node], wish)
        elif wish < 0:
            flow.edge(index[node], _WIDE, -wish)
    reached = flow.source_side()
    return {node for node in part if index[node] in reached}


class _Flow:
    """A maximum flow by shortest augmenting paths (Edmonds and Karp, 1972)."""

    def __init__(self, size: int) -> None:
        self.room: dict[int, dict[int, int]] = {_LOW: {}, _WIDE: {}}
        for node in range(size):
            self.room[node] = {}
        self.next = size

    def extra(self) -> int:
        """One more node."""
        self.room[self.next] = {}
        self.next += 1
        return self.next - 1

    def edge(self, start: int, end: int, room: int) -> None:
        """Room for so much flow."""
        if start == end:
            return
        self.room[start][end] = min(self.room[start].get(end, 0) + room, _MANY)
        self.room[end].setdefault(start, 0)

    def source_side(self) -> set[int]:
        """The nodes on the side of the source of a minimum cut."""
        while True:
            before = self._paths()
            if _WIDE not in before:
                return set(before)
            path = [_WIDE]
            while path[-1] != _LOW:
                path.append(before[path[-1]])
            steps = list(zip(path[1:], path, strict=False))
            amount = min(self.room[a][b] for a, b in steps)
            for a, b in steps:
                self.room[a][b] -= amount
                self.room[b][a] += amount

    def _paths(self) -> dict[int, int]:
        before = {_LOW: _LOW}
        waiting = deque([_LOW])
        while waiting and _WIDE not in before:
            node = waiting.popleft()
            for end, room in self.room[node].items():
                if room > 0 and end not in before:
                    before[end] = node
                    waiting.append(end)
        return before
