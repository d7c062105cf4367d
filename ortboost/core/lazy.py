"""Packages whose public names are listed once, in their stub file, and loaded when they are first used.

The stub is what type checkers and editors read; its lines have the form ``from HOME import NAME as NAME``. The idea
is SPEC 1 of the Scientific Python project, which the package ``lazy-loader`` implements for relative imports.
"""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all else that `import ortboost` does
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["attach_stub"]


def attach_stub(
    package: str, folder: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """What a package needs to be lazy.

    Args:
        package: ``__name__``.
        folder: ``__path__[0]``; may be inside of a zip file.

    Returns:
        ``__all__``, ``__getattr__`` and ``__dir__``; names with underscores are not in the first.
    """
    module = sys.modules[package]
    stub = module.__spec__.loader.get_data(os.path.join(folder, "__init__.pyi")).decode()  # type: ignore[union-attr]
    lines = [line.split() for line in stub.splitlines() if line.startswith("from ")]
    homes = {name: home for _, home, _, name, *_ in lines}

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        if home == package:
            return importlib.import_module(f"{home}.{name}")
        value = getattr(importlib.import_module(home), name)
        setattr(module, name, value)
        return value

    return [n for n in sorted(homes) if not n.startswith("_")], load, lambda: sorted(homes)
