"""A trained run as the model of another one."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.cli import main
from ortboost.core.errors import FileError, UsageError
from tests.support import assert_same_bits, assert_three_lines, small_convnet, small_mlp


@pytest.fixture
def trained(tmp_path):
    """A run of three epochs, and its data."""
    rng = np.random.default_rng(0)
    data, run = tmp_path / "data.npz", tmp_path / "run"
    x = rng.standard_normal((32, 1, 6, 6)).astype(np.float32)
    np.savez(data, x=x, y=rng.integers(0, 3, 32))
    ob.convert(small_convnet(), run, ob.ProgramConfig(learning_rate="0.05"))
    ob.train(run, data, batch_size=8, epochs=3)
    return run, data


def network(program):
    kinds = ("parameter", "buffer")
    return {e.name: program.initial[e.name] for e in program.catalogue.entries(*kinds)}


def test_it_starts_from_the_weights_of_a_checkpoint(trained, tmp_path):
    run, data = trained
    ob.convert(run, tmp_path / "tuned")
    answers = ob.evaluate(run, data)
    assert ob.evaluate(tmp_path / "tuned", data, checkpoint="initial") == answers
    initial = ob.convert(run, tmp_path / "again", checkpoint="initial")
    assert_same_bits(network(initial), network(ob.Program.load(run)))
    file = run / "checkpoints" / "step-00000008.json"
    ob.convert(file, tmp_path / "early")
    early = ob.evaluate(run, data, checkpoint=str(file))
    assert ob.evaluate(tmp_path / "early", data, checkpoint="initial") == early != answers


def test_it_is_what_the_way_over_a_file_gives(trained, tmp_path):
    """``export --no-optimize``, then ``convert``; the optimizer begins anew in both."""
    run, data = trained
    config = ob.ProgramConfig(learning_rate="0.01", new_head=5, freeze=("cw",))
    ob.export(run, tmp_path / "file.onnx", optimize=False)
    one = ob.convert(run, tmp_path / "one", config)
    other = ob.convert(tmp_path / "file.onnx", tmp_path / "other", config)
    assert one.initial["fw"].shape == (5, 4)
    assert_same_bits(one.initial, other.initial)
    for folder in ("one", "other"):
        ob.train(tmp_path / folder, data, batch_size=8, epochs=1)
    assert ob.evaluate(tmp_path / "one", data) == ob.evaluate(tmp_path / "other", data)


def test_the_command_says_what_it_starts_from_and_what_becomes_of_normalizations(
    trained, tmp_path, capsys
):
    run, _ = trained
    words = ["convert", str(run), "-o", str(tmp_path / "tuned"), "--new-head", "5"]
    assert main([*words, "--trainable", "fw"]) == 0
    out = capsys.readouterr().out
    assert f"note: starts from the weights of step 12 of {run}" in out
    assert "note: BatchNormalization with frozen weights still updates its statistics" in out
    assert "--frozen-bn" in out
    assert main([*words, "--trainable", "fw", "--frozen-bn", "*", "--overwrite"]) == 0
    assert "still updates its statistics" not in capsys.readouterr().out
    assert main([*words, "--overwrite"]) == 0  # nothing is frozen
    assert "still updates its statistics" not in capsys.readouterr().out


def test_adapters_of_a_run_are_merged(trained, tmp_path):
    run, data = trained
    config = ob.ProgramConfig(boosts=(ob.Lora(rank=1),), learning_rate="0.05")
    ob.convert(run, tmp_path / "adapted", config)
    ob.train(tmp_path / "adapted", data, batch_size=8, epochs=1)
    again = ob.convert(tmp_path / "adapted", tmp_path / "again", config)
    names = network(ob.Program.load(tmp_path / "adapted"))
    assert network(again).keys() == names.keys()  # no second pair
    assert any("merged into the weights" in note for note in again.reports[0].notes)
    before = ob.evaluate(tmp_path / "adapted", data)["loss"]
    after = ob.evaluate(tmp_path / "again", data, checkpoint="initial")["loss"]
    assert after == pytest.approx(before, rel=1e-5)


def test_refusals(trained, tmp_path):
    run, _ = trained
    with pytest.raises(UsageError, match="replace the run") as caught:
        ob.convert(run, run, overwrite=True)
    assert_three_lines(caught.value)
    with pytest.raises(UsageError, match="Only a program folder") as caught:
        ob.convert(small_mlp(), tmp_path / "a", checkpoint="last")
    assert_three_lines(caught.value)
    ob.convert(small_mlp(), tmp_path / "fresh")
    with pytest.raises(FileError, match="not been trained") as missing:
        ob.convert(tmp_path / "fresh", tmp_path / "b")
    assert_three_lines(missing.value)


def test_a_full_normalization_head_can_be_replaced(trained, tmp_path):
    """The last layer of a run with LessBN is no plain one; what is put in its place is."""
    _, data = trained
    run = tmp_path / "boosted"
    ob.convert(small_convnet(), run, boost="O1", boost_config={"grad_freeze": {"param_groups": 2}})
    ob.train(run, data, batch_size=8, epochs=1)
    tuned = ob.convert(run, tmp_path / "tuned", ob.ProgramConfig(new_head=5))
    assert tuned.initial["fw"].shape == (5, 4)
    assert not [name for name in tuned.initial if "multiplier" in name]
    assert any("on normalized features" in note for r in tuned.reports for note in r.notes)
    kept = ob.convert(run, tmp_path / "kept")  # without a new head it stays as it was trained
    assert [name for name in kept.initial if "multiplier" in name]
