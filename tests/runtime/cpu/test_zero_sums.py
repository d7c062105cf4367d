import numpy as np
import pytest

from ortboost.runtime.cpu import zero_sums
from tests.autodiff.oracle import graph
from tests.support import run

CHECK = """g (float[4,8] x) => (float zero) {
    k = Constant<value = float {0.0}>() p = Mul(x, k) zero = ReduceSum<keepdims = 0>(p) }"""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(zero_sums, "_LARGE", 32)


def numbers(**places):
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    for place, value in places.items():
        x.flat[int(place[1:])] = value
    return x


CASES = {
    "finite": (numbers(), True),
    "inf": (numbers(_5=np.inf), False),
    "nan": (numbers(_31=np.nan), False),
    "inf and -inf": (numbers(_0=np.inf, _9=-np.inf), False),
    "a sum that overflows": (np.full((4, 8), 3e38, np.float32), True),
    "such a sum, and inf": (np.where(np.arange(32) == 7, np.inf, 3e38), False),
    "such a sum, and nan": (np.where(np.arange(32) == 7, np.nan, -3e38), False),
}


@pytest.mark.parametrize("name", CASES)
def test_the_check_stays_exact(name):
    x, finite = CASES[name]
    model = graph(CHECK)
    changed = model.clone()
    assert zero_sums.plain_sums(changed)
    assert not zero_sums.plain_sums(changed)
    for form in (model, changed):
        (zero,) = run(form, {"x": x.reshape(4, 8).astype(np.float32)}).values()
        assert (zero == 0) == finite


@pytest.mark.parametrize(
    "text",
    [
        CHECK.replace("[4,8]", "[4,7]"),
        CHECK.replace("[4,8]", "[N,8]"),
        CHECK.replace("{0.0}", "{1.0}"),
        CHECK.replace("keepdims = 0", "keepdims = 1").replace("(float zero)", "(float[1,1] zero)"),
    ],
    ids=["small", "symbolic", "no zero", "kept axes"],
)
def test_other_sums_are_left_alone(text):
    assert not zero_sums.plain_sums(graph(text))
