"""``.npy`` and ``.npz`` files, memory-mapped.

``np.load(..., mmap_mode="r")`` ignores ``mmap_mode`` for ``.npz``. But a *stored* (uncompressed)
member, as ``np.savez`` writes it, is a plain ``.npy`` file at some offset in the archive, so it can
be mapped in place:

    archive:  ... | local header: 30 bytes, name (n), extra (m) | .npy header | data | ...

The central directory gives the offset of the local header; the lengths n and m are its bytes 26-27
and 28-29 (APPNOTE.TXT 4.3.7, little-endian). They may differ from the lengths in the central
directory, so they are read from the local header.

The size of a mapped member is checked, but not its CRC, for which all of it would have to be read.
"""

from __future__ import annotations

import lzma
import math
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from ortboost.core.arrays import npy_faults, read_npy
from ortboost.core.errors import FileError, all_lines
from ortboost.training.data.unpacked import check_unpacked
from ortboost.training.protocols import Array

__all__ = ["load_npy", "load_npz"]

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 0x1


def load_npy(path: str | os.PathLike[str]) -> Array:
    """Memory-map an ``.npy`` file, read-only; Python objects are never loaded.

    Raises:
        FileError: The file is damaged, of another kind, or has Python objects.
    """
    source = Path(path)
    try:
        return read_npy(source)
    except (ValueError, OSError) as error:
        raise FileError(
            f"'{source.name}' is not a readable .npy file.",
            where=f"{source}: {all_lines(error)}",
            fix="Write it with np.save(path, array), with a numeric dtype.",
        ) from error


def load_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read an ``.npz`` file; stored members are mapped read-only, compressed ones are read.

    Returns:
        Key to array, in the archive's order.

    Raises:
        FileError: The file or one of its members is missing, damaged, encrypted, or has Python
            objects (which would need pickle, and are never loaded).
    """
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive, open(source, "rb") as raw:
            members = [info for info in archive.infolist() if not info.is_dir()]
            arrays = {
                info.filename.removesuffix(".npy"): _member(source, archive, raw, info)
                for info in members
            }
    except zipfile.BadZipFile as error:
        raise FileError(
            f"'{source.name}' is not a complete .npz file.",
            where=f"{source}: {error}",
            fix="The file is truncated, damaged or of another kind; write it again with np.savez.",
        ) from error
    except OSError as error:
        raise FileError(
            f"'{source.name}' cannot be read.", where=f"{source}: {error}", fix="Check the path."
        ) from error
    if not arrays:
        raise FileError(
            f"'{source.name}' has no arrays.",
            where=str(source),
            fix="Write it with np.savez(path, x=..., y=...).",
        )
    return arrays


def _member(source: Path, archive: zipfile.ZipFile, raw: IO[bytes], info: zipfile.ZipInfo) -> Array:
    """One member, mapped if possible."""
    where = f"{source}: key '{info.filename.removesuffix('.npy')}'"
    try:
        if info.flag_bits & _ENCRYPTED:
            raise ValueError("the member is encrypted")  # noqa: TRY301 - reworded below
        if info.compress_type == zipfile.ZIP_STORED:
            mapped = _map(source, raw, info)
            if mapped is not None:
                return mapped
        # read_array allocates what the header of the array says: check that first.
        with archive.open(info) as stream:  # reads at most `file_size` bytes
            size = _size_of(stream)
        if size is not None and size != info.file_size:
            raise ValueError(_mismatch(size, info))  # noqa: TRY301
        check_unpacked(info.file_size, where)
        with archive.open(info) as stream:
            with npy_faults():
                array: Array = np.lib.format.read_array(stream, allow_pickle=False)
            # zipfile checks the CRC at the end of the stream.
            if stream.read(1):
                raise ValueError("there are bytes after the array")  # noqa: TRY301
            return array
    except (
        ValueError,
        EOFError,
        OSError,
        lzma.LZMAError,
        zlib.error,
        zipfile.BadZipFile,
        NotImplementedError,
        struct.error,
    ) as error:
        objects = "pickle" in str(error) or "Object arrays" in str(error)
        raise FileError(
            "An array has Python objects, which are never loaded."
            if objects
            else "An array in an .npz file is damaged or of another format.",
            where=f"{where}: {error}",
            fix="Save it with a numeric dtype (array.astype(np.float32))."
            if objects
            else "Write the file again with np.savez.",
        ) from error


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]] | None:
    """Shape, order and dtype; None for a version without a public reader in numpy."""
    with npy_faults():
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(stream)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(stream)
    return None


def _size_of(stream: IO[bytes]) -> int | None:
    """Bytes of an array and its header, according to the header; None if unknown."""
    found = _header(stream)
    if found is None or found[2].hasobject:
        return None
    return stream.tell() + found[2].itemsize * math.prod(found[0])


def _mismatch(expected: int, info: zipfile.ZipInfo) -> str:
    return f"its header specifies {expected} bytes, but it has {info.file_size}"


def _map(source: Path, raw: IO[bytes], info: zipfile.ZipInfo) -> Array | None:
    """Map a stored member; None if it must be read instead (empty, or a rare header version)."""
    raw.seek(info.header_offset)
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    if magic != b"PK\x03\x04":
        raise ValueError("its local zip header is damaged")
    start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    raw.seek(start)
    found = _header(raw)
    if found is None:
        return None
    shape, fortran, dtype = found
    if dtype.hasobject:
        raise ValueError("it needs pickle")
    size = dtype.itemsize * math.prod(shape)
    header = raw.tell() - start
    if header + size != info.file_size:
        raise ValueError(_mismatch(header + size, info))
    if start + info.file_size > source.stat().st_size:
        raise ValueError("the file ends within it")
    if size == 0:
        return None
    order = "F" if fortran else "C"
    return np.memmap(  # type: ignore[call-overload,no-any-return]
        source, dtype, mode="r", offset=start + header, shape=shape, order=order
    )
