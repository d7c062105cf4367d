"""Sessions: the provider that was asked for is the provider that is used, or a clear error.

Without its CUDA libraries the GPU build of onnxruntime silently runs on the CPU. Here that is an
error that names the cure.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Final

import onnx_ir as ir

from ortboost.errors import DependencyError, ModelError, UsageError, nearest
from ortboost.runtime.cuda_libraries import preload

__all__ = [
    "DEVICES",
    "available_devices",
    "open_session",
    "resolve_device",
    "runtime",
    "set_seed",
]

DEVICES: Final = ("auto", "cpu", "cuda")
_SMALL: Final = """<ir_version: 8, opset_import: ["" : 18]>
small (float[1] x) => (float[1] y) { y = Identity(x) }"""
_PROVIDERS: Final = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def runtime() -> Any:
    """The onnxruntime module.

    Raises:
        DependencyError: No build of it is installed, or it is broken.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise DependencyError(
            "onnxruntime is not installed, or broken.",
            where=str(error),
            fix="pip install 'ortboost[cpu]' (training on the CPU) or 'ortboost[cuda]'; "
            "see 'ortboost doctor'.",
        ) from error
    if not hasattr(onnxruntime, "InferenceSession"):
        raise DependencyError(
            "onnxruntime is installed but hollow: two of its packages overwrote each other.",
            where="package onnxruntime",
            fix="Uninstall every onnxruntime package, then install one; see 'ortboost doctor'.",
        )
    return onnxruntime


def available_devices() -> dict[str, str | None]:
    """Device name to ``None`` if the installed runtime offers it, else the reason why not."""
    offered = runtime().get_available_providers()
    return {
        device: None if provider in offered else f"this onnxruntime has no {provider}"
        for device, provider in _PROVIDERS.items()
    }


def open_session(
    model: ir.Model | str | os.PathLike[str],
    *,
    device: str = "auto",
    threads: int | None = None,
) -> Any:
    """Open an inference session on exactly one device.

    Args:
        model: A model, or the path of a file (needed for models over 2 GB).
        device: ``cpu``, ``cuda``, or ``auto``: CUDA where it really works, else the CPU.
        threads: Threads within an operator; the runtime's choice if not given.

    Returns:
        An ``onnxruntime.InferenceSession``. With ``cuda``, operators that have no CUDA kernel run on
        the CPU; the session itself is guaranteed to have a CUDA provider.

    Raises:
        UsageError: Unknown device.
        DependencyError: The device is not there, or its libraries do not load.
        ModelError: The runtime does not accept the model.
    """
    device = resolve_device(device)
    ort = runtime()
    provider = _PROVIDERS[device]
    if provider not in ort.get_available_providers():
        raise DependencyError(
            f"The device '{device}' was asked for, and this onnxruntime cannot use it.",
            where=f"providers: {', '.join(ort.get_available_providers())}",
            fix="Install the build for it (pip install 'ortboost[cuda]'), or use --device cpu.",
        )
    if device == "cuda":
        preload()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised, and warnings of the planner not for users
    if threads is not None:
        options.intra_op_num_threads = threads
    source = ir.to_proto(model).SerializeToString() if isinstance(model, ir.Model) else str(model)
    providers = [provider] if device == "cpu" else [provider, _PROVIDERS["cpu"]]
    try:
        session = ort.InferenceSession(source, options, providers=providers)
    except Exception as error:  # the bindings raise bare exceptions of many kinds
        known = re.search(r"(Opset \d+) is .* is till (opset \d+)", str(error), re.DOTALL)
        if known:
            raise ModelError(
                f"{known[1]} is too new for this onnxruntime, which knows up to {known[2]}.",
                where=f"onnxruntime {ort.__version__}",
                fix=f"Use a model of {known[2]} or older.",
            ) from error
        raise ModelError(
            "onnxruntime does not accept the model.",
            where=str(error).strip().splitlines()[0],
            fix="See 'ortboost doctor': another onnxruntime may be in the way. If all is well there "
            "and ortboost made this file, report it; else try 'ortboost check'.",
        ) from error
    if provider not in session.get_providers():
        raise DependencyError(
            f"The device '{device}' was asked for, but its libraries did not load.",
            where=f"the session fell back to {', '.join(session.get_providers())}",
            fix="Install CUDA 11.8 and cuDNN 8 (pip install 'ortboost[cuda]' brings them), "
            "or use --device cpu.",
        )
    return session


def resolve_device(device: str) -> str:
    """The device that a name stands for: ``cpu`` or ``cuda``.

    Args:
        device: ``cpu``, ``cuda``, or ``auto``: CUDA if a small session really runs there.

    Raises:
        UsageError: Unknown device.
    """
    if device not in DEVICES:
        raise UsageError(
            f"Unknown device '{device}'.", where="device", fix=nearest(device, DEVICES)
        )
    if device != "auto":
        return device
    if _PROVIDERS["cuda"] in runtime().get_available_providers():
        with contextlib.suppress(DependencyError, ModelError):
            open_session(ir.from_onnx_text(_SMALL), device="cuda")
            return "cuda"
    return "cpu"


def set_seed(seed: int) -> None:
    """Restart the runtime's random numbers; Dropout of all sessions draws from them."""
    runtime().set_seed(seed)
