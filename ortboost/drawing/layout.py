"""Layered layout of a directed graph: every arrow points down, and none crosses a box.

The method is that of Sugiyama, Tagawa and Toda (1981), in four steps:

1. a box is one layer below the lowest box that it reads from; a box without inputs is moved down to
   one layer above its first reader;
2. an arrow across several layers gets a bend in each layer between, which occupies space like a
   box;
3. in sweeps up and down, the layers are sorted by the mean position of the neighbours, and the
   order with the fewest crossings is kept;
4. in several sweeps, each box is moved to the weighted median of its neighbours, as far as order
   and distances permit: an isotonic regression, solved exactly by pooling neighbours that would
   overlap. Bends have the largest weights, so long arrows are straight. Boxes without inputs follow
   their readers, or a chain whose boxes read constants beside it would move to one side.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from statistics import fmean

__all__ = ["Layout", "Point", "arrange", "crossings", "spread"]

Point = tuple[float, float]

_SWEEPS = 12  # of sorting
_ROUNDS = 12  # of moving, for each of two kinds
_BEND = 12.0  # width of a passing arrow
_GAP, _LAYER_GAP = 28.0, 40.0  # between boxes of a layer, and between layers
_PULLS = (4.0, 1.0, 8.0)  # weight of a link by its number of bends, see _places
_FOLLOWS = 0.001  # share of the weight of a link from a box without inputs
_PORTS = 22.0  # between arrowheads at a box, at most
_CORNER = 8.0  # without arrowheads, at each end of the top of a box


@dataclass(frozen=True)
class Layout:
    """The positions of boxes and arrows.

    A route has the points on the way of an arrow, which goes straight down within a layer.
    """

    centers: Sequence[Point]
    routes: Sequence[Sequence[Point]]
    width: float
    height: float


def arrange(sizes: Sequence[Point], arrows: Sequence[tuple[int, int]]) -> Layout:
    """Lay out a directed acyclic graph.

    Args:
        sizes: Width and height of each box.
        arrows: Pairs of source and target; duplicates are allowed.

    Raises:
        ValueError: The arrows form a cycle.

    Example:
        >>> layout = arrange([(10, 10), (10, 10)], [(0, 1)])
        >>> layout.centers
        [(5.0, 5.0), (5.0, 55.0)]
    """
    if not sizes:
        return Layout([], [], 0.0, 0.0)
    layer = _layers(len(sizes), arrows)
    # A bend is a node after the boxes; from here on every link joins adjacent layers.
    widths = [width for width, _ in sizes]
    links: list[tuple[int, int]] = []
    chains: list[list[int]] = []  # the nodes of each arrow
    for source, target in arrows:
        chain = [source]
        for between in range(layer[source] + 1, layer[target]):
            chain.append(len(layer))
            layer.append(between)
            widths.append(_BEND)
        chain.append(target)
        chains.append(chain)
        links += itertools.pairwise(chain)
    boxes = len(sizes)
    rows: list[list[int]] = [[] for _ in range(max(layer) + 1)]
    for node, row in enumerate(layer):
        rows[row].append(node)
    rows = _order(rows, links, len(layer))
    # Horizontal positions, from 0 on; vertically, boxes are centered in their layer.
    x = _places(rows, links, widths, boxes)
    left = min(x[n] - widths[n] / 2 for n in range(len(x)))
    x = [place - left for place in x]
    heights = [max((sizes[n][1] for n in row if n < boxes), default=0.0) for row in rows]
    tops = [sum(heights[:row]) + row * _LAYER_GAP for row in range(len(rows))]
    middle = [top + height / 2 for top, height in zip(tops, heights, strict=True)]
    centers = [(x[n], middle[layer[n]]) for n in range(boxes)]
    # Routes alternate: vertical within a layer, then across the gap (svg.py draws a curve there).
    ends = _ports(chains, x, sizes)
    routes = []
    for chain, (start, end) in zip(chains, ends, strict=True):
        first, last = chain[0], chain[-1]
        route = [(start, centers[first][1] + sizes[first][1] / 2)]
        route.append((start, tops[layer[first]] + heights[layer[first]]))
        for bend in chain[1:-1]:
            row = layer[bend]
            route += [(x[bend], tops[row]), (x[bend], tops[row] + heights[row])]
        route += [(end, tops[layer[last]]), (end, centers[last][1] - sizes[last][1] / 2)]
        routes.append(route)
    width = max(place + widths[n] / 2 for n, place in enumerate(x))
    return Layout(centers, routes, width, tops[-1] + heights[-1])


def _neighbours(
    count: int, links: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """For each node its sources, and its targets."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in links:
        above[target].append(source)
        below[source].append(target)
    return above, below


