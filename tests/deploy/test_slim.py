from __future__ import annotations

import sys
import types

import onnx_ir as ir
import pytest

from ortboost.core.errors import DependencyError, ModelError
from ortboost.deploy.export import export_network
from ortboost.deploy.slim import slim_step
from tests.support import assert_three_lines, small_mlp


def test_without_onnxslim(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxslim", None)
    with pytest.raises(DependencyError, match="not installed") as info:
        slim_step()
    assert_three_lines(info.value)


def test_onnxslim_is_a_step_of_the_pipeline(monkeypatch):
    """A stand-in that drops the Relu: its result is used, and fails the comparison."""
    package = types.ModuleType("onnxslim")

    def slim(proto):
        model = ir.from_proto(proto)
        node = next(node for node in model.graph if node.op_type == "Relu")
        ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
        model.graph.remove(node)
        return ir.to_proto(model)

    package.slim = slim
    monkeypatch.setitem(sys.modules, "onnxslim", package)
    exported = export_network(small_mlp(), slim=True)
    assert [node.op_type for node in exported.model.graph] == ["Gemm", "Gemm"]
    assert exported.steps[-1].name == "onnxslim"
    assert next(r for r in exported.reports if r.rewrite == "onnxslim").changed == {
        "Relu": "1 -> 0"
    }
    monkeypatch.setattr("ortboost.deploy.slim.EXTERNAL_DATA_THRESHOLD", 10)
    with pytest.raises(ModelError, match="too large"):
        export_network(small_mlp(), slim=True)
