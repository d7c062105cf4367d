"""Where images come from: files, bytes in an array, items of a data set."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ortboost.core.errors import DependencyError, FileError
from ortboost.training.protocols import Array

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ArrayImages", "FileImages", "Header", "ItemImages", "Store", "require_pillow"]

T = TypeVar("T")
_CHOSEN = 64  # images
_SAMPLED = 64 << 20  # bytes of files that a checksum reads at most


class Header(NamedTuple):
    """What is known of an image before it is decoded."""

    width: int
    height: int
    mode: str  # Pillow's: L, RGB, P, RGBA, CMYK, I;16, ...
    name: str


class Store(Protocol):
    """Images by number."""

    def __len__(self) -> int: ...

    def headers(self) -> Sequence[Header]:
        """Of all images where that costs little, else of the first."""

    def load(self, number: int) -> Image:
        """An image, decoded.

        Raises:
            FileError: It cannot be.
        """

    def name(self, number: int) -> str:
        """What it is called in errors."""

    def checksum(self) -> int:
        """Of the contents, or of enough of them to tell two data sets apart."""


def require_pillow() -> None:
    """Refuse to read images without Pillow.

    Raises:
        DependencyError: It is not installed.
    """
    try:
        import PIL.Image  # noqa: F401 - whether it is there
    except ImportError as error:
        raise DependencyError(
            "Images are read with Pillow, which is not installed.",
            where=str(error),
            fix="pip install 'ortboost[images]'",
        ) from error


class FileImages:
    """Image files. Their headers are read at once, so that no damaged one waits until its turn.

    Args:
        paths: The files.
        root: The folder that they are in, for short names.

    Raises:
        FileError: One is no image, or has more pixels than Pillow's ``MAX_IMAGE_PIXELS``.
    """

    def __init__(self, paths: Sequence[str], root: Path) -> None:
        require_pillow()
        self._paths, self._root = paths, root
        self._headers = [self._header(path) for path in paths]

    def __len__(self) -> int:
        return len(self._paths)

    def headers(self) -> Sequence[Header]:
        """Of all files."""
        return self._headers

    def name(self, number: int) -> str:
        """The path of the file."""
        return self._paths[number]

    def load(self, number: int) -> Image:
        """Decode a file."""
        return self._read(self._paths[number], _itself)

    def checksum(self) -> int:
        """Of all names and lengths, and of the bytes of a seeded choice of files, 64 MiB of them."""
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
        def read(image: Image) -> Header:
            transparent = image.mode == "P" and "transparency" in image.info
            return Header(*image.size, "PA" if transparent else image.mode, path)

        return self._read(path, read, decode=False)

    @staticmethod
    def _read(path: str, read: Callable[[Image], T], *, decode: bool = True) -> T:
        import PIL.Image

        try:
            with open(path, "rb") as file:
                if not decode:  # in one thread: filters of warnings are for all of them
                    with warnings.catch_warnings():
                        warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
                        return read(PIL.Image.open(file))
                image = PIL.Image.open(file)
                image.load()
                return read(image)
        except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
            raise FileError(
                "An image has more pixels than Pillow decodes.",
                where=f"{path}: {error}",
                fix="Take it out of the data, or make it smaller.",
            ) from error
        except (
            Exception
        ) as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
            raise FileError(
                "An image cannot be read.",
                where=f"{path}: {' '.join(str(error).split())[:200]}",
                fix="The file is damaged or no image; write it again, or take it out of the data.",
            ) from error


class ArrayImages:
    """Bytes of an array as images.

    Args:
        array: uint8 ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]`` with 1 or 3 channels.
        name: What it is called.
    """

    def __init__(self, array: Array, name: str) -> None:
        require_pillow()
        self._array, self._name = array, name
        self._channel_first = array.ndim == 4 and array.shape[3] not in (1, 3)

    @staticmethod
    def suits(array: Array) -> bool:
        """Whether an array can hold images."""
        channels = (array.shape[3], array.shape[1]) if array.ndim == 4 else (1,)
        return array.dtype == np.uint8 and array.ndim in (3, 4) and not {1, 3}.isdisjoint(channels)

    def __len__(self) -> int:
        return len(self._array)

    def headers(self) -> Sequence[Header]:
        """Of the first: all are alike."""
        first = self.load(0)
        return [Header(*first.size, first.mode, self.name(0))]

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
        """Of all bytes up to 256 MiB, else of the first and last 64 MiB."""
        rows = self._array
        step = max(1, _SAMPLED * len(rows) // max(1, rows.nbytes))
        parts = [rows] if rows.nbytes <= 4 * _SAMPLED else [rows[:step], rows[-step:]]
        found = 0
        for part in parts:
            found = zlib.crc32(np.ascontiguousarray(part).data.cast("B"), found)
        return found


class ItemImages:
    """Images that a data set gives one by one, such as a column of Hugging Face ``datasets``.

    Args:
        load: Gives an image of Pillow by number.
        length: How many there are.
        name: What they are called.
    """

    def __init__(self, load: Callable[[int], Any], length: int, name: str) -> None:
        require_pillow()
        self._load, self._length, self._name = load, length, name

    def __len__(self) -> int:
        return self._length

    def headers(self) -> Sequence[Header]:
        """Of the first: the others are looked at when they are decoded."""
        first = self.load(0)
        return [Header(*first.size, first.mode, self.name(0))]

    def name(self, number: int) -> str:
        """Column and row."""
        return f"{self._name}, row {number}"

    def load(self, number: int) -> Image:
        """Ask the data set for it."""
        import PIL.Image

        found = self._load(number)
        if not isinstance(found, PIL.Image.Image):
            raise FileError(
                "A row holds no image.",
                where=f"{self.name(number)}: {type(found).__name__}",
                fix="Drop the row, or decode it to an image of Pillow.",
            )
        return found

    def checksum(self) -> int:
        """Of their number and the pixels of a seeded choice of them."""
        found = zlib.crc32(str(len(self)).encode())
        for number in np.random.Philox(0).random_raw(len(self)).argsort()[:_CHOSEN].tolist():
            found = zlib.crc32(np.asarray(self.load(number)).tobytes(), found)
        return found


def _itself(image: Image) -> Image:
    return image
