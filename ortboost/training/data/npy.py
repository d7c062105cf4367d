"""``.npy`` files: one array each, mapped into memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ortboost.core.errors import FileError
from ortboost.training.protocols import Array

__all__ = ["load_npy"]


def load_npy(path: str | os.PathLike[str]) -> Array:
    """Map the array of an ``.npy`` file, read-only; Python objects are never loaded.

    Args:
        path: The file.

    Raises:
        FileError: It is damaged, of another kind, or holds objects.
    """
    source = Path(path)
    try:
        array: Array = np.lib.format.open_memmap(source, mode="r")
    except (ValueError, OSError, EOFError, OverflowError) as error:
        raise FileError(
            f"'{source.name}' is no .npy file that can be read.",
            where=f"{source}: {' '.join(str(error).split())[:200]}",
            fix="Write it with np.save(path, array), with a numeric dtype.",
        ) from error
    return array
