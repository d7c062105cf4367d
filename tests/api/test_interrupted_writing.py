"""A file layer that fails, or dies and loses what was not synced, at each step of every writer.

What stood before, or what was to stand, is there as a whole; saying it again works, and leaves
nothing over.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from ortboost import api
from ortboost.api import convert_model
from ortboost.core.errors import OrtBoostError
from ortboost.core.files import read_json, write_json
from ortboost.graph.io import load_model, save_model
from ortboost.graph.query import all_tensors
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.training.checkpoints import CheckpointStore
from tests.support import small_mlp

_TOUCHES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")


def interrupted(work, folder, step, way):
    """Run in a forked child that fails at its `step`-th write to the folder; whether it did."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFEXITED(status)
        assert os.WEXITSTATUS(status) in (0, 7)
        return os.WEXITSTATUS(status) == 7
    synced, count = set(), [0]
    plain_sync = os.fsync

    def sync(descriptor):
        found = os.fstat(descriptor)
        synced.add((found.st_ino, found.st_mtime_ns))
        plain_sync(descriptor)

    def die():
        """As a machine that goes off: files that were not synced are empty."""
        count[0] = -(10**9)
        for path in folder.rglob("*"):
            found = path.lstat()
            known = before.get(path) == found.st_mtime_ns or not stat.S_ISREG(found.st_mode)
            if not known and (found.st_ino, found.st_mtime_ns) not in synced:
                os.truncate(path, 0)
        os._exit(7)

    def watch(event, arguments):
        if event not in _TOUCHES or not str(arguments[0]).startswith(str(folder)):
            return
        count[0] += 1
        if count[0] == step:
            if way == "dies":
                die()
            raise OSError(errno.ENOSPC, "No space left on device")

    code = 1
    with contextlib.suppress(BaseException):
        os.fsync = sync
        sys.addaudithook(watch)
        try:
            work(folder)
            code = 0
        except (OrtBoostError, OSError):
            code = 0
        if count[0] >= step:
            code = 7
        count[0] = -(10**9)
    os._exit(code)


def large_model(seed):
    return small_mlp(hidden=40, seed=seed)


def weights_of(path):
    return [tensor.numpy().tobytes() for _, tensor in all_tensors(load_model(path))]


class JsonFile:
    def start(self, folder):
        write_json(folder / "a.json", {"old": 1})

    def work(self, folder):
        write_json(folder / "a.json", {"new": 2})

    def holds(self, folder):
        return {"old": "old", "new": "new"}[next(iter(read_json(folder / "a.json")))]


class ModelWithData:
    """Saved twice before: its weights are in a file with a number in its name."""

    def save(self, folder, seed):
        save_model(large_model(seed), folder / "m.onnx", external_data_threshold=1)

    def start(self, folder):
        self.save(folder, 3)
        self.save(folder, 0)

    def work(self, folder):
        self.save(folder, 1)

    def holds(self, folder):
        found = weights_of(folder / "m.onnx")
        for name, seed in (("old", 0), ("new", 1)):
            if found == [tensor.numpy().tobytes() for _, tensor in all_tensors(large_model(seed))]:
                return name
        raise AssertionError(found)


class ModelFirstWithoutData(ModelWithData):
    def start(self, folder):
        save_model(large_model(0), folder / "m.onnx")


STATE = {"w": np.arange(300, dtype=np.float32)}


class SameStep:
    """A checkpoint that is saved once more, and is the only one."""

    def save(self, folder, number):
        state = {"w": STATE["w"] + number}
        CheckpointStore(folder).save(state, {"step": 5}, program="p")

    def start(self, folder):
        self.save(folder, 0)

    def work(self, folder):
        self.save(folder, 1)

    def holds(self, folder):
        found = CheckpointStore(folder).latest(program="p")
        assert not found.refused
        return "new" if found.checkpoint.state["w"][0] else "old"


class NextStep(SameStep):
    def work(self, folder):
        CheckpointStore(folder, keep=1).save(
            {"w": STATE["w"] + 1}, {"step": 6}, program="p", best=True
        )


class Overwritten:
    """`convert --overwrite` of a program that has been trained."""

    stride = 4

    @functools.cached_property
    def programs(self):
        config = ProgramConfig(accumulate=2)
        return build_program(small_mlp(), config), build_program(small_mlp(hidden=9))

    def start(self, folder):
        program = self.programs[0]
        program.save(folder / "run")
        store = CheckpointStore(folder / "run" / "checkpoints")
        store.save(dict(program.initial), {"step": 1}, program=program.fingerprint, best=True)
        (folder / "run" / "log.jsonl").write_text("{}\n")
        (folder / "run" / "notes.txt").write_text("mine")

    def work(self, folder):
        convert_model.build_program = lambda model, config: self.programs[1]
        api.convert(small_mlp(), folder / "run", overwrite=True)

    def holds(self, folder):
        run = folder / "run"
        program = Program.load(run)
        assert (run / "notes.txt").read_text() == "mine"
        if program.fingerprint == self.programs[1].fingerprint:
            assert not (run / "checkpoints").exists()
            assert not (run / "log.jsonl").exists()
            assert not (run / "flush.onnx").exists()
            return "new"
        assert program.fingerprint == self.programs[0].fingerprint
        assert CheckpointStore(run / "checkpoints").best(program=program.fingerprint)
        return "old"


class Exported:
    """`export` over an older export; what is written is compared first."""

    stride = 3

    def start(self, folder):
        small_mlp_file(folder, 0)
        api.export(folder / "from0.onnx", folder / "out.onnx")
        self.old = weights_of(folder / "out.onnx")

    def work(self, folder):
        small_mlp_file(folder, 1)
        api.export(folder / "from1.onnx", folder / "out.onnx")

    def holds(self, folder):
        found = weights_of(folder / "out.onnx")
        return "new" if found != self.old else "old"


def small_mlp_file(folder, seed):
    save_model(small_mlp(seed=7 * seed), folder / f"from{seed}.onnx")


@pytest.mark.parametrize("way", ["fails", "dies"])
@pytest.mark.parametrize(
    "case",
    [JsonFile, ModelWithData, ModelFirstWithoutData, SameStep, NextStep, Overwritten, Exported],
)
def test_the_old_or_the_new_is_whole(case, way, tmp_path):
    writer, seen = case(), set()
    stride = getattr(writer, "stride", 1)
    step = 1 + (way == "dies") % stride
    begun = tmp_path / "begun"
    begun.mkdir()
    writer.start(begun)
    while True:
        folder = shutil.copytree(begun, tmp_path / str(step))
        reached = interrupted(writer.work, folder, step, way)
        seen.add(writer.holds(folder))
        if not reached:
            break
        writer_again(writer, folder)
        assert not left_over(folder)
        shutil.rmtree(folder)
        step += stride
    assert seen == {"old", "new"}
    assert writer.holds(folder) == "new"
    assert step > 3


def writer_again(writer, folder):
    """The same once more, by the next process."""
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            writer.work(folder)
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert writer.holds(folder) == "new"


def left_over(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.startswith(".ortboost")]
