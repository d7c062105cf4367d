from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.core.errors import ModelError
from ortboost.core.loss_scale import DynamicScaleConfig, FixedScaleConfig
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime import stepper as stepper_module
from ortboost.runtime.diagnosis import inner_tensors
from ortboost.runtime.findings import TensorStats
from tests.support import (
    ENGINES,
    assert_same_bits,
    batch_for,
    small_convnet,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.1}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def program_of(model, engine, **fields):
    return build_program(model, ProgramConfig(engine=engine, **fields))


@pytest.fixture(scope="module", params=ENGINES)
def training(request):
    return stepper(program_of(small_convnet(), request.param, loss_scale=FixedScaleConfig(8.0)))


# ---- statistics ----------------------------------------------------------------------------------


def test_statistics_by_hand():
    array = np.array([[1, -3, 0.5], [np.inf, -np.inf, np.nan]], np.float16)
    assert TensorStats.of("x", array) == TensorStats(
        "x", "float16", (2, 3), -3.0, 1.0, 3.0, 2 / 6, 1 / 6, 65504.0
    )
    nothing = TensorStats.of("x", np.array([np.nan], np.float32))
    assert (nothing.least, nothing.greatest, nothing.abs_max) == (None, None, None)
    assert not nothing.finite
    assert TensorStats.of("x", np.zeros((0, 3), np.float64)).finite
    wide = TensorStats.of("x", np.ones(2, np.float32), "bfloat16")
    assert wide.limit == float(ir.DataType.BFLOAT16.numpy().type(np.float32(3.3895314e38)))


