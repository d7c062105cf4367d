"""Every operator that the package names exists: a misspelled one would never match, silently."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import onnx

from tests.support import ROOT

STANDARD = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
# onnx has no schemas of onnxruntime's own operators.
OF_ONNXRUNTIME = frozenset(
    "BatchNormInternal BiasGelu BroadcastGradientArgs DynamicQuantizeLSTM EmbedLayerNormalization "
    "FastGelu FusedConv FusedGemm FusedMatMul GatherBlockQuantized GroupNorm MatMulNBits "
    "MaxPoolGrad MultiHeadAttention QuickGelu ReluGrad SimplifiedLayerNormalization "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization".split()
)
OF_RECURRENT_LAYERS = frozenset(("Affine", "ScaledTanh"))  # activations that are no operators
KNOWN = STANDARD | OF_ONNXRUNTIME | OF_RECURRENT_LAYERS
OPERATOR = re.compile(r"[A-Z]\w+")
# Their arguments are names of operators.
CALLS = frozenset(
    "call decomposes formula is_standard producer_of refuses register slope source_before".split()
)


def operators(node: ast.AST) -> Iterator[str]:
    """The texts below a node that consist of such names alone."""
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            words = child.value.split()
            if all(map(OPERATOR.fullmatch, words)):
                yield from words


def last_name(node: ast.AST) -> str:
    """``c`` of ``a.b.c``."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def named(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            found = list(operators(statement.value))
            if len(STANDARD.intersection(found)) * 2 > len(found):  # a table of operators
                yield from found
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in CALLS:
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield from operators(argument)
        elif isinstance(node, ast.Compare) and last_name(node.left).endswith("op_type"):
            for other in node.comparators:
                yield from operators(other)


def test_operators_exist():
    modules = {
        path.relative_to(ROOT).as_posix(): set(named(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted((ROOT / "ortboost").rglob("*.py"))
    }
    assert {module: found - KNOWN for module, found in modules.items() if found - KNOWN} == {}
    assert {"Where", "PRelu"} <= modules["ortboost/transforms/class_axis.py"]
    assert "Slice" in modules["ortboost/autodiff/portable/rules/slicing.py"]
