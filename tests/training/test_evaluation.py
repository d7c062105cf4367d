"""Evaluation counts every sample once, padding or not."""

from __future__ import annotations

import numpy as np
import pytest
from linear_stepper import LinearEvaluator, LinearStepper, make_data

from ortboost.core.errors import UsageError
from ortboost.program.catalogue import TensorSpec
from ortboost.training.data import ArraySource
from ortboost.training.evaluation import evaluate
from ortboost.training.label_rule import LabelRule
from ortboost.training.metrics import Metric, get_metric, strict
from ortboost.training.scores import accuracy
from tests.support import assert_three_lines

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


ERROR = Metric.mean("error", lambda scores, labels: np.abs(scores - labels))


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
    with pytest.raises(UsageError, match="has no results"):
        evaluate(lossless, ArraySource(DATA, 8))
    only_loss = model()
    only_loss.evaluate = lambda feeds: {"loss": np.float32(1)}
    with pytest.raises(UsageError, match="no output other than its loss"):
        evaluate(only_loss, ArraySource(DATA, 8), [ERROR])
    with pytest.raises(UsageError, match="'loss' is a single number, not scores"):
        evaluate(model(), ArraySource(DATA, 8), [ERROR], output="loss")


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
    found = evaluate(run, source, metrics, rule=LabelRule(ignored=-100))
    assert found["accuracy"] == pytest.approx((guess == labels)[counted].mean())
    assert found["accuracy"] <= found["top2"] <= found["top4"] == 1.0


@pytest.mark.parametrize("fixed", [None, 4])
def test_data_without_a_label_that_counts_are_refused(fixed):
    """Their mean, 0 / 0, ended a training as diverged."""
    run, _ = token_model(np.zeros([6, 5, 7]))
    source = ArraySource({"x": np.arange(6.0), "labels": np.full([6, 5], -100)}, 4)
    rule = LabelRule(class_axis=2, ignored=-100, shifted=True)
    for metrics in ([get_metric("accuracy")], []):
        with pytest.raises(UsageError, match="No label of the data counts") as caught:
            evaluate(run, source, metrics, batch_size=fixed, rule=rule)
        assert_three_lines(caught.value)


def token_model(scores, reduction="mean", weights=(1,) * 7):
    """Gives stored scores [N, T, C] by their number, and the loss over the labels that count."""
    run = LinearEvaluator(LinearStepper())
    log_softmax = scores - np.log(np.exp(scores).sum(-1, keepdims=True))

    def evaluate_(feeds):
        rows = feeds["x"].astype(int)
        labels = np.concatenate([feeds["labels"][:, 1:], np.full((len(rows), 1), -100)], axis=1)
        counts = labels != -100
        picked = np.take_along_axis(log_softmax[rows], np.where(counts, labels, 0)[..., None], -1)
        counts = counts * np.take(weights, labels, mode="clip")
        losses = -picked[..., 0] * counts
        with np.errstate(invalid="ignore"):  # no label counts: 0 / 0, as in SoftmaxCrossEntropyLoss
            mean = losses.sum() / counts.sum()
        shown = {"mean": mean, "sum": losses.sum(), "none": losses}
        return {"scores": scores[rows], "loss": np.asarray(shown[reduction])}

    run.evaluate = evaluate_
    return run, log_softmax


@pytest.mark.parametrize("weights", [None, (1, 2, 0.5, 3, 1, 1, 0.25)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("fixed", [None, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 11])
def test_tokens_are_counted_and_not_samples(batch_size, fixed, reduction, weights):
    if fixed is not None and batch_size > fixed:
        batch_size = fixed
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(11, 5, 7))
    labels = rng.integers(0, 7, (11, 5))
    labels[5, 2:] = labels[9, 3:] = -100  # rows of different lengths
    labels[2, 1:] = labels[10, 1:] = -100  # and without any label, alone in a batch and padded
    run, log_softmax = token_model(scores, reduction, weights or (1,) * 7)
    source = ArraySource({"x": np.arange(11.0), "labels": labels}, batch_size)
    rule = LabelRule(class_axis=2, ignored=-100, shifted=True, weights=weights)
    found = evaluate(run, source, [get_metric("accuracy")], batch_size=fixed, rule=rule)
    pairs = [(n, t) for n in range(11) for t in range(4) if labels[n, t + 1] != -100]
    losses = [-log_softmax[n, t, labels[n, t + 1]] for n, t in pairs]
    right = [scores[n, t].argmax() == labels[n, t + 1] for n, t in pairs]
    assert found["accuracy"] == pytest.approx(np.mean(right))
    of = None if weights is None else [weights[labels[n, t + 1]] for n, t in pairs]
    assert found["loss"] == pytest.approx(np.average(losses, weights=of))


def test_a_bare_model_refuses_labels_that_are_no_class():
    metric = strict(get_metric("top5"))
    scores = np.eye(6, dtype=np.float32)
    assert metric.batch(scores, np.arange(6)) == (6.0, 6)
    for stray in (6, -1):
        with pytest.raises(UsageError, match=f"The label {stray} is not a class"):
            metric.batch(scores, np.array([0, 1, 2, 3, 4, stray]))


@pytest.mark.parametrize("fixed", [None, 4])
@pytest.mark.parametrize(
    ("classes", "axis", "dense"), [(2, 1, False), (1, 0, False), (1, 1, False), (2, 0, True)]
)
def test_the_batch_axis_of_scores_need_not_be_that_of_labels(classes, axis, dense, fixed):
    """Scores [N, T, C] in other layouts; the last of three batches is short."""
    rng = np.random.default_rng(5)
    scores, labels = rng.normal(size=(11, 4, 3)), rng.integers(0, 3, (11, 4))
    wanted = (scores.argmax(-1) == labels).mean()
    rule = LabelRule(class_axis=classes)
    if dense:
        labels = np.eye(3)[labels] * 0.5 + 0.1
    if axis:
        scores = scores.transpose(1, 0, 2)
        labels = labels.swapaxes(0, 1)
    places = {"x": axis, "labels": axis}
    if classes == 1:
        scores = scores.swapaxes(1, 2)  # [N, C, T] or [T, C, N]
        places["x"] = 2 if axis else 0
    run = LinearEvaluator(LinearStepper())
    run.evaluate = lambda feeds: {"scores": feeds["x"]}
    arrays = {"x": scores, "labels": labels}
    specs = [
        TensorSpec(name, array.dtype, array.shape, batch_axis=places[name])
        for name, array in arrays.items()
    ]
    source = ArraySource(arrays, 4, inputs=specs)
    found = evaluate(
        run, source, [get_metric("accuracy")], batch_size=fixed, rule=rule, axes=places
    )
    assert found["accuracy"] == pytest.approx(wanted)


def test_labels_with_their_axes_in_another_order_are_refused():
    scores, labels = np.zeros((6, 3, 4)), np.zeros((4, 6), np.int64)
    with pytest.raises(UsageError, match="shape of the labels does not match"):
        accuracy(scores, labels)
    with pytest.raises(UsageError, match="shape of the labels does not match"):
        accuracy(np.zeros((6, 1, 4)), labels)
    with pytest.raises(UsageError, match="shape of the labels does not match"):
        accuracy(*LabelRule(ignored=-1).aligned(scores, labels))
    assert accuracy(scores, np.zeros((6, 2, 2))).tolist() == [1.0] * 6
