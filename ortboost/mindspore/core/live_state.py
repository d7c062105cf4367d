"""Tensors that several compiled steps share.

Each compiled step keeps its state on its device. When two steps train the same weights (a second
optimizer, labels of another shape), the newest values must follow to the one that runs next. So the
weights of a network, the slots of an optimizer and the scale of a training cell each are a
:class:`LiveState`: values on the host, or lent to the step that used them last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Holder", "LiveState"]


class Holder(Protocol):
    """What can hold the newest values: a :class:`ortboost.runtime.stepper.Stepper`."""

    def get(self, name: str) -> NDArray[Any]:
        """A host copy of one tensor."""

    def set(self, name: str, value: NDArray[Any]) -> None:
        """Replace one tensor."""


class LiveState:
    """Named tensors with one holder of the newest values at a time.

    Args:
        values: Name to value; the arrays are not copied and never written to.

    Example:
        >>> state = LiveState({"w": np.zeros(2, np.float32)})
        >>> state.write("w", np.ones(2, np.float32))
        >>> state.read("w")
        array([1., 1.], dtype=float32)
    """

    def __init__(self, values: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._values: dict[str, NDArray[Any]] = dict(values or {})
        self._holder: Holder | None = None
        self._held: frozenset[str] = frozenset()
        self._stale = False
        self.version = 0
        """Grows whenever a value may have changed."""

    def __contains__(self, name: str) -> bool:
        return name in self._values or name in self._held

    def read(self, name: str) -> NDArray[Any]:
        """A copy of the newest value of one tensor."""
        if self._stale and self._holder is not None and name in self._held:
            return self._holder.get(name)
        return np.array(self._values[name], copy=True)

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Replace one tensor, here and where it is lent to."""
        self._values[name] = np.array(value, copy=True)
        if self._holder is not None and name in self._held:
            self._holder.set(name, self._values[name])
        self.version += 1

    def values(self) -> Mapping[str, NDArray[Any]]:
        """The newest values of all tensors; not to be written to."""
        if self._stale and self._holder is not None:
            for name in self._held:
                self._values[name] = self._holder.get(name)
            self._stale = False
        return self._values

    def lend(self, holder: Holder, names: Iterable[str]) -> None:
        """Give the newest values to a holder; it may change them from now on.

        Names that are not known here yet keep the value that the holder starts with.
        """
        if self._holder is holder:
            return
        values = self.values()
        self._holder, self._held = holder, frozenset(names)
        for name in self._held & values.keys():
            holder.set(name, values[name])
        self._stale = True

    def touch(self) -> None:
        """The holder has changed the values."""
        self._stale = True
        self.version += 1
