"""A stand-in for TensorRT and the CUDA runtime: records calls, runs engines with ONNX Runtime.

The names and signatures are those of the public Python bindings (TensorRT 10 and 11, cuda-python).
An "engine" is the ONNX file; "device memory" is host memory.
"""

from __future__ import annotations

import ctypes
import enum
import types
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ortboost.deploy.tensorrt.api import Toolkit

DataType = enum.Enum("DataType", "FLOAT HALF BF16 INT8 INT32 INT64 UINT8 BOOL FP8")
TensorIOMode = enum.Enum("TensorIOMode", "NONE INPUT OUTPUT")
_KINDS = {"tensor(float)": "FLOAT", "tensor(int64)": "INT64", "tensor(float16)": "HALF"}


class Flag(enum.IntEnum):
    STRONGLY_TYPED = 1


class Pool(enum.IntEnum):
    WORKSPACE = 0


class Logger:
    WARNING = 2

    def __init__(self, severity: int = 2) -> None:
        self.severity = severity


class FakeTensorRT(types.SimpleNamespace):
    """The module.

    Args:
        version: What it says it is.
        refuses: A message of the parser, if it refuses every model.
        fails: Whether the build gives nothing.
        starts: Whether the builder starts.
        off: What is added to every output of an engine.
    """

    def __init__(
        self,
        version: str = "11.4.0",
        *,
        refuses: str = "",
        fails: bool = False,
        starts: bool = True,
        off: float = 0.0,
        shape_tensor: bool = False,
        dynamic_output: bool = False,
    ) -> None:
        self.calls: list[tuple[Any, ...]] = []
        super().__init__(
            __version__=version,
            Logger=Logger,
            NetworkDefinitionCreationFlag=Flag,
            MemoryPoolType=Pool,
            TensorIOMode=TensorIOMode,
            Builder=lambda logger: Builder(self, logger),
            OnnxParser=lambda network, logger: Parser(self, network),
            Runtime=lambda logger: Runtime(self),
            refuses=refuses,
            fails=fails,
            starts=starts,
            off=off,
            shape_tensor=shape_tensor,
            dynamic_output=dynamic_output,
        )

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


class Builder:
    def __init__(self, trt: FakeTensorRT, logger: Logger) -> None:
        assert isinstance(logger, Logger)
        if not trt.starts:
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self.trt = trt

    def create_network(self, flags: int = 0) -> Network:
        self.trt.calls.append(("create_network", flags))
        return Network(self.trt)

    def create_builder_config(self) -> Config:
        return Config(self.trt)

    def create_optimization_profile(self) -> Profile:
        return Profile(self.trt)

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        self.trt.calls.append(("build_serialized_network",))
        assert config.cache is not None
        config.cache.data += b"+"
        return None if self.trt.fails else network.content


class Network:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt
        self.content = b""

    @property
    def num_inputs(self) -> int:
        return len(onnx.load_from_string(self.content).graph.input)

    def get_input(self, position: int) -> Any:
        name = onnx.load_from_string(self.content).graph.input[position].name
        return types.SimpleNamespace(name=name, is_shape_tensor=self.trt.shape_tensor)


class Parser:
    def __init__(self, trt: FakeTensorRT, network: Network) -> None:
        self.trt, self.network = trt, network

    def parse_from_file(self, model: str) -> bool:
        assert isinstance(model, str)
        self.trt.calls.append(("parse_from_file", model))
        with open(model, "rb") as file:
            self.network.content = file.read()
        return not self.trt.refuses

    @property
    def num_errors(self) -> int:
        return 1 if self.trt.refuses else 0

    def get_error(self, index: int) -> Any:
        return types.SimpleNamespace(
            desc=lambda: self.trt.refuses,
            node_name=lambda: "/head/Det",
            node_operator=lambda: "Det",
        )


class Cache:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> memoryview:
        return memoryview(self.data)


