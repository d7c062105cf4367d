"""Protection of a program from concurrent use: the lock of its folder, and its part names."""

from __future__ import annotations

import json
import os
import socket

import numpy as np
import pytest

import ortboost as ob
from ortboost.api import convert_model, train_program
from ortboost.api.check_target import fix_for
from ortboost.api.run_folder import LOCK, alone_in
from ortboost.core.errors import FileError
from ortboost.core.tensor_file import TensorFile
from tests.support import assert_same_bits, assert_three_lines, small_mlp

PORTABLE = ob.ProgramConfig(engine="portable")
DATA = {
    "x": np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32),
    "labels": np.arange(16) % 3,
}


@pytest.fixture
def run(tmp_path):
    ob.convert(small_mlp(), tmp_path / "run", PORTABLE)
    return tmp_path / "run"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_program_that_is_trained_is_not_replaced(run):
    with alone_in(run):
        before = content(run)
        for work in (
            lambda: ob.convert(small_mlp(), run, PORTABLE, overwrite=True),
            lambda: ob.train(run, DATA, epochs=1, overwrite=True),
        ):
            with pytest.raises(ob.UsageError, match="training or replacing") as caught:
                work()
            assert_three_lines(caught.value)
            assert f"process {os.getpid()} on {socket.gethostname()}" in caught.value.where
        assert ob.convert(small_mlp(), run, PORTABLE, overwrite=True, dry_run=True)
        assert content(run) == before
    ob.convert(small_mlp(seed=1), run, PORTABLE, overwrite=True)
    assert not (run / LOCK).exists()


def test_of_two_conversions_into_a_new_folder_one_is_refused(tmp_path, monkeypatch):
    """The slower one finds the program of the faster, which may be trained by then."""
    built, folder = convert_model._built, tmp_path / "run"

    def slow(*arguments):
        monkeypatch.undo()
        ob.convert(small_mlp(seed=1), folder, PORTABLE)
        return built(*arguments)

    monkeypatch.setattr(convert_model, "_built", slow)
    with pytest.raises(ob.UsageError, match="already contains a program") as caught:
        ob.convert(small_mlp(), folder, PORTABLE)
    assert_three_lines(caught.value)
    found = ob.Program.load(folder).fingerprint
    assert found == ob.build_program(small_mlp(seed=1), PORTABLE).fingerprint
    assert not (folder / LOCK).exists()


def test_the_lock_of_a_dead_process_keeps_nobody_out(run):
    holder = {"pid": os.getpid(), "host": socket.gethostname()}  # it lives, but holds no lock
    (run / LOCK).write_text(json.dumps(holder))
    ob.convert(small_mlp(), run, PORTABLE, overwrite=True)
    assert not (run / LOCK).exists()


