"""The version of a user's configuration file: a later release may change what a key means."""

from __future__ import annotations

import os
from typing import Any

from ortboost.core.errors import ConfigError

__all__ = ["CONFIG_VERSION", "without_version"]

CONFIG_VERSION = 1
"""The version that this package writes, and the newest that it reads."""


def without_version(data: Any, path: str | os.PathLike[str]) -> Any:
    """The contents of a configuration file without its ``version``; no version means version 1.

    Anything but a dictionary is returned unchanged.

    Raises:
        ConfigError: The version is not a whole number from 1 to :data:`CONFIG_VERSION`.

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
            f"The configuration file has the unknown version {version!r}.",
            where=str(path),
            fix=f"This ortboost reads version {CONFIG_VERSION}. Write the file again with "
            "--print-config, or use a newer ortboost.",
        )
    return rest
