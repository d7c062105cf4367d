"""--val-split, and what the summary says of the data."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.api.train_settings import warn_of_single_samples
from ortboost.cli import main
from ortboost.core.errors import UsageError
from ortboost.training.data import ArraySource
from tests.support import assert_three_lines, small_convnet, small_mlp, text_model, weights


def _normalized():
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,4] w, float[4] s, float[4] b, float[4] m, float[4] v)
            => (float[N,4] y) { h = MatMul(x, w) y = BatchNormalization(h, s, b, m, v) }""",
        w=weights(3, 4),
        s=np.ones(4, np.float32),
        b=np.zeros(4, np.float32),
        m=np.zeros(4, np.float32),
        v=np.ones(4, np.float32),
    )


@pytest.fixture
def made(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((40, 4)).astype(np.float32), "y": np.arange(40) % 3}
    data, run = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, **arrays)
    ob.convert(small_mlp(), run)
    return run, data, arrays


def test_a_part_of_the_data_is_held_out(made, tmp_path):
    run, data, arrays = made
    summary = ob.train(run, data, val_split=0.25, batch_size=5, epochs=3)
    assert "val_accuracy" in summary.metrics
    assert summary.steps == 3 * 6  # 30 of 40 samples
    assert summary.best_checkpoint is not None
    assert sum(summary.class_counts) == 30
    # From arrays, and with a resume, it is the same run.
    ob.convert(small_mlp(), tmp_path / "other")
    first = ob.train(tmp_path / "other", arrays, val_split=0.25, batch_size=5, epochs=2)
    assert first.metrics["val_loss"] != summary.metrics["val_loss"]
    again = ob.train(
        tmp_path / "other", arrays, val_split=0.25, batch_size=5, epochs=3, resume=True
    )
    assert again.metrics == summary.metrics
    with pytest.raises(UsageError, match="training data changed"):
        ob.train(run, data, val_split=0.5, batch_size=5, epochs=4, resume=True)


def test_the_summary_shows_the_balance_of_classes(made, capsys):
    run, data, _ = made
    assert main(["train", str(run), "--data", str(data), "--epochs", "1", "--progress", "off"]) == 0
    rows = dict(
        line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line
    )
    assert rows["classes"].strip() == "3, 13 (class 1) to 14 (class 0) labels each"


@pytest.mark.parametrize(("dtype", "told"), [("uint8", True), ("int16", False)])
def test_the_summary_tells_of_bytes_taken_as_pixels(made, dtype, told):
    run, _, arrays = made
    data = {**arrays, "x": (arrays["x"] * 20 + 100).astype(dtype)}
    notes = ob.train(run, data, batch_size=5, epochs=1).notes
    assert [("'x' were divided by 255" in note) for note in notes] == [True] * told


def test_bytes_are_not_validated_on_numbers_of_another_range(made):
    """Trained on pixels divided by 255, validated on the pixels: a loss of 158."""
    run, _, arrays = made
    pixels = np.clip(arrays["x"] * 20 + 100, 0, 255).astype(np.uint8)
    data, numbers = {**arrays, "x": pixels}, {**arrays, "x": pixels.astype(np.float32)}
    for one, other, words in ((data, numbers, "training"), (numbers, data, "validation")):
        with pytest.raises(UsageError, match=f"The {words} data 'x' are bytes") as caught:
            ob.train(run, one, other, epochs=1)
        assert_three_lines(caught.value)
    unit = {**arrays, "x": pixels / np.float32(255)}
    ob.train(run, data, unit, batch_size=5, epochs=1)


def test_refusals(made):
    run, data, arrays = made
    with pytest.raises(UsageError, match="Validation data are given") as caught:
        ob.train(run, data, data, val_split=0.1)
    assert_three_lines(caught.value)
    with pytest.raises(UsageError, match="Only files and arrays") as caught:
        ob.train(run, [(arrays["x"], arrays["y"])], val_split=0.1)
    assert_three_lines(caught.value)
    ob.train(run, data, val_split=0.1, early_stop=1, epochs=1)  # validation data to stop by


