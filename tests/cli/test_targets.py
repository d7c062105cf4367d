"""``check --for``, ``export --precision int8`` and ``--build-engine`` on the command line."""

import json
import re
import sys

import numpy as np
import onnx
import pytest

from ortboost.api import check
from ortboost.cli import main
from ortboost.cli.parse import parse_int8
from ortboost.core.errors import UsageError
from ortboost.deploy.tensorrt import build_engine as engine_module
from tests.deploy.tensorrt.fake import FakeTensorRT, toolkit
from tests.support import MODELS

MLP, TINY = str(MODELS / "mlp.onnx"), str(MODELS / "transformer_tiny.onnx")
DIGITS = str(MODELS / "digits.npz")
SHAPE = ["--shape", "x:1,4,8x64"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets") / "run"
    assert main(["convert", MLP, "-o", str(folder), "--lr", "0.1", "-q"]) == 0
    words = ["train", str(folder), "--data", DIGITS, "--val", DIGITS, "--epochs", "3", "-q"]
    assert main(words) == 0
    return str(folder)


def refused(words, capsys, status=2):
    assert main(words) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert any(line.startswith("  fix:   ") for line in lines)
    assert "Traceback" not in captured.err
    return captured.err


def test_a_target_that_takes_the_model(capsys):
    for target in ("tensorrt", "tensorrt=10", "onnxruntime"):
        assert main(["check", MLP, "--for", target]) == 0
        assert "No problems found for" in capsys.readouterr().out
    assert main(["check", MLP, "--for", "tensorrt=11", *SHAPE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_a_target_that_does_not(capsys):
    assert main(["check", TINY, "--for", "tensorrt=11"]) == 4
    text = capsys.readouterr().out
    assert "TRT001" in text
    assert "TRT010" in text
    assert "6 problems found for TensorRT 11." in text
    assert "--fix -o fixed.onnx" in text
    assert main(["check", TINY, "--for", "tensorrt=11", "--json"]) == 4
    data = json.loads(capsys.readouterr().out)
    assert data["counts"]["error"] == 6
    assert "node_native_dropout__1 and 4 more" in text
    assert "node_native_dropout_3__1" not in text
    assert main(["check", TINY, "--for", "tensorrt=11", "-v"]) == 4
    text = capsys.readouterr().out
    assert "node_native_dropout_3__1" in text
    assert "more" not in text
    assert main(["check", MLP, "--for", "tensorrt", "--shape", "y:3"]) == 4
    assert "no input 'y'" in capsys.readouterr().out


def test_mending_writes_another_file(tmp_path, capsys):
    out = tmp_path / "m.onnx"
    words = ["check", TINY, "--for", "tensorrt=11", "--fix", "-o", str(out)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "findings  8 -> 2" in text
    assert "without its training parts" in text
    onnx.checker.check_model(str(out), full_check=True)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parity"]["ok"] is True
    words = ["check", MLP, "--for", "tensorrt", "--fix", "-o", str(out), "--verify", DIGITS]
    assert main(words) == 0
    assert "360 samples (data)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["check", MLP, "--fix", "-o", "x.onnx"],
        ["check", MLP, "--shape", "x:1x64"],
        ["check", MLP, "--for", "tensorrt", "--fix"],
        ["check", MLP, "--for", "tensorrt", "-o", "x.onnx"],
        ["check", MLP, "--for", "tensorrt=9"],
        ["check", MLP, "--for", "openvino"],
        ["check", MLP, "--for", "tensorrt", "--loss", "mse"],
        ["check", MLP, "--for", "onnxruntime", "--shape", "x:1x64"],
        ["check", MLP, "--for", "onnxruntime", "--fix", "-o", "x.onnx"],
        ["check", MLP, "--for", "tensorrt", "--shape", "x:8,1,2x64"],
        ["check", MLP, "--for", "tensorrt", "--fix", "-o", MLP],
    ],
)
def test_options_that_make_no_sense(words, capsys):
    refused(words, capsys)


def test_int8_on_the_command_line(run, tmp_path, capsys):
    out = tmp_path / "m.onnx"
    words = ["export", run, "-o", str(out), "--precision", "int8", "--calib", DIGITS]
    assert main([*words, "--verify", DIGITS, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["precision"] == "int8"
    before, after = (data["metrics"]["accuracy"][side] for side in ("before", "after"))
    assert before > 0.8
    assert after >= before - 0.01
    report = next(r for r in data["reports"] if r["rewrite"] == "quantize_int8")
    assert len(report["changed"]) == 2
    assert main([*words, "--target", "tensorrt", "--calibration", "percentile:99.9"]) == 0
    assert "on the calibration data" in capsys.readouterr().out
    assert main(["check", str(out), "--for", "tensorrt", *SHAPE]) == 0
    assert main([*words, "--skip", "fc*", "-q"]) == 0
    assert "QuantizeLinear" not in {node.op_type for node in onnx.load(out).graph.node}


def test_an_accuracy_that_falls_too_far_is_not_written(run, tmp_path, capsys):
    """Calibrated on noise a hundred times too small, the model is clipped to nothing."""
    noise = tmp_path / "noise.npz"
    rng = np.random.default_rng(0)
    np.savez(noise, x=(rng.random((64, 64)) * 1e-3).astype(np.float32), y=np.zeros(64, np.int64))
    out = tmp_path / "m.onnx"
    out.write_bytes(b"good")
    words = ["export", run, "-o", str(out), "--precision", "int8", "--calib", str(noise)]
    words += ["--verify", DIGITS]
    error = refused(words, capsys, 5)
    assert "accuracy fell from" in error
    assert "signal-to-quantization-noise ratio 'logits'" in error
    assert "quantize_int8" in refused([*words, "--max-drop", "1", "--rtol", "1e-3"], capsys, 5)
    assert out.read_bytes() == b"good"
    assert main([*words, "--max-drop", "1", "-q"]) == 0


def test_the_accuracy_decides_where_there_are_labels_else_the_noise(run, tmp_path, capsys):
    out, plain = tmp_path / "m.onnx", tmp_path / "x.npz"
    np.savez(plain, x=np.load(DIGITS)["x_test"].astype(np.float32) / 255)
    words = ["export", run, "-o", str(out), "--precision", "int8", "--calib", DIGITS]
    strict = ["--min-sqnr", "60"]  # more than bytes can do
    assert main([*words, "--verify", DIGITS, *strict]) == 0
    told = capsys.readouterr().out
    assert "accuracy" in told
    assert re.search(r"noise +logits \d\d\.\d dB", told)
    words[1] = MLP
    error = refused([*words, "--verify", str(plain), *strict], capsys, 5)
    assert "dB, below 60 dB" in error
    assert "quantize_int8" in error
    assert main([*words, "--verify", str(plain), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["parity"]["outputs"]["logits"]["sqnr"] > 20
    assert any("the criterion was SQNR 15 dB" in note for note in data["notes"])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--precision", "int8"], 2),
        (["--precision", "int8", "--calib", DIGITS, "--calibration", "mean"], 3),
        (["--precision", "int8", "--calib", DIGITS, "--calibration", "minmax:3"], 2),
        (["--precision", "int8", "--calib", DIGITS, "--calibration", "percentile:x"], 2),
        (["--precision", "int8", "--calib", DIGITS, "--calibration", "percentile:3"], 3),
        (["--min-sqnr", "20"], 2),
        (["--build-engine"], 2),
        (["--shape", "x:1x64"], 2),
        (["--target", "tensorrt", "--build-engine", "--shape", "x:4,1,2x64"], 2),
    ],
)
def test_export_options_that_make_no_sense(words, status, run, tmp_path, capsys):
    out = tmp_path / "m.onnx"
    refused(["export", run, "-o", str(out), *words], capsys, status)
    assert not out.exists()


def test_calibrations_are_read():
    assert parse_int8("onnxruntime", "percentile").percentile == 99.99
    assert parse_int8("generic", "entropy", skip=("a", "b")).skip == ("a", "b")
    assert parse_int8("generic", "minmax", samples=8).samples == 8
    for target, full, reduced in (
        ("onnxruntime", False, True),
        ("onnxruntime", True, False),
        ("generic", False, True),
        ("onnxruntime-gpu", False, False),
        ("tensorrt", False, False),
    ):
        assert parse_int8(target, "minmax", full_range=full).reduce_range is reduced
    with pytest.raises(UsageError):
        parse_int8("generic", "percentile:")


def test_without_tensorrt_the_file_is_written_and_the_recipe_printed(
    run, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    out = tmp_path / "m.onnx"
    words = ["export", run, "-o", str(out), "--target", "tensorrt=10", "--build-engine", *SHAPE]
    text = refused(words, capsys, 7)
    assert "--stronglyTyped" in text
    assert f"--onnx={out}" in text
    assert out.exists()
    assert not (tmp_path / "m.engine").exists()


def test_an_engine_on_the_command_line(run, tmp_path, capsys, monkeypatch):
    trt = FakeTensorRT()
    monkeypatch.setattr(engine_module, "load_toolkit", lambda: toolkit(trt))
    out = tmp_path / "m.onnx"
    words = ["export", run, "-o", str(out), "--target", "tensorrt", "--build-engine", *SHAPE]
    words += ["--workspace", "64", "--verify", DIGITS]
    assert main(words) == 0
    assert "engine    " in capsys.readouterr().out
    assert (tmp_path / "m.engine").exists()
    assert trt.called("set_memory_pool_limit") == [(0, 64 << 20)]
    metadata = json.loads((tmp_path / "m.engine.json").read_text())
    assert metadata["parity"]["samples"] == 360  # batches of the optimum, 4
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"]["tensorrt"] == "11.4.0"


def test_the_functions_take_names():
    assert check(MLP, target="ort").ok
    assert check(MLP, target="tensorrt").target == "TensorRT 11"


def test_the_provider_that_is_not_there(tmp_path, capsys):
    words = ["eval", MLP, "--data", DIGITS, "--provider", "tensorrt"]
    assert "onnxruntime-gpu" in refused(words, capsys, 7)