class Config:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt
        self.cache: Cache | None = None

    def set_memory_pool_limit(self, pool: Pool, pool_size: int) -> None:
        self.trt.calls.append(("set_memory_pool_limit", pool, pool_size))

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Cache:
        assert isinstance(serialized_timing_cache, bytes)
        return Cache(serialized_timing_cache)

    def set_timing_cache(self, cache: Cache, ignore_mismatch: bool) -> bool:
        self.trt.calls.append(("set_timing_cache", cache.data, ignore_mismatch))
        self.cache = cache
        return True

    def get_timing_cache(self) -> Cache | None:
        return self.cache

    def add_optimization_profile(self, profile: Profile) -> int:
        self.trt.calls.append(("add_optimization_profile",))
        return 0


class Profile:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
        self.trt.calls.append(("set_shape", input, min, opt, max))


class Runtime:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        assert isinstance(serialized_engine, bytes)
        return None if serialized_engine == b"foreign" else Engine(self.trt, serialized_engine)


class Engine:
    def __init__(self, trt: FakeTensorRT, content: bytes) -> None:
        self.trt = trt
        self.session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        self.given = {value.name: value for value in self.session.get_inputs()}
        self.made = {value.name: value for value in self.session.get_outputs()}

    @property
    def num_io_tensors(self) -> int:
        return len(self.given) + len(self.made)

    def get_tensor_name(self, index: int) -> str:
        return [*self.given, *self.made][index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.given else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[_KINDS[{**self.given, **self.made}[name].type]]

    def create_execution_context(self) -> Context:
        return Context(self)


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.answers: dict[str, np.ndarray] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        limits = {call[0]: (call[1], call[3]) for call in self.engine.trt.called("set_shape")}
        low, high = limits.get(name, (shape, shape))
        if any(not a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            return False
        self.shapes[name] = shape
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if self.engine.trt.dynamic_output:
            return (-1, 3)
        zeros = {
            n: np.zeros(shape, np.float32 if "float" in self.engine.given[n].type else np.int64)
            for n, shape in self.shapes.items()
        }
        return tuple(self.engine.session.run([name], zeros)[0].shape)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert type(memory) is int
        self.addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert type(stream_handle) is int
        feeds = {
            name: _view(self.addresses[name], shape, self.engine.given[name].type).copy()
            for name, shape in self.shapes.items()
        }
        for name, array in zip(
            self.engine.made, self.engine.session.run(list(self.engine.made), feeds), strict=True
        ):
            target = _view(self.addresses[name], array.shape, self.engine.made[name].type)
            np.copyto(target, array + np.asarray(self.engine.trt.off, array.dtype))
        return True


def _view(address: int, shape: tuple[int, ...], kind: str) -> np.ndarray:
    dtype = np.dtype(np.float32 if kind == "tensor(float)" else np.int64)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = (ctypes.c_ubyte * count).from_address(address)
    return np.frombuffer(raw, dtype).reshape(shape)


class FakeCuda:
    """The CUDA runtime: every call returns a tuple that begins with the error."""

    def __init__(self, *, devices: int = 1) -> None:
        names = {"cudaMemcpyHostToDevice": 1, "cudaMemcpyDeviceToHost": 2}
        self.cudaMemcpyKind = enum.IntEnum("cudaMemcpyKind", names)
        self.devices = devices
        self.memory: dict[int, Any] = {}
        self.streams = 0

    def cudaGetDeviceProperties(self, device: int) -> tuple[Any, ...]:
        if not self.devices:
            return (100, None)
        return (0, types.SimpleNamespace(name=b"Fake H200\0\0", major=9, minor=0))

    def cudaMalloc(self, size: int) -> tuple[int, int]:
        buffer = (ctypes.c_ubyte * size)()
        address = ctypes.addressof(buffer)
        self.memory[address] = buffer
        return (0, address)

    def cudaFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (0,)

    def cudaMemcpy(self, dst: int, src: int, count: int, kind: Any) -> tuple[int]:
        assert (dst if kind == 1 else src) in self.memory
        ctypes.memmove(dst, src, count)
        return (0,)

    def cudaStreamCreate(self) -> tuple[int, int]:
        self.streams += 1
        return (0, 7)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:
        assert stream == 7
        return (0,)

    def cudaStreamDestroy(self, stream: int) -> tuple[int]:
        self.streams -= 1
        return (0,)


def toolkit(trt: FakeTensorRT | None = None) -> Toolkit:
    trt = trt or FakeTensorRT()
    return Toolkit(trt, FakeCuda(), trt.__version__, "Fake H200", "9.0")
