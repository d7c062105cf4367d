"""A causal language model on the command line: convert, train, evaluate, export, evaluate again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost.cli import main
from ortboost.graph.io import save_model
from tests.support import ENGINES, text_model, weights


def language_model(vocabulary: int = 9, width: int = 6):
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        gpt (int64[batch,sequence] input_ids, float[{vocabulary},{width}] table,
             float[{width},{vocabulary}] head) => (float[batch,sequence,{vocabulary}] logits) {{
          h = Gather(table, input_ids)
          logits = MatMul(h, head)
        }}""",
        table=weights(vocabulary, width, seed=1),
        head=weights(width, vocabulary, seed=2),
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(language_model(), "gpt.onnx")
    start = np.random.default_rng(0).integers(0, 9, (20, 1))
    np.savez("tokens.npz", input_ids=(start + 2 * np.arange(6)) % 9)
    return tmp_path


def numbers(capsys) -> dict[str, float]:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("engine", ENGINES)
def test_from_tokens_to_an_exported_file(folder, capsys, engine):
    data = ["--data", "tokens.npz", "--map", "labels=input_ids"]
    assert main(["convert", "gpt.onnx", "-o", "run", "--shift-labels", "--engine", engine]) == 0
    said = capsys.readouterr().out
    assert "classes in axis 2, shifted by one position" in said
    train = ["train", "run", *data, "--val", "tokens.npz", "--epochs", "30", "--lr", "1"]
    assert main([*train, "--batch-size", "5", "-q"]) == 0
    assert main(["eval", "run", *data, "--json"]) == 0
    found = numbers(capsys)
    assert found["accuracy"] == 1.0  # the next token is two further on
    verify = ["--verify", "tokens.npz", "--map", "labels=input_ids"]
    assert main(["export", "run", "-o", "out.onnx", *verify, "--json"]) == 0
    assert numbers(capsys)["metrics"]["accuracy"] == {"before": 1.0, "after": 1.0}
    assert main(["eval", "out.onnx", *data, "--shift-labels", "--json"]) == 0
    assert numbers(capsys)["accuracy"] == 1.0
    assert main(["eval", "out.onnx", *data, "--json"]) == 0  # never the token itself
    assert numbers(capsys)["accuracy"] == 0.0


def test_missing_labels_of_a_shifted_model_are_its_tokens(folder, capsys):
    assert main(["convert", "gpt.onnx", "-o", "run", "--shift-labels", "-q"]) == 0
    assert main(["train", "run", "--data", "tokens.npz"]) != 0
    assert "--map labels=input_ids" in capsys.readouterr().err


def test_settings_of_labels_are_not_for_a_program(folder, capsys):
    assert main(["convert", "gpt.onnx", "-o", "run", "--shift-labels", "-q"]) == 0
    assert main(["eval", "run", "--data", "tokens.npz", "--class-axis", "1"]) != 0
    assert "A program defines how its inputs and labels are read." in capsys.readouterr().err


def test_an_uncertain_axis_is_an_error_of_convert(folder, capsys):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,4,4] x, float[4,4] w) => (float[n,4,4] y) {
            h = MatMul(x, w) y = MatMul(h, x)
        }""",
        w=weights(4, 4),
    )
    save_model(model, "square.onnx")
    assert main(["convert", "square.onnx", "-o", "run"]) != 0
    said = capsys.readouterr().err
    assert "The class axis of the output 'y' is ambiguous." in said
    assert "--class-axis" in said
    assert main(["convert", "square.onnx", "-o", "run", "--class-axis", "-1"]) == 0
    assert "classes in axis 2" in capsys.readouterr().out
