"""``Tensor``: a numpy array with the methods that MindSpore code commonly uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arrays import as_array
from ortboost.core.errors import ArgumentTypeError

__all__ = ["Tensor", "given_array"]


def given_array(owner: str, name: str, value: Any) -> NDArray[Any]:
    """Convert an array or tensor to an array; plain numbers are not accepted."""
    if value is None or isinstance(value, bool | int | float | str):
        raise ArgumentTypeError(
            f"'{name}' is {type(value).__name__}.",
            where=f"{owner}, {name}",
            fix="Give a Tensor or an array.",
        )
    return as_array(value, name)


class Tensor(np.ndarray[Any, np.dtype[Any]]):
    """A numpy array with some of MindSpore's methods.

    It *is* a numpy array, accepted wherever one is; its ``dtype`` and other methods are numpy's.

    Args:
        input_data: Number, list, array, or tensor of another framework. An array of the right dtype
            is not copied.
        dtype: Element type, such as ``ob.float32``; by default Python floats become float32, as in
            MindSpore, and arrays keep their type.

    Raises:
        ArgumentTypeError: The data are not numeric.

    Example:
        >>> Tensor([1.0, 2.0]).dtype
        dtype('float32')
        >>> Tensor(np.ones([2, 3]), np.float32).asnumpy().sum()
        np.float32(6.0)
    """

    def __new__(cls, input_data: Any, dtype: Any = None) -> Tensor:
        """See the class."""
        plain = isinstance(input_data, bool | int | float | list | tuple)
        array = as_array(input_data, "input_data")
        if dtype is None and plain and array.dtype == np.float64:
            dtype = np.float32
        return np.asarray(array, dtype=dtype).view(cls)

    def asnumpy(self) -> NDArray[Any]:
        """View it as a plain numpy array, with shared memory.

        Example:
            >>> type(Tensor([1, 2]).asnumpy()).__name__
            'ndarray'
        """
        return self.view(np.ndarray)
