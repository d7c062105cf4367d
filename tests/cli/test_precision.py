"""Mixed precision from the command line."""

from __future__ import annotations

import json

import pytest

from ortboost.cli import main
from ortboost.cli.parse import parse_precision
from tests.support import ROOT

LENET = str(ROOT / "models/lenet5.onnx")
DIGITS = str(ROOT / "models/digits.npz")


def test_convert_inspect_train_and_export(tmp_path, capsys):
    run, out = str(tmp_path / "run"), str(tmp_path / "lenet5.onnx")
    words = ["convert", LENET, "-o", run, "--precision", "fp16", "--keep-fp32", "node_linear_2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "fp16: 11 nodes, 1 in float32" in shown
    assert "onnxruntime computes float16 in float32 on a CPU" in shown
    assert "--emulate" in shown
    assert main(["inspect", run, "--precision"]) == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line]
    assert ["node_conv2d", "fp16", "sums of products"] in rows
    assert ["node_linear_2", "fp32", "as requested"] in rows
    assert main(["inspect", run, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {"node": "node_linear_2", "precision": "fp32", "why": "as requested"} in data[
        "precision"
    ]
    assert data["config"]["precision"]["compute"] == "fp16"
    assert main(["train", run, "--data", DIGITS, "--epochs", "1", "-q"]) == 0
    assert main(["export", run, "-o", out, "--verify", DIGITS]) == 0
    capsys.readouterr()
    assert main(["inspect", out, "--precision"]) == 0
    shown = capsys.readouterr().out
    assert "fp32" in shown
    assert "fp16" not in shown


def test_emulation_is_written_into_the_file(tmp_path, capsys):
    run = str(tmp_path / "run")
    words = ["convert", LENET, "-o", run, "--precision", "bf16:policy=all", "--emulate"]
    assert main(words) == 0
    assert "bf16 is emulated" in capsys.readouterr().out
    assert main(["inspect", run]) == 0
    assert "bf16, policy all, emulated" in capsys.readouterr().out


def test_a_program_in_float32_says_so(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["convert", LENET, "-o", run, "-q"]) == 0
    assert main(["inspect", run, "--precision"]) == 0
    assert "every node computes in fp32" in capsys.readouterr().out


def test_options_add_to_a_configuration_file(tmp_path, capsys):
    file, run = tmp_path / "c.json", str(tmp_path / "run")
    file.write_text(json.dumps({"precision": {"compute": "fp16", "keep_fp32": ["Conv"]}}))
    assert main(["convert", LENET, "-o", run, "--config", str(file), "--emulate", "--json"]) == 0
    precision = json.loads(capsys.readouterr().out)["config"]["precision"]
    assert precision["keep_fp32"] == ["Conv"]
    assert precision["emulate"] is True


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--precision", "fp61"], "fp61"),
        (["--precision", "fp16:polic=all"], "polic"),
        (["--precision", "fp16:policy=some"], "some"),
        (["--precision", "fp16:keep_batchnorm=2"], "keep_batchnorm"),
        (["--emulate"], "fp32"),
        (["--keep-fp32", "Conv"], "fp32"),
        (["--precision", "fp16", "--keep-fp32", "head*"], "head"),
        (["--precision", "fp16", "--force-low", "re:("], "regular expression"),
    ],
)
def test_mistakes_are_three_lines(options, word, tmp_path, capsys):
    assert main(["convert", LENET, "-o", str(tmp_path / "run"), *options]) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert word in captured.err
    assert any(line.startswith("  fix:   ") for line in lines)
    assert "Traceback" not in captured.err
    assert not (tmp_path / "run").exists()


def test_the_text_of_a_precision():
    assert parse_precision("bf16") == {"compute": "bf16"}
    assert parse_precision("fp16:policy=all,keep-batchnorm=false") == {
        "compute": "fp16",
        "policy": "all",
        "keep_batchnorm": False,
    }
