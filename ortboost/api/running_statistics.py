"""``--update-bn``: re-estimate the running statistics of a run from data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.program.program import Program
from ortboost.runtime.update_bn import BatchStatistics
from ortboost.training.data import open_source, static_batch
from ortboost.training.data.images import ImageConfig
from ortboost.training.data.like_training import check_like_training

__all__ = ["updated_bn"]


def updated_bn(
    program: Program,
    state: Mapping[str, NDArray[Any]],
    data: Any,
    *,
    batch_size: int,
    mapping: Mapping[str, str] | None = None,
    device: str = "auto",
    threads: int | None = None,
    images: ImageConfig | None = None,
    trained: Mapping[str, Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Replace the running statistics in a copy of a state; see :mod:`ortboost.runtime.update_bn`.

    The data, in batches preferably as large as in training, need no labels; ``trained`` is the
    fingerprint of the data of the training, see :func:`check_like_training`. The other
    arguments are those of :func:`ortboost.evaluate`.

    Raises:
        UsageError: The program keeps no running statistics, or the data have no batches, or another
            scale than those of the training.
        DivergedError: A statistic is not finite.
    """
    statistics = BatchStatistics(program, device=device, threads=threads)
    inputs = statistics.inputs
    keys = {spec.name for spec in inputs}
    source = open_source(
        data,
        inputs,
        "train",
        static_batch(inputs) or batch_size,
        # The mapping may name labels, which these inputs lack.
        {name: key for name, key in (mapping or {}).items() if name in keys},
        shuffle=True,  # if sorted by class, each batch would have the statistics of one class
        seed=program.config.seed,
        drop_last=static_batch(inputs) is not None,
        images=images,
    )
    check_like_training(trained or {}, source)
    found: dict[str, NDArray[np.generic]] = statistics.over(source.epoch(0), state)
    return {**state, **found}
