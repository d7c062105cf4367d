"""Outputs whose declared shapes are wrong: onnxruntime runs such files, and they can be trained."""

from __future__ import annotations

import pytest

from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from tests.support import text_model

FLAT = ("2·N", 4)
HEAD = '<ir_version: 10, opset_import: ["" : 18]> net '


@pytest.mark.parametrize(
    ("inputs", "nodes", "declared", "right"),
    [
        ("float[N,8] x", "y = Relu(x)", "1,8", ("N", 8)),
        ("float[N,8] x", "y = Relu(x)", "N,9", ("N", 8)),
        ("float[N,8] x", "y = Relu(x)", "N", ("N", 8)),
        ("float[N,M] x", "y = Transpose(x)", "N,M", ("M", "N")),
        ("float[N,2,4] x", "s = Constant<value_ints = [-1, 4]>() y = Reshape(x, s)", "2,4", FLAT),
        ("float[N,2,4] x", "s = Constant<value_ints = [-1, 4]>() y = Reshape(x, s)", "N,4", FLAT),
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


ROWS = """g = Greater(x, zero) f = Cast<to = 9>(g) p = NonZero(f) r = Transpose(p)
    y = GatherND(x, r)"""


@pytest.mark.parametrize("declared", ["3", "N", "K"])
def test_what_nodes_read_is_inferred_or_unknown(declared):
    """Gradients rely on the lengths of what nodes read; the number of rows is known at run time."""
    model = text_model(
        f"{HEAD} (float[N] x, float zero) => (float[{declared}] y, float[{declared}] z) "
        f"{{ {ROWS} z = Relu(y) }}"
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    y, z = (known_shape(output) for output in model.graph.outputs)
    assert str(y[0]).startswith("unk__")
    assert z == (int(declared) if declared.isdecimal() else declared,)


def test_an_invented_name_does_not_come_back():
    """It may be that of another length now."""
    model = text_model(f"{HEAD} (float[N] x, float zero) => (float[unk__9] y) {{ {ROWS} }}")
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert known_shape(model.graph.outputs[0]) != ("unk__9",)


def test_a_name_that_only_a_body_declares_contradicts_no_number():
    model = text_model(
        f"""{HEAD} (float[3,4] x, float[2,4] steps) => (float[3,4] last, float[2,3,4] y) {{
          last, y = Scan<num_scan_inputs = 1, body = b
            (float[A,4] h, float[4] s) => (float[A,4] k, float[A,4] l) {{
              k = Add(h, s) l = Relu(k) }}>(x, steps) }}"""
    )
    assert not [
        report
        for report in normalize(model, opsets=range(18, 22), ir_version=10)
        if report.rewrite == "declared_shapes"
    ]
    assert known_shape(model.graph.outputs[1]) == (2, 3, 4)
