from __future__ import annotations

import itertools

import numpy as np
import pytest

from ortboost.transforms.precision.min_cut import Wire, least_casts


def cost(wires, low, wishes):
    """Number of casts and of unmet preferences, by the definition in the docstring."""

    def is_low(end):
        return end if isinstance(end, bool) else end in low

    casts = 0
    for wire in wires:
        if wire.producer is None:
            continue
        consumers = [is_low(consumer) for consumer in wire.consumers]
        casts += (not is_low(wire.producer) and any(consumers)) + (
            is_low(wire.producer) and not all(consumers)
        )
    missed = sum(
        abs(wish) for node, wish in wishes.items() if (wish > 0) != (node in low) and wish != 0
    )
    return casts, missed


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_has_fewer_casts(seed):
    rng = np.random.default_rng(seed)
    free = [f"n{index}" for index in range(int(rng.integers(1, 8)))]
    ends = [*free, True, False]
    wires = [
        Wire(
            [*ends, None][int(rng.integers(len(ends) + 1))],
            tuple(ends[int(i)] for i in rng.integers(len(ends), size=int(rng.integers(0, 4)))),
        )
        for _ in range(int(rng.integers(1, 12)))
    ]
    wishes = {node: int(rng.integers(-3, 4)) for node in free}
    found = cost(wires, least_casts(free, wires, wishes), wishes)
    best = min(
        cost(wires, set(low), wishes)
        for size in range(len(free) + 1)
        for low in itertools.combinations(free, size)
    )
    assert found == best


def test_many_preferences_cost_less_than_a_cast():
    chain = [f"n{index}" for index in range(5)]
    ends = [False, *chain, False]
    wires = [Wire(one, (other,)) for one, other in itertools.pairwise(ends)]
    assert least_casts(chain, wires, dict.fromkeys(chain, 1000)) == set()


def test_ties_go_to_the_wish():
    wires = [Wire(True, ("n",)), Wire("n", (False,))]
    assert least_casts(["n"], wires, {"n": 1}) == {"n"}
    assert least_casts(["n"], wires, {"n": -1}) == set()
