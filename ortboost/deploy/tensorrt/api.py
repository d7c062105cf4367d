"""TensorRT's Python API and the CUDA runtime: loading them and building engines.

Only this file and :mod:`~ortboost.deploy.tensorrt.session` call them. Both follow the public
documentation of TensorRT 10 and 11 and the sources of their Python bindings, and are tested against
a stand-in that records the calls: no TensorRT was available, so they have not run on a device.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ortboost.core.errors import DependencyError, ModelError, UsageError
from ortboost.deploy.tensorrt.profiles import Profile

__all__ = ["Toolkit", "build_plan", "call_cuda", "load_toolkit"]

_OLDEST: Final = 10


@dataclass(frozen=True)
class Toolkit:
    """The loaded modules, and the device.

    Args:
        trt: The ``tensorrt`` module.
        cudart: The CUDA runtime of ``cuda-python``.
        version: Version of TensorRT.
        gpu: Name of the device.
        capability: Its compute capability, such as ``9.0``.
    """

    trt: Any
    cudart: Any
    version: str
    gpu: str
    capability: str

    @property
    def major(self) -> int:
        """Major version of TensorRT."""
        return int(self.version.split(".")[0])


def load_toolkit() -> Toolkit:
    """Import TensorRT and the CUDA runtime, and query the device.

    Raises:
        DependencyError: A package or the GPU is missing, or TensorRT is older than 10.
    """
    trt = _import("tensorrt", "pip install tensorrt")
    version = str(trt.__version__)
    if int(version.split(".")[0]) < _OLDEST:
        raise DependencyError(
            f"TensorRT {version} is too old: strongly typed networks need {_OLDEST} or later.",
            where="package tensorrt",
            fix="pip install --upgrade tensorrt",
        )
    try:  # where newer releases of cuda-python have it
        cudart = importlib.import_module("cuda.bindings.runtime")
    except ImportError:
        cudart = _import("cuda.cudart", "pip install cuda-python")
    properties = call_cuda(cudart.cudaGetDeviceProperties(0), "cudaGetDeviceProperties")
    name = properties.name
    return Toolkit(
        trt,
        cudart,
        version,
        (name.decode() if isinstance(name, bytes) else str(name)).rstrip("\0"),
        f"{properties.major}.{properties.minor}",
    )


def build_plan(
    kit: Toolkit,
    model: str,
    profiles: Mapping[str, Profile],
    *,
    workspace: int | None = None,
    timings: bytes = b"",
) -> tuple[bytes, bytes]:
    """Parse an ONNX file and build a strongly typed engine.

    Without ``workspace``, TensorRT chooses its scratch memory. ``timings`` is the timing cache to
    start from.

    Returns:
        The serialized engine, and the timing cache after the build.

    Raises:
        ModelError: The parser rejects the model, an input is a shape tensor, or the build fails.
        DependencyError: TensorRT cannot start on this device.
    """
    trt = kit.trt
    logger = trt.Logger(trt.Logger.WARNING)
    try:
        builder = trt.Builder(logger)
    except Exception as error:  # the binding raises a bare error if CUDA cannot start
        raise DependencyError(
            "TensorRT could not start.",
            where=f"{kit.gpu}: {error}",
            fix="Check the driver with nvidia-smi; it must be new enough for this TensorRT.",
        ) from error
    typed = trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    # From TensorRT 11 on every network is strongly typed, and the flag is deprecated.
    network = builder.create_network(1 << int(typed) if kit.major < 11 else 0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(model):
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        first = errors[0] if errors else None
        node = "" if first is None else f": node '{first.node_name()}' ({first.node_operator()})"
        raise ModelError(
            f"TensorRT {kit.version} does not accept the model"
            + (f": {first.desc()}" if first is not None else "."),
            where=f"{model}{node}",
            fix="ortboost check MODEL --for tensorrt lists the problems and how to fix them.",
        )
    config = builder.create_builder_config()
    if workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    config.set_timing_cache(config.create_timing_cache(timings), ignore_mismatch=False)
    _add_profile(builder, config, network, profiles, model)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ModelError(
            "TensorRT could not build an engine.",
            where=model,
            fix="Its log above says why; a larger --workspace or a smaller maximum shape may help.",
        )
    return bytes(plan), bytes(config.get_timing_cache().serialize())


def _add_profile(
    builder: Any, config: Any, network: Any, profiles: Mapping[str, Profile], model: str
) -> None:
    for position in range(network.num_inputs):
        tensor = network.get_input(position)
        if tensor.is_shape_tensor:
            raise ModelError(
                f"The input '{tensor.name}' decides a shape: its values would need a profile.",
                where=model,
                fix="Export with this shape fixed.",
            )
    if not profiles:
        return
    profile = builder.create_optimization_profile()
    for name, shapes in profiles.items():
        profile.set_shape(name, shapes.minimum, shapes.optimum, shapes.maximum)
    if config.add_optimization_profile(profile) < 0:
        raise UsageError(
            "TensorRT refuses the shape profile.",
            where="; ".join(f"--shape {p}" for p in profiles.values()),
            fix="Make the shapes fit the model: all of them must run.",
        )


def _import(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: a library that it links is missing
        raise DependencyError(
            f"The package '{name.split('.')[0]}' is not installed, or broken.",
            where=f"import {name}: {error}",
            fix=install,
        ) from error


def call_cuda(answer: tuple[Any, ...], function: str) -> Any:
    """Unwrap the result of a cuda-python call, which returns (error, results...)."""
    status, *results = answer
    if int(getattr(status, "value", status)) != 0:  # an enumeration in some releases only
        raise DependencyError(
            "The GPU does not answer.",
            where=f"{function}: {status}",
            fix="Check it with nvidia-smi.",
        )
    return results[0] if results else None
