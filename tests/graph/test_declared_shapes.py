"""Outputs whose declared shapes are wrong: onnxruntime runs such files, and they can be trained."""

from __future__ import annotations

import pytest

from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from tests.support import text_model

HEAD = '<ir_version: 10, opset_import: ["" : 18]> net '


@pytest.mark.parametrize(
    ("inputs", "nodes", "declared", "right"),
    [
        ("float[N,8] x", "y = Relu(x)", "1,8", ("N", 8)),
        ("float[N,8] x", "y = Relu(x)", "N,9", ("N", 8)),
        ("float[N,8] x", "y = Relu(x)", "N", ("N", 8)),
        ("float[N,M] x", "y = Transpose(x)", "N,M", ("M", "N")),
    ],
)
def test_what_inference_contradicts_is_corrected(inputs, nodes, declared, right):
    model = text_model(f"{HEAD} ({inputs}) => (float[{declared}] y) {{ {nodes} }}")
    reports = normalize(model, opsets=range(18, 22), ir_version=10)
    assert known_shape(model.graph.outputs[0]) == right
    changed = [report.changed for report in reports if report.rewrite == "declared_shapes"]
    shown = ", ".join(map(str, right))
    assert changed == [{"y": f"declared as [{declared.replace(',', ', ')}], is [{shown}]"}]


@pytest.mark.parametrize("declared", [("batch", 8), ("N", 8), (3, 8)])
def test_what_inference_does_not_contradict_stays(declared):
    """A length that a tensor gives at run time may be any number."""
    dims = ",".join(map(str, declared))
    nodes = "y = Reshape(x, t)" if declared[0] == 3 else "y = Relu(x)"
    model = text_model(f"{HEAD} (float[N,8] x, int64[2] t) => (float[{dims}] y) {{ {nodes} }}")
    assert not normalize(model, opsets=range(18, 22), ir_version=10)
    assert known_shape(model.graph.outputs[0]) == declared


def test_a_number_says_more_than_a_name():
    model = text_model(f"{HEAD} (float[4,8] x) => (float[batch,8] y) {{ y = Relu(x) }}")
    assert not normalize(model, opsets=range(18, 22), ir_version=10)
    assert known_shape(model.graph.outputs[0]) == (4, 8)
