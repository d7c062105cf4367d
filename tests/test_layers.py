"""Every import between two packages is on this list, and there is no cycle."""

import ast
import re
from pathlib import Path

import pytest

import ortboost

PACKAGE = Path(ortboost.__file__).parent

# What each package may import besides itself. To add an arrow, say why in the commit that adds it.
ARROWS = {
    "core": "",
    "graph": "core",
    "transforms": "core graph",
    "optimizers": "core graph",
    "autodiff": "core graph",
    "boosts": "core graph transforms",
    "program": "core graph transforms optimizers autodiff boosts",
    "runtime": "core graph transforms autodiff boosts program",
    "training": "core",
    "deploy": "core graph transforms boosts program runtime",
    "api": "core graph transforms autodiff program runtime training deploy drawing",
    "mindspore": "core graph transforms optimizers boosts program runtime training",
    "drawing": "core graph program",
    "cli": "core graph optimizers boosts program training deploy api",
}
# The public names of the package, the aliases of MindSpore's packages, `python -m ortboost`.
DOORS = {
    "__init__": "core graph transforms optimizers autodiff boosts program runtime training deploy "
    "api mindspore",
    "nn": "mindspore",
    "boost": "mindspore",
    "amp": "mindspore",
    "communication": "mindspore",
    "dtype": "mindspore",
    "__main__": "cli",
}
ALLOWED = {name: set(text.split()) for name, text in {**ARROWS, **DOORS}.items()}
MODULES = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")])


def owner(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].split(".")[0]


def imported(path: Path) -> set[str]:
    """The packages that a file imports; functions and ``TYPE_CHECKING`` blocks count, too."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    parts = [name.split(".") for name in names if name.split(".")[0] == "ortboost"]
    return {part[1] for part in parts if len(part) > 1 and (PACKAGE / part[1]).is_dir()}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_arrow_is_on_the_list(path):
    own = owner(path)
    assert own in ALLOWED, f"{own} is no package of the list"
    assert imported(path) - {own} <= ALLOWED[own]


def test_every_arrow_of_the_list_exists():
    found = {name: set() for name in ALLOWED}
    for path in MODULES:
        found[owner(path)] |= imported(path) - {owner(path)}
    assert found == ALLOWED


def test_no_cycle():
    done: set[str] = set()
    while len(done) < len(ARROWS):
        ready = {name for name in ARROWS if name not in done and ALLOWED[name] <= done}
        assert ready, f"a cycle among {sorted(set(ARROWS) - done)}"
        done |= ready


# The folders of ``graph/``, and which of the others each may import.
PARTS = {
    "structure": "",
    "shapes": "structure",
    "opsets": "shapes",
    "weights": "",
    "normal_form": "shapes",
}


@pytest.mark.parametrize("part", PARTS)
def test_the_folders_of_graph_have_no_cycle(part):
    found = set()
    for path in (PACKAGE / "graph" / part).rglob("*.py"):
        found |= set(re.findall(r"from ortboost\.graph\.(\w+)", path.read_text()))
    assert found & set(PARTS) - {part} == set(PARTS[part].split())


def test_the_engines_do_not_know_each_other():
    for path in (PACKAGE / "autodiff" / "portable").rglob("*.py"):
        assert "autodiff.native" not in path.read_text(), path.name


def touches_bindings(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "_pybind_state" in ast.dump(node):
            return True
        if isinstance(node, ast.Constant) and node.value == "onnxruntime.capi._pybind_state":
            return True
    return False


def test_one_file_touches_the_c_bindings():
    assert [p.relative_to(PACKAGE).as_posix() for p in MODULES if touches_bindings(p)] == [
        "autodiff/native/bindings.py"
    ]
