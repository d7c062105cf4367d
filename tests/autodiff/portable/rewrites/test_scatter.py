"""Sums of scattered 16-bit numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.portable.rewrites.scatter import scatter_in_float32
from tests.support import run, text_model


def model(op: str, reduction: str, kind: str = "float16") -> ir.Model:
    attributes = f'reduction = "{reduction}"' + (", axis = 0" if op == "ScatterElements" else "")
    indices = "int64[4]" if op == "ScatterElements" else "int64[4,1]"
    return text_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net ({kind}[3] x, {indices} i, {kind}[4] u) => ({kind}[3] y) {{
          [scatter] y = {op}<{attributes}>(x, i, u)
        }}"""
    )


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_sums_are_in_float32(op):
    graph = model(op, "add")
    report = scatter_in_float32(graph)
    onnx.checker.check_model(ir.to_proto(graph), full_check=True)
    assert report.changed == {"scatter": f"{op}: adds in float32"}
    assert [node.op_type for node in graph.graph] == ["Cast", "Cast", op, "Cast"]
    assert not scatter_in_float32(graph).modified
    index = np.array([1, 1, 1, 2])
    feeds = {
        "x": np.array([1, 2048, 3], np.float16),
        "i": index if op == "ScatterElements" else index[:, None],
        "u": np.array([1, 1, 1, 4], np.float16),
    }
    # 2048 + 1 is not a float16: added one by one in 16 bits, the sum would not change
    np.testing.assert_array_equal(run(graph, feeds)["y"], np.array([1, 2052, 7], np.float16))


def test_others_are_left_alone():
    for graph in (model("ScatterElements", "none"), model("ScatterND", "add", "float")):
        assert not scatter_in_float32(graph).modified
        assert len(list(graph.graph)) == 1
