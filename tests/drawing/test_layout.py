from __future__ import annotations

import itertools

import numpy as np
import pytest

from ortboost.drawing.layout import arrange, crossings, spread


def random_graph(seed, count=30):
    """Boxes of many sizes, with arrows to later boxes, some of them long or duplicated."""
    rng = np.random.default_rng(seed)
    sizes = [(float(w), float(h)) for w, h in rng.uniform(20, 200, (count, 2))]
    arrows = [(max(int(t - rng.geometric(0.3)), 0), t) for t in range(1, count)]
    arrows += [
        tuple(sorted(int(i) for i in rng.choice(count, 2, replace=False))) for _ in range(15)
    ]
    return sizes, [*arrows, arrows[3]]


def curve(route):
    """Points on the way as it is drawn: straight in a layer, a Bezier curve between layers."""
    for index, ((x0, y0), (x3, y3)) in enumerate(itertools.pairwise(route)):
        for t in np.linspace(0, 1, 15):
            if index % 2 == 0:
                yield x0 + (x3 - x0) * t, y0 + (y3 - y0) * t
                continue
            b = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
            middle = (y0 + y3) / 2
            yield (
                (b[0] + b[1]) * x0 + (b[2] + b[3]) * x3,
                b[0] * y0 + (b[1] + b[2]) * middle + b[3] * y3,
            )


def inside(point, center, size, slack=0.5):
    return all(abs(p - c) < s / 2 - slack for p, c, s in zip(point, center, size, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_no_boxes_overlap_and_no_arrow_crosses_a_box(seed):
    sizes, arrows = random_graph(seed)
    layout = arrange(sizes, arrows)
    for (one, a), (two, b) in itertools.combinations(zip(layout.centers, sizes, strict=True), 2):
        apart = [abs(one[k] - two[k]) - (a[k] + b[k]) / 2 for k in (0, 1)]
        assert apart[0] >= 28 - 1e-6 or apart[1] >= 40 - 1e-6
    for (source, target), route in zip(arrows, layout.routes, strict=True):
        for point in curve(route):
            assert not any(
                inside(point, center, size)
                for center, size in zip(layout.centers, sizes, strict=True)
            ), (source, target, point)


@pytest.mark.parametrize("seed", range(3))
def test_arrows_point_down_from_box_to_box(seed):
    sizes, arrows = random_graph(seed)
    layout = arrange(sizes, arrows)
    for (source, target), route in zip(arrows, layout.routes, strict=True):
        ys = [y for _, y in route]
        assert all(above <= below + 1e-9 for above, below in itertools.pairwise(ys))
        (sx, sy), (tx, ty) = layout.centers[source], layout.centers[target]
        assert route[0] == (sx, sy + sizes[source][1] / 2)
        assert route[-1][1] == ty - sizes[target][1] / 2
        assert abs(route[-1][0] - tx) <= sizes[target][0] / 2  # side by side, and on the box
    for center, size in zip(layout.centers, sizes, strict=True):
        for k, whole in ((0, layout.width), (1, layout.height)):
            assert -1e-6 <= center[k] - size[k] / 2 <= center[k] + size[k] / 2 <= whole + 1e-6


def test_a_chain_stands_upright_beside_its_shortcut():
    # A residual block: 0 -> 1 -> 2 -> 3 -> 4, and 0 -> 4.
    layout = arrange([(50.0, 20.0)] * 5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    across = {center[0] for center in layout.centers[1:4]}
    assert len(across) == 1
    (left, shortcut) = across.pop(), {x for x, _ in layout.routes[4][2:-2]}
    assert len(shortcut) == 1
    assert abs(shortcut.pop() - left) > 25


def test_a_box_without_sources_stands_near_its_user():
    layout = arrange([(10.0, 10.0)] * 5, [(0, 1), (1, 2), (2, 3), (4, 3)])
    assert layout.centers[4][1] == layout.centers[2][1]


def test_needless_crossings_are_undone():
    # Three parallel chains whose boxes come in a muddled order.
    arrows = [(0, 5), (1, 4), (2, 3), (5, 7), (4, 8), (3, 6)]
    layout = arrange([(10.0, 10.0)] * 9, arrows)
    x = [center[0] for center in layout.centers]
    order = sorted(range(3), key=x.__getitem__)
    assert sorted((5, 4, 3), key=x.__getitem__) == [(5, 4, 3)[i] for i in order]
    assert sorted((7, 8, 6), key=x.__getitem__) == [(7, 8, 6)[i] for i in order]


def test_crossings():
    assert crossings([0, 1], [2, 3], [(0, 2), (1, 3)]) == 0
    assert crossings([0, 1], [2, 3], [(0, 3), (1, 2)]) == 1
    assert crossings([0, 1, 2], [3, 4, 5], [(0, 5), (1, 4), (2, 3)]) == 3
    assert crossings([0, 1], [2, 3], [(0, 2), (0, 3), (1, 2), (1, 3)]) == 1


@pytest.mark.parametrize("seed", range(5))
def test_spread_is_the_best(seed):
    rng = np.random.default_rng(seed)
    wanted, weights = rng.uniform(-10, 10, 7), rng.uniform(0.5, 3, 7)
    distances = rng.uniform(0, 4, 6)
    found = np.array(spread(list(wanted), list(distances), list(weights)))
    assert (np.diff(found) >= distances - 1e-9).all()

    def cost(places):
        return float((weights * (places - wanted) ** 2).sum())

    # A convex problem: no feasible step makes it better.
    for _ in range(3000):
        other = found + rng.normal(0, rng.choice([1e-3, 0.1, 1.0]), 7)
        if (np.diff(other) >= distances).all():
            assert cost(other) >= cost(found) - 1e-9


def test_odd_graphs():
    assert arrange([], []).centers == []
    assert arrange([(7.0, 3.0)], []).centers == [(3.5, 1.5)]
    two = arrange([(10.0, 10.0)] * 2, [])
    assert abs(two.centers[0][0] - two.centers[1][0]) >= 38
    with pytest.raises(ValueError, match="cycle"):
        arrange([(1.0, 1.0)] * 2, [(0, 1), (1, 0)])


def test_constants_beside_a_chain_do_not_move_it():
    """Each product of an int8 graph reads two; the picture went to the right, row by row."""
    arrows, sizes = [], [(100.0, 40.0)]
    for step in range(0, 60, 3):  # boxes: the chain 0, 3, 6..., and two constants before each
        arrows += [(step, step + 3), (step + 1, step + 3), (step + 2, step + 3)]
        sizes += [(100.0, 40.0)] * 3
    layout = arrange(sizes, arrows)
    chain = [layout.centers[step][0] for step in range(3, 63, 3)]
    assert max(chain) - min(chain) < 20
    assert layout.width < 600
