"""Turn an ONNX model into a boosted training program, train it with ONNX Runtime, export it.

The names below are loaded when they are first used, so that ``import ortboost`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ortboost import amp, boost, nn
    from ortboost.amp import DynamicLossScaleManager, FixedLossScaleManager
    from ortboost.api import check, compare, convert, evaluate, export, load_run, train
    from ortboost.errors import OrtBoostError
    from ortboost.faces.callbacks import (
        Callback,
        CheckpointConfig,
        EarlyStopping,
        LossMonitor,
        ModelCheckpoint,
        RunContext,
        TimeMonitor,
    )
    from ortboost.faces.parameter import Parameter
    from ortboost.faces.serialization import load_checkpoint, load_param_into_net, save_checkpoint
    from ortboost.model import Model
    from ortboost.network import Network, load
    from ortboost.program.build import build_program
    from ortboost.program.config import ClipConfig, ParameterGroup, ProgramConfig
    from ortboost.program.freeze_schedule import FreezeConfig
    from ortboost.program.program import Program
    from ortboost.runtime.stepper import Stepper
    from ortboost.tensor import (
        Tensor,
        bool_,
        float16,
        float32,
        float64,
        int8,
        int16,
        int32,
        int64,
        uint8,
    )
    from ortboost.training import TrainConfig
    from ortboost.transforms.attach_loss import LossConfig
    from ortboost.transforms.centralize import CentralizeConfig

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "CentralizeConfig",
    "CheckpointConfig",
    "ClipConfig",
    "DynamicLossScaleManager",
    "EarlyStopping",
    "FixedLossScaleManager",
    "FreezeConfig",
    "LossConfig",
    "LossMonitor",
    "Model",
    "ModelCheckpoint",
    "Network",
    "OrtBoostError",
    "Parameter",
    "ParameterGroup",
    "Program",
    "ProgramConfig",
    "RunContext",
    "Stepper",
    "Tensor",
    "TimeMonitor",
    "TrainConfig",
    "amp",
    "bool_",
    "boost",
    "build_program",
    "check",
    "compare",
    "convert",
    "evaluate",
    "export",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "load",
    "load_checkpoint",
    "load_param_into_net",
    "load_run",
    "nn",
    "save_checkpoint",
    "train",
    "uint8",
]

_MODULES: Final = ("amp", "boost", "nn")
_HOMES: Final = {
    "ortboost.amp": ("DynamicLossScaleManager", "FixedLossScaleManager"),
    "ortboost.api": ("check", "compare", "convert", "evaluate", "export", "load_run", "train"),
    "ortboost.errors": ("OrtBoostError",),
    "ortboost.faces.callbacks": (
        "Callback",
        "CheckpointConfig",
        "EarlyStopping",
        "LossMonitor",
        "ModelCheckpoint",
        "RunContext",
        "TimeMonitor",
    ),
    "ortboost.faces.parameter": ("Parameter",),
    "ortboost.faces.serialization": (
        "load_checkpoint",
        "load_param_into_net",
        "save_checkpoint",
    ),
    "ortboost.model": ("Model",),
    "ortboost.network": ("Network", "load"),
    "ortboost.program.build": ("build_program",),
    "ortboost.program.config": ("ClipConfig", "ParameterGroup", "ProgramConfig"),
    "ortboost.program.freeze_schedule": ("FreezeConfig",),
    "ortboost.program.program": ("Program",),
    "ortboost.runtime.stepper": ("Stepper",),
    "ortboost.tensor": (
        "Tensor",
        "bool_",
        "float16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
    ),
    "ortboost.training": ("TrainConfig",),
    "ortboost.transforms.attach_loss": ("LossConfig",),
    "ortboost.transforms.centralize": ("CentralizeConfig",),
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ortboost.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'ortboost' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
