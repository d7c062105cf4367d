"""Tensors shared by several compiled steps.

Each compiled step keeps its state on its device. When two steps train the same weights (a second
optimizer, labels of another shape), the latest values must be passed to the one that runs next. The
weights of a network, the slots of an optimizer and the scale of a training cell are therefore each
a :class:`LiveState`: values on the host, or lent to the step that used them last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ortboost.runtime.stepper import Stepper
    from ortboost.runtime.updater import Updater

__all__ = ["LiveState"]


class LiveState:
    """Named tensors whose latest values have one holder at a time.

    Args:
        values: Name to value; neither copied nor modified.

    Example:
        >>> state = LiveState({"w": np.zeros(2, np.float32)})
        >>> state.write("w", np.ones(2, np.float32))
        >>> state.read("w")
        array([1., 1.], dtype=float32)
    """

    def __init__(self, values: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._values: dict[str, NDArray[Any]] = dict(values or {})
        self._holder: Stepper | Updater | None = None
        self._held: frozenset[str] = frozenset()  # names that the holder has
        self._stale = False  # whether the holder has newer values of these
        self.version = 0
        """Incremented whenever a value may have changed."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the latest values and no holder."""
        return {**vars(self), "_values": dict(self.values()), "_holder": None, "_held": frozenset()}

    def __contains__(self, name: str) -> bool:
        return name in self._values or name in self._held

    def read(self, name: str) -> NDArray[Any]:
        """Copy the latest value of one tensor."""
        if self._stale and self._holder is not None and name in self._held:
            return self._holder.get(name)
        return np.array(self._values[name], copy=True)

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Replace one tensor, here and at the holder."""
        self._values[name] = np.array(value, copy=True)
        if self._holder is not None and name in self._held:
            self._holder.set(name, self._values[name])
        self.version += 1

    def values(self) -> Mapping[str, NDArray[Any]]:
        """The latest values of all tensors; must not be modified."""
        if self._stale and self._holder is not None:
            for name in self._held:
                self._values[name] = self._holder.get(name)
            self._stale = False
        return self._values

    def lend(self, holder: Stepper | Updater, names: Iterable[str]) -> None:
        """Lend the latest values to a holder, which may change them from now on.

        Names unknown here keep the initial value of the holder.
        """
        if self._holder is holder:
            return
        # Read from the last holder before another one takes its place.
        values = self.values()
        self._holder, self._held = holder, frozenset(names)
        for name in self._held & values.keys():
            holder.set(name, values[name])
        self._stale = True

    def touch(self) -> None:
        """Record that the holder has changed the values."""
        self._stale = True
        self.version += 1
