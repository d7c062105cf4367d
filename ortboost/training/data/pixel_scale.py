"""Bytes are pixels and divided by 255; data that are must not be mixed with data that are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortboost.core.errors import UsageError
from ortboost.training.data.sources import ArraySource, Source

__all__ = ["check_scale"]


def check_scale(trained: Mapping[str, Any], source: Source, what: str = "given data") -> None:
    """Refuse data of which only one part are bytes, unless the other is in their range, too.

    What the fingerprint of the training data does not tell is accepted: images have settings of
    their own, other sources have no ranges.

    Raises:
        UsageError: One was divided by 255, and the other ranges beyond 0..1.

    Example:
        >>> import numpy as np
        >>> from ortboost.training import InputSpec
        >>> spec = InputSpec("x", np.dtype("float32"), ("N",))
        >>> bytes_ = {"arrays": {"x": {"dtype": "|u1", "range": [0.0, 1.0]}}}
        >>> check_scale(bytes_, ArraySource({"x": np.array([0.0, 0.5])}, 2, inputs=[spec]))
    """
    if not isinstance(source, ArraySource):
        return
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
