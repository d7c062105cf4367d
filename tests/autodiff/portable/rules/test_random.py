"""Dropout: its gradient uses the mask of the same run, and a seed reproduces it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.oracle import graph
from tests.support import ENGINES, run, session


def make(ratio: str = "0.25", training: str = "1", outputs: str = "y") -> ir.Model:
    return graph(f"""g (float[N,50] x) => (float loss, float[N,50] y) {{
        r = Constant<value = float {{{ratio}}}>() t = Constant<value = bool {{{training}}}>()
        {outputs} = Dropout(x, r, t) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}""")


X = np.random.default_rng(0).uniform(1, 2, (4, 50)).astype(np.float32)


@pytest.mark.parametrize("outputs", ["y", "y, m"])
def test_mask_of_the_same_run(outputs):
    model = make(outputs=outputs)
    found = run(differentiate(model, "loss", ["x"], "portable"), {"x": X})
    scale = np.float32(1 / 0.75)
    kept = found["y"] != 0
    assert 0.6 < kept.mean() < 0.9
    np.testing.assert_allclose(found["y"], np.where(kept, X * scale, 0), rtol=1e-6)
    np.testing.assert_allclose(found["x_grad"], 2 * found["y"] * scale * kept, rtol=1e-6)


def test_a_seed_repeats_the_masks_of_a_run_of_steps():
    result = differentiate(make(), "loss", ["x"], "portable")
    runs = []
    for _ in range(2):
        opened = session(result)
        onnxruntime.set_seed(11)
        runs.append([opened.run(["x_grad"], {"x": X})[0] for _ in range(3)])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0][0] != runs[0][1]).any()


@pytest.mark.parametrize(("ratio", "training"), [("0.5", "0"), ("0.0", "1")])
def test_off(ratio, training):
    found = run(differentiate(make(ratio, training), "loss", ["x"], "portable"), {"x": X})
    np.testing.assert_allclose(found["x_grad"], 2 * X, rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_mode_and_ratio_computed_in_the_graph(engine):
    model = graph("""g (float[N,50] x, float r, bool t) => (float loss, float[N,50] y) {
        y = Dropout(x, r, t) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }""")
    result = differentiate(model, "loss", ["x"], engine)
    for ratio, training in ((0.5, True), (0.5, False), (0.25, True)):
        feeds = {"x": X, "r": np.array(ratio, np.float32), "t": np.array(training)}
        found = run(result, feeds)
        scale = 1 / (1 - ratio) if training else 1.0
        np.testing.assert_allclose(found["x_grad"], 2 * found["y"] * scale, rtol=1e-6)


def test_a_ratio_of_one_is_refused():
    (node,) = [node for node in make("1.0").graph if node.op_type == "Dropout"]
    assert "not in [0, 1)" in (get_engine("portable").gradient_support(node) or "")


def test_a_ratio_of_one_element_is_refused():
    model = graph("""g (float[N,50] x) => (float[N,50] y) {
        r = Constant<value_floats = [0.5]>() y = Dropout(x, r) }""")
    (node,) = [node for node in model.graph if node.op_type == "Dropout"]
    assert get_engine("portable").gradient_support(node) == "its ratio is not a scalar"
