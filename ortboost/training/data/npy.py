"""``.npy`` files, memory-mapped."""

from __future__ import annotations

import os
from pathlib import Path

from ortboost.core.arrays import read_npy
from ortboost.core.errors import FileError
from ortboost.training.protocols import Array

__all__ = ["load_npy"]


def load_npy(path: str | os.PathLike[str]) -> Array:
    """Memory-map an ``.npy`` file, read-only; Python objects are never loaded.

    Raises:
        FileError: The file is damaged, of another kind, or has Python objects.
    """
    source = Path(path)
    try:
        return read_npy(source)
    except (ValueError, OSError) as error:
        raise FileError(
            f"'{source.name}' is not a readable .npy file.",
            where=f"{source}: {' '.join(str(error).split())[:200]}",
            fix="Write it with np.save(path, array), with a numeric dtype.",
        ) from error
