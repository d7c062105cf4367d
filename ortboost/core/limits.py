"""Limits on the size of input files, beyond which they are rejected."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from ortboost.core.errors import ConfigError, require_known

__all__ = ["LIMITS_VARIABLE", "Limits"]

LIMITS_VARIABLE = "ORTBOOST_LIMITS"
"""Environment variable that overrides limits, such as ``tensor_bytes=17179869184,depth=64``."""


@dataclass(frozen=True)
class Limits:
    """Limits on models and other input files, beyond which they are rejected.

    Args:
        nodes: Number of nodes of all graphs together, with functions inlined.
        depth: Nesting depth of subgraphs (If, Loop, Scan).
        tensor_bytes: Size in bytes of one tensor that the file declares without containing its
            data, and of one compressed array.
        turns: Iterations of a Loop that only its constant trip count ends, multiplied by those of
            the loops around it.
        text_bytes: Size in bytes of a file read as text: JSON, TOML, a list of parameters.

    Example:
        >>> Limits.from_environment({"ORTBOOST_LIMITS": "depth=64"}).depth
        64
    """

    nodes: int = 1_000_000
    depth: int = 16
    tensor_bytes: int = 4 << 30
    turns: int = 100_000_000
    text_bytes: int = 256 << 20

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> Limits:
        """The defaults, with the changes that :data:`LIMITS_VARIABLE` makes.

        Raises:
            ConfigError: A name is unknown, or a value is not a positive integer.
        """
        text = (os.environ if variables is None else variables).get(LIMITS_VARIABLE, "")
        known = [field.name for field in fields(cls)]
        given: dict[str, int] = {}
        for part in filter(None, text.split(",")):
            name, _, number = (piece.strip() for piece in part.partition("="))
            where = f"{LIMITS_VARIABLE}={text}"
            require_known(name, known, f"Unknown limit '{name}'.", where, ConfigError)
            if not number.isdecimal() or int(number) == 0:
                raise ConfigError(
                    f"'{number}' is not a positive integer.",
                    where=where,
                    fix=f"Write, for example, {name}={getattr(cls(), name)}.",
                )
            given[name] = int(number)
        return cls(**given)
