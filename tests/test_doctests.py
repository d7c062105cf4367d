"""The examples in docstrings answer what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import ortboost
from tests.support import ROOT

MODULES = [module.name for module in pkgutil.walk_packages(ortboost.__path__, "ortboost.")]
PACKAGES = sorted({name.split(".")[1] for name in MODULES} - {"__main__"})


@pytest.mark.parametrize("package", PACKAGES)
def test_every_example_answers_what_it_says(package, capsys, tmp_path, monkeypatch):
    """Those of a package in one folder: some read what others wrote."""
    for name in ("models", "docs", "tests"):  # examples read the checkout, and write elsewhere
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    for name in MODULES:
        if name.split(".")[1] == package:
            result = doctest.testmod(importlib.import_module(name))
            assert not result.failed, capsys.readouterr().out


def test_every_public_class_and_function_has_an_example():
    public = {name: getattr(ortboost, name) for name in ortboost.__all__}
    without = [
        name
        for name, value in public.items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith("ortboost.")
        and "Example:\n" not in (inspect.getdoc(value) or "")
    ]
    assert not without
