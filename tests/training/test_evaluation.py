"""Evaluation counts every sample once, padding or not."""

from __future__ import annotations

import numpy as np
import pytest
from linear_stepper import LinearEvaluator, LinearStepper, make_data

from ortboost.errors import UsageError
from ortboost.training.data import ArraySource
from ortboost.training.evaluation import evaluate
from ortboost.training.metrics import Metric, get_metric, strict

DATA = make_data(23)


def model(reduction=np.mean):
    stepper = LinearStepper()
    stepper.w = np.array([0.5, 0.25, 1.0], np.float32)
    evaluator = LinearEvaluator(stepper)

    def run(feeds):
        evaluator.sizes.append(len(feeds["x"]))
        prediction = feeds["x"] @ stepper.w
        return {"prediction": prediction, "loss": reduction((prediction - feeds["labels"]) ** 2)}

    evaluator.evaluate = run
    return evaluator


ERROR = Metric("error", lambda scores, labels: np.abs(scores - labels).astype(np.float64))


@pytest.mark.parametrize("batch_size", [1, 4, 8, 23, 50])
@pytest.mark.parametrize("fixed", [False, True])
def test_means_do_not_depend_on_the_batches(batch_size, fixed):
    evaluator = model()
    source = ArraySource(DATA, batch_size)
    found = evaluate(evaluator, source, [ERROR], batch_size=batch_size if fixed else None)
    errors = DATA["x"] @ evaluator.stepper.w - DATA["labels"]
    assert list(found) == ["loss", "error"]
    assert found["loss"] == pytest.approx(float((errors.astype(float) ** 2).mean()), rel=1e-5)
    assert found["error"] == pytest.approx(float(np.abs(errors).mean()), rel=1e-6)
    if fixed:
        assert set(evaluator.sizes) == {batch_size}


def test_a_summed_loss_is_scaled_to_full_batches():
    found = evaluate(model(np.sum), ArraySource(DATA, 8), batch_size=8)
    errors = DATA["x"] @ model().stepper.w - DATA["labels"]
    assert found["loss"] == pytest.approx(8 * float((errors.astype(float) ** 2).mean()), rel=1e-5)


@pytest.mark.parametrize("fixed", [None, 8])
def test_a_loss_for_each_sample_is_averaged_over_the_samples(fixed):
    evaluator = model(lambda values: values)
    found = evaluate(evaluator, ArraySource(DATA, 8), batch_size=fixed)
    errors = DATA["x"] @ evaluator.stepper.w - DATA["labels"]
    assert found["loss"] == pytest.approx(float((errors.astype(float) ** 2).mean()), rel=1e-6)
    assert len(evaluator.sizes) == 3


def test_a_short_batch_without_a_loss_is_padded_all_the_same():
    lossless = model()
    inner = lossless.evaluate
    lossless.evaluate = lambda feeds: {"prediction": inner(feeds)["prediction"]}
    assert list(evaluate(lossless, ArraySource(DATA, 8), [ERROR], batch_size=8)) == ["error"]


def test_it_can_be_stopped():
    evaluator = model()
    assert evaluate(evaluator, ArraySource(DATA, 4), stop=lambda: len(evaluator.sizes) == 2) is None
    assert len(evaluator.sizes) == 2


def test_a_named_output_is_used():
    evaluator = model()
    inner = evaluator.evaluate
    evaluator.evaluate = lambda feeds: {"other": -inner(feeds)["prediction"], **inner(feeds)}
    by_name = evaluate(evaluator, ArraySource(DATA, 8), [ERROR], output="prediction")
    first = evaluate(evaluator, ArraySource(DATA, 8), [ERROR])
    assert by_name["error"] != first["error"]
    with pytest.raises(UsageError, match="did you mean 'prediction'"):
        evaluate(evaluator, ArraySource(DATA, 8), [ERROR], output="predictions")


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UsageError, match="needs labels"):
        evaluate(model(), ArraySource(DATA, 8), [get_metric("accuracy")], labels="y")
    lossless = model()
    lossless.evaluate = lambda feeds: {"prediction": feeds["x"][:, 0]}
    with pytest.raises(UsageError, match="nothing to report"):
        evaluate(lossless, ArraySource(DATA, 8))
    only_loss = model()
    only_loss.evaluate = lambda feeds: {"loss": np.float32(1)}
    with pytest.raises(UsageError, match="no output but its loss"):
        evaluate(only_loss, ArraySource(DATA, 8), [ERROR])


@pytest.mark.parametrize("dims", [(), (3,)])
def test_a_label_that_does_not_count_is_left_out(dims):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(11, 4, *dims)).astype(np.float32)
    labels = rng.integers(0, 4, (11, *dims))
    labels[::2] = -100
    guess, counted = scores.argmax(axis=1), labels != -100
    run = LinearEvaluator(LinearStepper())
    run.evaluate = lambda feeds: {"scores": feeds["x"]}
    source = ArraySource({"x": scores, "labels": labels}, 4)
    metrics = [get_metric("accuracy"), get_metric("top2"), get_metric("top4")]
    found = evaluate(run, source, metrics, ignored=-100)
    assert found["accuracy"] == pytest.approx((guess == labels)[counted].mean())
    assert found["accuracy"] <= found["top2"] <= found["top4"] == 1.0


def test_a_bare_model_refuses_labels_that_are_no_class():
    metric = strict(get_metric("top5"))
    scores = np.eye(6, dtype=np.float32)
    assert metric.function(scores, np.arange(6)).tolist() == [1.0] * 6
    for stray in (6, -1):
        with pytest.raises(UsageError, match=f"The label {stray} is no class"):
            metric.function(scores, np.array([0, 1, 2, 3, 4, stray]))
