"""Everything that touches TensorRT's Python API and the CUDA runtime is in this file.

Written to the public documentation of TensorRT 10 and 11 and the sources of their Python bindings, and tested
against a stand-in that records the calls: nobody here had TensorRT, so it has not run on a device.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import DependencyError, ModelError, UsageError
from ortboost.deploy.tensorrt.profiles import Profile

__all__ = ["Built", "EngineSession", "Toolkit", "build_plan", "load_toolkit"]

_DTYPES: Final = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "BOOL": np.bool_,
}
_OLDEST: Final = 10


@dataclass(frozen=True)
class Toolkit:
    """The modules that are needed, and the device.

    Args:
        trt: The ``tensorrt`` module.
        cudart: The CUDA runtime of ``cuda-python``.
        version: Version of TensorRT.
        gpu: Name of the device.
        capability: Its compute capability, as ``9.0``.
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


@dataclass(frozen=True)
class Built:
    """What a build gave.

    Args:
        plan: The serialized engine.
        timings: The timing cache after the build.
    """

    plan: bytes
    timings: bytes


def load_toolkit() -> Toolkit:
    """Import TensorRT and the CUDA runtime, and look at the device.

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
    try:
        cudart = importlib.import_module("cuda.bindings.runtime")
    except ImportError:
        cudart = _import("cuda.cudart", "pip install cuda-python")
    properties = _call(cudart.cudaGetDeviceProperties(0), "cudaGetDeviceProperties")
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
) -> Built:
    """Parse an ONNX file and build an engine, strongly typed.

    Args:
        kit: See :func:`load_toolkit`.
        model: Path of the file: external data are found beside it.
        profiles: One for each dynamic input.
        workspace: Bytes of scratch memory; TensorRT's choice if not given.
        timings: Timing cache to start from.

    Raises:
        ModelError: The parser refuses the model, an input is a shape tensor, or the build fails.
        DependencyError: TensorRT cannot start on this device.
    """
    trt = kit.trt
    logger = trt.Logger(trt.Logger.WARNING)
    try:
        builder = trt.Builder(logger)
    except Exception as error:  # the binding raises a bare error where CUDA does not start
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
            fix="ortboost check MODEL --for tensorrt lists what stands in the way, and what to do.",
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
    return Built(bytes(plan), bytes(config.get_timing_cache().serialize()))


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


class EngineSession:
    """An engine on the device, run batch by batch.

    Args:
        kit: See :func:`load_toolkit`.
        plan: The serialized engine.

    Raises:
        DependencyError: The engine was built by another TensorRT or for another GPU.
    """

    def __init__(self, kit: Toolkit, plan: bytes) -> None:
        trt = self._trt = kit.trt
        self._cuda = kit.cudart
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise DependencyError(
                "The engine cannot be loaded here.",
                where=f"TensorRT {kit.version} on {kit.gpu}",
                fix="Build it again on this machine: an engine belongs to its TensorRT and its GPU.",
            )
        self._context = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        modes = {name: self._engine.get_tensor_mode(name) for name in names}
        self.inputs = tuple(n for n in names if modes[n] == trt.TensorIOMode.INPUT)
        self.outputs = tuple(n for n in names if modes[n] == trt.TensorIOMode.OUTPUT)

    def evaluate(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs by name.

        Args:
            feeds: Input name to array; cast to what the engine takes.

        Raises:
            UsageError: An input is missing, or its shape is outside of the profile.
            ModelError: The size of an output depends on the data.
        """
        buffers: list[int] = []
        stream = _call(self._cuda.cudaStreamCreate(), "cudaStreamCreate")
        try:
            for name in self.inputs:
                self._feed(name, feeds, buffers)
            answers: dict[str, tuple[NDArray[Any], int]] = {}
            for name in self.outputs:
                shape = tuple(self._context.get_tensor_shape(name))
                if any(dim < 0 for dim in shape):
                    raise ModelError(
                        f"The size of the output '{name}' depends on the data.",
                        where=f"output '{name}' {shape}",
                        fix="Compare such an output with a program of your own: it needs an output "
                        "allocator.",
                    )
                array = np.empty(shape, self._dtype(name))
                answers[name] = (array, self._allocate(name, array.nbytes, buffers))
            if not self._context.execute_async_v3(int(stream)):
                raise ModelError(
                    "The engine failed.", where="execution", fix="TensorRT's log above says why."
                )
            _call(self._cuda.cudaStreamSynchronize(stream), "cudaStreamSynchronize")
            for array, address in answers.values():
                self._copy(array.ctypes.data, address, array.nbytes, "cudaMemcpyDeviceToHost")
            return {name: array for name, (array, _) in answers.items()}
        finally:
            for address in buffers:
                self._cuda.cudaFree(address)
            self._cuda.cudaStreamDestroy(stream)

    def _feed(self, name: str, feeds: Mapping[str, NDArray[Any]], buffers: list[int]) -> None:
        if name not in feeds:
            raise UsageError(
                f"The input '{name}' was not fed.", where="engine", fix=f"Feed {self.inputs}."
            )
        array = np.ascontiguousarray(feeds[name], self._dtype(name))
        if not self._context.set_input_shape(name, array.shape):
            raise UsageError(
                f"The shape {array.shape} is outside of the profile of the input '{name}'.",
                where=f"input '{name}'",
                fix="Feed what lies between the minimum and the maximum of --shape.",
            )
        address = self._allocate(name, array.nbytes, buffers)
        self._copy(address, array.ctypes.data, array.nbytes, "cudaMemcpyHostToDevice")

    def _allocate(self, name: str, nbytes: int, buffers: list[int]) -> int:
        address = _call(self._cuda.cudaMalloc(max(nbytes, 1)), "cudaMalloc")
        buffers.append(address)
        self._context.set_tensor_address(name, int(address))
        return int(address)

    def _copy(self, to: int, source: int, nbytes: int, kind: str) -> None:
        direction = getattr(self._cuda.cudaMemcpyKind, kind)
        _call(self._cuda.cudaMemcpy(to, source, nbytes, direction), "cudaMemcpy")

    def _dtype(self, name: str) -> np.dtype[Any]:
        kind = self._engine.get_tensor_dtype(name).name
        if kind not in _DTYPES:
            raise ModelError(
                f"'{name}' is {kind}, which numpy cannot hold.",
                where=f"tensor '{name}'",
                fix="Cast it to FLOAT in the model.",
            )
        found: np.dtype[Any] = np.dtype(_DTYPES[kind])
        return found


def _import(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: a library that it links is missing
        raise DependencyError(
            f"The package '{name.split('.')[0]}' is not installed, or broken.",
            where=f"import {name}: {error}",
            fix=install,
        ) from error


def _call(answer: tuple[Any, ...], function: str) -> Any:
    """The result of a call of cuda-python, which returns (error, results...)."""
    status, *results = answer
    if (
        int(getattr(status, "value", status)) != 0
    ):  # an enumeration, of several kinds over the years
        raise DependencyError(
            "The GPU does not answer.",
            where=f"{function}: {status}",
            fix="Check it with nvidia-smi.",
        )
    return results[0] if results else None
