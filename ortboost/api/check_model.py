"""``ortboost check`` as a function: what stands in the way of training a model."""

from __future__ import annotations

import dataclasses

from ortboost.autodiff.check import TrainabilityReport
from ortboost.core.arguments import checked
from ortboost.graph.io import ModelSource
from ortboost.program.choose_engine import choose_engine
from ortboost.program.config import ProgramConfig

__all__ = ["check"]


@checked
def check(model: ModelSource, config: ProgramConfig | None = None) -> TrainabilityReport:
    """List everything that stands in the way of training a model, and what would be rewritten.

    Args:
        model: The model.
        config: The configuration it would be converted with.

    Raises:
        FileError: The file is not a readable model.
    """
    config = config or ProgramConfig()
    chosen = choose_engine(model, config)
    forward = chosen.forward
    trained = {parameter.name for parameter in forward.trained}
    parameters = tuple(
        {**parameter.to_dict(), "trained": parameter.name in trained}
        for parameter in forward.parameters.values()
    )
    notes = (*forward.notes, *chosen.found.notes)
    return dataclasses.replace(chosen.found, notes=notes, parameters=parameters)
