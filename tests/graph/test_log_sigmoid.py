from __future__ import annotations

import numpy as np
import pytest

from ortboost.graph.log_sigmoid import write_out_log_sigmoids
from ortboost.graph.query import count_operators
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.attach_loss import LossConfig
from tests.support import ENGINES, text_model

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[N,1] x, float[1,1] w) => (float loss, float[N,1] s) {
      h = MatMul(x, w) s = Sigmoid(h) l = Log(s) m = ReduceMean<keepdims = 0>(l) loss = Neg(m) }"""


def test_other_readers_keep_the_sigmoid():
    model = text_model(TEXT, w=np.ones((1, 1), np.float32))
    assert list(write_out_log_sigmoids(model).changed.values()) == ["Log: softplus of a sigmoid"]
    assert {"Log", "Sigmoid", "Softplus"} & set(count_operators(model)) == {"Sigmoid", "Softplus"}
    assert not write_out_log_sigmoids(model).modified


@pytest.mark.parametrize("engine", ENGINES)
def test_large_arguments_have_a_finite_loss_and_a_gradient(engine):
    """``logsigmoid`` of SigLIP; onnxruntime's Sigmoid is 0 at -18 already."""
    model = text_model(TEXT, w=np.ones((1, 1), np.float32))
    loss = LossConfig("output", output="loss")
    program = build_program(model, ProgramConfig(loss=loss, engine=engine, learning_rate="1"))
    stepper = Stepper(program)
    x = np.float32([[-40], [-16], [3]])
    result = stepper.step({"x": x}, {"learning_rate": 1.0})
    assert result.loss == pytest.approx(np.log1p(np.exp(-np.float64(x))).mean(), rel=1e-6)
    gradient = -(x / (1 + np.exp(np.float64(x)))).mean()
    assert stepper.get("w").item() == pytest.approx(1 - gradient, rel=1e-6)


@pytest.mark.parametrize(
    "other", ["Sub(two, s)", "Add(n, two)", "Add(s, one)", "Sub(x, s)", "Sub(s, one)", "Add(n, x)"]
)
def test_another_sum_with_a_sigmoid_is_no_complement(other):
    model = text_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1] x) => (float[N,1] y) <float one = {{1.0}}, float two = {{2.0}}> {{
        s = Sigmoid(x) n = Neg(s) r = {other} y = Log(r) }}""")
    assert not write_out_log_sigmoids(model).modified


@pytest.mark.parametrize(("rank", "rewritten"), [(0, False), (1, True)])
def test_a_one_with_an_axis_of_its_own(rank, rewritten):
    """The result keeps the shape [1], which a number does not have."""
    model = text_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[{"3" * rank}] x) => (float[q] y) <float[1] one = {{1.0}}> {{
        s = Sigmoid(x) r = Sub(one, s) y = Log(r) }}""")
    infer_shapes(model)
    assert write_out_log_sigmoids(model).modified == rewritten


@pytest.mark.parametrize("complement", ["r = Sub(one, s)", "n = Neg(s) r = Add(n, one)"])
def test_cross_entropy_with_logits_of_a_confident_positive(complement):
    """As torch's exporters write it: ``0 * log(1 - 1)`` would be NaN."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1] x, float[N,1] y, float[1,1] w) => (float loss) <float one = {{1.0}}> {{
          h = MatMul(x, w) s = Sigmoid(h) l = Log(s) t = Mul(y, l) {complement} k = Log(r)
          q = Sub(one, y) u = Mul(q, k) a = Add(t, u) m = ReduceMean<keepdims = 0>(a)
          loss = Neg(m) }}""",
        w=np.ones((1, 1), np.float32),
    )
    loss = LossConfig("output", output="loss")
    program = build_program(model, ProgramConfig(loss=loss, learning_rate="1"))
    x, y = np.float32([[40], [-40], [3]]), np.float32([[1], [0], [0.25]])
    stepper = Stepper(program)
    result = stepper.step({"x": x, "y": y}, {"learning_rate": 1.0})
    assert result.loss == pytest.approx((np.logaddexp(0, x) - y * x).mean(), rel=1e-6)
    gradient = ((1 / (1 + np.exp(-np.float64(x))) - y) * x).mean()
    assert stepper.get("w").item() == pytest.approx(1 - gradient, rel=1e-6)
