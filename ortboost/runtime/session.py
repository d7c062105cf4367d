"""Sessions on exactly the requested provider, or a clear error.

Without its CUDA libraries the GPU build of onnxruntime silently falls back to the CPU. This module
raises an error that says how to fix it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir

from ortboost.core.cores import available_cores
from ortboost.core.errors import DependencyError, ModelError, UsageError, nearest
from ortboost.graph.io import EXTERNAL_DATA_THRESHOLD, save_model
from ortboost.graph.query import all_tensors
from ortboost.runtime.cuda_libraries import preload
from ortboost.runtime.session_errors import not_loaded, not_opened, not_supported
from ortboost.runtime.wrong_fusions import wrong_optimizers

__all__ = [
    "DEVICES",
    "TRAINING_DEVICES",
    "available_devices",
    "broken_packages",
    "drawing",
    "open_session",
    "resolve_device",
    "runtime",
    "runtime_packages",
    "set_seed",
    "training_device",
    "try_device",
]

TRAINING_DEVICES: Final = ("auto", "cpu", "cuda")
"""Devices that a step can run on."""

DEVICES: Final = (*TRAINING_DEVICES, "tensorrt")
"""Devices that an inference graph can run on."""

_PACKAGE: Final = "onnxruntime"
_log = logging.getLogger(__name__)
_SILENT: Final = 4  # level of the runtime's log: fatal errors only
_WARNINGS: Final = 2  # its default
_MOST_THREADS: Final = 4096  # of one session; far more end in std::bad_alloc
_SMALL: Final = """<ir_version: 8, opset_import: ["" : 18]>
small (float[1] x) => (float[1] y) { y = Identity(x) }"""
_PROVIDERS: Final = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_GENERATOR = threading.Lock()  # guards the runtime's global random generator


@functools.cache
def runtime_packages() -> tuple[str, ...]:
    """The installed packages that contain onnxruntime; several of them break each other."""
    names = set()
    for found in importlib.metadata.distributions():
        name = str(found.metadata["Name"] or "").lower()
        if name.startswith(_PACKAGE):
            # onnxruntime-genai and onnxruntime-extensions have folders of their own.
            folders = found.read_text("top_level.txt") or _PACKAGE
            if _PACKAGE in folders.split():
                names.add(name)
    return tuple(sorted(names))


def broken_packages(packages: Sequence[str]) -> tuple[str, str]:
    """The problem with several onnxruntime packages, and the fix."""
    return (
        f"{' and '.join(packages)} share one folder and break each other",
        f"pip uninstall -y {' '.join(packages)}, then install one of them again.",
    )


@functools.cache
def _warn_of_several() -> None:
    """Warn once: a partly overwritten onnxruntime works, but an engine may silently be missing."""
    if len(packages := runtime_packages()) > 1:
        _log.warning("%s: %s", *broken_packages(packages))


def runtime() -> Any:
    """Import onnxruntime; several packages of it cause a single warning.

    Raises:
        DependencyError: It is not installed, or broken.
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
            "onnxruntime is installed but empty: two of its packages overwrote each other.",
            where="package onnxruntime",
            fix="Uninstall every onnxruntime package, then install one; see 'ortboost doctor'.",
        )
    _warn_of_several()
    return onnxruntime


@functools.cache
def _preloaded() -> str:
    """Load the CUDA libraries, once in a process; what did not load, and why."""
    return preload(runtime())


def available_devices() -> dict[str, str | None]:
    """Map each device to ``None`` if the installed runtime supports it, else to the reason."""
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
    fuse_quantized: bool = True,
    memory_pattern: bool = True,
    buffer_reuse: bool = True,
    file_order: bool = False,
    cuda_graph: bool = False,
    disabled: Sequence[str] | None = None,
    optimize: bool = True,
) -> Any:
    """Open an inference session on exactly one device.

    Args:
        model: A model, or the path of a file. A model too large for one protobuf message is saved
            to a temporary file.
        device: ``cpu``, ``cuda``, ``tensorrt`` (ONNX Runtime's provider; operators that TensorRT
            does not support run on CUDA), or ``auto``: CUDA if it really works, else the CPU.
        threads: Intra-op threads; if not given, the runtime's choice, or the number of processors
            that this process may use if that is not all of the machine.
        fuse_quantized: Run an operator between QuantizeLinear and DequantizeLinear pairs as one
            integer kernel; otherwise in float32, as the standard defines it.
        memory_pattern: Allocate the memory of a run as one block, planned in the first run of a
            shape. Up to 4 % faster on small graphs, but the block adds to the memory of the first
            run, which doubles the memory of large graphs.
        buffer_reuse: Give the buffer of a tensor that is no longer needed to the next one of its
            shape. The buffer is kept until then: in a training step from a layer's forward pass to
            its backward pass. Without it a step takes up to 13 % less memory, and no more time.
        file_order: Run the nodes in the order of the file, where fusions leave it. The runtime's
            own order, depth first from the outputs, computes what a gradient needs from the
            forward pass before the gradient itself, and keeps it for all layers.
        cuda_graph: Capture the first run on CUDA and replay it (``enable_cuda_graph``). Inputs and
            outputs must then keep their device memory and shapes; see
            :mod:`ortboost.runtime.cuda.capture`.
        disabled: Optimizers of the runtime to turn off; if not given, those that are known to be
            wrong. A user who opens the file with onnxruntime turns off none.
        optimize: Whether the runtime optimizes the graph at all.

    Returns:
        An ``onnxruntime.InferenceSession``. With ``cuda``, operators without a CUDA kernel run on
        the CPU; the session is guaranteed to have a CUDA provider.

    Raises:
        UsageError: The device is unknown, or the number of threads is impossible.
        DependencyError: The device is not available, or its libraries do not load.
        ModelError: The runtime rejects the model, see :mod:`ortboost.runtime.session_errors`.
    """
    device = resolve_device(device)
    ort = runtime()
    version, unloaded = str(ort.__version__), _preloaded() if device != "cpu" else ""
    options, providers = _options(ort, threads), _providers(device, cuda_graph=cuda_graph)
    disabled = wrong_optimizers(model, version) if disabled is None else disabled
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not fuse_quantized:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.enable_mem_pattern = memory_pattern
    options.enable_mem_reuse = buffer_reuse
    if file_order:
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # all nodes have the same
    with contextlib.ExitStack() as stack:
        source = _readable(model, stack)
        if device != "cpu":  # what it logs of libraries is in the error, too
            ort.set_default_logger_severity(_SILENT)
            stack.callback(ort.set_default_logger_severity, _WARNINGS)
        try:
            session = ort.InferenceSession(
                source,
                options,
                providers=providers,
                disabled_optimizers=[*disabled],
                enable_fallback=0,  # it would print to the standard output
            )
        except Exception as error:  # the bindings raise bare exceptions of many kinds
            raise not_opened(error, device, version) from error
    if _PROVIDERS[device] not in session.get_providers():
        fell_back = f"the session fell back to {', '.join(session.get_providers())}"
        raise not_loaded(device, unloaded or fell_back)
    return session


