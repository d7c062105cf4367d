"""The verbs end to end on real data, and what they refuse."""

from __future__ import annotations

import json
import math
import os
import shutil

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost import api
from ortboost.core.errors import FileError, ParityError, UsageError
from ortboost.core.report import Report
from ortboost.deploy.pipeline import REWRITES
from ortboost.optimizers import Adam
from ortboost.program.config import ParameterGroup, ProgramConfig
from ortboost.training import TrainConfig
from ortboost.training.logs import read_log
from ortboost.training.metrics import Metric
from ortboost.training.schedules import PerStep
from ortboost.transforms.attach_loss import LossConfig
from tests.support import (
    MODELS,
    assert_same_bits,
    assert_three_lines,
    digits,
    model_path,
    run,
    small_mlp,
    text_model,
    weights,
)

DIGITS = MODELS / "digits.npz"
CONFIG = ProgramConfig(learning_rate="0.1", metrics=("accuracy",))
CPU = {"device": "cpu", "threads": 1}
DEVICE = {"device": "cpu"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An mlp that was trained on the digits; shared, so only to be read."""
    folder = tmp_path_factory.mktemp("api") / "run"
    api.convert(model_path("mlp"), folder, CONFIG)
    summary = api.train(folder, DIGITS, DIGITS, epochs=6, batch_size=32, **CPU)
    return folder, summary


def converted(folder, model=None, config=CONFIG):
    api.convert(model or model_path("mlp"), folder, config)
    return folder


def caught(kind, function, *args, **kwargs):
    with pytest.raises(kind) as info:
        function(*args, **kwargs)
    assert_three_lines(info.value)
    return info.value


# ---- what is measured ---------------------------------------------------------------------------

CLASSIFIER = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,4] x, float[4,3] w) => (int64[N] label, float[N,3] scores) {
  scores = MatMul(x, w) label = ArgMax<axis = 1, keepdims = 0>(scores) }"""


@pytest.fixture
def classifier(tmp_path):
    """As scikit-learn's converter gives it: class numbers first, then their scores."""
    table = weights(4, 3)
    path = tmp_path / "net.onnx"
    onnx.save(ir.to_proto(text_model(CLASSIFIER, w=table)), path)
    x = weights(40, 4, seed=2)
    labels = np.where(np.arange(40) < 30, (x @ table).argmax(1), 1)
    right = float(((x @ table).argmax(1) == labels).mean())
    return path, {"x": x, "labels": labels}, right


@pytest.mark.parametrize("output", [None, "scores"])
def test_class_numbers_are_never_read_as_scores(classifier, output):
    path, data, right = classifier
    assert api.evaluate(path, data, output=output, **CPU) == {"accuracy": pytest.approx(right)}
    top = api.evaluate(path, data, output=output, metrics=("top2",), **CPU)["top2"]
    assert right <= top <= 1
    error = caught(UsageError, api.evaluate, path, data, output="label", **CPU)
    assert "class indices" in error.what
    assert "scores" in error.fix


def test_an_export_measures_the_scores(classifier, tmp_path):
    path, data, right = classifier
    found = api.export(path, tmp_path / "out.onnx", verify=data, device="cpu")
    assert found.metrics["accuracy"] == (pytest.approx(right), pytest.approx(right))


@pytest.mark.parametrize(
    ("labels", "words"),
    [(np.full(40, 3), "is not a class"), (np.zeros((40, 3), np.int64), "do not fit")],
)
def test_labels_that_cannot_be_used_are_told(classifier, tmp_path, labels, words):
    path, data, _ = classifier
    data = {**data, "labels": labels}
    found = api.export(path, tmp_path / "out.onnx", verify=data, device="cpu")
    assert not found.metrics
    assert any(words in note for note in found.notes), found.notes
    compared = api.compare(path, path, data=data, device="cpu")
    assert any(words in note for note in compared.notes)


def test_a_file_with_class_numbers_only_has_no_accuracy(tmp_path):
    text = CLASSIFIER.replace(", float[N,3] scores)", ")")
    path = tmp_path / "net.onnx"
    onnx.save(ir.to_proto(text_model(text, w=weights(4, 3))), path)
    data = {"x": weights(40, 4), "labels": np.arange(40) % 3}
    error = caught(UsageError, api.evaluate, path, data, **CPU)
    assert "class indices" in error.what
    found = api.export(path, tmp_path / "out.onnx", verify=data, device="cpu")
    assert not found.metrics
    assert any("does not contain scores" in note for note in found.notes)


def test_a_best_checkpoint_that_nothing_was_compared_with_is_told(tmp_path, caplog):
    folder = converted(tmp_path / "run")
    api.train(folder, DIGITS, DIGITS, max_steps=3, batch_size=32, **CPU)
    api.evaluate(folder, DIGITS, **CPU)
    assert not caplog.records
    api.train(folder, DIGITS, epochs=1, batch_size=32, resume=True, **CPU)
    caplog.clear()
    api.evaluate(folder, DIGITS, **CPU)
    assert "is of step 3; none of the newer ones" in caplog.text
    caplog.clear()
    api.evaluate(folder, DIGITS, checkpoint="last", **CPU)
    assert not caplog.records


def test_runs_are_compared_with_each_other(finished, tmp_path):
    folder, _ = finished
    again = tmp_path / "again"
    api.convert(folder, again)
    assert api.compare(folder, folder, data=DIGITS, **DEVICE).parity.ok
    with pytest.raises(FileError, match="not been trained"):
        api.compare(folder, again)
    file = tmp_path / "file.onnx"
    api.export(folder, file, **DEVICE)
    same = api.compare(file, folder, data=DIGITS, bisect=True, **DEVICE)
    assert same.parity.ok
    assert set(same.metrics) == {"accuracy"}


def test_outputs_that_agree_are_said_to_agree_before_what_differs_inside():
    one, other = (
        text_model(
            f"""<ir_version: 10, opset_import: ["" : 18]> net (float[2] x) => (float[2] y)
            <float c = {{{c}}}, float d = {{{1 / c}}}> {{ h = Mul(x, c) y = Mul(h, d) }}"""
        )
        for c in (2.0, 4.0)
    )
    found = api.compare(one, other, bisect=True)
    assert found.parity.ok
    assert found.first_text().startswith("All outputs agree; inside,")
    assert "'h'" in found.first_text()


def test_a_run_cannot_go_on_and_start_anew(finished):
    folder, _ = finished
    error = caught(
        UsageError, api.train, folder, DIGITS, epochs=1, resume=True, overwrite=True, **CPU
    )
    assert "resumed and restarted" in error.what


# ---- the way through --------------------------------------------------------------------------


def test_the_run_learned_and_left_its_files(finished):
    folder, summary = finished
    assert summary.reason == "all epochs done"
    assert summary.metrics["val_accuracy"] > 0.9
    assert (summary.epochs, summary.steps) == (6, 6 * 45)
    assert summary.applied_steps + summary.skipped_steps == summary.steps
    assert {"program.json", "checkpoints", "log.jsonl"} <= set(os.listdir(folder))
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "start"
    assert events[-1]["event"] == "end"


def test_a_batch_axis_is_given_to_training(tmp_path):
    folder = converted(tmp_path / "run")
    error = caught(UsageError, api.train, folder, DIGITS, batch_axes={"q": 0}, **CPU)
    assert "no input 'q'" in error.what
    error = caught(UsageError, api.train, folder, DIGITS, batch_axes={"x": 2}, **CPU)
    assert "no axis 2" in error.what
    # One sample for all batches: then the labels alone say how many samples there are.
    data = {"x": np.zeros((16, 64), np.float32), "labels": np.zeros(48, np.int64)}
    summary = api.train(
        folder, data, batch_axes={"x": None, "labels": 0}, batch_size=16, epochs=1, **CPU
    )
    assert summary.steps == 3


def test_evaluating_the_run_and_the_export_agree(finished, tmp_path):
    folder, summary = finished
    best = max(entry["value"] for entry in summary.best.values())
    found = api.evaluate(folder, DIGITS, **CPU)
    assert found["accuracy"] == pytest.approx(best)
    result = api.export(folder, tmp_path / "mlp.onnx", verify=DIGITS, device="cpu")
    assert result.parity.ok
    assert not result.synthetic
    assert result.parity.samples == 360
    assert result.bytes == (tmp_path / "mlp.onnx").stat().st_size
    assert json.loads(json.dumps(result.to_dict()))["verified_on"] == "data"
    assert api.evaluate(folder, DIGITS, output="loss", **CPU) == {"loss": found["loss"]}
    again = api.evaluate(tmp_path / "mlp.onnx", DIGITS, **CPU)
    assert again["accuracy"] == found["accuracy"]
    test = digits()
    logits = run(tmp_path / "mlp.onnx", {"x": test["x_test"].reshape(-1, 64)})["logits"]
    assert (logits.argmax(1) == test["y_test"]).mean() == pytest.approx(found["accuracy"])


def test_metrics_of_ones_own(tmp_path):
    """The best checkpoint and the list of runs go by the direction of the first metric."""
    right = Metric.mean("right", lambda s, y: s.argmax(axis=1) == y)
    folder = converted(tmp_path / "run")
    given = {"metrics": [right, "accuracy", "f1", "perplexity"], **CPU}
    summary = api.train(folder, DIGITS, DIGITS, epochs=2, batch_size=32, **given)
    values = summary.metrics
    assert values["val_right"] == pytest.approx(values["val_accuracy"])
    assert values["val_f1"] > 0.5
    assert values["val_perplexity"] == pytest.approx(math.exp(values["val_loss"]))
    best = summary.best["val_right"]["value"]
    error = caught(UsageError, api.train, folder, DIGITS, DIGITS, metrics=["auc"], **CPU)
    assert "10 classes" in error.where
    (listed,) = api.runs(tmp_path)
    assert (listed.metric, listed.best) == ("val_right", pytest.approx(best))
    shares = [
        event["val_right"] for event in read_log(folder / "log.jsonl") if "val_right" in event
    ]
    assert best == pytest.approx(max(shares))
    found = api.evaluate(folder, DIGITS, **given)
    assert found["right"] == pytest.approx(best)
    api.export(folder, tmp_path / "mlp.onnx", **DEVICE)
    file = tmp_path / "mlp.onnx"
    own = api.evaluate(file, DIGITS, metrics=[right, "f1"], **CPU)
    assert own == {name: pytest.approx(found[name], abs=1e-6) for name in ("right", "f1")}
    value = api.evaluate(file, DIGITS, metrics=["perplexity"], **CPU)["perplexity"]
    assert value == pytest.approx(found["perplexity"], rel=1e-5)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_the_batch_size_changes_no_result(finished, size):
    folder, _ = finished
    whole = api.evaluate(folder, DIGITS, batch_size=360, **CPU)
    found = api.evaluate(folder, DIGITS, batch_size=size, **CPU)
    assert found["accuracy"] == whole["accuracy"]
    assert found["loss"] == pytest.approx(whole["loss"], rel=1e-5)


def test_validation_batches_without_any_label_that_counts(tmp_path):
    """Their loss is 0 / 0; the mean over all labels was nan, and ended the training."""
    x, y = (np.load(DIGITS)[name][:40] for name in ("x_test", "y_test"))
    y[:20] = -100
    loss = LossConfig(ignore_index=-100)
    api.convert(MODELS / "mlp.onnx", tmp_path / "run", ProgramConfig(loss=loss))
    summary = api.train(tmp_path / "run", (x, y), (x, y), epochs=1, batch_size=8, **CPU)
    counted = api.evaluate(tmp_path / "run", (x[20:], y[20:]), **CPU)
    assert summary.metrics["val_loss"] == pytest.approx(counted["loss"], rel=1e-5)
    assert summary.metrics["val_accuracy"] == counted["accuracy"]


@pytest.mark.parametrize("size", [3, 8])
def test_labels_that_a_models_own_loss_ignores(tmp_path, size):
    """The labels had to be called 'labels', or such a batch made the mean nan."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,4] x, int64[n] kind, float[4,3] w) => (float[n,3] y, float loss) {
        y = MatMul(x, w) loss = SoftmaxCrossEntropyLoss<ignore_index = -1>(y, kind) }""",
        w=weights(4, 3),
    )
    config = ProgramConfig(loss=LossConfig("output", output="loss"), learning_rate=0.0)
    program = api.convert(model, tmp_path / "run", config)
    data = {"x": weights(16, 4), "kind": np.array([-1] * 9 + [0, 1, -1, 2, 1, 1, 0])}
    rows = data["kind"] >= 0
    batch = {name: values[rows] for name, values in data.items()}
    expected = run(program.evaluation, {"w": weights(4, 3), **batch})["loss"]
    summary = api.train(tmp_path / "run", data, data, epochs=1, batch_size=size, **CPU)
    assert summary.metrics["val_loss"] == pytest.approx(expected, rel=1e-5)
    assert summary.metrics["train_loss"] == pytest.approx(expected, rel=1e-5)
    none = {"x": data["x"][:4], "kind": data["kind"][:4]}
    assert run(program.evaluation, {"w": weights(4, 3), **none})["loss"] == 0
    error = caught(UsageError, api.evaluate, tmp_path / "run", none, **CPU)
    assert "No label of the data counts: all of 'kind' are -1" in str(error)


