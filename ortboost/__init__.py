"""Turn an ONNX model into a boosted training program, train it with ONNX Runtime, export it.

The names below are loaded when they are first used, so that ``import ortboost`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ortboost.core.version import __version__ as __version__

if TYPE_CHECKING:
    from ortboost import amp, boost, communication, nn
    from ortboost.api import (
        Comparison,
        ExportResult,
        Finding,
        bench,
        check,
        compare,
        convert,
        doctor,
        evaluate,
        export,
        inspect,
        load_run,
        pca,
        train,
    )
    from ortboost.api.inspect_model import ModelDescription, ProgramDescription
    from ortboost.api.inspect_pair import PairDescription, inspect_pair
    from ortboost.autodiff.check import TrainabilityReport
    from ortboost.boosts import (
        AdaSum,
        Boost,
        Clip,
        DimReduce,
        FullNormHead,
        GradAccumulation,
        GradCentralization,
        GradFreeze,
        GroupLossScale,
        LessBN,
        LossScale,
        MixedPrecision,
        Recompute,
        Thor,
    )
    from ortboost.boosts.freeze_schedule import FreezeConfig
    from ortboost.boosts.grad_centralization import CentralizeConfig
    from ortboost.core.errors import (
        ConfigError,
        DependencyError,
        DivergedError,
        FileError,
        LostProcessError,
        ModelError,
        OrtBoostError,
        ParityError,
        UsageError,
    )
    from ortboost.core.loss_scale import (
        NO_SCALE,
        DynamicScaleConfig,
        FixedScaleConfig,
        GroupedScaleConfig,
        NoScaleConfig,
        ScaleConfig,
    )
    from ortboost.core.report import Report
    from ortboost.deploy.bench_results import BenchConfig, Measurement
    from ortboost.deploy.int8 import Int8Config
    from ortboost.graph.input_config import InputConfig
    from ortboost.mindspore.amp import DynamicLossScaleManager, FixedLossScaleManager
    from ortboost.mindspore.communication import ParallelMode, set_auto_parallel_context
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
    from ortboost.optimizers import Adam, AdamW, Lars, Momentum, Optimizer, Sgd
    from ortboost.program.build import build_program
    from ortboost.program.config import ClipConfig, DecayFilter, ParameterGroup, ProgramConfig
    from ortboost.program.program import Program
    from ortboost.runtime.stepper import Stepper
    from ortboost.training import TrainConfig, TrainSummary
    from ortboost.transforms.attach_loss import LossConfig
    from ortboost.transforms.precision import PrecisionConfig

__all__ = [
    "NO_SCALE",
    "AdaSum",
    "Adam",
    "AdamW",
    "BenchConfig",
    "Boost",
    "Callback",
    "CentralizeConfig",
    "CheckpointConfig",
    "Clip",
    "ClipConfig",
    "Comparison",
    "ConfigError",
    "DecayFilter",
    "DependencyError",
    "DimReduce",
    "DivergedError",
    "DynamicLossScaleManager",
    "DynamicScaleConfig",
    "EarlyStopping",
    "ExportResult",
    "FileError",
    "Finding",
    "FixedLossScaleManager",
    "FixedScaleConfig",
    "FreezeConfig",
    "FullNormHead",
    "GradAccumulation",
    "GradCentralization",
    "GradFreeze",
    "GroupLossScale",
    "GroupedScaleConfig",
    "InputConfig",
    "Int8Config",
    "Lars",
    "LessBN",
    "LossConfig",
    "LossMonitor",
    "LossScale",
    "LostProcessError",
    "Measurement",
    "MixedPrecision",
    "Model",
    "ModelCheckpoint",
    "ModelDescription",
    "ModelError",
    "Momentum",
    "Network",
    "NoScaleConfig",
    "Optimizer",
    "OrtBoostError",
    "PairDescription",
    "ParallelMode",
    "Parameter",
    "ParameterGroup",
    "ParityError",
    "PrecisionConfig",
    "Program",
    "ProgramConfig",
    "ProgramDescription",
    "Recompute",
    "Report",
    "RunContext",
    "ScaleConfig",
    "Sgd",
    "Stepper",
    "Tensor",
    "Thor",
    "TimeMonitor",
    "TrainConfig",
    "TrainSummary",
    "TrainabilityReport",
    "UsageError",
    "amp",
    "bench",
    "bool_",
    "boost",
    "build_program",
    "check",
    "communication",
    "compare",
    "convert",
    "doctor",
    "evaluate",
    "export",
    "float16",
    "float32",
    "float64",
    "inspect",
    "inspect_pair",
    "int8",
    "int16",
    "int32",
    "int64",
    "load",
    "load_checkpoint",
    "load_param_into_net",
    "load_run",
    "nn",
    "pca",
    "save_checkpoint",
    "set_auto_parallel_context",
    "train",
    "uint8",
]

_MODULES: Final = ("amp", "boost", "communication", "nn")
_HOMES: Final = {
    "ortboost.api": (
        "Comparison",
        "ExportResult",
        "Finding",
        "bench",
        "check",
        "compare",
        "convert",
        "doctor",
        "evaluate",
        "export",
        "inspect",
        "load_run",
        "pca",
        "train",
    ),
    "ortboost.api.inspect_model": (
        "ModelDescription",
        "ProgramDescription",
    ),
    "ortboost.api.inspect_pair": (
        "PairDescription",
        "inspect_pair",
    ),
    "ortboost.autodiff.check": ("TrainabilityReport",),
    "ortboost.boosts": (
        "AdaSum",
        "Boost",
        "Clip",
        "DimReduce",
        "FullNormHead",
        "GradAccumulation",
        "GradCentralization",
        "GradFreeze",
        "GroupLossScale",
        "LessBN",
        "LossScale",
        "MixedPrecision",
        "Recompute",
        "Thor",
    ),
    "ortboost.boosts.freeze_schedule": ("FreezeConfig",),
    "ortboost.boosts.grad_centralization": ("CentralizeConfig",),
    "ortboost.core.errors": (
        "ConfigError",
        "DependencyError",
        "DivergedError",
        "FileError",
        "LostProcessError",
        "ModelError",
        "OrtBoostError",
        "ParityError",
        "UsageError",
    ),
    "ortboost.core.loss_scale": (
        "NO_SCALE",
        "DynamicScaleConfig",
        "FixedScaleConfig",
        "GroupedScaleConfig",
        "NoScaleConfig",
        "ScaleConfig",
    ),
    "ortboost.core.report": ("Report",),
    "ortboost.deploy.bench_results": (
        "BenchConfig",
        "Measurement",
    ),
    "ortboost.deploy.int8": ("Int8Config",),
    "ortboost.graph.input_config": ("InputConfig",),
    "ortboost.mindspore.amp": (
        "DynamicLossScaleManager",
        "FixedLossScaleManager",
    ),
    "ortboost.mindspore.communication": ("ParallelMode", "set_auto_parallel_context"),
    "ortboost.mindspore.core.network": (
        "Network",
        "load",
    ),
    "ortboost.mindspore.core.parameter": ("Parameter",),
    "ortboost.mindspore.core.serialization": (
        "load_checkpoint",
        "load_param_into_net",
        "save_checkpoint",
    ),
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
    "ortboost.mindspore.train.callbacks": (
        "Callback",
        "CheckpointConfig",
        "EarlyStopping",
        "LossMonitor",
        "ModelCheckpoint",
        "RunContext",
        "TimeMonitor",
    ),
    "ortboost.mindspore.train.model": ("Model",),
    "ortboost.optimizers": (
        "Adam",
        "AdamW",
        "Lars",
        "Momentum",
        "Optimizer",
        "Sgd",
    ),
    "ortboost.program.build": ("build_program",),
    "ortboost.program.config": (
        "ClipConfig",
        "DecayFilter",
        "ParameterGroup",
        "ProgramConfig",
    ),
    "ortboost.program.program": ("Program",),
    "ortboost.runtime.stepper": ("Stepper",),
    "ortboost.training": (
        "TrainConfig",
        "TrainSummary",
    ),
    "ortboost.transforms.attach_loss": ("LossConfig",),
    "ortboost.transforms.precision": ("PrecisionConfig",),
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