def _layers(count: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each box, from 0 at the top."""
    above, below = _neighbours(count, arrows)
    layer = [0] * count
    for node in TopologicalSorter(dict(enumerate(above))).static_order():
        layer[node] = max((layer[source] + 1 for source in above[node]), default=0)
    for node in range(count):  # boxes without inputs: down to their first reader
        if not above[node] and below[node]:
            layer[node] = min(layer[target] for target in below[node]) - 1
    return layer


# ---- order within the layers --------------------------------------------------------------------


def crossings(upper: Sequence[int], lower: Sequence[int], links: Sequence[tuple[int, int]]) -> int:
    """The number of pairs of links between two layers that cross.

    Example:
        >>> crossings([0, 1], [2, 3], [(0, 3), (1, 2)])
        1
    """
    one = {node: place for place, node in enumerate(upper)}
    two = {node: place for place, node in enumerate(lower)}
    # With links sorted by their upper ends, each inversion of the lower ends is a crossing.
    ends = [two[t] for _, _, t in sorted((one[s], two[t], t) for s, t in links)]
    return sum(1 for i, end in enumerate(ends) for other in ends[:i] if other > end)


def _order(rows: list[list[int]], links: Sequence[tuple[int, int]], count: int) -> list[list[int]]:
    """Step 3: the layers, sorted to have few crossings."""
    above, below = _neighbours(count, links)
    between: list[list[tuple[int, int]]] = [[] for _ in rows]
    home = {node: row for row, nodes in enumerate(rows) for node in nodes}
    for source, target in links:
        between[home[source]].append((source, target))

    def total(candidate: Sequence[Sequence[int]]) -> int:
        pairs = zip(itertools.pairwise(candidate), between, strict=False)
        return sum(crossings(upper, lower, crossing) for (upper, lower), crossing in pairs)

    best, fewest = rows, total(rows)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        rows, down = list(rows), sweep % 2 == 0
        near = above if down else below
        for number in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            other = rows[number - 1 if down else number + 1]
            place = {node: index for index, node in enumerate(other)}
            # The mean position of the neighbours; without any, its own.
            key = {
                node: fmean(place[n] for n in near[node]) if near[node] else own
                for own, node in enumerate(rows[number])
            }
            rows[number] = sorted(rows[number], key=key.__getitem__)  # equals keep their order
        found = total(rows)
        if found < fewest:
            best, fewest = rows, found
    return best


# ---- horizontal positions ------------------------------------------------------------------------


def spread(
    wanted: Sequence[float], distances: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """The positions closest to the desired ones that keep order and minimum distances.

    Minimizes `sum_i w_i (x_i - d_i)^2` under `x_{i+1} - x_i >= s_i`, by pooling adjacent violators.

    Args:
        wanted: Desired positions `d`.
        distances: Minimum distances `s` between neighbours, one fewer.
        weights: Weights `w`.

    Example:
        >>> spread([0.0, 0.0], [2.0], [1.0, 1.0])
        [-1.0, 1.0]
    """
    # With the offsets subtracted, the constraint is only that positions do not decrease.
    offsets = [0.0]
    for distance in distances:
        offsets.append(offsets[-1] + distance)
    blocks: list[list[float]] = []  # sum of weights, weighted sum, length
    for place, offset, weight in zip(wanted, offsets, weights, strict=True):
        blocks.append([weight, weight * (place - offset), 1])
        # While the mean of a block is below that before it, both share one position, their mean.
        while len(blocks) > 1 and blocks[-2][1] * blocks[-1][0] > blocks[-1][1] * blocks[-2][0]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    pooled = [total / weight for weight, total, length in blocks for _ in range(int(length))]
    return [place + offset for place, offset in zip(pooled, offsets, strict=True)]


def _places(
    rows: Sequence[Sequence[int]],
    links: Sequence[tuple[int, int]],
    widths: Sequence[float],
    boxes: int,
) -> list[float]:
    """Step 4: the horizontal center of each node."""
    near: list[list[tuple[int, float, bool]]] = [[] for _ in widths]  # node, weight, whether above
    fed = {target for _, target in links}
    led = {target for source, target in links if source in fed}
    for source, target in links:
        # Between two bends the pull is strongest, so that long arrows are straight; between a bend
        # and a box it is weakest, so that arrows do not move boxes.
        weight = _PULLS[(source >= boxes) + (target >= boxes)]
        weight *= 1.0 if source in fed else _FOLLOWS
        near[source].append((target, weight, False))
        if source in fed or target not in led:
            near[target].append((source, weight, True))

    def distance(one: int, two: int) -> float:
        tight = one >= boxes or two >= boxes
        return (widths[one] + widths[two]) / 2 + (_GAP / 2 if tight else _GAP)

    x = [0.0] * len(widths)

    def put(row: Sequence[int], wanted: Sequence[float], weights: Sequence[float]) -> None:
        apart = [distance(a, b) for a, b in itertools.pairwise(row)]
        for node, place in zip(row, spread(wanted, apart, weights), strict=True):
            x[node] = place

    for row in rows:  # begin with every layer as narrow as possible, around 0
        put(row, [0.0] * len(row), [1.0] * len(row))
    for turn in range(2 * _ROUNDS):
        both = turn >= _ROUNDS  # first toward one side at a time, then toward both
        for row in rows if turn % 2 == 0 else reversed(rows):
            wanted, weights = [], []
            for node in row:
                pulls = [(n, w) for n, w, up in near[node] if both or up == (turn % 2 == 0)]
                wanted.append(_toward(x[node], [(x[n], w) for n, w in pulls]))
                weights.append(sum(w for _, w in pulls) or 0.1)  # not pulled: it gives way
            put(row, wanted, weights)
    return x


def _toward(place: float, pulls: Sequence[tuple[float, float]]) -> float:
    """The closest position with the least weighted distance to the others: a weighted median.

    A mean would distribute the horizontal offset of a long arrow over all its bends; with a median
    it is vertical except in one place.
    """
    half = sum(weight for _, weight in pulls) / 2
    ordered = sorted(pulls)
    ends = [place, place]  # all positions between the lower and the upper median are equally good
    for side, points in enumerate((ordered, ordered[::-1])):
        seen = 0.0
        for point, weight in points:
            seen += weight
            if seen >= half:
                ends[side] = point
                break
    return min(max(place, ends[0]), ends[1])


def _ports(
    chains: Sequence[Sequence[int]], x: Sequence[float], sizes: Sequence[Point]
) -> list[tuple[float, float]]:
    """Start and end of each arrow; arrows into the same box end side by side, in order."""
    starts, ends = [x[chain[0]] for chain in chains], [x[chain[-1]] for chain in chains]
    arriving: dict[int, list[int]] = {}
    for index, chain in enumerate(chains):
        arriving.setdefault(chain[-1], []).append(index)
    for box, arrows in arriving.items():
        arrows.sort(key=lambda index: (x[chains[index][-2]], index))
        step = min(_PORTS, (sizes[box][0] - 2 * _CORNER) / max(len(arrows) - 1, 1))
        for place, index in enumerate(arrows):
            ends[index] += (place - (len(arrows) - 1) / 2) * step
    return list(zip(starts, ends, strict=True))
