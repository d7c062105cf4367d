"""Products with blockwise quantized weights become MatMulNBits, with the same results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.deploy.rewrites.fuse_matmul_n_bits import fuse_matmul_n_bits
from ortboost.runtime.session import open_session
from tests.deploy.rewrites.support import model_of, ops
from tests.graph.normal_form.test_runtime_quantized import RUNS_8_BITS
from tests.support import run, weights

BATCH = {"x": weights(2, 3, 40, seed=3)}


def quantized(kind="uint4", points=True, *, block=16, axis=0, outer=5, body="y = MatMul(x, d)"):
    rng = np.random.default_rng(1)
    dtype = np.dtype(getattr(ml_dtypes, kind) if kind.endswith("4") else kind)
    low = -8 if kind == "int4" else -128 if kind == "int8" else 0
    high = low + (16 if kind.endswith("4") else 256)
    shape, blocks = (40, outer), -(-40 // block)
    scale_shape = (blocks, outer) if axis == 0 else (40, -(-outer // block))
    q = rng.integers(low, high, shape).astype(dtype)
    scale = rng.uniform(0.01, 0.1, scale_shape).astype(np.float32)
    zero = rng.integers(low, high, scale_shape).astype(dtype)
    inputs = f"w, s{', z' if points else ''}"
    types = ", ".join(
        f"{kind if name != 's' else 'float'}[{','.join(map(str, array.shape))}] {name}"
        for name, array in (("w", q), ("s", scale), *((("z", zero),) if points else ()))
    )
    text = f"d = DequantizeLinear<axis = {axis}, block_size = {block}>({inputs}) {body}"
    stored = {"w": q, "s": scale, **({"z": zero} if points else {})}
    return model_of(text, f"float[A,3,40] x, {types}", "float[A,3,M] y", opset=21, **stored)


@pytest.mark.parametrize("points", [True, False])
@pytest.mark.parametrize("kind", ["uint4", "int4", "uint8", "int8"])
def test_it_is_fused(kind, points):
    model = quantized(kind, points)
    (expected,) = open_session(model, device="cpu").run(None, BATCH)
    assert fuse_matmul_n_bits(model).changed
    assert ops(model) == {"MatMulNBits": 1}
    onnx.checker.check_model(ir.to_proto(model))
    if kind.endswith("4") or RUNS_8_BITS:
        np.testing.assert_allclose(run(model, BATCH)["y"], expected, rtol=1e-5, atol=1e-5)
    assert not fuse_matmul_n_bits(model).changed


@pytest.mark.parametrize(
    "case",
    [
        {"axis": 1},
        {"block": 8},
        {"block": 24},
        {"body": "n = Neg(d) m = MatMul(x, d) k = MatMul(x, n) y = Add(m, k)"},
        {"body": "y = MatMul(d, x)", "outer": 3},
    ],
)
def test_other_forms_are_left_alone(case):
    assert not fuse_matmul_n_bits(quantized(**case)).changed


@pytest.mark.parametrize("name", ["s", "z"])
def test_scales_and_zero_points_of_another_size_are_left_alone(name):
    model = quantized()
    value = model.graph.initializers[name]
    value.const_value = ir.tensor(value.const_value.numpy()[:2], dtype=value.dtype, name=name)
    value.shape = ir.Shape(value.const_value.shape)
    assert not fuse_matmul_n_bits(model).changed


def test_sessions_of_ours_do_not_round_activations():
    """onnxruntime fuses the file, too, and by default computes with activations of 8 bits."""
    model = quantized(outer=64)
    (found,) = open_session(model, device="cpu").run(None, BATCH)
    values = {name: v.const_value.numpy() for name, v in model.graph.initializers.items()}
    q, scale, zero = (values[key].astype(np.float64) for key in "wsz")
    full = [np.repeat(array, 16, 0)[:40] for array in (scale, zero)]
    np.testing.assert_allclose(found, BATCH["x"] @ ((q - full[1]) * full[0]), rtol=1e-4, atol=1e-4)
