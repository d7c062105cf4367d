"""Turn an ONNX model into a boosted training program, train it with ONNX Runtime, export it.

The names below are loaded when they are first used, so that ``import ortboost`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ortboost.core.version import __version__ as __version__

if TYPE_CHECKING:
    from ortboost import amp, boost, nn
    from ortboost.api import check, compare, convert, evaluate, export, load_run, train
    from ortboost.boosts.freeze_schedule import FreezeConfig
    from ortboost.boosts.grad_centralization import CentralizeConfig
    from ortboost.core.errors import OrtBoostError
    from ortboost.mindspore.amp import DynamicLossScaleManager, FixedLossScaleManager
    from ortboost.mindspore.core.network import Network, load
    from ortboost.mindspore.core.parameter import Parameter
    from ortboost.mindspore.core.serialization import (
        load_checkpoint,
        load_param_into_net,
        save_checkpoint,
    )
    from ortboost.mindspore.core.tensor import (
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
    from ortboost.mindspore.train.callbacks import (
        Callback,
        CheckpointConfig,
        EarlyStopping,
        LossMonitor,
        ModelCheckpoint,
        RunContext,
        TimeMonitor,
    )
    from ortboost.mindspore.train.model import Model
    from ortboost.program.build import build_program
    from ortboost.program.config import ClipConfig, ParameterGroup, ProgramConfig
    from ortboost.program.program import Program
    from ortboost.runtime.stepper import Stepper
    from ortboost.training import TrainConfig
    from ortboost.transforms.attach_loss import LossConfig

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
    "ortboost.mindspore.amp": ("DynamicLossScaleManager", "FixedLossScaleManager"),
    "ortboost.api": (
        "check",
        "compare",
        "convert",
        "evaluate",
        "export",
        "load_run",
        "train",
    ),
    "ortboost.core.errors": ("OrtBoostError",),
    "ortboost.mindspore.train.callbacks": (
        "Callback",
        "CheckpointConfig",
        "EarlyStopping",
        "LossMonitor",
        "ModelCheckpoint",
        "RunContext",
        "TimeMonitor",
    ),
    "ortboost.mindspore.core.parameter": ("Parameter",),
    "ortboost.mindspore.core.serialization": (
        "load_checkpoint",
        "load_param_into_net",
        "save_checkpoint",
    ),
    "ortboost.mindspore.train.model": ("Model",),
    "ortboost.mindspore.core.network": ("Network", "load"),
    "ortboost.program.build": ("build_program",),
    "ortboost.program.config": ("ClipConfig", "ParameterGroup", "ProgramConfig"),
    "ortboost.boosts.freeze_schedule": ("FreezeConfig",),
    "ortboost.program.program": ("Program",),
    "ortboost.runtime.stepper": ("Stepper",),
    "ortboost.mindspore.core.tensor": (
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
    "ortboost.boosts.grad_centralization": ("CentralizeConfig",),
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
