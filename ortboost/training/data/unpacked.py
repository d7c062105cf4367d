"""Check the size of compressed data before it is decompressed."""

from __future__ import annotations

from ortboost.core.errors import FileError
from ortboost.core.limits import LIMITS_VARIABLE, Limits

__all__ = ["check_unpacked"]


def check_unpacked(
    size: int,
    where: str,
    what: str = "A compressed array",
    fix: str = "Store it uncompressed, so that it is memory-mapped",
) -> None:
    """Refuse data whose size in bytes, according to the header, is above ``tensor_bytes``.

    Raises:
        FileError: It is too large; see :class:`~ortboost.core.limits.Limits`.
    """
    limit = Limits.from_environment().tensor_bytes
    if size > limit:
        raise FileError(
            f"{what} has {size:,} bytes, more than {limit:,}.",
            where=where,
            fix=f"{fix}; or set {LIMITS_VARIABLE}=tensor_bytes={size}.",
        )
