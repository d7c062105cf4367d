"""Atomic writing: the old file or the new one, never half of one, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from threading import Thread

import pytest

from ortboost.core import files
from ortboost.core.errors import FileError
from ortboost.core.files import atomic_path, finish_replacement, read_json, sweep, write_json
from ortboost.core.limits import LIMITS_VARIABLE
from ortboost.graph.io import save_model
from tests.support import assert_three_lines, small_mlp


def test_writes_the_new_content_and_leaves_no_temporary_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with atomic_path(target) as temporary:
        assert temporary.parent == tmp_path
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def write_and_fail(target):
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError("boom")


def test_a_failing_block_keeps_the_old_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="boom"):
        write_and_fail(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_killed_process_leaves_the_old_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    code = (
        "import os, signal, sys\n"
        "from ortboost.core.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"


def test_a_missing_folder_is_named(tmp_path):
    with (
        pytest.raises(FileError, match=r"folder for 'a\.txt'") as caught,
        atomic_path(tmp_path / "no" / "a.txt"),
    ):
        pytest.fail("the block must not run")
    assert str(tmp_path / "no") in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(FileError, match="cannot be written"):
        write_json(folder / "a.json", {})


def test_what_the_system_says_is_where_and_not_fix(tmp_path):
    with pytest.raises(FileError, match="cannot be written") as caught, atomic_path(tmp_path / "a"):
        raise OSError(28, "No space left on device")
    assert caught.value.where.endswith("a: No space left on device")
    assert "free space" in caught.value.fix


@pytest.mark.parametrize("write", [write_json, lambda path, _: save_model(small_mlp(), path)])
def test_a_pipe_or_device_is_not_replaced(tmp_path, write):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="not a regular file") as caught:
        write(pipe, {})
    assert_three_lines(caught.value)
    assert pipe.is_fifo()


def test_json_round_trip_keeps_floats_to_the_bit(tmp_path):
    value = {"a": [1, 0.1 + 0.2, 1e-310], "b": None, "c": "ä"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_damaged_json_is_named(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match="not valid JSON") as caught:
        read_json(path)
    assert str(path) in str(caught.value)


def test_missing_json_is_named(tmp_path):
    with pytest.raises(FileError, match="missing") as caught:
        read_json(tmp_path / "a.json")
    assert "a.json" in str(caught.value)


def test_a_private_file_becomes_one_with_the_usual_rights(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    with atomic_path(tmp_path / "made") as temporary:
        temporary.unlink()
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "usual").stat().st_mode


class TestTemporaries:
    def test_a_planted_link_is_not_followed(self, tmp_path, monkeypatch):
        victim, target = tmp_path / "victim", tmp_path / "a.json"
        victim.write_text("mine")
        planted = tmp_path / "planted"
        planted.symlink_to(victim)
        monkeypatch.setattr(files, "_unused", lambda folder: folder / "planted")
        with pytest.raises(FileError, match="cannot be written"):
            write_json(target, {})
        assert victim.read_text() == "mine"

    def test_names_cannot_be_guessed(self, tmp_path):
        names = set()
        for _ in range(3):
            with atomic_path(tmp_path / "a") as temporary:
                names.add(temporary.name)
        assert len(names) == 3

    def test_only_what_no_process_will_finish_is_swept(self, tmp_path):
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        here, there, end = files._MACHINE, "0" * 8, "0" * 16 + ".tmp"
        parent = os.getppid()
        names = {
            f".ortboost-{here}-{dead.pid}-{end}": False,
            f".ortboost-{here}-{parent}-{end}": True,
            f".ortboost-{here}-{os.getpid()}-{end}": True,
            f".ortboost-{there}-{dead.pid}-{end}": True,
            f".ortboost-{there}-{parent}-{end}": False,  # made old below
            f".ortboost-{here}-{dead.pid}-mine.tmp": True,
            f"ortboost-{here}-{dead.pid}-{end}": True,
        }
        for name in names:
            (tmp_path / name).write_text("half")
        os.utime(tmp_path / f".ortboost-{there}-{parent}-{end}", (1, 1))
        folder = tmp_path / f".ortboost-{here}-{dead.pid}-{'1' * 16}.tmp"
        folder.mkdir()
        (folder / "in.it").write_text("half")
        sweep(tmp_path)
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {name for name, stays in names.items() if stays}


class TestReplacement:
    def begin(self, folder, dropped):
        commit = folder / ".ortboost-commit"
        commit.mkdir()
        (commit / "a").write_text("new")
        (commit / "dropped.json").write_text(json.dumps(dropped))

    def test_an_interrupted_one_is_finished(self, tmp_path):
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "c").write_text("old")
        (tmp_path / "d").write_text("mine")
        self.begin(tmp_path, ["b", "gone"])
        finish_replacement(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"a", "d"}

    def test_a_second_process_waits_and_touches_nothing_new(self, tmp_path):
        self.begin(tmp_path, ["log"])
        second = Thread(target=finish_replacement, args=(tmp_path,))
        commit = tmp_path / ".ortboost-commit"
        with files._locked(commit):
            second.start()
            second.join(0.3)
            assert second.is_alive()
            files._finish(commit, tmp_path)
            commit.rmdir()
            (tmp_path / "log").write_text("new")
        second.join()
        assert {path.name for path in tmp_path.iterdir()} == {"a", "log"}

    @pytest.mark.parametrize("dropped", [["../victim"], ["/etc"], [".."], "b", [1], ["a/b"], [""]])
    def test_nothing_outside_is_dropped(self, tmp_path, dropped):
        (tmp_path / "victim").write_text("mine")
        folder = tmp_path / "run"
        folder.mkdir()
        self.begin(folder, dropped)
        with pytest.raises(FileError, match="not plain file names") as caught:
            finish_replacement(folder)
        assert_three_lines(caught.value)
        assert (tmp_path / "victim").exists()

    def test_a_link_is_dropped_and_not_what_it_leads_to(self, tmp_path):
        (tmp_path / "far").mkdir()
        (tmp_path / "far" / "kept").write_text("mine")
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "checkpoints").symlink_to(tmp_path / "far")
        self.begin(folder, ["checkpoints"])
        finish_replacement(folder)
        assert not (folder / "checkpoints").is_symlink()
        assert (tmp_path / "far" / "kept").exists()


@pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "/a", "a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(FileError, match="cannot be written") as caught:
        write_json(tmp_path / name, {})
    assert_three_lines(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_entered_is_named(tmp_path, monkeypatch):
    def denied(path, *_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", denied)
    for call in (
        lambda: finish_replacement(tmp_path / "run"),
        lambda: write_json(tmp_path / "a", 1),
    ):
        with pytest.raises(FileError, match="cannot be") as caught:
            call()
        assert "Permission denied" in caught.value.where
        assert_three_lines(caught.value)


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("{}")

    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "read_text", denied)
    with pytest.raises(FileError, match="cannot be read") as caught:
        read_json(path)
    assert "Permission denied" in caught.value.where
    assert_three_lines(caught.value)


@pytest.mark.parametrize("end", ["/dev/zero", "pipe"])
def test_json_is_read_from_ordinary_files_only(tmp_path, end):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.json").symlink_to(end)
    with pytest.raises(FileError, match="not a regular file"):
        read_json(tmp_path / "a.json")


def test_json_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setenv(LIMITS_VARIABLE, "text_bytes=10")
    write_json(tmp_path / "a.json", {"a": "much too long"})
    with pytest.raises(FileError, match="limit is 10") as caught:
        read_json(tmp_path / "a.json")
    assert f"{LIMITS_VARIABLE}=text_bytes=" in caught.value.fix


def test_json_nested_without_end_is_told(tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(FileError, match="not valid JSON"):
        read_json(tmp_path / "a.json")
