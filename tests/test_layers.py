"""The arrows between layers point one way."""

import ast
from pathlib import Path

import pytest

import ortboost

PACKAGE = Path(ortboost.__file__).parent

# Lowest first; a module may import its own layer and the ones before it.
LAYERS = [
    {"errors", "report", "files", "kinds", "loss_scale", "__init__"},
    {"graph"},
    {"optimizers", "autodiff", "transforms"},
    {"program"},
    {"runtime"},
    {"deploy", "training"},
    {
        "api",
        "benching",
        "cards",
        "faces",
        "tensor",
        "network",
        "amp",
        "nn",
        "boost",
        "model",
        "train",
        "doctor",
        "comparing",
        "export_subject",
        "exporting",
        "inspection",
        "inspection_pair",
        "drawing",
        "run_folder",
        "targets",
    },
    {"cli", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ortboost"):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "ortboost")


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} is in no layer: enter it in LAYERS"
    above = [m for m in imports(path) if RANK[layer(m)] > RANK[own]]
    assert not above, f"{path.name} imports {above}"


def test_training_knows_neither_graph_nor_runtime():
    seen = {layer(m) for p in (PACKAGE / "training").rglob("*.py") for m in imports(p)}
    assert seen <= {"training", "errors", "files", "loss_scale", "report"}


def touches_bindings(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "_pybind_state" in ast.dump(node):
            return True
        if isinstance(node, ast.Constant) and node.value == "onnxruntime.capi._pybind_state":
            return True
    return False


def test_one_file_touches_the_c_bindings():
    assert [p.relative_to(PACKAGE).as_posix() for p in MODULES if touches_bindings(p)] == [
        "autodiff/native.py"
    ]
