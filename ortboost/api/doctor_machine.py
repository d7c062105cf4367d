"""``ortboost doctor`` as a function: diagnose this machine and Python environment."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from ortboost.autodiff.engine import engine_names, get_engine
from ortboost.core.errors import OrtBoostError
from ortboost.core.shown import Shown
from ortboost.core.version import __version__
from ortboost.runtime.number_formats import FORMATS, probe_format
from ortboost.runtime.session import (
    TRAINING_DEVICES,
    available_devices,
    broken_packages,
    runtime,
    runtime_packages,
    try_device,
)

__all__ = ["Diagnosis", "HealthCheck", "doctor"]

_PACKAGES = ("onnx", "onnx-ir", "onnxscript", "numpy", "safetensors", "protobuf")
_OPTIONAL = {
    "matplotlib": "For the curves of a run as a picture: pip install 'ortboost[plot]'.",
    "pillow": "For folders of images as data: pip install 'ortboost[images]'.",
    "pyarrow": "For Parquet files as data: pip install 'ortboost[parquet]'.",
    "torch": "For DataLoaders as data, and to export models of PyTorch.",
}
_RUNTIME = "onnxruntime"


@dataclass(frozen=True)
class HealthCheck:
    """One thing that :func:`doctor` checked.

    Args:
        name: What was checked.
        status: ``ok``; ``note`` if something optional is missing; ``fail`` if training needs it.
        detail: What was found.
        fix: How to fix it.

    Example:
        >>> HealthCheck("GPU", "note", "no CUDA device").status
        'note'
    """

    name: str
    status: Literal["ok", "note", "fail"]
    detail: str
    fix: str = ""


class Diagnosis(Shown, list[HealthCheck]):
    """The checks of :func:`doctor`: a list that a notebook shows as a table."""

    @property
    def ok(self) -> bool:
        """Whether nothing is missing that training needs."""
        return all(check.status != "fail" for check in self)

    def _facts(self) -> dict[str, object]:
        return {c.name: ("FAIL: " if c.status == "fail" else "") + c.detail for c in self}


def doctor() -> Diagnosis:
    """Check everything that training and exporting need.

    Example:
        >>> found = doctor()
        >>> found.ok, found[0].name
        (True, 'ortboost')
    """
    checks = [HealthCheck("ortboost", "ok", __version__), _python()]
    checks += [_package(name, "fail", f"pip install {name}") for name in _PACKAGES]
    checks += [_runtime(), *_engines(), *_devices(), _gpu()]
    return Diagnosis([*checks, *(_package(name, "note", use) for name, use in _OPTIONAL.items())])


def _python() -> HealthCheck:
    detail = f"{platform.python_version()} on {platform.machine()} {platform.system()}"
    if sys.version_info >= (3, 13):
        return HealthCheck(
            "python",
            "note",
            detail,
            "Training runs on the portable engine: onnxruntime-training, which the native engine "
            "needs, has wheels up to Python 3.12 (3.11 with CUDA).",
        )
    return HealthCheck("python", "ok", detail)


def _runtime() -> HealthCheck:
    owners = runtime_packages()
    try:
        module = runtime()
    except OrtBoostError as error:
        return HealthCheck(_RUNTIME, "fail", error.where or error.what, error.fix)
    detail = f"{module.__version__} from {', '.join(owners) or 'an unknown package'}"
    if len(owners) > 1:
        what, fix = broken_packages(owners)
        fixes = (found.fix for found in _engines() if "pip uninstall" in found.fix)
        return HealthCheck(_RUNTIME, "fail", f"{detail}: {what}", next(fixes, fix))
    return HealthCheck(_RUNTIME, "ok", detail)


def _engines() -> list[HealthCheck]:
    """The engines, in the order of ``auto``; one that works is enough."""
    checks: list[HealthCheck] = []
    missing: list[tuple[str, OrtBoostError]] = []
    for name in engine_names():
        try:
            engine = get_engine(name)
            detail = f"opset {engine.opsets[0]} to {engine.opsets[-1]}, IR {engine.ir_version}"
            chosen = "" if checks else ", chosen by --engine auto"
            checks.append(HealthCheck(f"engine {name}", "ok", detail + chosen))
        except OrtBoostError as error:
            missing.append((name, error))
    status: Literal["note", "fail"] = "note" if checks else "fail"
    return checks + [
        HealthCheck(f"engine {name}", status, error.what, error.fix) for name, error in missing
    ]


def _devices() -> list[HealthCheck]:
    """The devices, and whether those that can train support the 16-bit formats."""
    try:
        devices = available_devices()
    except OrtBoostError:
        return []
    checks = [_device(name, reason) for name, reason in devices.items()]
    ready = [name for name, reason in devices.items() if reason is None]
    training = [name for name in ready if name in TRAINING_DEVICES]
    return checks + [_format(name, device) for device in training for name in FORMATS]


def _device(name: str, reason: str | None) -> HealthCheck:
    """Whether a small session really runs on a device that the runtime offers."""
    if reason is not None:
        # The training build supports Python up to 3.11.
        extra = "cuda" if name == "cuda" and sys.version_info < (3, 12) else "gpu"
        fix = f"pip install 'ortboost[{extra}]' in its own environment."
        return HealthCheck(f"device {name}", "note", reason, fix)
    try:
        try_device(name)
    except OrtBoostError as error:
        return HealthCheck(f"device {name}", "note", f"does not work: {error.where}", error.fix)
    return HealthCheck(f"device {name}", "ok", "works")


def _format(name: str, device: str) -> HealthCheck:
    support, what = probe_format(name, device), f"{name} on {device}"
    if support.rounds:
        return HealthCheck(what, "ok", support.text)
    fix = "Train in another format, or convert with --emulate."
    if device == "cpu":
        fix = "Training emulates the rounding there (slower than fp32)."
    return HealthCheck(what, "note", support.text, fix)


def _gpu() -> HealthCheck:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return HealthCheck("nvidia gpu", "note", "no driver found (nvidia-smi is missing)")
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return HealthCheck("nvidia gpu", "note", f"nvidia-smi failed: {error}", "Check the driver.")
    return HealthCheck("nvidia gpu", "ok", "; ".join(answer.stdout.strip().splitlines()))


def _package(name: str, status: Literal["note", "fail"], fix: str) -> HealthCheck:
    """Whether a package is installed; if not, the status and the fix."""
    try:
        return HealthCheck(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return HealthCheck(name, status, "not installed", fix)
