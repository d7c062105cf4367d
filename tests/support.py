"""What the tests of several folders share: paths, small models, and running them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from ortboost.autodiff.native.engine import NativeEngine
from ortboost.core.errors import OrtBoostError
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.core.printable import one_line
from ortboost.core.python_words import in_python
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.runtime.stepper import Stepper

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"
GOLDEN = ROOT / "tests" / "golden"
NAMES = ("mlp", "lenet5", "resnet20", "resnet_bottleneck", "mobilenet_like", "transformer_tiny")
WITH_NORM = ("resnet20", "resnet_bottleneck", "mobilenet_like")

NEEDS_NATIVE = "the native engine needs onnxruntime-training"
"""By this reason to skip them, ``conftest.py`` recognizes what onnxruntime-training alone runs."""

needs_native = pytest.mark.skipif(NativeEngine().unavailable() is not None, reason=NEEDS_NATIVE)


def native_only() -> None:
    """Skip a module where the native engine cannot run; called before it is used."""
    if NativeEngine().unavailable() is not None:
        pytest.skip(NEEDS_NATIVE, allow_module_level=True)


ENGINES = (pytest.param("native", marks=needs_native), "portable")

Arrays = dict[str, np.ndarray]


def model_path(name: str) -> Path:
    return MODELS / f"{name}.onnx"


def text_model(text: str, **initializers: Any) -> ir.Model:
    """A model from ONNX text; the named values become initializers of the main graph."""
    model = ir.from_onnx_text(text)
    for name, value in initializers.items():
        array = np.asarray(value)
        found = {v.name: v for v in model.graph.inputs}[name]
        model.graph.inputs.remove(found)
        found.const_value = ir.tensor(array, name=name)
        found.type, found.shape = ir.TensorType(found.const_value.dtype), ir.Shape(array.shape)
        model.graph.register_initializer(found)
    return model


def weights(*shape: int, seed: int = 0, scale: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def small_mlp(features: int = 4, hidden: int = 6, classes: int = 3, seed: int = 0) -> ir.Model:
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,{features}] x, float[{hidden},{features}] w1, float[{hidden}] b1,
             float[{classes},{hidden}] w2, float[{classes}] b2)
        => (float[batch,{classes}] logits) {{
          [fc1] h = Gemm<transB = 1>(x, w1, b1)
          [act] a = Relu(h)
          [fc2] logits = Gemm<transB = 1>(a, w2, b2)
        }}""",
        w1=weights(hidden, features, seed=seed),
        b1=weights(hidden, seed=seed + 1),
        w2=weights(classes, hidden, seed=seed + 2),
        b2=weights(classes, seed=seed + 3),
    )


def small_convnet(seed: int = 0) -> ir.Model:
    """Conv, BatchNormalization (inference form), Relu, pooling, Gemm; input [batch, 1, 6, 6]."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,1,6,6] x, float[4,1,3,3] cw, float[4] s, float[4] b, float[4] mean,
             float[4] var, float[3,4] fw, float[3] fb) => (float[batch,3] logits) {
          [conv] c = Conv<pads = [1, 1, 1, 1]>(x, cw)
          [bn] n = BatchNormalization<momentum = 0.9>(c, s, b, mean, var)
          [relu] r = Relu(n)
          [pool] p = GlobalAveragePool(r)
          [flat] f = Flatten(p)
          [fc] logits = Gemm<transB = 1>(f, fw, fb)
        }""",
        cw=weights(4, 1, 3, 3, seed=seed),
        s=1 + 0.1 * weights(4, seed=seed + 1),
        b=weights(4, seed=seed + 2),
        mean=weights(4, seed=seed + 3),
        var=1 + np.abs(weights(4, seed=seed + 4)),
        fw=weights(3, 4, seed=seed + 5),
        fb=weights(3, seed=seed + 6),
    )


def session(model: ir.Model | onnx.ModelProto | str | Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if isinstance(model, ir.Model):
        model = ir.to_proto(model)
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(model: Any, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """Outputs of a model by name."""
    opened = session(model)
    names = [value.name for value in opened.get_outputs()]
    return dict(zip(names, opened.run(names, dict(feeds)), strict=True))


@functools.cache
def digits() -> Arrays:
    with np.load(MODELS / "digits.npz") as file:
        return {name: file[name] for name in file.files}


@functools.cache
def golden(name: str) -> Arrays:
    with np.load(GOLDEN / "torch" / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def batch_for(program: Program, size: int = 8, seed: int = 0) -> Arrays:
    """A made-up batch that fits a classifier program."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for spec in program.catalogue.batch:
        shape = tuple(d if isinstance(d, int) else size for d in spec.shape)
        if spec.name == "labels" and spec.dtype == np.int64:
            feeds[spec.name] = rng.integers(0, 3, shape)
        elif spec.dtype.kind == "f":
            feeds[spec.name] = rng.standard_normal(shape).astype(spec.dtype)
        else:
            feeds[spec.name] = rng.integers(0, 200, shape).astype(spec.dtype)
    return feeds


@functools.cache
def shipped_program(name: str, **fields: Any) -> Program:
    """The program of a shipped model; cached, so never to be changed."""
    return build_program(model_path(name), ProgramConfig(**fields))


def stepper(program: Program, **arguments: Any) -> Stepper:
    return Stepper(program, device="cpu", threads=1, **arguments)


def assert_same_bits(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not different


def assert_three_lines(error: OrtBoostError) -> None:
    """What, where, fix: none of them empty."""
    assert error.what
    assert error.where
    assert error.fix
    lines = str(error).splitlines()
    assert lines[0] == in_python(one_line(error.what))
    assert lines[1].startswith("  where: ")
    assert any(line.startswith("  fix:   ") for line in lines[2:])


def grouped_update(
    scales: NDArray[np.float32], overflow: NDArray[np.bool_], config: GroupedScaleConfig
) -> NDArray[np.float32]:
    """The scales of all groups after one step: those that overflowed shrink, the others grow."""
    found = scales * np.where(overflow, np.float32(config.shrink), np.float32(config.grow))
    if config.min_scale is not None:
        found = np.maximum(found, np.float32(config.min_scale))
    if config.max_scale is not None:
        found = np.minimum(found, np.float32(config.max_scale))
    return found
