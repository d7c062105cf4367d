from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.weights.generated import counting, generated, grid
from tests.support import weights


def value(array) -> ir.Value:
    return ir.Value(name="v", const_value=ir.tensor(np.asarray(array, np.float32)))


def angles(positions: int = 16, width: int = 8) -> np.ndarray:
    return np.arange(positions)[:, None] * 10000.0 ** (-np.arange(width) / width)


A = angles()
P, Q = np.arange(16) // 4, np.arange(16) % 4
WAVES = {
    "interleaved": np.stack([np.sin(A), np.cos(A)], -1).reshape(1, 16, 16),
    "of four positions": np.stack([np.sin(A[:4]), np.cos(A[:4])], -1).reshape(4, 16),
    "in halves": np.concatenate([np.sin(A), np.cos(A)], -1),
    "sines": np.sin(A)[None, None],
    "of two axes, behind a class token": np.concatenate(
        [np.zeros((1, 32)), np.concatenate([f(A[i]) for i in (P, Q) for f in (np.sin, np.cos)], -1)]
    ),
    "cosines, twice": np.concatenate([np.cos(A), np.cos(A)], -1),
}


@pytest.mark.parametrize("table", WAVES.values(), ids=WAVES)
def test_sines_of_positions(table):
    assert "sines" in generated(value(table))


LEARNED = {
    "normal": weights(16, 8),
    "small": weights(16, 8, scale=1e-4),
    "ones": np.ones((16, 8)),
    "about one": 1 + weights(16, 8, scale=1e-4),
    "zeros": np.zeros((16, 8)),
    "bounded": np.tanh(weights(16, 8, scale=3.0)),
    "identity, as an initialization": np.eye(8),
    "identity of two columns, whose other rows are zero": np.eye(8, 2),
}


@pytest.mark.parametrize("array", LEARNED.values(), ids=LEARNED)
def test_what_may_be_learned_is_not_generated(array):
    assert generated(value(array)) is None
    assert counting(value(array)) is None


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.triu(np.ones((4, 4)), 1) * -10000, "as masks do"),
        (np.maximum(weights(6, 5) - 0.3, 0), "filter banks"),
        (np.tile(weights(1, 1, 3, 3), (4, 1, 1, 1)), "the same filter"),
    ],
)
def test_masks_and_filter_banks_where_a_name_does_not_say_more(array, words):
    assert words in generated(value(array), plain=True)
    assert generated(value(array)) is None
    assert generated(value(weights(6, 5)), plain=True) is None
    assert generated(value(np.full((6, 5), 1e-6)), plain=True) is None  # a layer scale
    assert generated(value(weights(4, 1, 3, 3)), plain=True) is None


def test_counting_is_of_one_axis_and_from_zero():
    assert counting(value(np.arange(16).reshape(1, 16, 1, 1)))
    assert not counting(value(np.arange(16).reshape(4, 4)))
    assert not counting(value(np.arange(1, 17)))
    assert not counting(value(np.arange(3)))


CELLS = np.stack(np.meshgrid(np.arange(6), np.arange(4)))  # of a feature map
AWAY = -np.abs(np.subtract.outer(np.arange(6), np.arange(6)))  # of two positions
GRIDS = {
    "cells": CELLS[None],
    "centers, normalized": (CELLS.reshape(2, -1).T + 0.5).astype(np.float32) / np.float32([6, 4]),
    "cells, rounded": CELLS + weights(*CELLS.shape, scale=1e-7),
    "distances": AWAY,
    "distances, a slope for each head": AWAY * 2.0 ** -np.arange(1, 4)[:, None, None],
}


@pytest.mark.parametrize("array", GRIDS.values(), ids=GRIDS)
def test_a_grid_is_evenly_spaced(array):
    assert grid(value(array))


@pytest.mark.parametrize("array", LEARNED.values(), ids=LEARNED)
def test_what_may_be_learned_is_no_grid(array):
    assert grid(value(array)) is None


def test_values_that_occur_once_or_in_one_axis_are_no_grid():
    assert grid(value(np.arange(24).reshape(4, 6))) is None
    assert grid(value(np.repeat(np.arange(4), 6)[None])) is None
    assert grid(value(AWAY + weights(6, 6, scale=1e-2))) is None
    assert grid(value(AWAY**2)) is None