@pytest.mark.parametrize("length", [2, 3])
def test_accuracy_of_a_token_classifier_with_its_own_loss(tmp_path, length):
    """The loss reads `[n t, 3]`; the accuracy the output, also where it has 3 positions."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,t,4] x, int64[n,t] labels, float[4,3] w) => (float[n,t,3] y, float loss)
        <int64[2] rows = {-1,3}, int64[1] flat = {-1}> {
        y = MatMul(x, w) s = Reshape(y, rows) k = Reshape(labels, flat)
        loss = SoftmaxCrossEntropyLoss<ignore_index = -1>(s, k) }""",
        w=weights(4, 3),
    )
    config = ProgramConfig(loss=LossConfig("output", output="loss"))
    api.convert(model, tmp_path / "run", config)
    data = {"x": weights(8, length, 4), "labels": np.arange(8 * length).reshape(8, length) % 4 - 1}
    found = api.evaluate(tmp_path / "run", data, metrics=["accuracy"], checkpoint="initial", **CPU)
    right = (data["x"] @ weights(4, 3)).argmax(-1) == data["labels"]
    assert found["accuracy"] == pytest.approx(right[data["labels"] >= 0].mean())


@pytest.mark.parametrize("size", [1, 4, 40])
def test_the_training_loss_is_the_mean_over_the_labels_that_count(tmp_path, size):
    """Batches counted by their samples: one without any such label as a loss of 0."""
    x, y = (np.load(DIGITS)[name][:40] for name in ("x_test", "y_test"))
    y[np.arange(40) % 5 > 0] = -100
    config = ProgramConfig(
        loss=LossConfig(ignore_index=-100), learning_rate=0.0, metrics=("accuracy",)
    )
    api.convert(MODELS / "mlp.onnx", tmp_path / "run", config)
    found = api.train(tmp_path / "run", (x, y), (x, y), epochs=1, batch_size=size, **CPU).metrics
    assert found["train_loss"] == pytest.approx(found["val_loss"], rel=1e-5)
    assert found["train_accuracy"] == pytest.approx(found["val_accuracy"])


