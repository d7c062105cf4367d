"""Mixed precision: choice of the 16-bit nodes, insertion of casts, and emulation in float32."""

from ortboost.transforms.precision.emulate import emulate_precision
from ortboost.transforms.precision.place import PLACE_PRECISION, place_precision
from ortboost.transforms.precision.policy import (
    COMPUTE,
    LEVELS,
    PrecisionConfig,
    classify,
    precision_for_level,
)

__all__ = [
    "COMPUTE",
    "LEVELS",
    "PLACE_PRECISION",
    "PrecisionConfig",
    "classify",
    "emulate_precision",
    "place_precision",
    "precision_for_level",
]
