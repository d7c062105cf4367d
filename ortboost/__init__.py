"""Turn an ONNX model into a boosted training program, train it with ONNX Runtime, export it.

The names are listed in ``__init__.pyi``. Each is loaded when it is first used, so that ``import ortboost``
costs nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

from ortboost.core.version import __version__ as __version__


def _read_homes() -> dict[str, str]:
    """Public name to the module that it is in, out of the stub file."""
    stub = __spec__.loader.get_data(os.path.join(__path__[0], "__init__.pyi")).decode()
    lines = [line.split() for line in stub.splitlines() if line.startswith("from ")]
    return {name: home for _, home, _, name, *_ in lines}


_HOMES: Final = _read_homes()
__all__ = sorted(_HOMES.keys() - {"__version__"})


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ortboost' has no attribute '{name}'")
    if home == __name__:
        return importlib.import_module(f"{home}.{name}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
