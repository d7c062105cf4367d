"""Mixed precision: choice of the 16-bit nodes, insertion of casts, and emulation in float32."""

from ortboost.transforms.precision.emulate import emulate_precision
from ortboost.transforms.precision.levels import LEVELS, precision_for_level
from ortboost.transforms.precision.place import PLACE_PRECISION, place_precision
from ortboost.transforms.precision.policy import COMPUTE, PrecisionConfig, classify

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