@pytest.mark.parametrize("given", [{}, {"cuda_graph": False}])
def test_steps_are_captured_unless_told_otherwise(run, monkeypatch, given):
    asked = []

    class Watched(train_program.Stepper):
        def __init__(self, *arguments, **options):
            asked.append(options["cuda_graph"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(train_program, "Stepper", Watched)
    ob.train(run, DATA, epochs=1, progress=None, **given)
    assert asked == [not given]


def test_a_program_that_was_replaced_while_it_was_opened_is_not_trained(run, monkeypatch):
    class Slow(train_program.Stepper):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            ob.convert(small_mlp(hidden=5), run, PORTABLE, overwrite=True)

    monkeypatch.setattr(train_program, "Stepper", Slow)
    with pytest.raises(ob.UsageError, match="was replaced while it was opened") as caught:
        ob.train(run, DATA, epochs=1)
    assert_three_lines(caught.value)
    assert not (run / "checkpoints").exists()


PARTS = ("program.json", "step.onnx", "eval.onnx", "flush.onnx", "state.safetensors", "log.jsonl")


def test_nothing_is_written_over_a_part_of_a_program(run, tmp_path):
    ob.train(run, DATA, epochs=1, batch_size=8)
    model = tmp_path / "model.onnx"
    ob.export(run, model)
    before = content(run)
    (tmp_path / "link").symlink_to(run)
    for write in (
        lambda out: ob.export(run, out),
        lambda out: ob.export(model, out),
        lambda out: fix_for(model, out, "tensorrt=11"),
        lambda out: ob.pca(run, out, components=1),
    ):
        for part in PARTS:
            for folder in (run, tmp_path / "link"):
                with pytest.raises(ob.UsageError, match="part of the program") as caught:
                    write(folder / part)
        assert_three_lines(caught.value)
    assert content(run) == before
    ob.export(run, run / "model.onnx")  # a name of its own is free


def test_a_checkpoint_that_does_not_exist_is_named_and_its_folder_not_made(run):
    with pytest.raises(ob.FileError, match="no checkpoint 'step-2'") as caught:
        ob.load_run(run, "step-2")
    assert "choices: best, last, initial" in caught.value.fix
    assert not (run / "checkpoints").exists()
    ob.train(run, DATA, epochs=2, batch_size=8)
    file = run / "checkpoints" / "step-00000002.json"
    with pytest.raises(ob.FileError, match="no checkpoint") as caught:
        ob.load_run(run, "3")
    assert file.stem in caught.value.fix
    for name in (file, file.with_suffix(""), file.name, file.stem, 2):
        assert ob.load_run(run, str(name))[2].step == 2


def test_nothing_is_written_over_a_file_of_another_kind(run, tmp_path):
    ob.train(run, DATA, epochs=2, batch_size=8)
    model, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    ob.export(run, model)
    np.savez(data, **DATA)
    for taken, write in (
        (data, lambda out: ob.export(run, out, verify=data)),
        (data, lambda out: fix_for(model, out, "tensorrt=11", verify=data)),
        (model, lambda out: ob.pca(run, out, components=1)),
        (data, lambda out: ob.runs(run, csv=out)),
        (model, lambda out: ob.runs(run, plot=out)),
    ):
        before = taken.read_bytes()
        with pytest.raises(ob.UsageError, match=r"does not end in \.\w+") as caught:
            write(taken)
        assert_three_lines(caught.value)
        assert taken.read_bytes() == before


def test_a_missing_folder_is_named_before_any_work(run, tmp_path):
    """The run has no checkpoint, which is found when it is opened."""
    with pytest.raises(ob.FileError, match=r"The folder for 'm.onnx' does not exist") as caught:
        ob.export(run, tmp_path / "none" / "m.onnx")
    assert_three_lines(caught.value)


def test_checkpoints_do_not_repeat_large_frozen_weights(tmp_path):
    """A run whose frozen weights stay in the program resumes to the same bits and exports."""
    model = small_mlp(features=700, hidden=400)  # 1.1 MB
    boosts = (ob.Lora(rank=2),)
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((32, 700)).astype(np.float32), "labels": np.arange(32) % 3}
    finals = []
    for name, epochs in (("once", (4,)), ("twice", (2, 4))):
        ob.build_program(model, ob.ProgramConfig(boosts=boosts)).save(tmp_path / name)
        for count in epochs:
            ob.train(tmp_path / name, data, epochs=count, batch_size=8, resume=count != epochs[0])
        program, state, checkpoint = ob.load_run(tmp_path / name, "last")
        assert set(state) == set(program.initial)
        tensors = TensorFile(checkpoint.path.with_suffix(".safetensors"))
        assert "w1.lora_A" in tensors
        assert "w1" not in tensors
        finals.append(state)
    assert_same_bits(*finals)
    result = ob.export(tmp_path / "twice", tmp_path / "m.onnx", checkpoint="last")
    assert result.parity.ok
    # Another program can use it if its frozen weights are the same.
    seeded = ob.ProgramConfig(boosts=(ob.Lora(rank=2, seed=1),))
    ob.build_program(model, seeded).save(tmp_path / "seeded")
    assert_same_bits(ob.load_run(tmp_path / "seeded", str(checkpoint.path))[1], state)
    other = small_mlp(features=700, hidden=400, seed=9)
    ob.build_program(other, ob.ProgramConfig(boosts=boosts)).save(tmp_path / "other")
    with pytest.raises(FileError, match="initial weights of its program") as caught:
        ob.load_run(tmp_path / "other", str(checkpoint.path))
    assert_three_lines(caught.value)
