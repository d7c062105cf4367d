"""The columns of tables that form an input; their order must be that of the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortboost.core.errors import UsageError
from ortboost.training.data.sources import ArraySource, Source

__all__ = ["check_columns"]


def check_columns(trained: Mapping[str, Any], source: Source, what: str = "given data") -> None:
    """Refuse a table whose columns are those of the training in another order, or only partly.

    Columns without any name in common are accepted: files may have other headers.

    Args:
        trained: Fingerprint of the training data.
        source: The other data.
        what: Their description, for the error.

    Raises:
        UsageError: A column is not in its place.

    Example:
        >>> import numpy as np
        >>> ab, ba = ({"arrays": {"x": {"columns": list(names)}}} for names in ("ab", "ba"))
        >>> given = ArraySource({"x": np.zeros((3, 2))}, 2, columns={"x": ["a", "b"]})
        >>> check_columns(ab, given)
        >>> check_columns(ba, given)
        Traceback (most recent call last):
        ...
        ortboost.core.errors.UsageError: The columns of 'x' are not those of the training.
          where: given data: column 1 is 'a', not 'b'
          fix:   Give the same columns in the same order: b, a
    """
    for name, now in source.columns.items() if isinstance(source, ArraySource) else ():
        before = trained.get("arrays", {}).get(name, {}).get("columns", [])
        if now == before or not set(now) & set(before):
            continue
        pairs = enumerate(zip(now, before, strict=False), 1)
        place = next((f"column {i} is '{a}', not '{b}'" for i, (a, b) in pairs if a != b), None)
        raise UsageError(
            f"The columns of '{name}' are not those of the training.",
            where=f"{what}: {place or f'{len(now)} columns, not {len(before)}'}",
            fix=f"Give the same columns in the same order: {', '.join(before)[:200]}",
        )
