"""What the package imports is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Names to import by, where they are not those of the distribution.
IMPORTED_AS = {
    "onnx-ir": "onnx_ir",
    "ml-dtypes": "ml_dtypes",
    "protobuf": "google",
    "pillow": "PIL",
}
RUNTIME = "onnxruntime"  # each of the extras cpu, cuda, ort and gpu installs it
OF_NOTEBOOKS = {"IPython"}  # where it is not, there is no notebook to show anything in
EXTRAS = {
    "plot": {"matplotlib"},
    "images": {"PIL"},
    "parquet": {"pyarrow"},
    "slim": {"onnxslim"},
    "distributed": {"torch"},
    "tensorboard": {"tensorboardX"},
}
# Loaded by the runtime or by a path, never imported.
LIBRARIES = {"cuda": re.compile("nvidia-")}


def names(requirements: list[str]) -> set[str]:
    """The import names of requirements as ``numpy>=1.26``."""
    found = {re.split(r"[\s<>=!~;\[]", requirement)[0] for requirement in requirements}
    return {IMPORTED_AS.get(name, name) for name in found}


def third_party(path: Path, *, at_import: bool) -> set[str]:
    """What a file imports; with ``at_import`` only what importing the file imports."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return  # for the type checker, which brings what it needs
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
        for child in ast.iter_child_nodes(node):
            later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if not (at_import and later):
                visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found - set(sys.stdlib_module_names) - {"ortboost", "tomllib"}  # the latter from 3.11 on


MODULES = sorted((ROOT / "ortboost").rglob("*.py"))


def test_what_is_imported_at_once_is_required():
    found = {name for path in MODULES for name in third_party(path, at_import=True)}
    assert found <= names(PROJECT["dependencies"])


def test_what_is_imported_later_is_required_or_in_an_extra():
    found = {name for path in MODULES for name in third_party(path, at_import=False)}
    extras = set().union(*EXTRAS.values())
    assert found - names(PROJECT["dependencies"]) == extras | {RUNTIME} | OF_NOTEBOOKS


def test_what_is_required_is_imported():
    found = {name for path in MODULES for name in third_party(path, at_import=True)}
    # tomli stands in for tomllib before Python 3.11, where a configuration file is read
    assert names(PROJECT["dependencies"]) - {"tomli"} <= found


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_holds_what_is_imported(extra):
    assert names(PROJECT["optional-dependencies"][extra]) == EXTRAS[extra]


@pytest.mark.parametrize("extra", ["cpu", "cuda", "ort", "gpu"])
def test_a_runtime_is_one_wheel(extra):
    wheels = [text for text in PROJECT["optional-dependencies"][extra] if "onnxruntime" in text]
    others = set(PROJECT["optional-dependencies"][extra]) - set(wheels)
    assert len(wheels) == 1
    assert all(extra in LIBRARIES and LIBRARIES[extra].match(other) for other in others)
