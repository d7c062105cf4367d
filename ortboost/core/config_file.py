"""The version of a configuration file that a user keeps: its names may come to mean something else."""

from __future__ import annotations

import os
from typing import Any

from ortboost.core.errors import ConfigError

__all__ = ["CONFIG_VERSION", "without_version"]

CONFIG_VERSION = 1
"""The version of the files that this package writes, and the newest that it reads."""


def without_version(data: Any, path: str | os.PathLike[str]) -> Any:
    """What a file holds besides its ``version``; a file without one is of version 1.

    Args:
        data: What was read; anything but a dictionary is given back as it is.
        path: Where, for the error.

    Raises:
        ConfigError: It was written by a later version of ortboost, or the version is no such number.

    Example:
        >>> without_version({"version": 1, "lr": 0.1}, "run.toml")
        {'lr': 0.1}
    """
    if not isinstance(data, dict):
        return data
    rest = dict(data)
    version = rest.pop("version", CONFIG_VERSION)
    if type(version) is not int or not 1 <= version <= CONFIG_VERSION:
        raise ConfigError(
            f"The configuration file has the version {version!r}, which is not known.",
            where=str(path),
            fix=f"This ortboost reads version {CONFIG_VERSION}. Write the file anew with --print-config, or "
            "use a newer ortboost.",
        )
    return rest
