"""What is mended in the graph that the native builder returns."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.autodiff.engine import differentiate
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import native_only, run

native_only()

LOSS = "q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q)"


@pytest.mark.parametrize(
    ("dims", "scattered"), [("N,2,H,5", True), ("N,C,4,5", True), ("N,2,4,5", False)]
)
def test_pools_of_unknown_size_are_scattered(dims, scattered):
    model = graph(
        f"""g (float[{dims}] x) => (float loss) {{ h = Exp(x)
        y = MaxPool<kernel_shape = [2, 2], strides = [1, 2]>(h) {LOSS} }}"""
    )
    result = differentiate(model, "loss", ["x"], "native")
    operators = {node.op_type for node in result.graph}
    assert ("ScatterElements" in operators, "MaxPoolGrad" in operators) == (
        scattered,
        not scattered,
    )
    feeds = random_feeds(model, N=2, C=2, H=4)
    feeds["x"].flat[0] = 2.0  # a maximum at the index 0
    assert_gradients(model, ["x"], feeds)
    for size in (0, 1):
        feeds = random_feeds(model, N=size, C=2, H=4)
        assert run(result, feeds)["x_grad"].shape == feeds["x"].shape


def test_a_window_of_nothing_but_nan_writes_nowhere_else():
    model = graph(
        f"""g (float[1,1,H,2] x) => (float loss) {{ h = Exp(x)
        y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(h) {LOSS} }}"""
    )
    x = np.array([[np.nan, np.nan], [np.nan, np.nan], [0, 1], [0, 0]], np.float32)
    found = run(differentiate(model, "loss", ["x"], "native"), {"x": x.reshape(1, 1, 4, 2)})
    assert not np.isfinite(found["loss"])
    np.testing.assert_array_equal(found["x_grad"][0, 0, 3], [0, 0])


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (1, 3), (3, 1), (3, 3), (0, 0)])
def test_sums_over_axes_that_are_known_at_run_time(first, second):
    """A length of 1 that is broadcast to 0 is summed, and a sum over no axes keeps its shape."""
    model = graph(
        f"""g (float[N,4] x, float[M,4] w) => (float loss) {{
        y = Mul(x, w) {LOSS} }}"""
    )
    feeds = random_feeds(model, N=first, M=second)
    if first and second:
        assert_gradients(model, ["x", "w"], feeds)
        return
    found = run(differentiate(model, "loss", ["x", "w"], "native"), feeds)
    for name in ("x", "w"):
        np.testing.assert_array_equal(found[f"{name}_grad"], np.zeros_like(feeds[name]))
