"""CIFAR-10 binary files: records of 3,073 bytes, a label and 3 x 32 x 32 pixels.

Layout (A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html, "binary version"): one byte
label 0..9, then 1,024 bytes each of red, green and blue, row-major: an image is ``[C, H, W]``.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ortboost.core.errors import FileError
from ortboost.training.protocols import Array

__all__ = ["RECORD_BYTES", "find_cifar", "load_cifar"]

_RECORD = np.dtype([("y", "u1"), ("x", "u1", (3, 32, 32))])
RECORD_BYTES = _RECORD.itemsize
_CLASSES = 10
_PATTERNS = {"train": "data_batch_*.bin", "test": "test_batch.bin", "val": "test_batch.bin"}


def load_cifar(paths: list[Path] | str | os.PathLike[str]) -> dict[str, Array]:
    """Read one CIFAR-10 binary file, memory-mapped, or several, joined in memory in this order.

    Returns:
        ``x``: uint8 ``[N, 3, 32, 32]``, values 0..255; ``y``: uint8 ``[N]``. The training set is
        150 MB.

    Raises:
        FileError: A file is missing, empty, has an incomplete record, or a label above 9.
    """
    files = paths if isinstance(paths, list) else [Path(paths)]
    parts = [_load_one(path) for path in files]
    if len(parts) == 1:
        return {"x": parts[0]["x"], "y": parts[0]["y"]}
    return {key: np.concatenate([part[key] for part in parts]) for key in ("x", "y")}


def _load_one(path: Path) -> Array:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise FileError(
            "A data file is missing.", where=str(path), fix="Check the path."
        ) from error
    if size == 0 or size % RECORD_BYTES:
        raise FileError(
            f"'{path.name}' is not a complete CIFAR-10 binary file.",
            where=f"{path}: {size} bytes, not a multiple of {RECORD_BYTES}",
            fix="Unpack cifar-10-binary.tar.gz again (the 'binary version', not the Python one).",
        )
    records: Array = np.memmap(path, _RECORD, mode="r")
    if int(records["y"].max()) >= _CLASSES:
        row = int(np.argmax(records["y"] >= _CLASSES))
        raise FileError(
            "A CIFAR-10 label is out of range, so the file is damaged or of another kind.",
            where=f"{path}: record {row}, label {int(records['y'][row])}",
            fix="Unpack cifar-10-binary.tar.gz again.",
        )
    return records


def find_cifar(folder: Path, split: str) -> list[Path]:
    """The binary files of a split in a folder, in order; empty if there are none."""
    return sorted(folder.glob(_PATTERNS[split]))
