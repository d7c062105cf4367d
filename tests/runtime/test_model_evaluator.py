from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
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


@pytest.mark.parametrize("value", [0.5, np.nan, -1, 300, "3", None])
def test_data_that_an_input_cannot_hold_are_refused(value):
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (uint8[N] x) => (float[N] y)'
        " { y = Cast<to = 1>(x) }"
    )
    with pytest.raises(UsageError) as info:
        ModelEvaluator(model, device="cpu").evaluate({"x": np.array([value])})
    assert_three_lines(info.value)


def test_texts_are_taken():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (string[N] x) => (string[N] y)'
        " { y = Identity(x) }"
    )
    found = ModelEvaluator(model, device="cpu").evaluate({"x": np.array(["a", "b"])})
    assert found["y"].tolist() == ["a", "b"]


def test_scalars_stay_scalars():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[batch] x, float k) => (float[batch] '
        "y)"
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


@pytest.mark.parametrize("shape", [(3, 5), (3,), (3, 4, 1)])
def test_a_shape_that_does_not_fit_is_told_in_our_words(shape):
    with pytest.raises(UsageError, match="does not accept an array of this shape") as caught:
        ModelEvaluator(small_mlp(), device="cpu").evaluate({"x": weights(*shape)})
    assert caught.value.where == f"array {list(shape)}, input [batch, 4]"
    assert_three_lines(caught.value)


def test_models_that_take_other_shapes_are_not_compared(tmp_path):
    with pytest.raises(UsageError, match="need 'x' in different shapes") as caught:
        ob.compare(model_path("mlp"), model_path("lenet5"))
    assert "ONNXRuntimeError" not in str(caught.value)
    assert "lenet5.onnx: [batch, 1, 8, 8]" in caught.value.where
    assert_three_lines(caught.value)
