"""The verbs as typed functions, one file a verb. Each is loaded when it is first used.

Example:
    ::

        from ortboost.api import convert, export, train
        from ortboost.program.config import ProgramConfig

        convert("models/lenet5.onnx", "run", ProgramConfig(learning_rate="0.05"))
        summary = train("run", "models/digits.npz", "models/digits.npz", epochs=20)
        export("run", "lenet5.opt.onnx", verify="models/digits.npz")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ortboost.api.bench_models import bench as bench
    from ortboost.api.check_model import check as check
    from ortboost.api.compare_models import Comparison as Comparison
    from ortboost.api.compare_models import compare as compare
    from ortboost.api.convert_model import convert as convert
    from ortboost.api.doctor_machine import Finding as Finding
    from ortboost.api.doctor_machine import doctor as doctor
    from ortboost.api.evaluate_model import evaluate as evaluate
    from ortboost.api.export_model import ExportResult as ExportResult
    from ortboost.api.export_model import export as export
    from ortboost.api.inspect_model import inspect as inspect
    from ortboost.api.plot_graph import Drawing as Drawing
    from ortboost.api.plot_graph import plot as plot
    from ortboost.api.run_components import pca as pca
    from ortboost.api.run_folder import load_run as load_run
    from ortboost.api.train_program import train as train

_HOMES: Final = {
    "Comparison": "compare_models",
    "Drawing": "plot_graph",
    "ExportResult": "export_model",
    "Finding": "doctor_machine",
    "bench": "bench_models",
    "check": "check_model",
    "compare": "compare_models",
    "convert": "convert_model",
    "doctor": "doctor_machine",
    "evaluate": "evaluate_model",
    "export": "export_model",
    "inspect": "inspect_model",
    "load_run": "run_folder",
    "pca": "run_components",
    "plot": "plot_graph",
    "train": "train_program",
}
__all__ = list(_HOMES)  # type checkers read the imports above


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ortboost.api' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"ortboost.api.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
