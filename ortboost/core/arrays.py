"""Numbers out of whatever holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ArgumentTypeError

__all__ = ["as_array"]


def as_array(value: Any, where: str) -> NDArray[Any]:
    """A numpy array out of numbers, lists, arrays, or a tensor of any framework.

    Tensors are recognised by what they can do (``asnumpy``; ``detach``, ``cpu`` and ``numpy``;
    ``__array__``; ``__dlpack__``); no framework is imported.

    Args:
        value: The data.
        where: What they are, for the error.

    Raises:
        ArgumentTypeError: They are no numbers, or rows of different lengths.
    """
    if isinstance(value, np.ndarray):
        array = value.view(np.ndarray)
    else:
        methods = ("asnumpy",) if hasattr(value, "asnumpy") else ("detach", "cpu", "numpy")
        for method in methods:
            if hasattr(value, method):
                value = getattr(value, method)()
        try:
            bare = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
            array = np.from_dlpack(value) if bare else np.asarray(value)
        except ValueError as error:
            raise ArgumentTypeError(
                "The rows of an array differ in shape.",
                where=where,
                fix="Pad or crop them to one shape.",
            ) from error
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ArgumentTypeError(
            f"An array holds {array.dtype} values, not numbers.",
            where=f"{where}: {type(value).__name__}",
            fix="Give an array of numbers.",
        )
    return array
