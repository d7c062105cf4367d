"""Lazy packages: public names are listed in the stub file and imported on first use.

The stub is what type checkers and editors read; its lines have the form ``from HOME import NAME as
NAME``. The idea is SPEC 1 of the Scientific Python project, which the package ``lazy-loader``
implements for relative imports.
"""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False  # importing `typing` takes longer than the rest of `import ortboost`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["attach_stub"]


def attach_stub(
    package: str, folder: str, elsewhere: Mapping[str, str] | None = None
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The names and hooks that make a package load lazily from its stub file.

    Args:
        package: The package's ``__name__``.
        folder: The package's ``__path__[0]``; may be inside a zip file.
        elsewhere: Name that users of another library may look for to what to do instead.

    Returns:
        ``__all__``, ``__getattr__`` and ``__dir__``; ``__all__`` leaves out names that begin with
        an underscore.
    """
    module = sys.modules[package]
    # Read by the loader: the package may be inside a zip file.
    data = module.__spec__.loader.get_data  # type: ignore[union-attr]
    stub = data(os.path.join(folder, "__init__.pyi")).decode()
    lines = [line.split() for line in stub.splitlines() if line.startswith("from ")]
    homes = {name: home for _, home, _, name, *_ in lines}

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            hint = (elsewhere or {}).get(name)
            what = f"module '{package}' has no attribute '{name}'{f': {hint}' if hint else ''}"
            raise AttributeError(what, name=name, obj=module)
        if home == package:
            return importlib.import_module(f"{home}.{name}")
        value = getattr(importlib.import_module(home), name)
        setattr(module, name, value)
        return value

    return [n for n in sorted(homes) if not n.startswith("_")], load, lambda: sorted(homes)
