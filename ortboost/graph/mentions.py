"""Search a model file for a text without reading the values of its weights."""

from __future__ import annotations

import mmap
from pathlib import Path

__all__ = ["mentions"]

# Keys of protobuf fields with a length: number << 3 | 2.
_TO_INITIALIZERS = (7 << 3 | 2, 5 << 3 | 2)  # ModelProto.graph, GraphProto.initializer
_RAW_DATA = 9 << 3 | 2  # TensorProto.raw_data
_FIXED_LENGTHS = {1: 8, 5: 4}  # by the type of a field


def mentions(path: Path, text: str) -> bool:
    """Whether an ONNX file has a text outside of the raw data of its initializers.

    Files that are not protobuf are searched completely.

    Raises:
        OSError: The file cannot be read.
    """
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        try:
            return _inside(view, text.encode(), 0, len(view), _TO_INITIALIZERS)
        except (IndexError, KeyError):  # not protobuf, or damaged
            return view.find(text.encode()) >= 0


def _inside(view: mmap.mmap, text: bytes, start: int, end: int, nested: tuple[int, ...]) -> bool:
    """Search the fields of a message; ``nested`` is the way to the messages of initializers."""
    while start < end:
        key, start = _varint(view, start)
        if key & 7 == 0:
            _, start = _varint(view, start)
            continue
        length, start = _varint(view, start) if key & 7 == 2 else (_FIXED_LENGTHS[key & 7], start)
        stop = start + length
        if stop > end:
            raise IndexError("a field is longer than its message")
        if nested[:1] == (key,):
            found = _inside(view, text, start, stop, nested[1:])
        else:
            values = not nested and key == _RAW_DATA
            found = not values and view.find(text, start, stop) >= 0
        if found:
            return True
        start = stop
    return False


def _varint(view: mmap.mmap, start: int) -> tuple[int, int]:
    """A protobuf varint (seven bits per byte), and the position after it."""
    number = 0
    for place in range(10):  # no more: other files may have millions of such bytes
        byte = view[start + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, start + place + 1
    raise IndexError("a number of more than 64 bits")
