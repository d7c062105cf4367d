from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost import api
from ortboost.core.errors import ParityError, UsageError
from ortboost.deploy.export import export_network
from ortboost.deploy.low_precision import LowPrecision
from ortboost.deploy.rewrites.clamp_infinite import clamp_infinite
from ortboost.deploy.targets import get_target
from ortboost.deploy.tolerance import tolerance_for
from ortboost.deploy.write_verified import write_verified
from ortboost.graph.io import save_model
from tests.support import (
    assert_three_lines,
    run,
    small_convnet,
    small_mlp,
    text_model,
    weights,
)

# ---- numbers that float16 does not have ----------------------------------------------------------


def test_infinities_are_clamped():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float16[4] x, float16[4] mask, float[4] wide, float16[4] fine)
        => (float16[4] y, float[4] z)
        { a = Add(x, mask) y = Add(a, fine) c = Cast<to = 1>(x) z = Add(c, wide) }""",
        mask=np.array([0, -np.inf, np.inf, np.nan], np.float16),
        wide=np.array([0, -np.inf, 1e38, 1], np.float32),
        fine=np.array([1, 2, 3, 65504], np.float16),
    )
    report = clamp_infinite(model)
    assert report.changed == {"mask": "2 infinite values became +-65504"}
    values = model.graph.initializers["mask"].const_value.numpy()
    np.testing.assert_array_equal(values, np.array([0, -65504, 65504, np.nan], np.float16))
    assert np.isinf(model.graph.initializers["wide"].const_value.numpy()).any()
    assert clamp_infinite(model).changed == {}


def test_int8_needs_data():
    with pytest.raises(UsageError, match="calibration") as info:
        export_network(small_mlp(), low_precision=LowPrecision("int8"))
    assert_three_lines(info.value)


# ---- shorter formats -----------------------------------------------------------------------------

SCORES = """<ir_version: 10, opset_import: ["" : 18]>
net (float[n,4] x, float[4,4] w, float[4] mask) => (float[n,4] y) {
  [fc] h = MatMul(x, w)  [masked] a = Add(h, mask)  y = Softmax(a)
}"""
# Between two products is a number beyond 65504; the constants themselves are not.
LARGE = """<ir_version: 10, opset_import: ["" : 18]>
net (float[n,4] x, float[4,4] w, float[4,4] v, float c) => (float[n,4] y) {
  [fc] h = MatMul(x, w)  [up] a = Mul(h, c)  [top] b = Mul(a, c)  [down] d = Div(b, c)
  [low] e = Div(d, c)  [fc2] y = MatMul(e, v)
}"""


def scores(lowest):
    return text_model(SCORES, w=weights(4, 4), mask=np.array([0, 0, lowest, 0], np.float32))


@pytest.mark.parametrize("lowest", [-np.inf, -1e38, -3.4028235e38])
def test_a_mask_in_float16(lowest, tmp_path):
    exported = export_network(scores(lowest), low_precision=LowPrecision("fp16"))
    stored = exported.model.graph.initializers.values()
    halves = [v for v in stored if v.dtype == ir.DataType.FLOAT16]
    assert "w" in {v.name for v in halves}
    assert all(np.isfinite(v.const_value.numpy()).all() for v in halves)
    x = {"x": weights(3, 4)}
    want, have = run(exported.base, x), run(exported.model, x)
    np.testing.assert_allclose(have["y"], want["y"], atol=5e-3)
    assert (have["y"][:, 2] == 0).all()
    assert {v.dtype for v in (*exported.model.graph.inputs, *exported.model.graph.outputs)} == {
        ir.DataType.FLOAT
    }


def test_inputs_and_outputs_in_float16(tmp_path):
    exported = export_network(small_mlp(), low_precision=LowPrecision("fp16", keep_io_types=False))
    assert exported.model.graph.inputs[0].dtype == ir.DataType.FLOAT16
    x = {"x": weights(3, 4)}
    parity = write_verified(
        exported, tmp_path / "o.onnx", expected=[run(exported.base, x)], feeds=[x],
        tolerance=tolerance_for("fp16"),
    )  # fmt: skip
    assert parity.ok
    assert 0 < parity.worst.max_rel < 1e-2


def test_what_was_measured_to_be_large_stays_in_float32(tmp_path):
    data, path = tmp_path / "x.npz", tmp_path / "net.onnx"
    np.savez(data, x=weights(8, 4, scale=1.0))
    large = text_model(LARGE, w=weights(4, 4), v=weights(4, 4, seed=1), c=np.float32(900))
    save_model(large, path)
    with pytest.raises(ParityError, match="the rewrite 'place_precision'"):
        api.export(path, tmp_path / "o.onnx", verify=data, precision="fp16", device="cpu")
    result = api.export(
        path, tmp_path / "o.onnx", verify=data, calibration=data, precision="fp16", device="cpu"
    )
    assert result.parity.ok
    placed = next(r for r in result.exported.reports if r.rewrite == "place_precision")
    assert {"fc", "fc2"} <= set(placed.changed)
    assert "top" in placed.kept


def test_bfloat16_lifts_the_opset():
    exported = export_network(
        small_convnet(), target=get_target("tensorrt=11"), low_precision=LowPrecision("bf16")
    )
    assert exported.model.opset_imports[""] == 22
    onnx.checker.check_model(ir.to_proto(exported.model), full_check=True)
    dtypes = {v.dtype for v in exported.model.graph.initializers.values()}
    assert ir.DataType.BFLOAT16 in dtypes
