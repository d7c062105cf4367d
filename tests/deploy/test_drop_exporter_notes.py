"""An exported file reveals nothing about the machine where its model was written."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ortboost.api import export
from ortboost.deploy.drop_exporter_notes import drop_exporter_notes
from tests.support import text_model

SECRET = "/home/someone/secret/train.py"


def noted() -> ir.Model:
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[2,3] x, bool c) => (float[2,3] y) {
        h = Relu(x)
        y = If(c)<then_branch = yes () => (float[2,3] a) { a = Neg(h) },
                  else_branch = no () => (float[2,3] b) { b = Exp(h) }> }"""
    )
    model.metadata_props["author"] = "a user"
    inner = next(node for node in model.graph if node.op_type == "If").attributes["then_branch"]
    for node in (*model.graph, *inner.as_graph()):
        node.metadata_props["pkg.torch.onnx.stack_trace"] = f"File {SECRET}, line 3"
        node.metadata_props["namespace"] = "layer.0"
        node.doc_string = SECRET
        node.outputs[0].metadata_props["pkg.torch.onnx.original_node_name"] = SECRET
    model.graph.inputs[0].metadata_props["pkg.torch.export"] = SECRET
    model.graph.metadata_props["pkg.torch.export.graph_signature"] = SECRET
    return model


def test_notes_go_and_names_stay():
    model = noted()
    names = [node.name for node in model.graph]
    report = drop_exporter_notes(model)
    assert SECRET not in onnx.printer.to_text(ir.to_proto(model))
    assert SECRET.encode() not in ir.to_proto(model).SerializeToString()
    assert b"layer.0" not in ir.to_proto(model).SerializeToString()
    assert model.metadata_props == {"author": "a user"}
    assert [node.name for node in model.graph] == names
    assert "pkg.torch.onnx.stack_trace" in report.changed
    assert not drop_exporter_notes(model).changed


@pytest.mark.parametrize("optimize", [True, False])
def test_of_an_exported_file(tmp_path, optimize):
    ir.save(noted(), tmp_path / "noted.onnx")
    export(tmp_path / "noted.onnx", tmp_path / "out.onnx", device="cpu", optimize=optimize)
    written = (tmp_path / "out.onnx").read_bytes()
    assert (SECRET.encode() in written) is not optimize
    assert b"a user" in written