@pytest.mark.parametrize(
    "setting", [{"early_stop": 1}, {"metrics": ["top5"]}, {"validate_every": 2}]
)
def test_settings_of_a_validation_need_its_data(made, setting):
    """Metrics and ``validate_every`` had no effect without them."""
    run, data, _ = made
    with pytest.raises(UsageError, match="needs validation data") as caught:
        ob.train(run, data, epochs=1, **setting)
    assert next(iter(setting)) in str(caught.value)
    assert_three_lines(caught.value)


def test_a_warm_up_longer_than_the_run_is_reported(made, caplog):
    run, data, _ = made
    for warmup, told in ((15, 0), (16, 1)):  # 8 updates an epoch
        caplog.clear()
        rate = f"cosine:0.1,warmup={warmup}"
        ob.train(run, data, batch_size=5, epochs=2, learning_rate=rate, overwrite=True)
        assert caplog.text.count("does not end in this run of 16") == told


@pytest.mark.parametrize(
    ("rows", "batch", "frozen", "told"),
    [
        (9, 4, (), "The last batch of each epoch has one sample"),
        (8, 1, (), "Each batch has one sample"),
        (8, 4, (), ""),
        (10, 4, (), ""),
        (9, 4, ("*",), ""),
    ],
)
def test_one_sample_is_too_few_for_a_normalization_over_the_batch(
    tmp_path, caplog, rows, batch, frozen, told
):
    """torch refuses it; here it trained nothing, and shrank the running variance."""
    ob.convert(_normalized(), tmp_path / "run", ob.ProgramConfig(frozen_norm=frozen))
    data = {"x": weights(rows, 3), "y": np.arange(rows) % 4}
    ob.train(tmp_path / "run", data, batch_size=batch, epochs=1)
    assert told in caplog.text
    assert ("one sample" in caplog.text) == bool(told)


@pytest.mark.parametrize(
    ("rows", "batch", "boosts", "told"),
    [
        (12, 4, (), ""),
        (11, 4, (), "The last batch of each epoch has one sample in one of the processes"),
        (12, 3, (), "Each batch has one sample in one of the processes"),
        (11, 4, (ob.SyncBatchNorm(),), ""),
    ],
)
def test_a_process_normalizes_its_part_of_a_batch(caplog, rows, batch, boosts, told):
    program = ob.build_program(_normalized(), ob.ProgramConfig(boosts=boosts))
    source = ArraySource({"x": weights(rows, 3)}, batch)
    warn_of_single_samples(program, source, 2)
    assert told in caplog.text
    assert ("one sample" in caplog.text) == bool(told)


@pytest.mark.parametrize("verb", ["evaluate", "update_bn", "verify"])
def test_a_run_knows_whether_it_was_trained_on_bytes(tmp_path, verb):
    """Evaluated on the numbers of the bytes, its accuracy was that of a guess."""
    run, rng = tmp_path / "run", np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 1, 6, 6), np.uint8)
    ob.convert(small_convnet(), run)
    labels = np.arange(40) % 3
    of_bytes, numbers, unit = (
        {"x": x, "y": labels} for x in (pixels, pixels.astype(np.float32), pixels / np.float32(255))
    )
    use = {
        "evaluate": lambda data: ob.evaluate(run, data),
        "update_bn": lambda data: ob.evaluate(run, of_bytes, update_bn=data),
        "verify": lambda data: ob.export(run, tmp_path / "out.onnx", verify=data),
    }[verb]
    ob.train(run, of_bytes, epochs=1, batch_size=8)
    use(unit)
    with pytest.raises(UsageError, match="The training data 'x' are bytes") as caught:
        use(numbers)
    assert_three_lines(caught.value)
    if verb == "update_bn":
        return
    ob.train(run, unit, epochs=1, batch_size=8, overwrite=True)
    use(of_bytes)
    ob.train(run, numbers, epochs=1, batch_size=8, overwrite=True)
    with pytest.raises(UsageError, match="The given data 'x' are bytes"):
        use(of_bytes)
