"""A Squeeze without axes, as torch's ``x.squeeze()``: the shapes in a file say what it removes."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.graph.normal_form.squeezed_axes import state_squeezed_axes
from ortboost.graph.query import constant, input_at
from tests.support import text_model, weights


@pytest.mark.parametrize(
    ("before", "after", "axes"),
    [
        ("n,1,4,1", "n,4", [1, 3]),
        ("n,4,1", "n", None),  # contradicts itself
        ("2,4,1", "2,4", None),  # perhaps the lengths of a trace
        ("n,4", "n,4", None),  # the data may have such axes
    ],
)
def test_only_what_the_file_declares_is_stated(before, after, axes):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[{before}] x) => (float[{after}] y) {{ y = Squeeze(x) }}"""
    )
    assert state_squeezed_axes(model).modified == (axes is not None)
    stated = constant(input_at(model.graph.node(0), 1))
    assert (None if stated is None else stated.tolist()) == axes


def test_an_older_opset_is_left_alone():
    model = text_model(
        """<ir_version: 7, opset_import: ["" : 11]>
        net (float[n,4,1] x) => (float[n,4] y) { y = Squeeze(x) }"""
    )
    assert not state_squeezed_axes(model).modified


def test_a_product_of_squeezed_values_is_trained_also_with_one_sample():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,3] x, float[3,4] w) => (float loss) <float[n,1,4] wide, float[n,4] s> {
          h = MatMul(x, w) one = Constant<value_ints = [1]>() wide = Unsqueeze(h, one)
          s = Squeeze(wide) t = Transpose(s) p = MatMul(t, s) loss = ReduceSum<keepdims = 0>(p)
        }""",
        w=weights(3, 4),
    )
    config = ob.ProgramConfig.from_dict({"loss": {"name": "output"}, "learning_rate": "0.1"})
    stepper = ob.Stepper(ob.build_program(model, config), device="cpu")
    for count in (3, 1):
        x, w = weights(count, 3, seed=count), stepper.state()["w"]
        loss = stepper.step({"x": x}, dict.fromkeys(stepper.groups, 0.1)).loss
        assert loss == pytest.approx(float(np.square((x @ w).sum(axis=1)).sum()), rel=1e-5)
