"""Which graph of a program the host runs for which update."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ortboost.program.config import ProgramConfig

__all__ = ["step_plan"]


def step_plan(config: ProgramConfig) -> NDArray[np.int64]:
    """The graph of each update; after the last one it starts again.

    It follows from the configuration alone, and the place in it is the number of applied updates: a
    run that is resumed goes on with the same groups, and an overflow tries the same group again.

    Example:
        >>> step_plan(ProgramConfig())
        array([0])
    """
    splitter = config.splitter
    return np.zeros(1, np.int64) if splitter is None else splitter.schedule()
