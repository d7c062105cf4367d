"""The rules of users: called whatever came before, in the place of what is built in, or refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.check import check_trainable
from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.autodiff.native.engine import NativeEngine
from ortboost.autodiff.portable import registry
from ortboost.autodiff.portable.registry import register_gradient
from ortboost.core.errors import ModelError, UsageError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.autodiff.oracle import graph
from tests.support import run, stepper

STEP = "g (float[2] w) => (float loss) { y = Round(w) loss = ReduceSum<keepdims = 0>(y) }"
ONCE = "y = my.domain.SquareTimes(x, w)"
LOOP = """two = Constant<value_int = 2>() l = Loop<body = step (int64 i, bool c, float[N,3] s)
    => (bool go, float[N,3] t) { go = Identity(c) t = my.domain.SquareTimes(s, w) }>(two, "", x)
    ones = Constant<value = float[3,1] {1, 1, 1}>() y = MatMul(l, ones)"""
SQUARE = """<ir_version: 9, opset_import: ["" : %d, "my.domain" : 1]>
    g (float[N,3] x) => (float loss) <float[3] w = {1, 2, 3}> {
        %s loss = ReduceSum<keepdims = 0>(y) }
    <domain: "my.domain", opset_import: ["" : %d]>
    SquareTimes (x, w) => (y) { q = Mul(x, x) y = Mul(q, w) }"""


@pytest.fixture(autouse=True)
def _no_rules_left():
    yield
    registry._OWN.clear()


def tripled(b):
    """Three times the gradient of the second factor: not that of the body."""
    x, w, g = b.input(0), b.input(1), b.gradient()
    product = b.op("Mul", g, b.op("Mul", b.op("Mul", x, x), b.const(3.0)))
    return [None, b.sum_to_shape(product, w)]


def straight_through(b):
    return [b.gradient()]


@pytest.mark.parametrize("body", [ONCE, LOOP])
def test_a_function_with_a_rule_is_differentiated_as_a_whole(body):
    config = ProgramConfig(
        engine="portable", loss=LossConfig("output"), optimizer=Sgd(), loss_scale=NO_SCALE
    )
    register_gradient("SquareTimes", domain="my.domain")(tripled)
    program = build_program(ir.to_proto(ir.from_onnx_text(SQUARE % (18, body, 18))), config)
    for model in (program.step, program.evaluation):
        assert not model.functions
    training = stepper(program)
    x, w = np.float32([[1, -1, 0.5], [2, 1, 1]]), training.get("w")
    training.step({"x": x}, {"learning_rate": 0.5})
    last = x if body == ONCE else x**2 * w  # the rule lets no gradient pass to the step before
    expected = w - 0.5 * 3 * (last**2).sum(axis=0)
    np.testing.assert_allclose(training.get("w"), expected, rtol=1e-6)


def test_a_function_with_a_rule_that_would_be_converted_is_refused():
    register_gradient("SquareTimes", domain="my.domain")(tripled)
    with pytest.raises(ModelError, match="SquareTimes with a gradient rule") as error:
        build_program(ir.to_proto(ir.from_onnx_text(SQUARE % (17, ONCE, 17))), ProgramConfig())
    assert "opset 17, the function 17" in error.value.where


def test_a_function_without_a_rule_is_refused():
    node = next(iter(ir.from_onnx_text(SQUARE % (18, ONCE, 18)).graph))
    assert get_engine("portable").gradient_support(node) == (
        "my.domain::SquareTimes has no gradient rule; register one, or export without it"
    )


def test_the_native_engine_does_not_ignore_a_rule():
    register_gradient("Relu", replace=True)(straight_through)
    model = graph("g (float[2] w) => (float loss) { y = Relu(w) loss = ReduceSum(y) }")
    (blocker,) = check_trainable(model, wrt=["w"], engine=NativeEngine()).blockers
    assert "the native engine ignores the gradient rule" in blocker.reason


def test_a_rule_of_which_no_operator_is_left_is_noted():
    register_gradient("LSTM", replace=True)(straight_through)
    model = graph("""g (float[5,N,3] x, float[1,16,3] w, float[1,16,4] r) => (float[5,1,N,4] y) {
        y = LSTM<hidden_size = 4>(x, w, r) }""")
    (report,) = (r for r in get_engine("portable").prepare(model) if r.notes)
    assert "rule registered for LSTM is not used" in report.notes[0]


def test_a_rule_for_a_step_and_one_in_the_place_of_another():
    model, feeds = graph(STEP), {"w": np.float32([0.4, 1.6])}
    register_gradient("Round")(straight_through)
    found = run(differentiate(model, "loss", ["w"], "portable"), feeds)
    np.testing.assert_array_equal(found["w_grad"], [1, 1])
    with pytest.raises(UsageError, match="already") as error:
        register_gradient("Round")(straight_through)
    assert "replace=True" in error.value.fix
    register_gradient("ai.onnx", "Round", domain="ai.onnx", replace=True)(
        lambda b: [b.op("Neg", b.gradient())]
    )
    found = run(differentiate(model, "loss", ["w"], "portable"), feeds)
    np.testing.assert_array_equal(found["w_grad"], [-1, -1])


def test_no_gradient_comes_to_a_rule_for_a_comparison():
    with pytest.raises(UsageError, match="Greater would never be called"):
        register_gradient("Greater")(straight_through)
    with pytest.raises(UsageError, match="by name"):
        register_gradient(straight_through)


def test_the_condition_of_a_built_in_rule_goes_with_it():
    node = ir.node("GatherND", [ir.Value(name="x"), ir.Value(name="i")])
    assert registry.conditions(node) is not None
    register_gradient("GatherND", replace=True)(straight_through)
    assert get_engine("portable").gradient_support(node) is None


def test_two_built_in_rules_for_one_operator_are_refused():
    with pytest.raises(UsageError, match="two built-in gradient rules for Relu"):
        registry.register("Relu")(straight_through)


SCRIPT = """
import importlib, ortboost as ob
from ortboost.autodiff.portable import registry

def fail(name, load=importlib.import_module):
    if name.endswith("rules.pooling"):
        raise ImportError(name)
    return load(name)

working, importlib.import_module = importlib.import_module, fail
for _ in range(2):  # neither the first nor the second use goes on with half of the rules
    try:
        registry.rules()
        raise SystemExit("half a table")
    except ImportError:
        pass
importlib.import_module = working
mine = ob.register_gradient("Relu", replace=True)(lambda b: [b.gradient()])
print(registry.rules()["", "Relu"] is mine, ("", "MaxPool") in registry.rules())
"""


def test_rules_load_once_they_can_and_never_displace_those_of_users():
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["True", "True"]
