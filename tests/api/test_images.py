"""Images from folders through train, eval and export: the settings are said once."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from PIL import Image

import ortboost as ob
from ortboost.cli import main
from ortboost.core.errors import ConfigError, FileError, UsageError
from tests.support import small_convnet

SETTINGS = ["--images", "resize=12,normalize=0.4/0.3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    rng = np.random.Generator(np.random.PCG64(0))
    for split, number in (("train", 8), ("val", 3)):
        for label, name in enumerate(("bright", "dark", "half")):
            (root / split / name).mkdir(parents=True)
            for index in range(number):
                low, high = ((150, 256), (0, 100), (0, 256))[label]
                data = rng.integers(low, high, (14, 15), dtype=np.uint8)
                Image.fromarray(data).save(root / split / name / f"{index}.png")
    return root


@pytest.fixture
def run(tmp_path):
    ob.convert(small_convnet(), tmp_path / "run", ob.ProgramConfig(learning_rate="0.05"))
    return tmp_path / "run"


def train(run, folder, *more):
    words = ["train", str(run), "--data", str(folder), "--val", str(folder), "--batch-size", "5"]
    return main([*words, "--progress", "off", "-q", *more])


def test_settings_are_kept_in_the_run_and_in_exported_files(run, folder, tmp_path, capsys):
    assert train(run, folder, "--epochs", "2", "--augment", "crop=2,flip", *SETTINGS) == 0
    wanted = ob.evaluate(run, folder, checkpoint="last")
    assert wanted == ob.evaluate(
        run, folder, checkpoint="last", images="resize=12,normalize=0.4/0.3"
    )
    assert wanted != ob.evaluate(run, folder, checkpoint="last", images="resize=12")
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    seen = [event["val_loss"] for event in log if event["event"] == "validation"]
    assert seen[-1] == pytest.approx(wanted["loss"], rel=1e-6)  # other batches
    for made, source in (("a.onnx", run), ("b.onnx", tmp_path / "a.onnx")):
        which = {"checkpoint": "last"} if source == run else {}
        ob.export(source, tmp_path / made, verify=folder, **which)
        found = ob.evaluate(tmp_path / made, folder)
        assert found["accuracy"] == wanted["accuracy"]
        notes = {p.key: p.value for p in onnx.load(tmp_path / made).metadata_props}
        assert json.loads(notes["ortboost.images"])["classes"] == ["bright", "dark", "half"]
    quantized = ob.export(
        run, tmp_path / "q.onnx", precision="int8", calibration=folder, verify=folder, max_drop=1.0,
        checkpoint="last",
    )  # fmt: skip
    assert quantized.metrics["accuracy"][0] == wanted["accuracy"]


def test_other_settings_than_those_of_the_training_are_reported(run, folder, caplog):
    assert train(run, folder, "--epochs", "1", *SETTINGS) == 0
    caplog.clear()
    ob.evaluate(run, folder, images="resize=12,normalize=0.4/0.3")
    assert not caplog.records
    ob.evaluate(run, folder, images="resize=12")
    assert "replace all of those of the training; they differ in mean, std" in caplog.text


def test_a_resumed_run_sees_the_same_images(run, folder, tmp_path):
    other = tmp_path / "other"
    ob.convert(small_convnet(), other, ob.ProgramConfig(learning_rate="0.05"))
    settings = {"images": "resize=12", "augment": "resized-crop,flip,brightness=0.3"}
    arguments = {"batch_size": 5, "progress": None}
    whole = ob.train(other, folder, folder, epochs=3, workers=1, **arguments, **settings)
    ob.train(run, folder, folder, max_steps=7, epochs=3, workers=3, **arguments, **settings)
    resumed = ob.train(run, folder, folder, epochs=3, resume=True, **arguments)
    assert resumed.metrics == whole.metrics
    with pytest.raises(UsageError, match="training data changed"):
        ob.train(run, folder, epochs=4, resume=True, images="resize=13", **arguments)


def test_a_folder_of_other_classes_is_refused(run, folder, tmp_path, capsys):
    assert train(run, folder, "--epochs", "1") == 0
    other = tmp_path / "other"
    for name in ("dark", "green"):
        (other / name).mkdir(parents=True)
        Image.new("L", (9, 9)).save(other / name / "1.png")
    with pytest.raises(FileError, match="'green' is not a class of the training"):
        ob.evaluate(run, other)
    assert main(["eval", str(run), "--data", str(other)]) == 8
    (other / "green" / "1.png").unlink()
    (other / "green").rmdir()
    # One class of those that are known keeps its number, whatever else is said.
    found = ob.evaluate(run, other)
    assert found == ob.evaluate(run, other, images="crop=6")
    one = np.full((1, 1, 6, 6), 0, np.float32)
    wanted = ob.evaluate(run, {"x": one, "labels": np.array([1])})
    assert found == wanted


def test_running_statistics_are_estimated_of_the_same_pixels(run, folder):
    ob.train(run, folder, epochs=1, images="normalize=0.4/0.3", progress=None)
    kept = ob.evaluate(run, folder, update_bn=folder, checkpoint="last")
    said = ob.evaluate(run, folder, update_bn=folder, checkpoint="last", images="normalize=0.4/0.3")
    assert kept == said


@pytest.mark.parametrize("verb", [ob.export, ob.compare])
def test_wrong_settings_are_refused_before_the_network_is_rewritten(verb, tmp_path, monkeypatch):
    monkeypatch.setattr("ortboost.api.export_subject.export_network", None)
    with pytest.raises(ConfigError, match="Unknown setting 'croop'"):
        verb(small_convnet(), tmp_path / "out.onnx", images="croop=6")
