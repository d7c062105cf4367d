"""Turn an ONNX model into a boosted training program, train it with ONNX Runtime, export it.

The names below are loaded when they are first used, so that ``import ortboost`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortboost.api import check, convert, evaluate, export, load_run, train
    from ortboost.errors import OrtBoostError
    from ortboost.program.build import build_program
    from ortboost.program.config import ClipConfig, ParameterGroup, ProgramConfig
    from ortboost.program.program import Program
    from ortboost.runtime.stepper import Stepper
    from ortboost.training import TrainConfig
    from ortboost.transforms.attach_loss import LossConfig

__version__ = "0.1.0"

__all__ = [
    "ClipConfig",
    "LossConfig",
    "OrtBoostError",
    "ParameterGroup",
    "Program",
    "ProgramConfig",
    "Stepper",
    "TrainConfig",
    "build_program",
    "check",
    "convert",
    "evaluate",
    "export",
    "load_run",
    "train",
]

_HOMES = {
    "ClipConfig": "ortboost.program.config",
    "LossConfig": "ortboost.transforms.attach_loss",
    "OrtBoostError": "ortboost.errors",
    "ParameterGroup": "ortboost.program.config",
    "Program": "ortboost.program.program",
    "ProgramConfig": "ortboost.program.config",
    "Stepper": "ortboost.runtime.stepper",
    "TrainConfig": "ortboost.training",
    "build_program": "ortboost.program.build",
    "check": "ortboost.api",
    "convert": "ortboost.api",
    "evaluate": "ortboost.api",
    "export": "ortboost.api",
    "load_run": "ortboost.api",
    "train": "ortboost.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ortboost' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
