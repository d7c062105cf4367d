"""Decomposed DeformConv: values and gradients against the operator in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.autodiff.check import check_trainable
from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.numeric import evaluate
from tests.autodiff.oracle import graph
from tests.support import ENGINES, run

# Attributes, shapes of x and w, offset groups, and size of the output; the mask, if any.
FORMS = {
    "plain": ("group=1", (2, 2, 5, 4), (3, 2, 3, 3), 1, (3, 2), False),
    "mask": ("pads=[1,2,1,0], strides=[2,1]", (2, 2, 5, 4), (3, 2, 3, 2), 1, (3, 5), True),
    "groups": ("group=2, offset_group=2", (1, 4, 4, 3), (2, 2, 2, 2), 2, (3, 2), True),
    "dilations": ("dilations=[2,1], pads=[1,1,1,1]", (2, 1, 4, 5), (2, 1, 2, 3), 1, (4, 5), False),
}


def net(name: str, symbolic: bool):
    attributes, x, w, groups, out, masked = FORMS[name]
    points = groups * w[2] * w[3]
    shapes = {"x": x, "w": w, "o": (x[0], 2 * points, *out), "b": w[:1]}
    if masked:
        shapes["m"] = (x[0], points, *out)
    free = {"x": "N,{1},H,W", "o": "N,{1},P,Q", "m": "N,{1},P,Q"}
    inputs = ", ".join(
        f"float[{free[k].format(*v) if symbolic and k in free else ','.join(map(str, v))}] {k}"
        for k, v in shapes.items()
    )
    model = graph(
        f"""g ({inputs}) => (float loss, float[n,o,p,q] y) {{
        y = DeformConv<{attributes}>(x, w, o, b{", m" if masked else ""}) z = Mul(y, y)
        loss = ReduceSum<keepdims=0>(z) }}""",
        opset=19,
    )
    rng = np.random.default_rng(3)
    return model, {k: rng.normal(size=v).astype(np.float32) for k, v in shapes.items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients(name, symbolic, engine):
    model, feeds = net(name, symbolic)
    work, wrt, rng = model.clone(), list(feeds), np.random.default_rng(4)
    report = decompose(work, wrt=wrt, loss="loss", engine=get_engine(engine))
    assert not report.kept
    expected = evaluate(model, feeds, ["y"])[0]
    np.testing.assert_allclose(run(work, feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    found = run(differentiate(work, "loss", wrt, engine), feeds)
    for key, value in feeds.items():
        way = rng.normal(size=value.shape)
        sides = [{**feeds, key: value + np.float64(1e-5) * sign * way} for sign in (1, -1)]
        above, below = (float(evaluate(work, side, ["loss"])[0]) for side in sides)
        slope = np.sum(found[f"{key}_grad"] * way)
        assert slope == pytest.approx((above - below) / 2e-5, rel=1e-3, abs=1e-3), key


def test_three_spatial_axes_are_refused():
    model = graph(
        """g (float[1,1,3,3,3] x, float[1,1,2,2,2] w, float[1,24,2,2,2] o) => (float loss) {
        y = DeformConv(x, w, o) loss = ReduceSum<keepdims=0>(y) }""",
        opset=19,
    )
    (blocker,) = check_trainable(model, wrt=["w"], engine=get_engine("portable")).blockers
    assert "two spatial axes" in blocker.reason
