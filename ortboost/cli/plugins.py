"""Plugins: modules that add boosts, optimizers or gradient rules to the command line.

A plugin registers what it adds when it is imported, see ``docs/own_boost.md``. Every command
imports those that installed packages list under the entry points ``ortboost.plugins``, and those
that the environment variable ``ORTBOOST_PLUGINS`` names: files or modules, separated by commas.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Final

from ortboost.core.errors import ConfigError, FileError, OrtBoostError

__all__ = ["PLUGINS", "VARIABLE", "import_plugins"]

PLUGINS: Final = "ortboost.plugins"
"""Entry-point group of packages with plugins."""
VARIABLE: Final = "ORTBOOST_PLUGINS"
"""Environment variable with plugins, such as ``lion.py,my_package.rules``."""


def import_plugins() -> None:
    """Import the plugins of installed packages, then those of the environment variable.

    Raises:
        FileError: There is no such file.
        ConfigError: The import fails.
    """
    for entry in entry_points(group=PLUGINS):
        place = f"entry point {entry.name} = {entry.value}"
        _import(entry.load, place, "Fix that package, or uninstall it.")
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        load = _import_file if name.endswith(".py") else importlib.import_module
        place = f"{VARIABLE}: {name}"
        _import(functools.partial(load, name), place, f"Correct it or {VARIABLE}.")


def _import(load: Callable[[], object], place: str, fix: str) -> None:
    try:
        load()
    except FileError:
        raise
    except (Exception, SystemExit) as error:  # an import may raise anything, and scripts exit
        what = repr(error)
        if isinstance(error, OrtBoostError):  # the registration says how to mend it
            what, fix = error.what, error.fix or fix
        raise ConfigError(f"A plugin cannot be imported: {what}", where=place, fix=fix) from error


def _import_file(name: str) -> ModuleType:
    """Import a file as a module with its name, which other modules may import, too."""
    path = Path(name)
    if not path.is_file():
        raise FileError(
            "The plugin does not exist.",
            where=f"{VARIABLE}: {path}",
            fix="Correct the path, which is relative to the current folder.",
        )
    known = sys.modules.get(path.stem)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == path.resolve():
            return known
        raise ImportError(f"a module '{path.stem}' is already imported; rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
