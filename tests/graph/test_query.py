from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.query import all_tensors, known_shape, match_names, static_shape
from tests.support import text_model


def test_all_tensors_looks_into_subgraphs():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (bool c, float[N] x, float[1] w) => (float[N] y) {
          y = If(c) <
            then_branch = yes () => (float[N] t) { t = Mul(x, w) },
            else_branch = no () => (float[N] e) <float[1] inner = {2.0}> { e = Add(x, inner) }
          >
        }""",
        w=np.float32([2]),
    )
    assert {value.name for value, _ in all_tensors(model)} == {"w", "inner"}


@pytest.mark.parametrize(
    ("patterns", "matched", "idle"),
    [
        (["fc1.*"], {"fc1.weight", "fc1.bias"}, []),
        (["*.bias", "no*"], {"fc1.bias"}, ["no*"]),
        (["fc2.weight"], {"fc2.weight"}, []),
        (["fc?.weight", "[x]"], {"fc1.weight", "fc2.weight"}, ["[x]"]),
        ([], set(), []),
    ],
)
def test_match_names(patterns, matched, idle):
    assert match_names(["fc1.weight", "fc1.bias", "fc2.weight"], patterns) == (matched, idle)


def test_names_match_in_their_own_case():
    assert match_names(["Fc1.weight"], ["fc1.*"]) == (set(), ["fc1.*"])


def test_shapes():
    value = ir.Value(name="v", shape=ir.Shape(["batch", 3, None]))
    assert known_shape(value) == ("batch", 3, None)
    assert static_shape(value) is None
    assert known_shape(ir.Value(name="u")) is None
    assert static_shape(ir.Value(name="u")) is None
    assert static_shape(ir.Value(name="w", shape=ir.Shape([2, 3]))) == (2, 3)
