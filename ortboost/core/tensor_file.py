"""Tensors in a safetensors file, read and written one at a time.

Reading a state of 1 GB as a whole and copying it to the device would take 2 GB; safetensors itself
copies everything that it writes. Here each tensor is read when it is needed and freed after use; if
it is only passed on, in pieces.

The format: eight bytes with the length of the header, the header as JSON (name to dtype, shape and
offsets), the data. Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

__all__ = ["Overlay", "Selection", "TensorFile", "form_of", "pieces_of", "rows_of", "write_tensors"]

_PIECE = 2**26  # bytes: what is read at a time of a tensor that is only passed on

_DTYPES = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
    "BF16": ml_dtypes.bfloat16,
}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class _Place:
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    start: int


class TensorFile(Mapping[str, NDArray[np.generic]]):
    """Name to array; each access reads from the file.

    The file stays open, so that replacing it on disk has no effect on this object. Threads and
    forked processes may read at the same time.

    Args:
        path: A safetensors file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged, or has a tensor of an unsupported dtype.

    Example:
        >>> TensorFile("run/state.safetensors")["fc1.weight"].shape  # doctest: +SKIP
        (32, 64)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            with safe_open(self.path, framework="numpy"):  # checks the header and all offsets
                pass
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        # safe_open maps the file: if it shrinks later, a read would crash the process, not raise.
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 -- closed with this object
        weakref.finalize(self, self._file.close)
        length = int(self._read(0, 1, np.dtype("<u8"))[0])
        header = json.loads(self._read(8, length, np.dtype("u1")).tobytes())
        self.metadata: Mapping[str, str] = header.pop("__metadata__", None) or {}
        self._places: dict[str, _Place] = {}
        for name, entry in header.items():
            if entry["dtype"] not in _DTYPES:
                raise ValueError(f"'{name}' has the type {entry['dtype']}")
            start = 8 + length + entry["data_offsets"][0]
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            self._places[name] = _Place(dtype, tuple(entry["shape"]), start)

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        place = self._places[name]
        return self._read(place.start, math.prod(place.shape), place.dtype).reshape(place.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._places  # that of Mapping would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __reduce__(self) -> tuple[type, tuple[dict[str, NDArray[np.generic]]]]:
        return dict, (dict(self),)  # pickled with its contents: the file may have been replaced

    def form(self, name: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
        """Shape and dtype of a tensor, without reading it."""
        return self._places[name].shape, self._places[name].dtype

    def rows(self, name: str, rows: range) -> NDArray[np.generic]:
        """Consecutive rows of a tensor; nothing else of it is read."""
        place = self._places[name]
        shape = (len(rows), *place.shape[1:])
        start = place.start + rows.start * math.prod(place.shape[1:]) * place.dtype.itemsize
        return self._read(start, math.prod(shape), place.dtype).reshape(shape)

    def pieces(self, name: str) -> Iterator[NDArray[np.generic]]:
        """The elements of a tensor in order, in flat arrays of at most 64 MiB."""
        place = self._places[name]
        size, step = math.prod(place.shape), _PIECE // place.dtype.itemsize
        for first in range(0, size, step):
            start = place.start + first * place.dtype.itemsize
            yield self._read(start, min(step, size - first), place.dtype)

    def _read(self, start: int, count: int, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        array = np.empty(count, dtype)  # filled in place: no second copy in memory
        left = array.view(np.uint8).data
        while left:  # a read may stop at 2 GiB
            # Not seek and readinto: the position is one for all threads and forked processes.
            got = os.preadv(self._file.fileno(), [left], start)
            if not got:
                raise OSError(f"{self.path} ends {len(left)} bytes early")
            left, start = left[got:], start + got
        return array


class _View(Mapping[str, NDArray[np.generic]]):
    """Tensors that other mappings hold, which are read when they are needed."""

    def __init__(self, holders: Mapping[str, Mapping[str, NDArray[np.generic]]]) -> None:
        self.holders = holders

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        return self.holders[name][name]

    def __contains__(self, name: object) -> bool:
        return name in self.holders

    def __iter__(self) -> Iterator[str]:
        return iter(self.holders)

    def __len__(self) -> int:
        return len(self.holders)


class Overlay(_View):
    """All tensors of two mappings; ``front`` has those that differ, or are in memory."""

    def __init__(
        self, front: Mapping[str, NDArray[np.generic]], behind: Mapping[str, NDArray[np.generic]]
    ) -> None:
        super().__init__({**dict.fromkeys(behind, behind), **dict.fromkeys(front, front)})


class Selection(_View):
    """The tensors with these names."""

    def __init__(self, tensors: Mapping[str, NDArray[np.generic]], names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names, tensors))


@runtime_checkable
class _WithForms(Protocol):
    """Tensors that are read, from a file or a device, when they are accessed."""

    def form(self, name: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]: ...


def form_of(
    tensors: Mapping[str, NDArray[np.generic]], name: str
) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and dtype of one of several tensors, without reading it from a file or a device."""
    if isinstance(tensors, _View):
        return form_of(tensors.holders[name], name)
    if not isinstance(tensors, dict) and isinstance(tensors, _WithForms):  # slow
        return tensors.form(name)
    return tuple(tensors[name].shape), tensors[name].dtype


def rows_of(
    tensors: Mapping[str, NDArray[np.generic]], name: str, rows: range
) -> NDArray[np.generic]:
    """Consecutive rows of one of several tensors; from a file, only they are read."""
    if isinstance(tensors, _View):
        return rows_of(tensors.holders[name], name, rows)
    if isinstance(tensors, TensorFile):
        return tensors.rows(name, rows)
    return tensors[name][rows.start : rows.stop]


def pieces_of(
    tensors: Mapping[str, NDArray[np.generic]], name: str
) -> Iterator[NDArray[np.generic]]:
    """The elements of one of several tensors in order, in flat arrays; from a file, small ones."""
    if isinstance(tensors, _View):
        yield from pieces_of(tensors.holders[name], name)
    elif isinstance(tensors, TensorFile):
        yield from tensors.pieces(name)
    else:
        yield np.ascontiguousarray(tensors[name]).reshape(-1)


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, NDArray[np.generic]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file, with ``metadata`` in its header; it is not replaced atomically.

    Raises:
        OSError: The file cannot be written.
        ValueError: The format does not support the dtype of an array.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    # Largest item sizes first, as safetensors does: every tensor is aligned to its item size.
    forms = {name: form_of(tensors, name) for name in tensors}
    order = sorted(tensors, key=lambda name: (-forms[name][1].itemsize, name))
    for name in order:
        shape, dtype = forms[name]
        if dtype not in _CODES:
            raise ValueError(f"'{name}' has the type {dtype}")
        end = start + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data starts aligned
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for piece in pieces_of(tensors, name):
                little = piece.astype(piece.dtype.newbyteorder("<"), copy=False)
                file.write(little.view(np.uint8).data)
