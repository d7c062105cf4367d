"""Running a TensorRT engine batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import DependencyError, ModelError, UsageError
from ortboost.deploy.tensorrt.api import Toolkit, call_cuda

__all__ = ["EngineSession"]

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


class EngineSession:
    """A serialized engine on the device, run batch by batch.

    Raises:
        DependencyError: The engine was built by another TensorRT version or for another GPU.
    """

    def __init__(self, kit: Toolkit, plan: bytes) -> None:
        trt = kit.trt
        self._cuda = kit.cudart
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise DependencyError(
                "The engine cannot be loaded here.",
                where=f"TensorRT {kit.version} on {kit.gpu}",
                fix="Build it again on this machine: an engine belongs to its TensorRT and its "
                "GPU.",
            )
        self._context = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        modes = {name: self._engine.get_tensor_mode(name) for name in names}
        self.inputs = tuple(n for n in names if modes[n] == trt.TensorIOMode.INPUT)
        self.outputs = tuple(n for n in names if modes[n] == trt.TensorIOMode.OUTPUT)

    def evaluate(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute the outputs, by name, from inputs that are cast to the engine's types.

        Raises:
            UsageError: An input is missing, or its shape is outside of the profile.
            ModelError: The size of an output depends on the data.
        """
        buffers: list[int] = []  # device memory, freed at the end whatever happens
        stream = call_cuda(self._cuda.cudaStreamCreate(), "cudaStreamCreate")
        try:
            for name in self.inputs:
                self._feed(name, feeds, buffers)
            # Shapes of outputs are known once all inputs have theirs; -1 if they depend on data.
            answers: dict[str, tuple[NDArray[Any], int]] = {}
            for name in self.outputs:
                shape = tuple(self._context.get_tensor_shape(name))
                if any(dim < 0 for dim in shape):
                    raise ModelError(
                        f"The size of the output '{name}' depends on the data.",
                        where=f"output '{name}' {shape}",
                        fix="Compare such an output in your own program: it needs an output "
                        "allocator.",
                    )
                array = np.empty(shape, self._dtype(name))
                answers[name] = (array, self._allocate(name, array.nbytes, buffers))
            if not self._context.execute_async_v3(int(stream)):
                raise ModelError(
                    "The engine failed.", where="execution", fix="TensorRT's log above says why."
                )
            call_cuda(self._cuda.cudaStreamSynchronize(stream), "cudaStreamSynchronize")
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
                fix="Feed shapes between the minimum and the maximum of --shape.",
            )
        address = self._allocate(name, array.nbytes, buffers)
        self._copy(address, array.ctypes.data, array.nbytes, "cudaMemcpyHostToDevice")

    def _allocate(self, name: str, nbytes: int, buffers: list[int]) -> int:
        # An empty tensor needs an address too.
        address = call_cuda(self._cuda.cudaMalloc(max(nbytes, 1)), "cudaMalloc")
        buffers.append(address)
        self._context.set_tensor_address(name, int(address))
        return int(address)

    def _copy(self, to: int, source: int, nbytes: int, direction: str) -> None:
        kind = getattr(self._cuda.cudaMemcpyKind, direction)
        call_cuda(self._cuda.cudaMemcpy(to, source, nbytes, kind), "cudaMemcpy")

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
