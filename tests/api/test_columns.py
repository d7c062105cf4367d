"""The order of columns: tables that are evaluated must be like those of the training."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.core.errors import UsageError
from ortboost.training.resume import verify_run
from tests.support import assert_three_lines, small_mlp

NAMES = ["a", "b", "c", "d"]
VALUES = np.random.Generator(np.random.PCG64(0)).standard_normal((12, 4))


def write(path, names, values=VALUES):
    rows = [[*row, i % 3] for i, row in enumerate(values.tolist())]
    lines = [[*names, "y"], *rows]
    path.write_text("\n".join(",".join(map(str, line)) for line in lines))
    return path


def structured(names):
    table = np.zeros(12, [(name, "f8") for name in names] + [("y", "i8")])
    for name in names:
        table[name] = VALUES[:, NAMES.index(name)]
    table["y"] = np.arange(12) % 3
    return table


@pytest.fixture
def trained(tmp_path):
    ob.convert(small_mlp(), tmp_path / "run")
    ob.train(tmp_path / "run", write(tmp_path / "train.csv", NAMES), progress=None)
    return tmp_path / "run"


def test_columns_in_another_order_are_refused(trained, tmp_path):
    """Each was fed as another one, without a word."""
    turned = write(tmp_path / "turned.csv", NAMES[::-1], VALUES[:, ::-1])
    calls = [
        lambda: ob.evaluate(trained, turned),
        lambda: ob.evaluate(trained, structured(NAMES[::-1])),
        lambda: ob.export(trained, tmp_path / "out.onnx", verify=turned),
        lambda: ob.train(trained, tmp_path / "train.csv", turned, overwrite=True, progress=None),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="'x' are not those of the training") as caught:
            call()
        assert "column 1 is 'd', not 'a'" in caught.value.where
        assert caught.value.fix.endswith(": a, b, c, d")
        assert_three_lines(caught.value)


def test_a_column_that_was_not_trained_is_refused(trained, tmp_path):
    other = write(tmp_path / "other.csv", ["a", "b", "c", "e"])
    with pytest.raises(UsageError, match="are not those of the training") as caught:
        ob.evaluate(trained, other)
    assert "column 4 is 'e', not 'd'" in caught.value.where


def test_the_same_columns_and_data_without_known_names_are_accepted(trained, tmp_path):
    same = ob.evaluate(trained, tmp_path / "train.csv")
    named = {name: VALUES[:, [i]] for i, name in enumerate(NAMES)}
    for data in (
        structured(NAMES),
        write(tmp_path / "headers.csv", ["p", "q", "r", "s"]),
        (np.concatenate(list(named.values()), axis=1), np.arange(12) % 3),
    ):
        assert ob.evaluate(trained, data)["loss"] == pytest.approx(same["loss"], rel=1e-6)


def test_a_table_for_one_input_has_its_columns_checked(trained):
    with pytest.raises(UsageError, match="are not those of the training"):
        ob.evaluate(trained, (structured(NAMES[::-1])[NAMES[::-1]], np.arange(12) % 3))


def test_a_run_is_resumed_with_other_headers_but_not_with_other_columns(trained, tmp_path):
    headers = write(tmp_path / "headers.csv", ["p", "q", "r", "s"])
    resumed = ob.train(trained, headers, resume=True, epochs=2, progress=None)
    assert resumed.epochs == 2
    turned = write(tmp_path / "turned.csv", NAMES[::-1], VALUES[:, ::-1])
    with pytest.raises(UsageError, match="training data changed") as caught:
        ob.train(trained, turned, resume=True, epochs=3, progress=None)
    assert ".columns: ['p', 'q', 'r', 's'] -> ['d', 'c', 'b', 'a']" in caught.value.where


def test_columns_are_not_blamed_if_the_checkpoint_is_older_than_their_names():
    run = {"seed": 0, "schedules": {}}
    before, now = {"x": {"content": 1}}, {"x": {"content": 2, "columns": NAMES}}
    with pytest.raises(UsageError, match="training data changed") as caught:
        verify_run({"run": run, "data": before}, run, now)
    assert caught.value.where == "training data.x.content: other contents"
