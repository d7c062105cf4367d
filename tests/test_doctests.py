"""The examples in docstrings answer what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import ortboost
from tests.support import ROOT

MODULES = [module.name for module in pkgutil.walk_packages(ortboost.__path__, "ortboost.")]


def test_every_example_answers_what_it_says(capsys, tmp_path, monkeypatch):
    for name in ("models", "docs", "tests"):  # examples read the checkout, and write elsewhere
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    failed, tried = [], 0
    for name in MODULES:
        if name.endswith("__main__"):
            continue
        result = doctest.testmod(importlib.import_module(name))
        tried += result.attempted
        if result.failed:
            failed.append(name)
    assert not failed, capsys.readouterr().out
    assert tried > 100


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
