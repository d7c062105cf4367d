"""The schedule of step graphs: which one the host runs for each update."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ortboost.program.config import ProgramConfig
from ortboost.program.names import STEP_GRAPH

__all__ = ["step_plan"]


def step_plan(config: ProgramConfig, graphs: Collection[str]) -> NDArray[np.int64]:
    """The index of the step graph for each update, int64 ``[period]``; the plan repeats.

    It follows from the configuration and the existing graphs, and is indexed by the number of
    applied updates: a resumed run continues with the same groups, and an overflow retries the same
    group.

    Args:
        config: The configuration.
        graphs: Names of the graphs of the program.

    Example:
        >>> step_plan(ProgramConfig(), ["step"])
        array([0])
    """
    splitter = config.splitter
    steps = [name for name in graphs if name.partition(".")[0] == STEP_GRAPH]
    return np.zeros(1, np.int64) if splitter is None or len(steps) < 2 else splitter.schedule()
