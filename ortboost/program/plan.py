"""Which graph of a program the host runs for which update."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ortboost.program.catalogue import STEP_GRAPH
from ortboost.program.config import ProgramConfig

__all__ = ["step_plan"]


def step_plan(config: ProgramConfig, graphs: Collection[str]) -> NDArray[np.int64]:
    """The graph of each update; after the last one it starts again.

    It follows from the configuration and the graphs that there are, and the place in it is the
    number of applied updates: a run that is resumed goes on with the same groups, and an overflow
    tries the same group again.

    Args:
        config: The configuration.
        graphs: Names of the graphs of the program; with one step graph there is nothing to choose.

    Example:
        >>> step_plan(ProgramConfig(), ["step"])
        array([0])
    """
    splitter = config.splitter
    steps = [name for name in graphs if name.partition(".")[0] == STEP_GRAPH]
    return np.zeros(1, np.int64) if splitter is None or len(steps) < 2 else splitter.schedule()
