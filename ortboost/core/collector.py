"""Python's garbage collector, while graphs are built."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["without_collector"]


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Disable the collector, which would scan growing graphs repeatedly.

    That takes a third of the time of a conversion, half of that of writing or opening a program,
    and more for larger graphs.

    Example:
        >>> with without_collector():
        ...     gc.isenabled()
        False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
