"""The type of data arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ortboost.training.data.sources import Source

__all__ = ["Data"]

Data: TypeAlias = str | os.PathLike[str] | Mapping[str, NDArray[Any]] | Source | Any
"""A data file or folder, arrays by name or in order, a table, a source or any iterable."""
