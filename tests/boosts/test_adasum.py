"""The formula of AdaSum as a pair of graphs, against float64; valid numbers of servers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts.adasum import AdaSum, combine_graph, dots_graph
from ortboost.core.errors import ConfigError
from tests.support import run


def joined(a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
    feeds = {f"a{i}": v for i, v in enumerate(a)} | {f"b{i}": v for i, v in enumerate(b)}
    dots = run(dots_graph(len(a)), feeds)["dots"]
    return list(run(combine_graph(len(a)), {**feeds, "dots": dots}).values())


def test_against_float64():
    rng = np.random.default_rng(0)
    a, b = ([rng.standard_normal(n).astype(np.float32) for n in (1, 7, 300)] for _ in range(2))
    for one, other, got in zip(a, b, joined(a, b), strict=True):
        x, y = one.astype(np.float64), other.astype(np.float64)
        wanted = (1 - x @ y / (2 * x @ x)) * x + (1 - x @ y / (2 * y @ y)) * y
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ([2.0, -1.0], [2.0, -1.0], [2.0, -1.0]),  # equal
        ([3.0, 0.0], [0.0, 4.0], [3.0, 4.0]),  # orthogonal
        ([0.0, 0.0], [1.0, 5.0], [1.0, 5.0]),  # one did not move
        ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
        ([1e-9, 0.0], [1e-9, 0.0], [1e-9, 0.0]),  # where adding 1e-12 would matter
        ([1.0], [3.0], [2.0]),  # for scalars, the mean
    ],
)
def test_closed_forms(a, b, wanted):
    (found,) = joined([np.float32(a)], [np.float32(b)])
    np.testing.assert_allclose(found, np.float32(wanted), rtol=1e-6)


def test_the_graphs_are_valid():
    for graph in (dots_graph(3), combine_graph(3)):
        onnx.checker.check_model(ir.to_proto(graph), full_check=True)


@pytest.mark.parametrize(("processes", "size", "servers"), [(2, 1, 2), (8, 2, 4), (64, 8, 8)])
def test_powers_of_two(processes, size, servers):
    assert AdaSum(size).servers(processes) == servers


@pytest.mark.parametrize(("processes", "size"), [(8, 8), (3, 1), (6, 1), (9, 2), (4, 8)])
def test_other_numbers_are_refused(processes, size):
    with pytest.raises(ConfigError, match="AdaSum combines pairs of servers"):
        AdaSum(size).servers(processes)


def test_a_size_below_one_is_refused():
    with pytest.raises(ConfigError):
        AdaSum(0)
