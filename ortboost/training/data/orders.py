"""The random order of an epoch: of all samples, or of rows that are read in blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ortboost.training.data.lazy import Blocks

__all__ = ["epoch_order", "window_order"]


def epoch_order(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The shuffled order of an epoch, which depends only on the arguments.

    Sorts ``length`` raw 64-bit draws of Philox seeded with (seed, epoch). Raw draws, unlike
    ``Generator.permutation``, are guaranteed to be the same in all versions of numpy (NEP 19).

    Returns:
        A permutation of ``0 .. length - 1``, int64.
    """
    draws = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(length)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)


def window_order(blocks: Blocks, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The shuffled order of an epoch for rows that are read in blocks.

    The blocks, some of which may be empty, are shuffled; then the rows within each group of
    ``window`` consecutive blocks are shuffled, so that only one group (two at a boundary) has to be
    in memory. The order depends only on the arguments; draws as in :func:`epoch_order`.

    Returns:
        A permutation of ``0 .. length - 1``, int64.

    Example:
        >>> order = window_order(Blocks(np.array([0, 4, 8]), 1), 10, seed=0, epoch=0)
        >>> sorted(order[:4].tolist()), sorted(order.tolist()) == list(range(10))
        ([0, 1, 2, 3], True)
    """
    number = len(blocks.starts)
    draws = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(number + length)
    # The first draws shuffle the blocks, and the one of each row its place within a group.
    shuffled, draws = np.argsort(draws[:number], kind="stable"), draws[number:]
    ends = np.append(blocks.starts[1:], length)
    order = np.empty(length, np.int64)
    filled = 0
    for first in range(0, number, blocks.window):
        chosen = shuffled[first : first + blocks.window]
        rows = np.concatenate([np.arange(blocks.starts[i], ends[i]) for i in chosen])
        order[filled : filled + len(rows)] = rows[np.argsort(draws[rows], kind="stable")]
        filled += len(rows)
    return order
