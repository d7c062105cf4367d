"""The kind of a file that is not an ONNX model, by its first bytes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

__all__ = ["other_kind", "program_around"]

_STARTS: Final = (
    (b"{", "JSON text"),
    (b"\x93NUMPY", "a NumPy array (.npy)"),
    (b"\x89HDF", "an HDF5 file, such as a Keras model"),
    (b"\x80\x02", "a Python pickle, such as weights of PyTorch"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89PNG", "a PNG image"),
    (b"PAR1", "a Parquet file"),
    (b"version https://git-lfs", "a pointer of Git LFS; the model itself was not downloaded"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
)
_HEADER = 64


def other_kind(path: Path) -> str | None:
    """Say what a file is, if it is of a known kind that people mistake for ONNX.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(b"PAR1")
        ...     file.flush()
        ...     other_kind(Path(file.name))
        'a Parquet file'
    """
    with path.open("rb") as stream:
        start = stream.read(_HEADER)
    if start[4:8] == b"TFL3":
        return "a TensorFlow Lite model"
    if start[4:8] == b"ORTM":
        return "a model in onnxruntime's own format (.ort), made for inference alone"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size:
        return "a safetensors file: weights without a graph"
    if start[:4] == b"PK\x03\x04":
        return _archive(path)
    return next((words for begin, words in _STARTS if start.startswith(begin)), None)


def program_around(path: Path) -> str | None:
    """How to name the program that a file is part of, such as a checkpoint; ``None`` if no part."""
    for folder in (path.parent, path.parent.parent):
        if (folder / "program.json").is_file():
            inner = path.parent != folder and path.is_file()
            more = f", with --checkpoint {path.with_suffix('')}.safetensors" if inner else ""
            return f"It is part of a program: give the folder '{folder}'{more}."
    return None


def _archive(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        names = []
    if any(name.endswith("data.pkl") for name in names):
        return "a file of PyTorch (.pt), not of its ONNX exporter"
    if any(name.endswith(".onnx") for name in names):
        return "a zip archive with an ONNX model in it"
    if names and all(name.endswith(".npy") for name in names):
        return "a NumPy archive (.npz)"
    return "a zip archive"
