import numpy as np
import onnx_ir as ir
import pytest

from ortboost.runtime.cpu import dot_products
from tests.autodiff.oracle import graph, random_feeds
from tests.runtime.cpu.forms import assert_same, operators


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(dot_products, "_POSITIONS", 12)


def reduction(
    shape="N,3,4,5", axes="0, 2, 3", op="ReduceSum", keepdims=0, other="", inner="", more=""
):
    return graph(
        f"""g (float[{shape}] x, float[{other or shape}] z, float[1] w) => (float[R] y
                {more and f", float[{shape}] p"}) {{
        k = Constant<value_ints = [{axes}]>() {inner or "p = Mul(x, z)"}
        r = {op}<keepdims = {keepdims}>(p, k) t = Add(r, w)
        l = Constant<value_ints = [-1]>() y = Reshape(t, l) }}"""
    )


FIRES = {
    "all but channels": {},
    "last axes": {"axes": "2, 3"},
    "negative axes": {"axes": "-1, -2"},
    "unordered axes": {"axes": "3, 0, 2"},
    "rows of unknown number": {"shape": "N,S,12", "axes": "-1"},
    "squares": {"inner": "p = Mul(x, x)"},
    "everything": {"shape": "2,3,4", "axes": "0, 1, 2"},
    "a vector": {"shape": "12", "axes": "0"},
}


@pytest.mark.parametrize("name", FIRES)
def test_the_same_numbers(name):
    model = reduction(**FIRES[name])
    changed = assert_same(
        model,
        dot_products.dot_products,
        random_feeds(model, N=3, S=2),
        random_feeds(model, N=1, S=1),
    )
    assert "Mul" not in operators(changed)
    assert "FusedMatMul" in operators(changed)


KEPT = {
    "few positions": {"shape": "N,30,11", "axes": "0, 2"},
    "not the last axis": {"axes": "0, 2"},
    "broadcast": {"other": "1,3,4,5"},
    "a vector is broadcast": {"other": "5"},
    "unknown positions": {"shape": "N,3,H,5"},
    "kept axes": {"keepdims": 1},
    "a mean": {"op": "ReduceMean"},
    "another maximum": {"op": "ReduceMax"},
    "the product is read": {"more": "p"},
    "a sum": {"inner": "p = Add(x, z)"},
}


@pytest.mark.parametrize("name", KEPT)
def test_what_does_not_fit_is_left_alone(name):
    model = reduction(**KEPT[name])
    before = operators(model)
    assert not dot_products.dot_products(model)
    assert operators(model) == before


def test_unknown_lengths_may_be_broadcast():
    model = reduction()
    for value in model.graph.inputs[:2]:
        value.shape = ir.Shape([None, *value.shape[1:]])
    feeds = random_feeds(model)
    feeds["z"] = feeds["z"][:1]
    assert_same(model, dot_products.dot_products, feeds)


def test_an_empty_batch_has_the_sum_0():
    model = reduction()
    feeds = {name: np.zeros((0, 3, 4, 5), np.float32) for name in ("x", "z")}
    feeds["w"] = np.ones(1, np.float32)
    assert_same(model, dot_products.dot_products, feeds)
