"""Against the formula of the gradient: rows masked as a whole have none, others keep theirs."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.autodiff.masked_rows import finite_masked_rows
from ortboost.core.loss_scale import NO_SCALE
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.optimizers import Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.support import native_only, stepper, text_model, weights

# As torch's exporters write it, as the standard defines Attention, and filled by hand.
MASKED = {
    "torch": "p = Softmax<axis = {axis}>(m)  n = IsNaN(p)",
    "standard": "p = Softmax<axis = {axis}>(m)  top = ReduceMax(m, axes)  n = Equal(top, lowest)",
    "filled": """top = ReduceMax(m, axes)  n = Equal(top, lowest)
        f = Where(n, lowest, m)  p = Softmax<axis = {axis}>(f)""",
    "elements": """n = Equal(mask, lowest)
        f = Where(n, lowest, s)  p = Softmax<axis = {axis}>(f)""",
    "typed": """n = Equal(mask, lowest)  i = CastLike(lowest, s)
        f = Where(n, i, s)  p = Softmax<axis = {axis}>(f)""",
    "cast": """d = Cast<to = 11>(m)  e = Softmax<axis = {axis}>(d)
        p = Cast<to = 1>(e)  n = IsNaN(p)""",
}


@pytest.mark.parametrize("form", MASKED)
@pytest.mark.parametrize("engine", ["portable", "native"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_a_row_that_is_masked_as_a_whole_gets_no_gradient(engine, axis, form):
    if engine == "native":
        native_only()
        if form == "cast":
            pytest.skip("onnxruntime has no SoftmaxGrad for float64")
    w, x, labels = weights(4, 4, seed=1), weights(2, 3, 4, seed=2), weights(2, 3, 4, seed=3)
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3,4] x, float[N,3,4] mask, float[4,4] w) => (float[N,3,4] y) {{
          zero = Constant<value_float = 0.0>()  axes = Constant<value_ints = [{axis}]>()
          one = Constant<value_float = 1.0>()  o = Constant<value_float = 0.0>()
          less = Neg(one)  lowest = Div(less, o)
          s = MatMul(x, w)  m = Add(s, mask)
          {MASKED[form].format(axis=axis)}
          size = Shape(p)  t = CastLike(zero, p)  zeros = Expand(t, size)
          y = Where(n, {"zeros" if form == "typed" else "zero"}, p) }}""",
        w=w,
    )
    mask = np.zeros((2, 3, 4), np.float32)
    mask[0, :, 2] = mask[1, 1] = -np.inf  # over both axes: some, and whole rows
    config = ProgramConfig(
        loss=LossConfig("mse", reduction="sum"), optimizer=Sgd(), loss_scale=NO_SCALE, engine=engine
    )
    found = stepper(build_program(model, config))
    feeds = {"x": x, "mask": mask, "labels": labels}
    result = found.step(feeds, {"learning_rate": 1.0})

    e = np.exp(np.float64(x) @ w + mask)
    p = np.nan_to_num(e / np.where((total := e.sum(axis, keepdims=True)) == 0, 1, total))
    g = 2 * (p - labels)
    slope = p * (g - (g * p).sum(axis, keepdims=True))
    assert not result.overflow
    np.testing.assert_allclose(result.loss, ((p - labels) ** 2).sum(), rtol=1e-5)
    gradient = np.einsum("nsi,nsj->ij", x, slope)
    np.testing.assert_allclose(w - found.state()["w"], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "result",
    [
        "n = IsNaN(p)  whole = Cast<to = 7>(p)  rounded = Cast<to = 1>(whole)"
        "  y = Where(n, zero, rounded)",
        "y = Where(some, zero, p)",  # the other probabilities of a row must not change
    ],
)
def test_what_is_no_mask_of_rows_stays(result):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[2,3] x, bool[2,3] some) => (float[2,3] y) {{
          zero = Constant<value_float = 0.0>()  p = Softmax(x)  {result} }}"""
    )
    infer_shapes(model)
    assert not finite_masked_rows(model).changed
