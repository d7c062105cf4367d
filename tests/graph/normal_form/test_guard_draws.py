"""Draws of Bernoulli have the right chance, and stay apart in any session."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.graph.io import load_model
from ortboost.graph.normal_form.guard_draws import guard_draws
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.graph.normal_form.test_guard_dropouts import plainly
from tests.support import ENGINES, batch_for, text_model, weights

TWO = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n] x) => (float[n] a, float[n] b) {
      p = Abs(x)  [one] c = Bernoulli(p)  [two] d = Bernoulli(p)  a = Neg(c)  b = Neg(d) }"""
CHANCE = np.full(1000, 0.25, np.float32)


def test_two_draws_are_two():
    model = ir.from_onnx_text(TWO)
    one, other = plainly(model, {"x": CHANCE})
    assert (one == other).all()  # else the guard is not needed any more
    assert list(guard_draws(model).changed) == ["one", "two"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert not guard_draws(model).changed
    one, other = plainly(model, {"x": CHANCE})
    assert (one != other).any()
    for drawn in (one, other):
        assert {*drawn} == {0.0, -1.0}
        assert -drawn.mean() == pytest.approx(0.25, abs=0.06)


def test_it_draws_as_often_as_asked():
    model = ir.from_onnx_text(TWO.replace("(p)", "<seed = 3.0>(p)"))
    inverted = plainly(model, {"x": CHANCE})
    assert -np.mean(inverted) == pytest.approx(0.75, abs=0.06)  # else the guard is not needed
    assert guard_draws(model).changed
    one, other = plainly(model, {"x": CHANCE})
    assert -one.mean() == pytest.approx(0.25, abs=0.06)
    np.testing.assert_array_equal(one, other)  # of one seed


def test_in_a_branch_and_of_another_type():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[n] x, bool c) => (int32[n] y) {
          h = Cast<to = 10>(x)
          y = If(c) <then_branch = yes () => (int32[n] t) { t = Bernoulli<dtype = 6>(h) },
                     else_branch = no () => (int32[n] e) { e = Cast<to = 6>(h) }> }""")
    assert guard_draws(model).changed
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    (found,) = plainly(model, {"x": CHANCE, "c": np.array(True)})
    assert found.dtype == np.int32
    assert {*found} == {0, 1}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_draws_twice_in_a_session_of_ones_own(engine):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,8] x, float[8,3] w) => (float[batch,3] logits) {
          half = Constant<value_float = 0.5>()  sizes = Shape(x)  p = Expand(half, sizes)
          a = Bernoulli(p)  b = Bernoulli(p)  c = Sub(a, b)  d = Mul(c, x)
          logits = MatMul(d, w) }""",
        w=weights(8, 3),
    )
    program = build_program(model, ProgramConfig(engine=engine))
    step = load_model(ir.to_proto(program.step))
    feeds = {**batch_for(program, 16), "learning_rate": np.array(0.0, np.float32)}
    feeds |= {entry.name: program.initial[entry.name] for entry in program.catalogue.state}
    assert abs(float(plainly(step, feeds)[0]) - np.log(3)) > 1e-3  # if a is b, logits are 0
