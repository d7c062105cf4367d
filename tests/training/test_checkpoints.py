"""Checkpoints: whole, recognised, and refused by name when they are not."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from ortboost.core.errors import ArgumentTypeError, FileError
from ortboost.core.tensor_file import TensorFile
from ortboost.training.checkpoint_file import digest_of
from ortboost.training.checkpoints import CheckpointStore, Constants
from tests.support import assert_three_lines

STATE = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.arange(6, dtype=np.float16).reshape(2, 3).T,
    "step": np.array(7, np.int64),
    "flag": np.array(True),
    "empty": np.zeros((0, 3), np.float32),
}


def saved(folder, steps=(10, 20, 30), **options):
    store = CheckpointStore(folder, **{"keep": 10, **options})
    for step in steps:
        state = {**STATE, "step": np.array(step, np.int64)}
        store.save(state, {"step": step, "loss": 0.1 + 0.2}, program="prog")
    return store


def test_round_trip_keeps_bits_dtypes_and_shapes(tmp_path):
    store = CheckpointStore(tmp_path)
    path = store.save(STATE, {"step": 7, "x": [1, 0.1 + 0.2]}, program="prog")
    assert path.name == "step-00000007.json"
    found = store.latest(program="prog", expect=STATE)
    assert found.refused == ()
    assert found.checkpoint.step == 7
    assert found.checkpoint.progress == {"step": 7, "x": [1, 0.1 + 0.2]}
    assert found.checkpoint.state.keys() == STATE.keys()
    for name, array in STATE.items():
        loaded = found.checkpoint.state[name]
        assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
        assert loaded.tobytes() == array.tobytes()


def test_progress_comes_back_as_json_data(tmp_path):
    """Keys that are numbers sort differently as text: the digest did not match when read."""
    store = CheckpointStore(tmp_path)
    progress = {"step": np.int64(4), "callbacks": {"A": {2: (1, np.float32(0.5)), 10: None}}}
    store.save(STATE, progress, program="p")
    found = store.latest(program="p").checkpoint
    assert found.progress == {"step": 4, "callbacks": {"A": {"2": [1, 0.5], "10": None}}}


@pytest.mark.parametrize("value", [{1}, b"x", object(), {(1, 2): 3}])
def test_progress_that_is_no_json_is_refused(tmp_path, value):
    with pytest.raises(ArgumentTypeError, match="cannot be saved as JSON") as caught:
        CheckpointStore(tmp_path).save(STATE, {"step": 4, "more": value}, program="p")
    assert_three_lines(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_has_none(tmp_path):
    store = CheckpointStore(tmp_path / "new" / "folder")
    assert store.latest() == (None, ())
    assert store.best() is None


def test_the_last_k_and_the_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5):
        store.save(STATE, {"step": step}, program="p", best=step in (1, 2))
    assert store.steps() == [2, 4, 5]
    assert store.best().step == 2
    assert len(list(tmp_path.iterdir())) == 7
    store.pin_best(5)
    store.save(STATE, {"step": 6}, program="p")
    assert store.steps() == [5, 6]


def flip(path, at=0.5):
    raw = bytearray(path.read_bytes())
    raw[int(len(raw) * at)] ^= 1
    path.write_bytes(raw)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


DAMAGES = {
    "tensors truncated": (
        "safetensors",
        lambda p: p.write_bytes(p.read_bytes()[:-1]),
        "bytes instead of",
    ),
    "tensors empty": ("safetensors", lambda p: p.write_bytes(b""), "bytes instead of"),
    "tensor byte flipped": ("safetensors", lambda p: flip(p, 0.99), "sha256 differs"),
    "tensor header flipped": ("safetensors", lambda p: flip(p, 0.1), "sha256 differs"),
    "tensors missing": ("safetensors", lambda p: p.unlink(), "missing"),
    "json truncated": ("json", lambda p: p.write_bytes(p.read_bytes()[:-20]), "not valid JSON"),
    "json empty": ("json", lambda p: p.write_bytes(b""), "not valid JSON"),
    "json is a list": ("json", lambda p: p.write_text("[]"), "not an ortboost checkpoint"),
    "json of another tool": (
        "json",
        lambda p: p.write_text('{"a": 1}'),
        "not an ortboost checkpoint",
    ),
    "progress changed": (
        "json",
        lambda p: edit(p, lambda c: c["progress"].update(step=31)),
        "digest differs",
    ),
    "other version": (
        "json",
        lambda p: edit(p, lambda c: c.update(version=99)),
        "format version 99",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_refused_by_name_and_the_one_before_offered(tmp_path, damage):
    store = saved(tmp_path)
    suffix, do, reason = DAMAGES[damage]
    bad = tmp_path / f"step-00000030.{suffix}"
    do(bad)
    found = store.latest(program="prog", expect=STATE)
    assert found.checkpoint.step == 20
    assert [refused.path for refused in found.refused] == [bad]
    assert reason in found.refused[0].reason
    for half in ("json", "safetensors"):
        with pytest.raises(FileError, match="cannot be used") as caught:
            store.load(tmp_path / f"step-00000030.{half}", program="prog")
        assert str(bad) in caught.value.where
        assert "step-00000020.json" in caught.value.fix
        assert caught.value.exit_status == 8


def test_every_flipped_byte_is_noticed(tmp_path):
    store = saved(tmp_path, steps=(1,))
    for name in ("step-00000001.json", "step-00000001.safetensors"):
        path = tmp_path / name
        good = path.read_bytes()
        for index in range(len(good)):
            raw = bytearray(good)
            raw[index] ^= 0x01
            path.write_bytes(raw)
            found = store.latest()
            # White space between JSON tokens carries nothing; everything else must be noticed.
            harmless = name.endswith("json") and json_equal(raw, good)
            assert (found.checkpoint is None) is not harmless, (name, index)
        path.write_bytes(good)
    assert store.latest().checkpoint is not None


def json_equal(raw, good):
    try:
        return json.loads(bytes(raw)) == json.loads(good)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.pop("flag"), "the program has no tensor 'flag'"),
        (lambda s: s.update(more=np.zeros(1)), "'more' is missing"),
        (
            lambda s: s.update(w=np.zeros((3, 2), np.float32)),
            r"'w' is float32\[2, 3\].*float32\[3, 2\]",
        ),
        (lambda s: s.update(w=np.zeros((2, 3))), r"'w' is float32.*float64"),
    ],
)
def test_foreign_tensors_are_refused_by_name(tmp_path, change, reason):
    store = saved(tmp_path, steps=(1,))
    wanted = dict(STATE)
    change(wanted)
    found = store.latest(program="prog", expect=wanted)
    assert found.checkpoint is None
    assert re.search(reason, found.refused[0].reason)
    with pytest.raises(FileError, match="cannot be used") as caught:
        store.load(store.path(1), program="other")
    assert "no other valid one" in caught.value.fix


def test_the_newest_is_named_if_the_first_is_damaged(tmp_path):
    # The first may be the best: it was said to start over.
    store = saved(tmp_path, steps=(1, 2, 3))
    store.path(1).write_text("{", encoding="utf-8")
    with pytest.raises(FileError, match="cannot be used") as caught:
        store.load(store.path(1))
    assert caught.value.fix == f"Use the newest one: {store.path(3)}"


def test_another_programs_checkpoint_is_refused(tmp_path):
    store = saved(tmp_path)
    found = store.latest(program="other")
    assert found.checkpoint is None
    assert len(found.refused) == 3
    assert "another program (prog, this one is other)" in found.refused[0].reason
    assert store.latest().checkpoint.step == 30


def test_exchanged_files_are_refused(tmp_path):
    store = saved(tmp_path)
    (tmp_path / "step-00000030.json").write_bytes((tmp_path / "step-00000020.json").read_bytes())
    assert store.latest().checkpoint.step == 20
    (tmp_path / "step-00000020.safetensors").write_bytes(
        (tmp_path / "step-00000010.safetensors").read_bytes()
    )
    assert store.latest().checkpoint.step == 10


def test_a_name_that_leads_to_another_folder_is_refused(tmp_path):
    store = saved(tmp_path, steps=(10,))
    path = store.path(10)
    content = json.loads(path.read_text())
    del content["digest"]
    content["file"]["name"] = "../step-00000010.safetensors"
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))
    with pytest.raises(FileError, match="another checkpoint's tensors"):
        store.load(path)


def test_unfinished_saves_are_dropped_and_files_of_others_kept(tmp_path):
    store = saved(tmp_path)
    saved(tmp_path / "other", steps=(40,))
    unfinished = tmp_path / "step-00000040.safetensors"
    unfinished.write_bytes((tmp_path / "other" / unfinished.name).read_bytes())
    foreign = {
        "notes.txt": b"mine",
        "step-final.safetensors": b"mine",
        "step-00000041.safetensors": b"half",
        "step-00000002.json": b'{"mine": 1}',
        "step-00000003.json": b"damaged",
    }
    for name, content in foreign.items():
        (tmp_path / name).write_bytes(content)
    assert store.latest().checkpoint.step == 30
    assert store.latest().refused == ()
    CheckpointStore(tmp_path, keep=1).save(STATE, {"step": 50}, program="prog")
    assert not unfinished.exists()
    assert {name: (tmp_path / name).read_bytes() for name in foreign} == foreign
    assert not (tmp_path / "step-00000010.json").exists()


def test_a_step_that_is_saved_again_leaves_one_pair_of_files(tmp_path):
    store = saved(tmp_path / "run", steps=(10, 10, 10))
    assert store.latest(program="prog", expect=STATE).checkpoint.step == 10
    tensors, _ = sorted(store.folder.iterdir(), key=lambda path: path.suffix, reverse=True)
    assert len(list(store.folder.iterdir())) == 2
    assert store.load(tensors, program="prog").step == 10


def test_those_that_were_refused_do_not_count_as_kept(tmp_path):
    """Else the last good one goes while the damaged ones stay."""
    saved(tmp_path, steps=(10, 20, 30, 40))
    for step in (30, 40):
        flip(tmp_path / f"step-000000{step}.safetensors")
    store = CheckpointStore(tmp_path, keep=2)
    assert store.latest().checkpoint.step == 20
    store.prune()
    assert store.steps() == [10, 20, 30, 40]
    store.save(STATE, {"step": 25}, program="prog")
    assert store.steps() == [20, 25, 30, 40]
    store.save(STATE, {"step": 40}, program="prog")
    assert store.steps() == [25, 40]


def test_temporary_files_of_dead_processes_are_swept(tmp_path):
    code = "import os; from pathlib import Path; from ortboost.core.files import atomic_path\n"
    code += f"with atomic_path({str(tmp_path / 'a')!r}): os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(list(tmp_path.iterdir())) == 1
    CheckpointStore(tmp_path)
    assert not list(tmp_path.iterdir())


def test_saving_a_step_again_replaces_it(tmp_path):
    store = saved(tmp_path)
    store.save({"w": np.ones(2)}, {"step": 30, "again": True}, program="prog")
    assert store.latest().checkpoint.progress["again"]
    assert store.steps() == [10, 20, 30]


def test_a_pin_is_followed(tmp_path):
    store = saved(tmp_path)
    assert store.best() is None
    store.pin_best(20)
    assert store.best().step == 20
    flip(tmp_path / "step-00000020.safetensors")
    with pytest.raises(FileError, match="cannot be used"):
        store.best()


def test_clear_leaves_other_files(tmp_path):
    store = saved(tmp_path)
    store.pin_best(10)
    (tmp_path / "notes.txt").write_text("mine")
    store.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="folder cannot be created"):
        CheckpointStore(tmp_path / "file" / "folder")


def test_nothing_is_pickled(tmp_path):
    store = saved(tmp_path, steps=(1,))
    with pytest.raises(FileError, match="cannot be written"):
        store.save({"w": np.array([object()])}, {"step": 2}, program="prog")
    assert store.latest().checkpoint.step == 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "3", *(f'{{"step": {v}}}' for v in ("1e999", "-1", '"1"', "[1]", "true"))],
)
def test_a_damaged_pin_is_refused_and_its_checkpoint_kept(tmp_path, text):
    store = saved(tmp_path)
    store.save({"w": np.ones(2)}, {"step": 40, "best": True}, program="prog", best=True)
    store.keep = 1
    store.save({"w": np.ones(2)}, {"step": 50}, program="prog")
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(FileError, match="names the best checkpoint is damaged"):
        store.best()
    assert store.best_step() == 40  # of that step it is known that it was the best
    store.prune()
    assert store.steps() == [40, 50]


def test_a_pin_with_another_step_is_damaged(tmp_path):
    store = saved(tmp_path)
    store.pin_best(20)
    pin = tmp_path / "best.json"
    pin.write_text(pin.read_text().replace("20", "10"))
    with pytest.raises(FileError, match="names the best checkpoint is damaged"):
        store.best()
    assert store.best_step() is None
    pin.write_text('{"step": 10}')  # as older versions wrote it
    assert store.best().step == 10


# ---- tensors that stay in the program ------------------------------------------------------------

FROZEN = {"backbone": np.arange(12, dtype=np.float32).reshape(3, 4), "zero": np.zeros(())}


def frozen(digest="d1", **others):
    return Constants({**FROZEN, **others}, digest)


def test_constants_are_not_written_and_are_read_from_the_program(tmp_path):
    state = {**STATE, **FROZEN, "zero": np.ones(())}  # one of them was changed
    store = CheckpointStore(tmp_path, constants=frozen())
    path = store.save(state, {"step": 4}, program="p")
    assert set(TensorFile(path.with_suffix(".safetensors"))) == set(state) - {"backbone"}
    assert json.loads(path.read_text())["version"] == 2
    for found in (store.latest(program="p", expect=state).checkpoint, store.load(path)):
        assert found is not None
        assert set(found.state) == set(state)
        for name, array in state.items():
            np.testing.assert_array_equal(found.state[name], array)
            assert found.state[name].dtype == array.dtype
    assert "backbone" not in CheckpointStore(tmp_path).load(path).state


def test_without_constants_the_file_is_one_that_older_versions_read(tmp_path):
    changed = {name: array + 1 for name, array in FROZEN.items()}
    for constants in (None, frozen()):
        store = CheckpointStore(tmp_path, constants=constants)
        path = store.save({**STATE, **changed}, {"step": 4}, program="p")
        assert json.loads(path.read_text())["version"] == 1
        assert set(TensorFile(path.with_suffix(".safetensors"))) == {*STATE, *FROZEN}


def test_bits_decide_whether_a_constant_is_unchanged(tmp_path):
    start = np.array([0.0, np.nan], np.float32)
    store = CheckpointStore(tmp_path, constants=Constants({"c": start}, "d"))
    others = (np.array([-0.0, np.nan], np.float32), start.astype("f8"), start.reshape(1, 2))
    for step, (value, written) in enumerate([(start, False), *((other, True) for other in others)]):
        path = store.save({"c": value, **STATE}, {"step": step}, program="p")
        assert ("c" in TensorFile(path.with_suffix(".safetensors"))) == written


@pytest.mark.parametrize("constants", [frozen("d2"), Constants({}, "d1")])
def test_other_constants_are_refused(tmp_path, constants):
    path = CheckpointStore(tmp_path, constants=frozen()).save(
        {**STATE, **FROZEN}, {"step": 4}, program="p"
    )
    with pytest.raises(FileError, match="initial weights of its program") as caught:
        CheckpointStore(tmp_path, constants=constants).load(path)
    assert_three_lines(caught.value)
