"""Check the size of compressed data before it is decompressed."""

from __future__ import annotations

from ortboost.core.errors import FileError
from ortboost.core.limits import LIMITS_VARIABLE, Limits

__all__ = ["check_unpacked"]


def check_unpacked(size: int, where: str) -> None:
    """Refuse an array that is larger than the limit when decompressed.

    Args:
        size: Its size in bytes, according to the header.
        where: The file and the key.

    Raises:
        FileError: It is larger than :attr:`~ortboost.core.limits.Limits.tensor_bytes`.
    """
    limit = Limits.from_environment().tensor_bytes
    if size > limit:
        raise FileError(
            f"A compressed array has {size:,} bytes, more than {limit:,}.",
            where=where,
            fix="Store it uncompressed, so that it is memory-mapped; or set "
            f"{LIMITS_VARIABLE}=tensor_bytes={size}.",
        )
