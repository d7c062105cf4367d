import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.runtime.cpu.masks import steep_masks
from tests.autodiff.oracle import graph
from tests.runtime.cpu.forms import assert_same, operators
from tests.support import run

MASK = """g (float[N, 6] x, float[N, 6] g) => (float[N, 6] d) {{
    zero = Constant<value = float {{{bound}}}>() y = Relu(x) on = Greater({left})
    m = Cast<to = {to}>(on) f = CastLike(m, g) d = Mul(g, f) }}"""


def model(bound="0", left="y, zero", to=1):
    return graph(MASK.format(bound=bound, left=left, to=to))


def test_a_mask_is_one_hard_sigmoid():
    values = np.array([[-np.inf, -1.0, -1e-38, 0.0, 1e-38, np.inf]], np.float32)
    feeds = {
        "x": np.vstack([values, values[:, ::-1]]),
        "g": np.full((2, 6), 3.0, np.float32),
    }
    changed = assert_same(model(), steep_masks, feeds, tolerance=0.0)
    assert "Greater" not in operators(changed)
    assert "HardSigmoid" in operators(changed)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)


def test_at_the_kink_the_slope_is_between_those_beside_it():
    changed = model()
    assert steep_masks(changed)
    tiny = np.full((1, 6), 1e-39, np.float32)
    (found,) = run(changed, {"x": tiny, "g": np.ones((1, 6), np.float32)}).values()
    assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize(
    "more", [{"bound": "0.5"}, {"left": "zero, y"}, {"left": "x, zero"}, {"to": 11}]
)
def test_other_comparisons_are_left_alone(more):
    kept = model(**more)
    before = operators(kept)
    assert not steep_masks(kept)
    assert operators(kept) == before
