"""Atomic writing: the old file or the new one, never half of one, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ortboost.core.errors import FileError
from ortboost.core.files import atomic_path, read_json, write_json
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
    with pytest.raises(FileError, match="no ordinary file") as caught:
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
