"""Sources of images: files, arrays of bytes, items of a data set."""

from __future__ import annotations

import abc
import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ortboost.core.errors import DependencyError, FileError, all_lines
from ortboost.training.protocols import Array

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ArrayImages", "FileImages", "Header", "ItemImages", "Store", "header_of"]

T = TypeVar("T")
_CHOSEN = 64  # number of images in a checksum
_SAMPLED = 64 << 20  # maximum bytes of files that a checksum reads
_ENDS = {b"\x89PNG": b"IEND\xaeB`\x82", b"\xff\xd8": b"\xff\xd9"}  # start of a format, its end
_TAIL = 4096  # bytes in which to look for the end: some cameras append data


class Header(NamedTuple):
    """What is known of an image before it is decoded."""

    width: int
    height: int
    mode: str  # Pillow's: L, RGB, P, RGBA, CMYK, I;16, ...
    name: str


class Store(abc.ABC):
    """Images by index."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    def headers(self) -> Sequence[Header]:
        """The headers of all images if that is cheap, otherwise that of the first."""
        return [header_of(self.load(0), self.name(0))]

    @abc.abstractmethod
    def load(self, number: int) -> Image:
        """Decode an image.

        Raises:
            FileError: It cannot be decoded.
        """

    @abc.abstractmethod
    def name(self, number: int) -> str:
        """The name of an image in error messages."""

    @abc.abstractmethod
    def checksum(self) -> int:
        """A checksum of the contents, or of a sample of them."""


def _require_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401 - is it installed?
    except ImportError as error:
        raise DependencyError(
            "Images are read with Pillow, which is not installed.",
            where=str(error),
            fix="pip install 'ortboost[images]'",
        ) from error


class FileImages(Store):
    """Image files; all headers are read at the start, to find damaged files early.

    A PNG or JPEG without its end marker is decoded at the start too: it is probably truncated.
    Paths in the checksum are relative to the common folder ``root``.

    Raises:
        FileError: A file is not an image, is truncated, or has more pixels than Pillow's
            ``MAX_IMAGE_PIXELS``.
    """

    def __init__(self, paths: Sequence[str], root: Path) -> None:
        _require_pillow()
        self._paths, self._root = paths, root
        self._headers = [self._header(path) for path in paths]

    def __len__(self) -> int:
        return len(self._paths)

    def headers(self) -> Sequence[Header]:
        """The headers of all files."""
        return self._headers

    def name(self, number: int) -> str:
        """The path of the file."""
        return self._paths[number]

    def load(self, number: int) -> Image:
        """Decode a file."""
        return self._read(self._paths[number], _decoded)

    def checksum(self) -> int:
        """A checksum of all names and lengths, and of the bytes of chosen files, up to 64 MiB."""
        found = 0
        for path in self._paths:
            note = f"{os.path.relpath(path, self._root)}:{os.path.getsize(path)}\n"
            found = zlib.crc32(note.encode(errors="surrogateescape"), found)
        left = _SAMPLED
        for number in np.random.Philox(0).random_raw(len(self)).argsort():
            left -= os.path.getsize(self._paths[number])
            if left < 0:
                break
            found = zlib.crc32(Path(self._paths[number]).read_bytes(), found)
        return found

    def _header(self, path: str) -> Header:
        import PIL.Image

        with warnings.catch_warnings():  # in one thread: warning filters are global
            warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
            header = self._read(path, lambda image: header_of(image, path))
        if _lacks_end(path):
            self._read(path, _decoded)
        return header

    @staticmethod
    def _read(path: str, read: Callable[[Image], T]) -> T:
        import PIL.Image

        try:
            with open(path, "rb") as file:
                return read(PIL.Image.open(file))
        except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
            raise FileError(
                "An image has more pixels than Pillow decodes.",
                where=f"{path}: {error}",
                fix="Remove it from the data, or make it smaller.",
            ) from error
        except PermissionError as error:
            raise FileError(
                "An image cannot be read.",
                where=f"{path}: {error.strerror}",
                fix="Give this user the right to read it, or remove it from the data.",
            ) from error
        except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, ...
            raise FileError(
                "An image cannot be read.",
                where=f"{path}: {all_lines(error)}",
                fix="The file is damaged or not an image; replace it, or remove it from the data.",
            ) from error


class ArrayImages(Store):
    """Arrays of bytes as images.

    Args:
        array: uint8 ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]`` with 1 or 3 channels.
        name: Name of the array, for error messages.
    """

    def __init__(self, array: Array, name: str) -> None:
        _require_pillow()
        self._array, self._name = array, name
        self._channel_first = array.ndim == 4 and array.shape[3] not in (1, 3)

    @staticmethod
    def suits(array: Array) -> bool:
        """Whether an array has the dtype and shape of images."""
        channels = (array.shape[3], array.shape[1]) if array.ndim == 4 else (1,)
        return array.dtype == np.uint8 and array.ndim in (3, 4) and not {1, 3}.isdisjoint(channels)

    def __len__(self) -> int:
        return len(self._array)

    def name(self, number: int) -> str:
        """Array and row."""
        return f"'{self._name}', row {number}"

    def load(self, number: int) -> Image:
        """A row as an image."""
        import PIL.Image

        pixels = np.asarray(self._array[number])
        if self._channel_first:
            pixels = pixels.transpose(1, 2, 0)
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[:, :, 0]
        return PIL.Image.fromarray(np.ascontiguousarray(pixels))

    def checksum(self) -> int:
        """A checksum of up to 256 MiB, or of the first and last 64 MiB."""
        rows = self._array
        step = max(1, _SAMPLED * len(rows) // max(1, rows.nbytes))
        parts = [rows] if rows.nbytes <= 4 * _SAMPLED else [rows[:step], rows[-step:]]
        found = 0
        for part in parts:
            found = zlib.crc32(np.ascontiguousarray(part).data.cast("B"), found)
        return found


class ItemImages(Store):
    """Images from a data set, such as a column of Hugging Face ``datasets``.

    ``load`` returns the Pillow image with an index.
    """

    def __init__(self, load: Callable[[int], Any], length: int, name: str) -> None:
        _require_pillow()
        self._load, self._length, self._name = load, length, name

    def __len__(self) -> int:
        return self._length

    def name(self, number: int) -> str:
        """Column and row."""
        return f"{self._name}, row {number}"

    def load(self, number: int) -> Image:
        """Get an image from the data set."""
        import PIL.Image

        found = self._load(number)
        if not isinstance(found, PIL.Image.Image):
            raise FileError(
                "A row is not an image.",
                where=f"{self.name(number)}: {type(found).__name__}",
                fix="Drop the row, or decode it to a Pillow image.",
            )
        return found

    def checksum(self) -> int:
        """A checksum of the number of images and the pixels of 64 chosen ones."""
        found = zlib.crc32(str(len(self)).encode())
        for number in np.random.Philox(0).random_raw(len(self)).argsort()[:_CHOSEN].tolist():
            found = zlib.crc32(np.asarray(self.load(number)).tobytes(), found)
        return found


def header_of(image: Image, name: str) -> Header:
    """The header of an image.

    A palette with transparency has the mode ``PA``. Colours of 16 bits, which Pillow would cut to 8
    when it decodes them, have the mode ``RGB;16``.
    """
    mode = image.mode
    if mode == "P" and "transparency" in image.info:
        mode = "PA"
    elif mode in ("RGB", "RGBA") and any(map(_is_deep, getattr(image, "tile", ()))):
        mode += ";16"
    return Header(*image.size, mode, name)


def _is_deep(tile: tuple[Any, ...]) -> bool:
    """Whether a part of a file, not yet decoded, has more than 8 bits per channel."""
    codec, *_, arguments = tile
    first, *rest = arguments if isinstance(arguments, tuple) else (arguments,)
    return ";16" in str(first) or (codec.startswith("ppm") and max(rest, default=0) > 255)


def _decoded(image: Image) -> Image:
    image.load()
    return image


def _lacks_end(path: str) -> bool:
    """Whether a PNG or JPEG has no end marker; JPEG data never contain one by chance."""
    with open(path, "rb") as file:
        start = file.read(4)
        file.seek(max(0, os.path.getsize(path) - _TAIL))
        tail = file.read()
    return any(start.startswith(first) and end not in tail for first, end in _ENDS.items())
