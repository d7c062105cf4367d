"""Names of a model may hold anything; neither the terminal nor a picture gets it raw."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import onnx
import pytest

from ortboost.cli import main
from tests.support import MODELS, ROOT, model_path

EVIL = "a\x1b]0;owned\x07\x1b[31m\x00\x7f\x9b\u202e\ufffe\n  fix:   send money"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ufffe]")


@pytest.fixture
def model(tmp_path):
    """LeNet-5 with such names everywhere."""
    proto = onnx.load(model_path("lenet5"))
    names = {}

    def evil(name):
        return names.setdefault(name, f"{EVIL}{len(names)}") if name else name

    for node in proto.graph.node:
        node.name = evil(node.name)
        node.input[:] = [evil(name) for name in node.input]
        node.output[:] = [evil(name) for name in node.output]
    held = proto.graph
    for value in (*held.input, *held.output, *held.initializer, *held.value_info):
        value.name = evil(value.name)
    held.name, proto.producer_name, proto.doc_string = EVIL, EVIL, EVIL
    onnx.save(proto, tmp_path / "evil.onnx")
    return str(tmp_path / "evil.onnx")


def said(capfd, *words):
    status = main([str(word) for word in words])
    text = "".join(capfd.readouterr())
    assert not RAW.search(text), words
    return status, text


def test_the_terminal_gets_no_control_characters(model, tmp_path, capfd):
    run = tmp_path / "run"
    status, text = said(capfd, "inspect", model)
    assert status == 0
    assert "\\x1b[31m" in text
    assert "\n  fix:" not in text  # a name is one line
    assert "\n  fix:" not in said(capfd, "inspect", model, "--params", "--layers")[1]
    for words in (
        ("check", model),
        ("check", model, "--for", "tensorrt=10"),
        ("compare", model, model),
        ("export", model, "-o", tmp_path / "out.onnx"),
        ("convert", model, "-o", run, "-v"),
        ("inspect", run),
        ("train", run, "--data", MODELS / "digits.npz", "--epochs", "1", "--max-steps", "2"),
        ("convert", model, "-o", tmp_path / "other", "--freeze", EVIL.replace("\0", "")),
        ("inspect", tmp_path / EVIL.replace("\0", "")),
    ):
        status, text = said(capfd, *words)
        if status:  # three lines, and none of them forged
            assert text[text.index("error: ") :].count("\n  fix:") == 1, words


def test_errors_on_a_closed_stderr_do_not_reach_stdout(tmp_path):
    words = [sys.executable, "-m", "ortboost", "inspect", str(tmp_path / "none.onnx")]
    found = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *words], stdout=subprocess.PIPE, cwd=ROOT, check=False
    )
    assert (found.returncode, found.stdout) == (8, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_a_file_does_not_get_the_number_of_a_closed_stream(closed):
    """A library that writes a message would write it into the file."""
    code = """if True:
        import os
        from ortboost import __main__, cli
        cli.main = lambda: os.open(os.devnull, os.O_RDONLY)
        __main__.command()"""
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 3


@pytest.mark.parametrize("stdout", ["ascii", "closed"])
def test_results_on_a_stdout_without_these_letters_or_none_at_all(tmp_path, stdout):
    """Both were reported as a bug of ortboost, after the work was done."""
    model, close = tmp_path / "gewölbe.onnx", stdout == "closed"
    model.write_bytes(model_path("mlp").read_bytes())
    words = [sys.executable, "-m", "ortboost", "inspect", str(model), "--params"]
    found = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words] if close else words,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert close or rb"gew\xf6lbe" in found.stdout


def test_pictures_are_xml(model, tmp_path, capfd):
    for name in ("a.svg", "a.dot"):
        assert said(capfd, "plot", model, "-o", tmp_path / name)[0] == 0
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "\\x1b" in text
    ET.fromstring(text)
    assert not RAW.search((tmp_path / "a.dot").read_text(encoding="utf-8"))


def test_what_may_not_be_read_is_no_wrong_usage(tmp_path, capfd, monkeypatch):
    locked = tmp_path / "locked.onnx"
    locked.write_bytes(b"x")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert said(capfd, "inspect", locked)[0] == 8
    assert said(capfd, "convert", "--config", locked, locked, "-o", tmp_path / "run")[0] == 8