def test_the_split_can_be_chosen(finished):
    folder, _ = finished
    accuracy = [api.evaluate(folder, DIGITS, split=s, **CPU)["accuracy"] for s in ("train", "test")]
    assert accuracy[0] != accuracy[1]


def test_arrays_in_memory_are_data_too(finished):
    folder, _ = finished
    data = {"x": digits()["x_test"], "labels": digits()["y_test"]}
    expected = api.evaluate(folder, DIGITS, **CPU)
    assert api.evaluate(folder, data, **CPU) == expected


def test_export_without_data_is_checked_on_made_up_inputs(finished, tmp_path):
    result = api.export(finished[0], tmp_path / "m.onnx", device="cpu")
    assert result.synthetic
    assert result.parity.ok
    metadata = {e.key: e.value for e in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert metadata["ortboost.step"] == str(result.step)


@pytest.mark.parametrize("opset", [18, 21])
def test_export_to_an_opset(finished, tmp_path, opset):
    api.export(finished[0], tmp_path / "m.onnx", opset=opset, device="cpu")
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == opset


# ---- checkpoints ------------------------------------------------------------------------------


def test_which_checkpoint(finished):
    folder, summary = finished
    program, initial, none = api.load_run(folder, "initial")
    assert none is None
    assert_same_bits(initial, {n: np.asarray(a) for n, a in program.initial.items()})
    _, last, found = api.load_run(folder, "last")
    assert found.step == summary.steps
    assert int(last["ortboost/step"]) == summary.applied_steps
    _, best, found = api.load_run(folder)
    assert found.path.with_suffix("") == summary.best_checkpoint.with_suffix("")
    _, by_path, _ = api.load_run(folder, str(summary.best_checkpoint))
    assert_same_bits(best, by_path)


def test_evaluation_follows_the_checkpoint(finished):
    folder, _ = finished
    accuracy = {
        c: api.evaluate(folder, DIGITS, checkpoint=c, **CPU)["accuracy"]
        for c in ("initial", "last", "best")
    }
    assert accuracy["initial"] < 0.4
    assert accuracy["best"] >= accuracy["last"] > 0.9


def test_an_untrained_run_says_so(tmp_path):
    folder = converted(tmp_path / "run")
    for verb in (
        lambda: api.evaluate(folder, DIGITS, **CPU),
        lambda: api.export(folder, tmp_path / "m.onnx"),
        lambda: api.load_run(folder, "last"),
    ):
        error = caught(FileError, verb)
        assert "not been trained" in error.what
        assert "initial" in error.fix
        assert "checkpoints" not in os.listdir(folder)
    assert api.evaluate(folder, DIGITS, checkpoint="initial", **CPU)["accuracy"] < 0.4
    assert api.export(folder, tmp_path / "m.onnx", checkpoint="initial").step is None


def test_a_checkpoint_that_is_not_there(finished):
    caught(FileError, api.load_run, finished[0], str(finished[0] / "checkpoints" / "no.json"))


def test_a_checkpoint_of_another_program(finished, tmp_path):
    other = converted(tmp_path / "run", config=ProgramConfig(optimizer=Adam()))
    shutil.copytree(finished[0] / "checkpoints", other / "checkpoints")
    caught(FileError, api.load_run, other, "best")


def test_training_twice_needs_a_word(finished):
    error = caught(UsageError, api.train, finished[0], DIGITS, epochs=1, **CPU)
    assert "resume" in error.fix


# ---- convert ------------------------------------------------------------------------------------


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    caught(UsageError, api.convert, model_path("mlp"), tmp_path)
    caught(UsageError, api.convert, model_path("mlp"), tmp_path, overwrite=True)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_an_empty_folder_is_fine(tmp_path):
    assert (converted(tmp_path) / "program.json").exists()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("precious")
    caught(UsageError, api.convert, model_path("mlp"), tmp_path / "run")
    assert (tmp_path / "run").read_text() == "precious"


def test_a_program_is_replaced_on_request_only(tmp_path):
    folder = converted(tmp_path / "run")
    api.train(folder, DIGITS, epochs=1, max_steps=2, **CPU)
    (folder / "notes.txt").write_text("mine")
    before = (folder / "program.json").read_bytes()
    error = caught(UsageError, api.convert, model_path("mlp"), folder)
    assert "--overwrite" in error.fix
    assert (folder / "program.json").read_bytes() == before
    api.convert(model_path("lenet5"), folder, CONFIG, overwrite=True)
    assert set(os.listdir(folder)) == {
        "program.json",
        "step.onnx",
        "eval.onnx",
        "state.safetensors",
        "notes.txt",
    }
    assert api.load_run(folder, "initial")[0].source.endswith("lenet5.onnx")


def test_a_conversion_that_fails_leaves_the_old_program(tmp_path):
    folder = converted(tmp_path / "run")
    api.train(folder, DIGITS, epochs=1, max_steps=2, **CPU)
    bad = ProgramConfig(freeze=("nothing*",))
    caught(UsageError, api.convert, model_path("mlp"), folder, bad, overwrite=True)
    assert api.load_run(folder, "last")[2].step == 2


def test_a_model_that_is_no_model(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no")
    caught(FileError, api.convert, tmp_path / "bad.onnx", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "verb",
    [
        lambda folder: api.train(folder, DIGITS),
        lambda folder: api.evaluate(folder, DIGITS),
        lambda folder: api.export(folder, folder / "m.onnx"),
    ],
)
def test_a_folder_that_is_no_program(tmp_path, verb):
    assert "ortboost convert" in caught(FileError, verb, tmp_path).fix
    assert os.listdir(tmp_path) == []


def test_a_target_that_is_not_there(tmp_path):
    caught(FileError, api.evaluate, tmp_path / "no.onnx", DIGITS)


def test_check_lists_what_stands_in_the_way():
    report = api.check(model_path("lenet5"))
    assert not report.blockers
    blocked = api.check(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (float[batch,4] x, float[4,4] w) => (float[batch,4] y) {
              a = MatMul(x, w)
              [hard] y = Hardmax(a)
            }""",
            w=weights(4, 4),
        )
    )
    assert [blocker.node for blocker in blocked.blockers] == ["hard"]


# ---- parity -------------------------------------------------------------------------------------


def test_an_export_that_differs_is_not_written(finished, tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    api.export(finished[0], path, verify=DIGITS, device="cpu")
    before = path.read_bytes()
    monkeypatch.setitem(REWRITES, "fold_bn", lambda model, _: (spoil(model), Report("fold_bn"))[1])
    error = caught(ParityError, api.export, finished[0], path, verify=DIGITS, device="cpu")
    assert error.exit_status == 5
    assert "the rewrite 'fold_bn'" in error.what
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.onnx"]


def spoil(model):
    import onnx_ir as ir

    value = model.graph.initializers["fc2.bias"]
    value.const_value = ir.tensor(value.const_value.numpy() + np.float32(0.1), name=value.name)


# ---- other jobs ---------------------------------------------------------------------------------


def test_groups_have_their_schedules(tmp_path):
    config = ProgramConfig(
        learning_rate="0.1", groups=(ParameterGroup("frozenish", ("fc1.*",), "1e-30"),)
    )
    folder = converted(tmp_path / "run", config=config)
    api.train(folder, DIGITS, epochs=1, **CPU)
    program, state, _ = api.load_run(folder, "last")
    assert state["fc1.weight"].tobytes() == program.initial["fc1.weight"].tobytes()
    assert state["fc2.weight"].tobytes() != program.initial["fc2.weight"].tobytes()


def test_regression(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 4)).astype(np.float32)
    data = {"x": x, "labels": (x[:, :3] * 2 - 1).astype(np.float32)}
    folder = converted(
        tmp_path / "run",
        small_mlp(hidden=32),
        ProgramConfig(loss=LossConfig("mse"), learning_rate="0.05"),
    )
    summary = api.train(folder, data, data, epochs=40, batch_size=32, **CPU)
    assert summary.metrics["val_loss"] < 0.05
    assert api.evaluate(folder, data, **CPU)["loss"] == pytest.approx(
        summary.best["BestModel"]["value"]
        if "BestModel" in summary.best
        else next(iter(summary.best.values()))["value"]
    )


def few(wanted, shift):
    """Digits of these classes only, with labels that start from zero."""
    z, parts = digits(), {}
    for split in ("train", "test"):
        rows = np.isin(z[f"y_{split}"], wanted)
        parts[split] = {"x": z[f"x_{split}"][rows], "labels": z[f"y_{split}"][rows] - shift}
    return parts["train"], parts["test"]


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_fine_tuning(name, tmp_path):
    """Trained on 0-4, a new head on the frozen backbone learns 5-9."""
    train, test = few(range(5), 0)
    first = converted(
        tmp_path / "first", model_path(name), ProgramConfig(learning_rate="0.05", new_head=5)
    )
    summary = api.train(first, train, test, epochs=6, batch_size=32, **CPU)
    assert summary.metrics["val_accuracy"] > 0.95
    backbone = tmp_path / "backbone.onnx"
    api.export(first, backbone, verify=test, device="cpu", optimize=False)

    head = {"mlp": "fc2.*", "lenet5": "fc3.*"}[name]
    train, test = few(range(5, 10), 5)
    config = ProgramConfig(learning_rate="0.1", new_head=5, seed=7, trainable=(head,))
    second = converted(tmp_path / "second", backbone, config)
    before = api.evaluate(second, test, checkpoint="initial", **CPU)["accuracy"]
    summary = api.train(second, train, test, epochs=8, batch_size=32, **CPU)
    assert before < 0.5
    assert summary.metrics["val_accuracy"] > 0.8

    program, state, _ = api.load_run(second, "last")
    _, trained, _ = api.load_run(first, "best")
    frozen = [e.name for e in program.catalogue.entries("parameter") if e.next is None]
    assert len(frozen) == {"mlp": 2, "lenet5": 8}[name]
    for key in frozen:
        assert state[key].tobytes() == trained[key].tobytes()
    moved = [e.name for e in program.catalogue.entries("parameter") if e.next]
    assert len(moved) == 2
    assert all(state[key].tobytes() != program.initial[key].tobytes() for key in moved)


def test_models_that_take_nothing_are_compared(tmp_path):
    for number in (1, 2):
        text = f"""<ir_version: 8, opset_import: ["" : 17]> g () => (float[2] y)
            <float[2] a = {{1, {number}}}> {{ y = Exp(a) }}"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / f"{number}.onnx")
    same = api.compare(tmp_path / "1.onnx", tmp_path / "1.onnx", bisect=True)
    assert same.parity.ok
    other = api.compare(tmp_path / "1.onnx", tmp_path / "2.onnx", bisect=True)
    assert not other.parity.ok


def test_a_missing_model_is_named_before_the_folder(tmp_path):
    api.convert(model_path("mlp"), tmp_path / "run")
    with pytest.raises(FileError, match="The model file does not exist"):
        api.convert(tmp_path / "missing.onnx", tmp_path / "run")


def test_a_file_that_computes_its_loss_is_evaluated_without_labels():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[N,4] target, float[3,4] w) => (float[N,4] y, float loss) {
          y = MatMul(x, w)  d = Sub(y, target)  s = Mul(d, d)
          loss = ReduceMean<keepdims = 0>(s) }""",
        w=weights(3, 4),
    )
    x, target = weights(5, 3), weights(5, 4, seed=1)
    expected = np.mean((x @ weights(3, 4) - target) ** 2)
    for settings in ({"output": "loss"}, {"metrics": ["loss"]}):
        found = api.evaluate(model, {"x": x, "target": target}, batch_size=2, **settings)
        assert found == {"loss": pytest.approx(expected, rel=1e-5)}


def regression(last: str = "y = Identity(z)"):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,4] w) => (float[N,4] y) {{ z = MatMul(x, w)  {last} }}""",
        w=weights(3, 4),
    )
    x = weights(9, 3)
    return model, x, run(model, {"x": x})["y"]


def test_a_file_is_evaluated_with_a_label_for_each_score():
    model, x, scores = regression()
    target = weights(9, 4, seed=1)
    data = {"x": x, "labels": target}
    found = api.evaluate(model, data, metrics=["mae", "mse"], batch_size=4)
    assert found["mae"] == pytest.approx(abs(scores - target).mean())
    assert found["mse"] == pytest.approx(((scores - target) ** 2).mean())
    for last, threshold in (("y = Identity(z)", 0.0), ("y = Sigmoid(z)", 0.5)):
        model, x, scores = regression(last)
        labels = (target > 0.1).astype(np.int64)
        data = {"x": x, "labels": labels}
        found = api.evaluate(model, data, metrics=["binary-accuracy"], batch_size=4)
        assert found["binary-accuracy"] == pytest.approx(
            ((scores > threshold) == (labels == 1)).mean()
        )


def test_the_logits_of_a_program_have_a_threshold_of_their_own(tmp_path):
    model, x, scores = regression("y = Sigmoid(z)")
    model.graph.outputs.append(model.graph[0].outputs[0])
    loss = LossConfig("bce-with-logits", output="y")
    api.convert(model, tmp_path / "run", config=ProgramConfig(loss=loss))
    labels = (weights(9, 4, seed=1) > 0.1).astype(np.float32)
    for output in ("y", "z"):
        found = api.evaluate(
            tmp_path / "run",
            {"x": x, "labels": labels},
            metrics=["binary-accuracy"],
            checkpoint="initial",
            output=output,
        )
        expected = ((scores > 0.5) == (labels == 1)).mean()
        assert found["binary-accuracy"] == pytest.approx(expected)


def test_metrics_with_different_labels_are_refused():
    model, x, scores = regression()
    with pytest.raises(UsageError, match="need different labels") as info:
        api.evaluate(model, {"x": x, "labels": scores}, metrics=["mae", "top3"])
    assert_three_lines(info.value)


def test_a_run_is_validated_with_metrics_of_each_score(tmp_path):
    model, x, scores = regression("y = Sigmoid(z)")
    data = {"x": x, "labels": (scores > 0.5).astype(np.float32)}
    config = ProgramConfig(loss=LossConfig("mse"), learning_rate="1e-30")
    api.convert(model, tmp_path / "run", config)
    metrics = ["mae", "binary-accuracy"]
    summary = api.train(tmp_path / "run", data, data, epochs=1, metrics=metrics, progress=None)
    error = abs(scores - data["labels"]).mean()
    assert summary.metrics["val_mae"] == pytest.approx(error, rel=1e-5)
    assert summary.metrics["val_binary-accuracy"] == 1
    api.convert(model, tmp_path / "classes")
    data = {"x": x, "labels": np.arange(9) % 4}
    with pytest.raises(UsageError, match="the labels of this program are classes"):
        api.train(tmp_path / "classes", data, data, metrics=["mae"], progress=None)


def test_the_schedule_and_the_metrics_of_a_configuration_count(tmp_path):
    folder = converted(tmp_path / "run", small_mlp(), ProgramConfig(loss=LossConfig("mse")))
    data = {"x": np.ones((8, 4), np.float32), "labels": np.ones((8, 3), np.float32)}
    config = TrainConfig(learning_rate=PerStep((0.5, 0.25)), metrics=("mae",))
    summary = api.train(folder, data, data, config=config, batch_size=4, **CPU)
    steps = [e for e in read_log(folder / "log.jsonl") if e["event"] == "step"]
    assert [step["learning_rate"]["learning_rate"] for step in steps] == [0.5, 0.25]
    assert "val_mae" in summary.metrics
    about = next(e["about"] for e in read_log(folder / "log.jsonl") if "about" in e)
    assert "0.25" in about["learning_rate"]
    # What the call itself says comes first.
    api.train(folder, data, config=config, learning_rate=0.1, overwrite=True, batch_size=8, **CPU)
    (step,) = [e for e in read_log(folder / "log.jsonl") if e["event"] == "step"]
    assert step["learning_rate"]["learning_rate"] == 0.1


@pytest.mark.parametrize("size", [4, None])
def test_the_log_has_the_batch_size_of_batches_not_the_default(tmp_path, size):
    class Loader(list):
        batch_size = size

    folder = converted(tmp_path / "run", small_mlp())
    data = Loader([{"x": np.ones((4, 4), np.float32), "labels": np.arange(4) % 3}])
    api.train(folder, data, **CPU)
    about = next(e["about"] for e in read_log(folder / "log.jsonl") if "about" in e)
    assert about.get("batch_size") == size
    assert len(api.runs(folder)) == 1
