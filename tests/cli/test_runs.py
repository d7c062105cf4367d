"""``ortboost runs`` on the command line."""

from __future__ import annotations

import json

from ortboost.cli import main
from tests.api.test_list_runs import DYNAMIC, make_run


def test_runs_as_a_table_and_as_data(tmp_path, capsys):
    make_run(tmp_path / "run", accuracy=[0.5, 0.75], less_bn=True)
    make_run(tmp_path / "two", accuracy=[0.9])
    assert main(["runs", str(tmp_path), "--csv", str(tmp_path / "runs.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    columns = ["run", "val_accuracy", "epochs", "steps", "skipped", "time", "status"]
    assert lines[0].split() == columns
    shown = "two 0.9000 (step 1) 1/1 1 1 2.5 s all epochs done"
    assert " ".join(lines[1].split()) == shown
    assert lines[3:6] == ["", "different settings", "run  less-bn"]
    assert lines[-1].endswith("runs.csv")
    assert main(["runs", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in data] == ["two", "run"]
    assert data[1]["differs"] == {"less_bn": True}


def test_settings_are_said_in_few_words(tmp_path, capsys):
    scale = {**DYNAMIC, "max_scale": 8.0}
    make_run(tmp_path / "a", groups=["x", "y"], clip={"norm": 1.0}, loss_scale=scale)
    scale = {**DYNAMIC, "window": 10, "max_scale": None}
    make_run(tmp_path / "b", loss_scale=scale, weight_decay=0.1)
    assert main(["runs", str(tmp_path)]) == 0
    *_, a, b = capsys.readouterr().out.splitlines()
    assert a == "a  loss-scale (window 2000, max-scale 8), groups x,y, clip"
    assert b == "b  loss-scale (window 10), weight-decay 0.1"


def test_parameter_groups_are_said_in_words(tmp_path, capsys):
    for rate in (0.1, 0.2):
        group = {"name": "head", "patterns": ["fc2*"], "learning_rate": rate, "weight_decay": None}
        make_run(tmp_path / str(rate), accuracy=[0.5], groups=[group])
    assert main(["runs", str(tmp_path)]) == 0
    assert "groups (name head, patterns fc2*, learning-rate 0.1)" in capsys.readouterr().out


def test_what_is_not_known_of_a_run_is_left_out(tmp_path, capsys):
    make_run(tmp_path / "new")
    assert main(["runs", str(tmp_path)]) == 0
    header, row, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "best", "epochs", "steps", "skipped", "time", "status"]
    assert row.split() == ["new", "not", "trained"]


def test_a_run_that_skipped_no_step_says_so(tmp_path, capsys):
    make_run(tmp_path / "run", accuracy=[0.5, 0.75], overflows=0)
    assert main(["runs", str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert " ".join(row.split()) == "run 0.7500 (step 2) 2/2 2 0 2.5 s all epochs done"


def test_a_group_without_settings_is_not_shown(tmp_path, capsys):
    for name, smoothing in ("a", 0.1), ("b", None):
        make_run(tmp_path / name, loss={"kind": "mse", "label_smoothing": smoothing})
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "loss (label-smoothing 0.1)" in out
    assert "()" not in out
