"""IDX files, the format of MNIST and similar data sets, memory-mapped unless gzipped.

Layout (Y. LeCun, http://yann.lecun.com/exdb/mnist/), all big-endian::

    0 0 type rank | rank x uint32 lengths | data

"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from ortboost.core.errors import FileError
from ortboost.training.data.unpacked import check_unpacked
from ortboost.training.protocols import Array

__all__ = ["find_idx", "is_idx", "load_idx", "load_idx_pair"]

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_STEMS = {"train": ("train",), "test": ("t10k", "test"), "val": ("val", "t10k", "test")}
_MAX_RANK = 8


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb"))


def is_idx(path: Path) -> bool:
    """Whether the first four bytes look like an IDX header."""
    try:
        with _open(path) as stream:
            head = stream.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return _is_header(head)


def _is_header(head: bytes) -> bool:
    return (
        len(head) == 4 and head[:2] == b"\0\0" and head[2] in _DTYPES and 0 < head[3] <= _MAX_RANK
    )


def load_idx(path: str | os.PathLike[str]) -> Array:
    """Read one IDX file; ``.gz`` is decompressed into memory, other files are memory-mapped.

    Returns:
        The array, in the dtype of the file (big-endian for multi-byte types).

    Raises:
        FileError: The file is missing, not an IDX file, or its length differs from its header.

    Example:
        ``load_idx("train-images-idx3-ubyte").shape`` is ``(60000, 28, 28)``.
    """
    source = Path(path)
    try:
        with _open(source) as stream:
            head = stream.read(4)
            if not _is_header(head):
                raise ValueError("the first four bytes are not an IDX header")  # noqa: TRY301
            shape = struct.unpack(f">{head[3]}I", stream.read(4 * head[3]))
            dtype: np.dtype[Any] = np.dtype(_DTYPES[head[2]])
            promised = dtype.itemsize * math.prod(shape)
            data = None
            if source.suffix == ".gz":
                check_unpacked(promised, str(source))
                # One byte more, to notice data after the array.
                data = stream.read(promised + 1)
        offset = 4 + 4 * head[3]
        found = len(data) if data is not None else source.stat().st_size - offset
        if promised != found:
            more = "more" if data is not None and found > promised else str(found)
            raise ValueError(  # noqa: TRY301
                f"its header specifies {promised} data bytes, but it has {more}"
            )
        if promised == 0:
            raise ValueError("it is empty")  # noqa: TRY301
    except FileNotFoundError as error:
        raise FileError(
            "A data file is missing.", where=str(source), fix="Check the path."
        ) from error
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise FileError(
            f"'{source.name}' is not a complete IDX file.",
            where=f"{source}: {error}",
            fix="Download or write the file again.",
        ) from error
    if data is not None:
        return np.frombuffer(data, dtype).reshape(shape)
    return np.memmap(source, dtype, mode="r", offset=offset, shape=shape)


def load_idx_pair(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read a file of images and the file of labels in the same folder.

    Returns:
        ``x`` (uint8 ``[N, H, W]`` for MNIST) and ``y`` (uint8 ``[N]``).

    Raises:
        FileError: One of the two is missing or damaged, or they differ in length.
    """
    images = Path(path)
    if "labels" in images.name:
        images = _partner(images, "labels", "images", "idx1", "idx3")
    x, labels = load_idx(images), _partner(images, "images", "labels", "idx3", "idx1")
    y = load_idx(labels)
    if len(x) != len(y) or y.ndim != 1:
        raise FileError(
            "The images and the labels do not match.",
            where=f"{images}: {x.shape}, {labels}: {y.shape}",
            fix="Download both files again.",
        )
    return {"x": x, "y": y}


def _partner(path: Path, old: str, new: str, old_rank: str, new_rank: str) -> Path:
    name = path.name.replace(old, new).replace(old_rank, new_rank)
    bare = name.removesuffix(".gz")
    for candidate in (name, bare, f"{bare}.gz"):
        if candidate != path.name and path.with_name(candidate).is_file():
            return path.with_name(candidate)
    raise FileError(
        f"The {new} file for '{path.name}' is missing.",
        where=str(path.with_name(name)),
        fix="Put both files into the same folder, with the file names of MNIST.",
    )


def find_idx(folder: Path, split: str) -> Path | None:
    """The images file of a split in a folder (``train-images-idx3-ubyte``, ``t10k-...``)."""
    for stem in _STEMS[split]:
        for name in (f"{stem}-images-idx3-ubyte", f"{stem}-images.idx3-ubyte"):
            for candidate in (folder / name, folder / f"{name}.gz"):
                if candidate.is_file():
                    return candidate
    return None
