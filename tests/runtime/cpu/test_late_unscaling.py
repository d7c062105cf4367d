import numpy as np
import pytest

from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.cpu import late_unscaling as module
from tests.autodiff.oracle import graph
from tests.support import model_path, run

STEP = """g (float[4,8] G, float u, float[4,8] w) => (float zero, float[4,8] next) {
    g = Mul(G, u) s = ReduceSumSquare<keepdims = 0>(g)
    k = Constant<value = float {16.0}>() o = Constant<value = float {0.0}>()
    t = Mul(s, k) zero = Mul(t, o) finite = Equal(zero, o)
    next = If(finite) <
      then_branch = yes () => (float[4,8] moved) { moved = Sub(w, g) },
      else_branch = no () => (float[4,8] kept) { kept = Identity(w) }> }"""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(module, "_LARGE", 32)


def spread(value, other=1.0):
    return np.where(np.arange(32) == 7, value, other)


@pytest.mark.parametrize(
    ("gradient", "scale", "finite"),
    [
        (np.linspace(-1, 1, 32), 0.5, True),
        (spread(np.inf), 0.5, False),
        (spread(np.nan), 0.5, False),
        (spread(-np.inf), 0.0, False),
        (np.full(32, 3e38), 1e-25, True),  # the squares overflow, those of g do not
        (np.full(32, 3e38), 1e-10, False),
        (spread(np.nan, 3e38), 1e-25, False),
        (np.full(32, 1e18), 1.0, False),  # 16 * 32e36 is beyond float32
        (np.full(32, 7e17), 1.0, True),  # near the bound: the exact form decides
        (np.full(32, 1e-30), 1e25, True),
        (np.full(32, 1e-5), 1e25, False),
    ],
)
def test_the_same_decision_and_the_same_bits(gradient, scale, finite):
    model = graph(STEP)
    changed = model.clone()
    assert module.late_unscaling(changed)
    assert not module.late_unscaling(changed)
    feeds = {
        "G": gradient.reshape(4, 8).astype(np.float32),
        "u": np.asarray(scale, np.float32),
        "w": np.ones((4, 8), np.float32),
    }
    expected, found = run(model, feeds), run(changed, feeds)
    assert (expected["zero"] == 0) == (found["zero"] == 0) == finite
    np.testing.assert_array_equal(found["next"], expected["next"])


def test_the_product_is_made_in_the_branch_only():
    model = graph(STEP)
    module.late_unscaling(model)
    gate = next(node for node in model.graph if node.outputs[0].name == "next")
    branch = gate.attributes["then_branch"].as_graph()
    assert [node.op_type for node in branch] == ["Mul", "Sub"]
    assert {
        n.op_type for n in model.graph.all_nodes() for v in n.inputs if v and v.name == "g"
    } <= {
        "ReduceSumSquare"  # the old check, which nothing reads any more
    }


@pytest.mark.parametrize(
    "text",
    [
        STEP.replace("[4,8]", "[4,7]"),
        STEP.replace("float[4,8] G", "float[N,8] G"),
        STEP.replace("float u", "float[8] u"),
        STEP.replace("{0.0}", "{1.0}"),
        STEP.replace("moved = Sub(w, g)", "moved = Sub(w, w)").replace("o = C", "h = Neg(g) o = C"),
    ],
    ids=["small", "symbolic", "no scalar", "no zero", "read elsewhere"],
)
def test_other_checks_are_left_alone(text):
    assert not module.late_unscaling(graph(text))


def test_the_steps_that_ortboost_makes_have_this_form(monkeypatch):
    """The two are written apart: a change of the step must not lose the form."""
    monkeypatch.setattr(module, "_LARGE", 8193)
    program = build_program(model_path("lenet5"), ProgramConfig(engine="portable"))
    assert module.late_unscaling(program.step.clone())
