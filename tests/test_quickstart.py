"""The README's first command, without its installation."""

from __future__ import annotations

import onnxruntime
import pytest

from tools import quickstart


def test_it_trains_exports_and_says_what_came_of_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["quickstart.py", "--out", str(tmp_path / "quickstart")])
    assert quickstart.main() == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line)
    assert float(rows["accuracy"].partition("%")[0]) >= 97
    assert rows["export"].startswith("answers as the trained model does")
    for row in ("model", "curves"):
        path = tmp_path / "quickstart"
        assert rows[row].startswith(str(path))
    model = str(tmp_path / "quickstart" / "lenet5.opt.onnx")
    assert onnxruntime.InferenceSession(model).get_inputs()[0].name == "x"


def test_too_little_training_is_an_error(tmp_path, monkeypatch, capsys):
    arguments = ["quickstart.py", "--epochs", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    assert quickstart.main() == 5
    assert "97 % was expected" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["make test", "make quickstart"])
def test_ci_runs_it(command):
    script = (quickstart.ROOT / ".ci" / "run").read_text()
    assert command in script
