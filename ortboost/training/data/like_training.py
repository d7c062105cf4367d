"""Other data of a trained model: its form must be that of the training data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortboost.core.errors import UsageError
from ortboost.training.data.sources import ArraySource, Source

__all__ = ["check_like_training"]


def check_like_training(
    trained: Mapping[str, Any], source: Source, what: str = "given data"
) -> None:
    """Refuse data that would be read otherwise than those of the training.

    Bytes are pixels and divided by 255, so data that are bytes must not be mixed with data that are
    not; and the columns of a table that form an input must be in the same order. Sources other than
    arrays, and what a fingerprint does not tell, are accepted.

    Args:
        trained: Fingerprint of the training data.
        source: The other data.
        what: Their description, for the error.

    Raises:
        UsageError: One was divided by 255, and the other ranges beyond 0..1; or a column is not in
            its place.

    Example:
        >>> import numpy as np
        >>> ab, ba = ({"arrays": {"x": {"columns": list(names)}}} for names in ("ab", "ba"))
        >>> given = ArraySource({"x": np.zeros((3, 2))}, 2, columns={"x": ["a", "b"]})
        >>> check_like_training(ab, given)
        >>> check_like_training(ba, given)
        Traceback (most recent call last):
        ...
        ortboost.core.errors.UsageError: The columns of 'x' are not those of the training.
          where: given data: column 1 is 'a', not 'b'
          fix:   Give the same columns in the same order: b, a
    """
    if isinstance(source, ArraySource):
        _check_scale(trained, source, what)
        _check_columns(trained, source, what)


def _check_scale(trained: Mapping[str, Any], source: ArraySource, what: str) -> None:
    """Refuse data of which only one part are bytes, unless the other is in their range, too.

    What the fingerprint does not tell is accepted: images have settings of their own.
    """
    for name, values in source.ranges.items():
        before = trained.get("arrays", {}).get(name, {})
        if "range" not in before:
            continue
        then, now = before["dtype"] == "|u1", name in source.scaled
        low, high = before["range"] if now else values
        if then != now and (low < 0 or high > 1):
            one, other = ("training data", what)[:: 1 if then else -1]
            raise UsageError(
                f"The {one} '{name}' are bytes, which are divided by 255, but the {other} are "
                f"not: they range from {low:.4g} to {high:.4g}.",
                where=f"{what}: '{name}' is {source.arrays[name].dtype}",
                fix="Save both with the same dtype.",
            )


def _check_columns(trained: Mapping[str, Any], source: ArraySource, what: str) -> None:
    """Refuse a table whose columns are those of the training in another order, or only partly.

    Columns without any name in common are accepted: files may have other headers.
    """
    for name, now in source.columns.items():
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
