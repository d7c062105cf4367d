"""Gradients by central differences in float64: slow, simple, and independent of every engine.

The graph is evaluated by the reference evaluator of the ``onnx`` package, with all float32 tensors
converted to float64. Tests and ``tools/probe_gradients.py`` compare the engines with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

__all__ = ["as_double", "evaluate", "numeric_gradients"]


class Erf(OpRun):
    """The error function in float64; the reference evaluator's own is accurate only to 1.5e-7."""

    def _run(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64]]:
        exact = np.array([math.erf(v) for v in np.ravel(x)], dtype=np.float64)
        return (exact.reshape(np.shape(x)),)


class Gelu(OpRun):
    """Gelu with the exact error function."""

    def _run(self, x: NDArray[np.float64], approximate: str = "none") -> tuple[NDArray[np.float64]]:
        if approximate == "tanh":
            inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
            return (np.asarray(0.5 * x * (1 + np.tanh(inner))),)
        exact = np.array([math.erf(v / math.sqrt(2)) for v in np.ravel(x)], dtype=np.float64)
        return (0.5 * x * (1 + exact.reshape(np.shape(x))),)


_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE


def as_double(model: ir.Model) -> onnx.ModelProto:
    """A copy of the model in which every float32 is a float64."""
    proto = onnx.ModelProto()
    proto.CopyFrom(ir.to_proto(model))
    _graph_as_double(proto.graph)
    return proto


def _graph_as_double(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == _FLOAT:
            value.type.tensor_type.elem_type = _DOUBLE
    for tensor in graph.initializer:
        _tensor_as_double(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("value_float", "value_floats"):
                values = attribute.f if attribute.name == "value_float" else attribute.floats
                tensor = onnx.numpy_helper.from_array(np.array(values, dtype=np.float64))
                attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
            if attribute.HasField("t"):
                _tensor_as_double(attribute.t)
            if attribute.HasField("g"):
                _graph_as_double(attribute.g)
            if node.op_type in ("Cast", "EyeLike") and attribute.i == _FLOAT:
                attribute.i = _DOUBLE
        if node.op_type == "GroupNormalization":  # its body casts to float32 otherwise
            node.attribute.append(onnx.helper.make_attribute("stash_type", _DOUBLE))


def _tensor_as_double(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == _FLOAT:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def evaluate(
    model: ir.Model, feeds: Mapping[str, NDArray[np.generic]], names: Sequence[str] | None = None
) -> list[NDArray[np.generic]]:
    """Run a model with the reference evaluator in float64.

    Args:
        model: Model of standard operators.
        feeds: Input arrays; float32 ones are converted to float64.
        names: Names of the requested outputs; all if not given.
    """
    runner = ReferenceEvaluator(as_double(model), new_ops=[Erf, Gelu])
    return list(runner.run(None if names is None else list(names), _doubled(feeds)))


def _doubled(feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    return {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}


def numeric_gradients(
    model: ir.Model,
    loss: str,
    wrt: Sequence[str],
    feeds: Mapping[str, NDArray[np.generic]],
    *,
    step: float = 1e-5,
) -> dict[str, NDArray[np.float64]]:
    """Gradients of a scalar output: ``(f(x + h) - f(x - h)) / 2h``, one element at a time.

    Args:
        model: Model with ``loss`` among its outputs.
        loss: Name of the output, a scalar.
        wrt: Names of float inputs.
        feeds: Arrays of all inputs.
        step: ``h``. The error is of the order ``h**2`` plus ``1e-16 / h``.

    Returns:
        Name to gradient, the shape of the input.
    """
    runner = ReferenceEvaluator(as_double(model), new_ops=[Erf, Gelu])
    point = _doubled(feeds)
    gradients: dict[str, NDArray[np.float64]] = {}
    for name in wrt:
        base = point[name].astype(np.float64)
        gradient = np.zeros_like(base)
        for index in np.ndindex(*base.shape):
            value = []
            for sign in (1.0, -1.0):
                moved = base.copy()
                moved[index] += sign * step
                (result,) = runner.run([loss], {**point, name: moved})
                value.append(float(np.asarray(result).reshape(())))
            gradient[index] = (value[0] - value[1]) / (2 * step)
        gradients[name] = gradient
    return gradients
