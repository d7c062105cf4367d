"""State tensors that live on the device from the first step to the last.

A state that is updated in place has one buffer; any other has two, and the step alternates between
them. Nothing is copied at a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.errors import UsageError, nearest
from ortboost.program.catalogue import Catalogue
from ortboost.program.program import check_state
from ortboost.runtime.session import runtime

__all__ = ["DeviceState"]


class DeviceState:
    """The state of one program on one device.

    Args:
        catalogue: What tensors there are.
        initial: State name to value; copied.
        device: ``cpu`` or ``cuda``.
        in_place: Names of the states with a single buffer, see :mod:`ortboost.program.aliasing`.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        initial: Mapping[str, NDArray[Any]],
        device: str,
        in_place: Collection[str],
    ) -> None:
        self.catalogue = catalogue
        self._entries = {entry.name: entry for entry in catalogue.state}
        self.device = device
        self.phase = 0
        self.double = any(e.next and e.name not in in_place for e in catalogue.state)
        check_state(catalogue, initial, where="initial state")
        first = {entry.name: self._place(initial[entry.name]) for entry in catalogue.state}
        self._buffers = [first]
        if self.double:
            second = {
                entry.name: self._place(initial[entry.name])
                if entry.next and entry.name not in in_place
                else first[entry.name]
                for entry in catalogue.state
            }
            self._buffers.append(second)

    def _place(self, array: NDArray[Any]) -> Any:
        owned = np.array(array, order="C", copy=True)  # on the CPU the OrtValue is this very memory
        return runtime().OrtValue.ortvalue_from_numpy(owned, self.device)

    def current(self, name: str) -> Any:
        """The ``OrtValue`` with the present value of a state.

        Raises:
            UsageError: There is no state of this name.
        """
        if name not in self._entries:
            raise UsageError(
                f"The program has no state '{name}'.",
                where="state",
                fix=nearest(name, self._entries),
            )
        return self._buffers[self.phase][name]

    def phases(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """For each phase of the alternation: buffers to read, buffers to write."""
        return [
            (self._buffers[phase], self._buffers[(phase + 1) % len(self._buffers)])
            for phase in range(len(self._buffers))
        ]

    def advance(self) -> None:
        """A step has written: its buffers are the present ones."""
        self.phase = (self.phase + 1) % len(self._buffers)

    def read(self, name: str) -> NDArray[Any]:
        """A host copy of one state tensor."""
        return np.array(self.current(name).numpy(), copy=True)

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Replace the value of one state tensor, converted to the dtype of the catalogue.

        Raises:
            UsageError: There is no state of this name, or the shape is another one.
        """
        target = self.current(name)
        entry = self._entries[name]
        if np.shape(value) != entry.shape:
            raise UsageError(
                f"The state '{name}' has the shape {list(entry.shape)}, "
                f"{list(np.shape(value))} was given.",
                where=f"state '{name}'",
                fix="Give an array of the same shape.",
            )
        target.update_inplace(np.array(value, dtype=entry.dtype, order="C"))

    def read_all(self) -> dict[str, NDArray[Any]]:
        """A host copy of the whole state, in the order of the catalogue."""
        return {entry.name: self.read(entry.name) for entry in self.catalogue.state}

    def write_all(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the whole state.

        Raises:
            FileError: Tensors are missing, left over, or of another shape or dtype.
        """
        check_state(self.catalogue, state, where="state to load")
        for name, value in state.items():
            self.write(name, value)
