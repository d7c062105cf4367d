"""State tensors that stay on the device during training.

A state that is updated in place has one buffer; any other has two, and the steps that write it
alternate between them. No state is copied in a step.

Of a sharded state with `k` rows, process `r` of `N` holds the rows `[k r / N, k (r + 1) / N)`. It
never changes, so the whole tensor is read from its source, usually the file of the program. The
same holds for the state with the rank of a process, :data:`~ortboost.boosts.roles.PART`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.roles import PART
from ortboost.core.arrays import as_dtype
from ortboost.core.errors import ConfigError, UsageError, nearest
from ortboost.core.tensor_file import Overlay, TensorFile, rows_of
from ortboost.program.catalogue import Catalogue, StateEntry
from ortboost.program.state_file import check_state
from ortboost.runtime.session import runtime

__all__ = ["DeviceState"]


class DeviceState:
    """The state of one program on one device.

    Whoever reads or writes it where other threads may do so, too, holds its ``lock``.

    Args:
        catalogue: The state tensors.
        initial: State name to value; copied.
        device: ``cpu`` or ``cuda``.
        in_place: Names of the states with a single buffer; see :mod:`ortboost.program.aliasing`.
        part: Rank of this process, and number of processes.

    Raises:
        ConfigError: A sharded state has fewer rows than there are processes.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        initial: Mapping[str, NDArray[Any]],
        device: str,
        in_place: Collection[str],
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.catalogue, self.lock = catalogue, threading.RLock()
        self._entries = {entry.name: entry for entry in catalogue.state}
        self.device = device
        check_state(catalogue, initial, where="initial state")
        self._whole = initial
        self._part = np.array(part)
        rank, size = part
        self._rows = {  # of this process, by sharded state
            entry.name: range(entry.shape[0] * rank // size, entry.shape[0] * (rank + 1) // size)
            for entry in catalogue.state
            if entry.sharded and size > 1
        }
        # States that differ between processes: files and callers see the value of the whole.
        self._own = {*self._rows, *([PART] if PART in self._entries else [])}
        self._buffers: dict[str, list[Any]] = {}
        for entry in catalogue.state:
            rows = self._rows.get(entry.name)
            if rows is not None and entry.shape[0] < size:
                raise ConfigError(
                    f"{size} processes cannot share the {entry.shape[0]} rows of a state.",
                    where=f"state '{entry.name}'",
                    fix=f"Train with at most {entry.shape[0]} processes, or convert the model "
                    "without this division.",
                )
            copies = 1 if entry.next is None or entry.name in in_place else 2
            self._buffers[entry.name] = [self._place(entry.name) for _ in range(copies)]

    @property
    def nbytes(self) -> int:
        """Total bytes of the tensors, each counted once."""
        return sum(math.prod(e.shape) * e.dtype.itemsize for e in self.catalogue.state)

    def _place(self, name: str) -> Any:
        array = self._part if name == PART else self._held(self._whole, name)
        if not isinstance(self._whole, TensorFile):  # which reads into new memory
            array = np.array(array, order="C", copy=True)
        # On the CPU the OrtValue shares this memory.
        return runtime().OrtValue.ortvalue_from_numpy(array, self.device)

    def _held(self, state: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
        """What this process holds of one tensor of a whole state."""
        rows = self._rows.get(name)
        return state[name] if rows is None else rows_of(state, name, rows)

    def buffers(self, name: str) -> list[Any]:
        """All buffers of one state, the current one first."""
        return list(self._buffers[name])

    def current(self, name: str) -> Any:
        """The ``OrtValue`` with the current value of a state.

        Raises:
            UsageError: The state is unknown.
        """
        if name not in self._entries:
            raise UsageError(
                f"The program has no state '{name}'.",
                where="state",
                fix=nearest(name, self._entries),
            )
        return self._buffers[name][0]

    def target(self, name: str) -> Any:
        """The ``OrtValue`` that receives the next value of a state."""
        return self._buffers[name][-1]

    def phase(self, names: Iterable[str]) -> tuple[int, ...]:
        """A key of the current buffers: equal phases have equal bindings."""
        return tuple(id(self._buffers[name][0]) for name in names if len(self._buffers[name]) > 1)

    def advance(self, written: Iterable[str]) -> None:
        """Make the buffers written by a step the current ones."""
        for name in written:
            self._buffers[name].reverse()

    def read(self, name: str) -> NDArray[Any]:
        """Copy one state tensor to the host, as a whole."""
        if name in self._own:
            return np.array(self._whole[name], copy=True)
        return np.array(self.current(name).numpy(), copy=True)

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Replace the value of one state tensor, converted to the dtype of the catalogue.

        Raises:
            UsageError: The state is unknown, the shape differs, its dtype cannot hold the values,
                or it never changes.
        """
        target = self.current(name)
        entry = self._entries[name]
        array = as_dtype(value, entry.dtype, f"state '{name}'")
        if array.shape != entry.shape:
            raise UsageError(
                f"The state '{name}' has the shape {list(entry.shape)}, but "
                f"{list(array.shape)} was given.",
                where=f"state '{name}'",
                fix="Give an array of the same shape.",
            )
        if name in self._own:
            self._check_kept({name: array}, name)
        else:
            target.update_inplace(np.asarray(array, order="C"))

    def _check_kept(self, state: Mapping[str, NDArray[Any]], name: str) -> None:
        """Check that a state that never changes keeps its value."""
        # The rank in a file is that of one process; of a sharded state only the rows held here.
        kept = self._whole[name] if name == PART else self.current(name).numpy()
        if not np.array_equal(self._held(state, name), kept):
            raise UsageError(
                f"The state '{name}' is shared by the processes and cannot be changed.",
                where=f"state '{name}'",
                fix="Convert the model again with its new value.",
            )

    def read_all(self, *, copy: bool = True) -> Mapping[str, NDArray[Any]]:
        """The whole state on the host; sharded states are read when they are accessed.

        Without ``copy`` each tensor is copied when it is accessed, so the values are those at that
        moment, and memory holds one copy at a time.
        """
        entries = {e.name: e for e in self.catalogue.state if e.name not in self._rows}
        held: Mapping[str, NDArray[Any]] = _Current(self.read, entries)
        if copy:
            held = dict(held)
        return Overlay(held, self._whole) if self._rows else held

    def write_all(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the whole state.

        Raises:
            FileError: Tensors are missing or unexpected, or have another shape or dtype.
        """
        check_state(self.catalogue, state, where="state to load")
        for name in state:
            if name in self._own:
                self._check_kept(state, name)
            else:
                self.write(name, state[name])


class _Current(Mapping[str, NDArray[Any]]):
    """Name to tensor; each access copies it to the host."""

    def __init__(
        self, read: Callable[[str], NDArray[Any]], entries: Mapping[str, StateEntry]
    ) -> None:
        self._read, self._entries = read, entries

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._read(self._entries[name].name)  # KeyError, as of any mapping

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # that of Mapping would copy the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def form(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of a tensor, without copying it."""
        return self._entries[name].shape, self._entries[name].dtype
