from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import UsageError
from ortboost.runtime.model_evaluator import ModelEvaluator
from tests.support import assert_three_lines, model_path, run, small_mlp, text_model, weights


@pytest.mark.parametrize("source", [model_path("mlp"), str(model_path("mlp"))])
def test_answers_by_name(source):
    evaluator = ModelEvaluator(source, device="cpu")
    x = weights(3, 64)
    found = evaluator.evaluate({"x": x, "labels": np.zeros(3, np.int64)})
    np.testing.assert_allclose(
        found["logits"], run(model_path("mlp"), {"x": x})["logits"], rtol=1e-6
    )
    assert evaluator.outputs == ("logits",)


def test_inputs_are_described():
    (spec,) = ModelEvaluator(small_mlp(), device="cpu").inputs
    assert (spec.name, spec.dtype, spec.shape) == ("x", np.dtype(np.float32), ("batch", 4))


def test_data_are_converted():
    evaluator = ModelEvaluator(small_mlp(), device="cpu")
    x = weights(3, 4).astype(np.float64)
    expected = evaluator.evaluate({"x": x.astype(np.float32)})
    np.testing.assert_array_equal(evaluator.evaluate({"x": x})["logits"], expected["logits"])


def test_scalars_stay_scalars():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[batch] x, float k) => (float[batch] y)'
        " { y = Mul(x, k) }"
    )
    found = ModelEvaluator(model, device="cpu").evaluate({"x": weights(3), "k": np.float32(2)})
    np.testing.assert_array_equal(found["y"], 2 * weights(3))


@pytest.mark.parametrize("feeds", [{}, {"y": weights(3, 4)}, {"x": weights(3, 5)}])
def test_wrong_feeds(feeds, capfd):
    with pytest.raises(UsageError) as info:
        ModelEvaluator(small_mlp(), device="cpu").evaluate(feeds)
    assert_three_lines(info.value)


def test_inputs_that_data_cannot_be():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (seq(float[N]) x) => (int64 y)'
        " { y = SequenceLength(x) }"
    )
    with pytest.raises(UsageError) as info:
        ModelEvaluator(model, device="cpu")
    assert_three_lines(info.value)
