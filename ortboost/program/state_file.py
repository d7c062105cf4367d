"""Files of state tensors, and the check that a state fits a program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ortboost.core.errors import FileError
from ortboost.core.tensor_file import TensorFile, form_of
from ortboost.program.catalogue import Catalogue

__all__ = ["check_state", "read_tensors"]


def read_tensors(path: str | os.PathLike[str]) -> TensorFile:
    """Open a safetensors file; each tensor is read on access.

    Raises:
        FileError: The file is missing or damaged.
    """
    try:
        return TensorFile(path)
    except (OSError, ValueError) as error:
        raise FileError(
            "A tensor file cannot be read.",
            where=f"{path}: {error}",
            fix="Restore it, or convert the model again.",
        ) from error


def check_state(catalogue: Catalogue, state: Mapping[str, NDArray[Any]], *, where: str) -> None:
    """Check that a state has exactly the tensors of the catalogue.

    Raises:
        FileError: Tensors are missing or superfluous, or have another shape or dtype.
    """
    expected = {entry.name: (entry.shape, entry.dtype) for entry in catalogue.state}
    for name in [*expected, *state]:
        if name not in state or name not in expected:
            problem = "is missing" if name not in state else "does not belong to this program"
        elif (found := form_of(state, name)) != expected[name]:
            (shape, dtype), (wanted, kind) = found, expected[name]
            problem = f"is {dtype}{list(shape)}, {kind}{list(wanted)} is expected"
        else:
            continue
        raise FileError(
            f"The state does not fit the program: '{name}' {problem}.",
            where=where,
            fix="Use the state of this program.",
        )
