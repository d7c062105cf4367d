"""``Parameter``: a named tensor of a network, wherever its value currently is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arguments import check_argument
from ortboost.core.arrays import as_array
from ortboost.mindspore.core.arguments import (
    ArgumentTypeError,
    ArgumentValueError,
    NotInThisVersionError,
)
from ortboost.mindspore.core.live_state import LiveState
from ortboost.mindspore.core.tensor import Tensor

__all__ = ["Parameter"]


class Parameter:
    """A trained tensor, or a running statistic (``requires_grad`` is False).

    Its value is the current one of the network: before training that of the file, after a step the
    trained one, read from the device on demand.

    Args:
        default_input: The value.
        name: Its name.
        requires_grad: Whether to train it. Checked when a training step is compiled, so that a
            parameter can be frozen between two steps.

    Example:
        >>> Parameter(np.ones([2, 3], np.float32), name="w")
        Parameter (name=w, shape=(2, 3), dtype=float32, requires_grad=True)
    """

    def __init__(
        self, default_input: Any, name: str | None = None, requires_grad: bool = True
    ) -> None:
        value = np.asarray(Tensor(default_input))
        self._attach(name or "Parameter", LiveState(), value.shape, value.dtype, requires_grad, "")
        self.state.write(self.name, value)

    def _attach(
        self,
        name: str,
        state: LiveState,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        requires_grad: bool,
        role: str,
    ) -> None:
        self._name, self.state, self.shape, self.dtype = name, state, shape, dtype
        self.requires_grad, self.role = requires_grad, role
        self.comm_fusion = 1
        """For compatibility, without effect: the exchange of gradients forms its own groups."""

    @classmethod
    def of_state(
        cls, state: LiveState, name: str, *, requires_grad: bool = True, role: str = ""
    ) -> Parameter:
        """Make the parameter of one tensor of a state."""
        value = state.read(name)
        parameter = cls.__new__(cls)
        parameter._attach(name, state, value.shape, value.dtype, requires_grad, role)
        return parameter

    @property
    def name(self) -> str:
        """Its name, that of the ONNX file."""
        return self._name

    @name.setter
    def name(self, value: object) -> None:
        raise NotInThisVersionError(
            f"The parameter '{self.name}' cannot be renamed.",
            where=f"parameter '{self.name}', name",
            fix="Rename it in the ONNX file, or in the dict given to save_checkpoint.",
        )

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained; settable."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        check_argument(f"parameter '{self.name}'", "requires_grad", value, bool)
        self._requires_grad = value

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def asnumpy(self) -> NDArray[Any]:
        """A copy of the current value."""
        return self.state.read(self.name)

    @property
    def data(self) -> Tensor:
        """A copy of the current value as a :class:`ortboost.Tensor`."""
        return Tensor(self.asnumpy())

    def value(self) -> Tensor:
        """The same as :attr:`data`."""
        return self.data

    def set_data(self, data: Any, slice_shape: bool = False) -> Parameter:
        """Replace the value, also on the device if the network is being trained.

        Args:
            data: Array or Tensor of this shape; another float precision is converted.
            slice_shape: For compatibility; must be False, because shapes are fixed in the graph.

        Raises:
            ArgumentTypeError: It is not an array, or its type cannot be converted.
            ArgumentValueError: It has another shape.

        Example:
            >>> p = Parameter(np.zeros(2, np.float32), name="b")
            >>> p.set_data(np.ones(2)).asnumpy()
            array([1., 1.], dtype=float32)
        """
        self.state.write(self.name, self.converted(data, slice_shape))
        return self

    def converted(self, data: Any, slice_shape: bool = False) -> NDArray[Any]:
        """The value that :meth:`set_data` would write, with its errors."""
        where = f"parameter '{self.name}'"
        if not isinstance(data, np.ndarray | np.generic | Parameter) and not hasattr(
            data, "asnumpy"
        ):
            raise ArgumentTypeError(
                f"set_data got {type(data).__name__}.",
                where=where,
                fix="Give a numpy array or a Tensor of the parameter's shape.",
            )
        array = as_array(data, "data")
        if not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise ArgumentTypeError(
                f"{array.dtype} cannot become {self.dtype}.",
                where=where,
                fix=f"Convert it first: data.astype('{self.dtype}').",
            )
        if slice_shape or array.shape != self.shape:
            raise ArgumentValueError(
                f"set_data got the shape {array.shape}.",
                where=where,
                fix=f"Give an array of the shape {self.shape}.",
            )
        return array.astype(self.dtype, copy=False)

    def init_data(self) -> Parameter:
        """For compatibility: the value is always initialized."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.asnumpy(), dtype=dtype)

    def __repr__(self) -> str:
        return (
            f"Parameter (name={self.name}, shape={self.shape}, dtype={self.dtype}, "
            f"requires_grad={self.requires_grad})"
        )
