"""--config and --print-config: options in a file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost.cli import main
from ortboost.program.program import Program
from tests.support import digits, model_path

MLP = str(model_path("mlp"))
EVERYTHING = [
    *("--loss", "softmax-cross-entropy", "--reduction", "sum", "--labels", 'y"1'),
    *("--class-axis", "1", "--ignore-index", "-1", "--batch-axis", "x=0"),
    *("--optimizer", "adam:beta1=0.8,eps=1e-6"),
    *("--lr", "cosine:0.1,warmup=5", "--weight-decay", "1e-4", "--decay", "weights"),
    *("--group", "head:fc2*:lr=0.2,weight_decay=0", "--loss-scale", "dynamic:64,window=3"),
    *("--clip", "global-norm:1", "--accumulate", "2", "--precision", "fp16:policy=all"),
    *("--keep-fp32", "fc2*", "--keep-fp32", "re:.*fc1\\S*", "--emulate"),
    *("--freeze", "fc1*", "--new-head", "10", "--running-variance", "onnx"),
    *("--engine", "portable", "--seed", "7", "--set", "centralize.multiple_of=1"),
]


def written(capsys, words, path):
    assert main([*words, "--print-config"]) == 0
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


def error(capsys, words):
    capsys.readouterr()
    status = main(words)
    return status, capsys.readouterr().err


def test_a_file_with_a_byte_order_mark(tmp_path, capsys):
    """Editors on Windows write one, and line ends of their own."""
    file = tmp_path / "check.toml"
    file.write_bytes(f'\ufeffmodel = "{MLP}"\r\nengine = "portable"\r\n'.encode())
    assert main(["check", "--config", str(file), "--json"]) == 0


def test_a_printed_file_reproduces_the_command(tmp_path, capsys):
    words = ["convert", MLP, "-o", str(tmp_path / "one"), *EVERYTHING]
    file = written(capsys, words, tmp_path / "all.toml")
    assert not (tmp_path / "one").exists()
    assert main(words) == 0
    # Arguments are in the file too; what is given beside it wins.
    assert main(["convert", "--config", str(file), "--out", str(tmp_path / "two")]) == 0
    one, two = (Program.load(tmp_path / name) for name in ("one", "two"))
    assert two.config == one.config
    assert two.config.precision.keep_fp32 == ("fc2*", "re:.*fc1\\S*")
    assert two.config.optimizer.eps == 1e-6
    assert two.fingerprint == one.fingerprint
    capsys.readouterr()
    again = written(capsys, ["convert", "--config", str(file)], tmp_path / "again.toml")
    assert again.read_text() == file.read_text()


def test_what_is_given_wins_over_the_file(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text('lr = 0.5\nseed = 3\nfreeze = "fc1*"\noverwrite = true\nweight_decay = 0.25\n')
    run = str(tmp_path / "run")
    for _ in range(2):  # the file says --overwrite
        assert main(["convert", MLP, "-o", run, "--config", str(file), "--seed", "4", "-q"]) == 0
    config = Program.load(run).config
    assert (config.learning_rate, config.seed, config.freeze) == ("0.5", 4, ("fc1*",))
    assert config.weight_decay == 0.25


def test_a_json_file_is_the_configuration_itself_and_may_be_named_in_another(tmp_path, capsys):
    base = tmp_path / "base.json"
    base.write_text(json.dumps({"loss": {"name": "mse"}, "loss_scale": {"kind": "off"}}))
    words = ["convert", MLP, "-o", str(tmp_path / "run"), "--config", str(base), "--lr", "0.3"]
    file = written(capsys, words, tmp_path / "run.toml")
    assert main(["convert", "--config", str(file)]) == 0
    config = Program.load(tmp_path / "run").config
    assert (config.loss.name, config.learning_rate) == ("mse", "0.3")


def test_other_verbs_read_one(tmp_path, capsys):
    images = digits()
    data = {"x": images["x_train"][:64].reshape(64, -1), "labels": images["y_train"][:64]}
    np.savez(tmp_path / "data.npz", **data)
    run = str(tmp_path / "run")
    assert main(["convert", MLP, "-o", run, "-q"]) == 0
    file = tmp_path / "train.toml"
    text = f'data = "{tmp_path / "data.npz"}"\nepochs = 2\nbatch-size = 32\nval-split = 0.25\n'
    file.write_text(text + 'metric = ["top5"]\n')
    assert main(["train", run, "--config", str(file), "--epochs", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["steps"] == 2
    assert main(["eval", run, "--config", str(file), "--json"]) == 3  # there are no epochs in eval
    file.write_text(f'data = "{tmp_path / "data.npz"}"\nmetric = "top5"\n')
    assert main(["eval", run, "--config", str(file), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["loss", "top5"]


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ('learning-rate = "1"\n', 3, "choices: model, out, loss"),
        ("sede = 1\n", 3, "did you mean 'seed'"),
        ("lr = [0.1]\n", 3, "as on the command line"),
        ("[loss]\nname = 'mse'\n", 3, "as on the command line"),
        ("lr = \n", 8, "TOML"),
        ('seed = "x"\n', 2, "'--seed'"),
        ("seed = -1\n", 2, "'--seed'"),
    ],
)
def test_mistakes_in_a_file_name_the_cure(tmp_path, capsys, text, status, words):
    file = tmp_path / "run.toml"
    file.write_text(text)
    found, said = error(
        capsys, ["convert", MLP, "-o", str(tmp_path / "run"), "--config", str(file)]
    )
    assert found == status
    assert words in said
    assert [line.split(":")[0].strip() for line in said.splitlines()] == ["error", "where", "fix"]
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_not_there(tmp_path, capsys):
    found, said = error(capsys, ["convert", MLP, "-o", "x", "--config", str(tmp_path / "no.toml")])
    assert found == 8
    assert "no.toml" in said


# ---- the version ---------------------------------------------------------------------------------


def test_a_printed_file_has_a_version_that_may_stay_out(tmp_path, capsys):
    run = str(tmp_path / "run")
    file = written(capsys, ["convert", MLP, "-o", run, "--lr", "0.5"], tmp_path / "run.toml")
    text = file.read_text()
    assert text.startswith("version = 1\n")
    for content in (text, text.removeprefix("version = 1\n")):
        file.write_text(content)
        assert main(["convert", "--config", str(file), "--overwrite", "-q"]) == 0
        assert Program.load(run).config.learning_rate == "0.5"


@pytest.mark.parametrize("version", ["2", "0", '"1"', "true", "1.0"])
@pytest.mark.parametrize("kind", ["toml", "json"])
def test_an_unknown_version_is_refused(tmp_path, capsys, version, kind):
    file = tmp_path / f"run.{kind}"
    file.write_text(f"version = {version}\n" if kind == "toml" else f'{{"version": {version}}}')
    words = ["convert", MLP, "-o", str(tmp_path / "run"), "--config", str(file)]
    status, said = error(capsys, words)
    assert status == 3
    assert "has the unknown version" in said
    assert f"where: {file}" in said
    assert "This ortboost reads version 1" in said


def test_a_json_file_with_the_version(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"version": 1, "learning_rate": "0.25"}))
    assert main(["convert", MLP, "-o", str(tmp_path / "run"), "--config", str(file), "-q"]) == 0
    assert Program.load(tmp_path / "run").config.learning_rate == "0.25"