def test_inner_tensors_of_every_float_type():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        m (float[2] x, bool c) => (float[2] y) {
          h = Cast<to = 10>(x)  b = Cast<to = 16>(x)  i = Cast<to = 7>(x)  d = Cast<to = 11>(x)
          y = If (c) < then_branch = t () => (float[2] u) { u = Neg(x) },
                       else_branch = e () => (float[2] v) { v = Abs(x) } >
        }"""
    )
    for node, dtype in zip(
        list(model.graph), ("FLOAT16", "BFLOAT16", "INT64", "DOUBLE"), strict=False
    ):
        node.outputs[0].dtype = ir.DataType[dtype]
    feeds = {"x": np.array([1.0, 70000.0], np.float32), "c": np.array(True)}
    found = inner_tensors(model, feeds, device="cpu", threads=1)
    assert {name: array.dtype.name for name, array in found.items()} == {
        "h": "float16",
        "b": "float32",  # bfloat16, which numpy does not support
        "d": "float64",
    }
    assert found["h"][1] == np.inf
    assert found["b"][1] == 70144.0  # eight bits of mantissa
    assert [v.name for v in model.graph.outputs] == ["y"]


# ---- findings ------------------------------------------------------------------------------------


def test_a_good_step_has_no_findings(training):
    found = training.diagnose(batch_for(training.program), RATE)
    assert found.findings == ()
    assert found.nonfinite == 0
    assert found.tensors > 20
    assert found.loss_scale == 8.0
    assert str(found) == "all tensors are finite when the step is run again"


def test_bad_data_are_the_first_finding_and_the_state_stays(training):
    feeds = batch_for(training.program)
    feeds["x"][1, 0, 2, 2] = np.nan
    before = training.state()
    found = training.diagnose(feeds, RATE)
    assert_same_bits(training.state(), before)
    first = found.findings[0]
    assert (first.where, first.tensor.name, first.op) == ("input", "x", "")
    assert first.tensor.nan == 1 / feeds["x"].size
    assert all(f.where != "forward" for f in found.findings)  # it is propagated, not caused
    assert found.nonfinite > 10


def test_a_bad_weight_is_the_first_finding(training):
    value = training.get("fw")
    try:
        training.set("fw", np.where(np.arange(12).reshape(3, 4) == 0, np.inf, value))
        found = training.diagnose(batch_for(training.program), RATE)
    finally:
        training.set("fw", value)
    assert (found.findings[0].where, found.findings[0].tensor.name) == ("state", "fw")
    # The loss makes nan of logits with inf: that is a finding of its own.
    made = found.findings[1]
    assert made.where == "forward"
    assert made.tensor.nan > 0
    assert any(stats.inf for stats in made.inputs)
    assert "not finite already in 'logits'" in str(made)


def test_an_overflow_of_the_forward_pass(training):
    feeds = batch_for(training.program)
    feeds["x"] *= np.float32(1e38)
    weight = training.get("cw")
    try:
        training.set("cw", weight * 100)
        found = training.diagnose(feeds, RATE)
    finally:
        training.set("cw", weight)
    first = found.findings[0]
    assert (first.where, first.node, first.op, first.tensor.name) == (
        "forward",
        "conv",
        "Conv",
        "c",
    )
    assert first.tensor.inf > 0
    assert first.parameters == ("cw",)
    stats = {s.name: s for s in first.inputs}
    assert stats["x"].abs_max == pytest.approx(float(np.abs(feeds["x"]).max()))
    assert stats["cw"].finite
    assert first.tensor.limit == float(np.finfo(np.float32).max)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["findings"][0]["tensor"]["name"] == "c"
    assert data["text"] == str(found)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_overflow_of_the_backward_pass_with_the_scale_that_the_step_had(engine):
    config = DynamicScaleConfig(init_scale=3e38, max_scale=None)
    program = program_of(small_convnet(), engine, loss_scale=config)
    value = program.initial["fw"] * 10
    feeds = batch_for(program)
    watched, other = (stepper(program) for _ in range(2))
    watched.watch()
    for each in (watched, other):
        each.set("fw", value)
        result = each.step(feeds, RATE)
        assert result.overflow
        assert result.loss_scale == pytest.approx(1.5e38)
    found = watched.diagnose(feeds, RATE)
    assert found.loss_scale == pytest.approx(3e38)
    assert found.findings
    assert {f.where for f in found.findings} == {"backward"}
    assert found.findings[0].tensor.inf > 0
    assert found.findings[0].inputs
    assert other.diagnose(feeds, RATE).loss_scale == pytest.approx(1.5e38)
    assert watched.get("ortboost/loss_scale") == np.float32(result.loss_scale)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_infinity_that_a_softmax_takes_up_is_no_finding(engine):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4] mask, float[4,4] w, float[3,4] v)
        => (float[batch,3] logits) {
          [scores] s = MatMul(x, w)
          [masked] m = Add(s, mask)
          [soft] p = Softmax(m)
          [exp] e = Exp(p)
          [out] logits = Gemm<transB = 1>(e, v)
        }""",
        mask=np.array([0, -np.inf, 0, -np.inf], np.float32),
        w=weights(4, 4),
        v=weights(3, 4),
    )
    training = stepper(program_of(model, engine, loss_scale=FixedScaleConfig(1.0)))
    feeds = batch_for(training.program)
    assert not training.step(feeds, RATE).overflow
    found = training.diagnose(feeds, RATE)
    assert found.nonfinite > 0
    assert found.findings == ()
    assert "none of them feeds a gradient" in str(found)
    training.set("v", np.full((3, 4), 3e38, np.float32))
    found = training.diagnose(feeds, RATE)
    assert found.findings[0].node == "out"
    assert "mask" not in {f.tensor.name for f in found.findings}
    assert "m" not in {f.tensor.name for f in found.findings}


def test_a_runtime_that_refuses_is_an_error_with_a_cure(training, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("bad allocation\nmore")

    monkeypatch.setattr(stepper_module, "diagnose", fail)
    with pytest.raises(ModelError, match="intermediate tensors") as caught:
        training.diagnose(batch_for(training.program), RATE)
    assert caught.value.where == "bad allocation"