def _options(ort: Any, threads: int | None) -> Any:
    """The options that all sessions have."""
    options = ort.SessionOptions()
    options.log_severity_level = _SILENT  # errors are raised, warnings are not for users
    # By default the inputs of products with blockwise quantized weights are rounded to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if threads is None:
        # The runtime would take all processors of the machine, and threads that wait for each other
        # by spinning use up the time of a container: 2 on 1 processor are half as fast as 1.
        if (cores := available_cores()) < (os.cpu_count() or 1):
            options.intra_op_num_threads = cores
        return options
    if not 1 <= threads <= _MOST_THREADS:
        raise UsageError(
            f"'threads' is {threads}; 1 to {_MOST_THREADS} is possible.",
            where=f"this machine has {os.cpu_count()} processors",
            fix="Leave it out: then there is one for each core that this process may use.",
        )
    options.intra_op_num_threads = threads
    return options


def _providers(device: str, *, cuda_graph: bool) -> list[Any]:
    """The provider of a device, and those for what it does not support."""
    names = [_PROVIDERS[name] for name in dict.fromkeys((device, "cuda", "cpu"))]
    if not cuda_graph:
        return names[:1] if device == "cpu" else names
    if device != "cuda":
        raise UsageError(
            f"The device '{device}' has no CUDA graphs.",
            where="cuda_graph",
            fix="Use --device cuda.",
        )
    return [(names[0], {"enable_cuda_graph": "1"}), *names[1:]]


def _readable(model: ir.Model | str | os.PathLike[str], stack: contextlib.ExitStack) -> bytes | str:
    """A model as the runtime reads it: a message, or a path; the stack removes what is written."""
    if not isinstance(model, ir.Model):
        return str(model)
    if sum(tensor.nbytes for _, tensor in all_tensors(model)) < EXTERNAL_DATA_THRESHOLD:
        message: bytes = ir.to_proto(model).SerializeToString()
        return message
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ortboost-"))
    path = Path(folder) / "model.onnx"
    save_model(model, path)
    return str(path)


def try_device(device: str) -> None:
    """Open a small session on a device; errors as for :func:`open_session`."""
    open_session(ir.from_onnx_text(_SMALL), device=device)


def training_device(device: str) -> str:
    """The device of a step; see :func:`resolve_device`. If it is given, CUDA is tried out.

    Raises:
        DependencyError: Also if its libraries do not load.
    """
    resolved = resolve_device(device, among=TRAINING_DEVICES)
    if resolved == device == "cuda":
        try_device(device)
    return resolved


def resolve_device(device: str, *, among: Sequence[str] = DEVICES) -> str:
    """Resolve a device name, one of ``among``, to ``cpu``, ``cuda`` or ``tensorrt``.

    ``auto`` is CUDA if a small session really runs there, else the CPU.

    Raises:
        UsageError: The device is unknown, or for inference only.
        DependencyError: The installed runtime was not built for it.
    """
    if device not in among:
        raise UsageError(
            f"The device '{device}' runs inference graphs, not training steps."
            if device in DEVICES
            else f"Unknown device '{device}'.",
            where="device",
            fix=nearest("cuda" if device == "gpu" else device, among),
        )
    if device != "auto":
        offered = runtime().get_available_providers()
        if _PROVIDERS[device] not in offered:
            raise not_supported(device, offered)
        return device
    # A build for CUDA lists its provider on every machine, so a session is the only proof.
    if _PROVIDERS["cuda"] in runtime().get_available_providers():
        with contextlib.suppress(DependencyError, ModelError):
            try_device("cuda")
            return "cuda"
    return "cpu"


def set_seed(seed: int) -> None:
    """Seed the runtime's random generator, which Dropout uses in all sessions."""
    runtime().set_seed(seed)


@contextlib.contextmanager
def drawing(seed: int | None) -> Iterator[None]:
    """Seed the random generator for the context, and keep other threads from using it.

    The runtime has one generator for all sessions of a process, so sessions that draw from it run
    one at a time. A graph without random numbers has no seed and need not wait.
    """
    if seed is None:
        yield
        return
    with _GENERATOR:
        set_seed(seed)
        yield
