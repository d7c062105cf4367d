"""Files that are not ONNX are called by their names."""

from __future__ import annotations

import json
import pickle
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from ortboost.core.errors import FileError
from ortboost.graph.file_kind import other_kind, program_around
from ortboost.graph.io import load_model


def _numpy(path, write):
    with path.open("wb") as stream:
        write(stream, np.zeros(2))


def _zip(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")


WRITE = {
    "a NumPy archive": lambda path: _numpy(path, np.savez),
    "a NumPy array": lambda path: _numpy(path, np.save),
    "a file of PyTorch": lambda path: _zip(path, "net/data.pkl", "net/data/0"),
    "a zip archive with an ONNX model": lambda path: _zip(path, "README", "net.onnx"),
    "a zip archive": lambda path: _zip(path, "README"),
    "a Python pickle": lambda path: path.write_bytes(pickle.dumps({"w": 1})),
    "a safetensors file": lambda path: save_file({"w": np.zeros(2, np.float32)}, path),
    "a model in onnxruntime's own format (.ort), made for inference alone": lambda path: (
        path.write_bytes(b"\x20\0\0\0ORTMrest")
    ),
    "a TensorFlow Lite model": lambda path: path.write_bytes(b"\x1c\0\0\0TFL3rest"),
    "JSON text": lambda path: path.write_text(json.dumps({"ir_version": 8})),
    "a pointer of Git LFS": lambda path: path.write_text("version https://git-lfs.github.com/x"),
}


@pytest.mark.parametrize("kind", WRITE)
def test_the_error_says_what_the_file_is(kind, tmp_path):
    path = tmp_path / "net.onnx"
    WRITE[kind](path)
    with pytest.raises(FileError) as info:
        load_model(path)
    assert info.value.what == "The file is not a readable ONNX model."
    assert f"net.onnx: {kind}" in info.value.where
    assert "torch.onnx.export" in info.value.fix


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04broken", b"\x08\x07", b"\0" * 64])
def test_any_bytes_are_read(content, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    assert other_kind(path) == ("a zip archive" if content[:2] == b"PK" else None)


def test_a_part_of_a_program_is_told_its_folder(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "program.json").write_text("{}")
    (run / "checkpoints" / "step-4.json").write_text(json.dumps({"step": 4}))
    with pytest.raises(FileError) as info:
        load_model(run / "checkpoints" / "step-4.json")
    assert f"the folder '{run}', with --checkpoint {run}/checkpoints/step-4.s" in info.value.fix
    assert program_around(run / "log.jsonl") == f"It is part of a program: give the folder '{run}'."
    assert program_around(run / "checkpoints") == program_around(run / "log.jsonl")
    assert program_around(tmp_path / "other.json") is None
