import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.cpu.scalars import full_rank_scalars
from tests.autodiff.oracle import graph, random_feeds
from tests.runtime.cpu.forms import assert_same
from tests.support import run, shipped_program


def shapes(model):
    """Of the inputs of all products, in the order of the graph."""
    return [
        [None if v.shape is None else tuple(v.shape) for v in node.inputs]
        for node in model.graph.all_nodes()
        if node.op_type == "Mul"
    ]


def inferred(text):
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(graph(text))))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("tensor", "scalar"),
    [("N,5,1,1", "float"), ("N,5,1,1", "float[1,1]"), ("6,1,4", "float[1]"), ("3,1", "float")],
)
def test_a_scalar_gets_the_rank_of_the_tensor(tensor, scalar, first):
    inputs = "s, x" if first else "x, s"
    model = graph(
        f"g (float[{tensor}] x, {scalar} s) => (float[{tensor}] y) {{ y = Sub({inputs}) }}"
    )
    feeds = [random_feeds(model, N=batch) for batch in (4, 0)]
    changed = assert_same(model, full_rank_scalars, *feeds, tolerance=0)
    assert [node.op_type for node in changed.graph] == ["Reshape", "Sub"]
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)


def test_a_scalar_of_a_loop_is_reshaped_in_the_loop():
    model = graph(
        """g (float[4,3,1,1] w, int64 n, float k) => (float[4,3,1,1] y) {
        on = Constant<value = bool {1}>()
        y, last = Loop(n, on, w, k) <body = b (int64 i, bool c, float[4,3,1,1] v, float q)
          => (bool c2, float[4,3,1,1] v2, float q2) {
            c2 = Identity(c) v2 = Mul(v, q) q2 = Add(q, q) }> }"""
    )
    feeds = {"w": random_feeds(model)["w"], "n": np.array(3), "k": np.array(0.5, np.float32)}
    changed = model.clone()
    assert full_rank_scalars(changed)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    np.testing.assert_array_equal(run(changed, feeds)["y"], run(model, feeds)["y"])


def test_a_constant_is_a_constant_of_that_rank():
    model = graph(
        "g (float[N,5,1,1] x) => (float[N,5,1,1] y) <float two = {2}> { z = Mul(x, two) y = Add(z, "
        "two) }"
    )
    fed = random_feeds(model, N=3)
    changed = model.clone()
    assert full_rank_scalars(changed)
    assert [node.op_type for node in changed.graph] == ["Mul", "Add"]
    assert [tuple(v.shape) for node in changed.graph for v in node.inputs[1:]] == [(1, 1, 1, 1)] * 2
    np.testing.assert_array_equal(run(changed, fed)["y"], run(model, fed)["y"])


def test_one_reshape_serves_all_and_branches_too():
    text = """g (bool c, float[4,3,1,1] w, float[4,3,1,1] v, float s) => (float[4,3,1,1] y)
    { r = Mul(s, s) a = Mul(w, r)
      y = If(c)<then_branch = t () => (float[4,3,1,1] u) {
                  b = Mul(v, r) d = Mul(b, r) u = Add(a, d) },
                else_branch = e () => (float[4,3,1,1] u) { u = Div(a, r) }> }"""
    model = inferred(text)
    fed = {"c": np.array(True), "s": np.array(1.5, np.float32)}
    fed |= {name: np.random.default_rng(0).random((4, 3, 1, 1), np.float32) for name in "wv"}
    changed = assert_same(model, full_rank_scalars, fed, {**fed, "c": np.array(False)}, tolerance=0)
    assert [node.op_type for node in changed.graph.all_nodes()].count("Reshape") == 1
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N,5,3,3] x, float s) => (float[N,5,3,3] y) { y = Mul(x, s) }",
        "g (float[1,5] x, float s) => (float[1,5] y) { y = Mul(x, s) }",
        "g (float[1,1] x, float s) => (float[1,1] y) { y = Mul(x, s) }",
        "g (float[4,5,1,1] x, float[1,1,1,1] s) => (float[4,5,1,1] y) { y = Mul(x, s) }",
        "g (float[4,5,1,1] x, float[5,1,1] s) => (float[4,5,1,1] y) { y = Mul(x, s) }",
        "g (float[4,5,1,1] x, float[K] s) => (float[4,5,1,P] y) { y = Mul(x, s) }",
    ],
)
def test_other_forms_are_left_alone(text):
    assert not full_rank_scalars(graph(text))


def test_the_update_of_pointwise_weights_has_no_slow_product():
    w, v = (", ".join(["0.1"] * size) for size in (32, 16))
    model = graph(
        f"g (float[N,4,6,6] x) => (float[N,2] y) <float[8,4,1,1] w = {{{w}}}, float[2,8] v = "
        f"{{{v}}}>"
        "{ h = Conv(x, w) r = Relu(h) p = GlobalAveragePool(r) f = Flatten(p) "
        "y = Gemm<transB=1>(f, v) }"
    )
    program = build_program(model, ProgramConfig(optimizer=Momentum(), weight_decay=0.1))
    changed = program.step.clone()
    assert full_rank_scalars(changed)
    touched = [pair for pair in shapes(changed) if (8, 4, 1, 1) in pair]
    assert len(touched) >= 3
    assert all(other in ((8, 4, 1, 1), (1, 1, 1, 1), None) for pair in touched for other in pair)


def test_a_network_without_columns_is_as_it_was():
    assert not full_rank_scalars(shipped_program("mlp").step.clone())
