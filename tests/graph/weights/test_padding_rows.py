"""Rows of embedding tables that torch does not train, from traces of its exporters."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.normalize import normalize
from ortboost.graph.weights.padding_rows import find_padding_rows, padding_rows
from tests.support import text_model, weights

CALL = "pkg.torch.onnx.fx_node"


def table(producer: str, zeros: tuple[int, ...] = ()) -> ir.Model:
    numbers = weights(5, 4)
    numbers[list(zeros)] = 0
    return text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (int64[N,3] ids, float[5,4] w) => (float[N,3,4] y) {{ y = Gather(w, ids) }}""",
        w=numbers,
    )


def call(arguments: str) -> str:
    target = "call_function[target=torch.ops.aten.embedding.default]"
    return f"%embedding : [num_users=1] = {target}(args = ({arguments}), kwargs = {{}})"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [("%p_w, %ids, 1", {"w": 1}), ("%p_w, %ids", {}), ("%p_w, %ids, -1", {}), ("%w, %i, 9", {})],
)
def test_the_call_that_dynamo_notes(arguments, found):
    """A recorded call is decisive: without padding_idx, a row of zeros is not a padding row."""
    model = table("pytorch", zeros=(3,))
    model.graph[0].metadata_props[CALL] = call(arguments)
    assert find_padding_rows(model) == found


@pytest.mark.parametrize(
    ("producer", "zeros", "found"),
    [
        ("pytorch", (0,), {"w": 0}),
        ("pytorch", (), {}),
        ("pytorch", (0, 2), {}),
        ("tf2onnx", (0,), {}),
    ],
)
def test_the_row_of_zeros_that_torch_leaves(producer, zeros, found):
    assert find_padding_rows(table(producer, zeros)) == found


@pytest.mark.parametrize(("output", "found"), [("onnx::Add_9", {"w": 0}), ("h", {})])
def test_of_a_file_that_onnxruntime_optimized(output, found):
    model = table("onnxruntime.transformers", zeros=(0,))
    model.graph[0].outputs[0].name = output  # a name of torch's exporter
    assert find_padding_rows(model) == found


def test_in_a_fused_embedding():
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18, "com.microsoft" : 1]>
        net (int32[N,3] ids, float[5,4] w, float[9,4] p, float[4] g) => (float[N,3,4] y) {
          y = com.microsoft.EmbedLayerNormalization (ids, , w, p, , g, g) }""",
        w=np.vstack([np.zeros((1, 4)), weights(4, 4)]).astype(np.float32),
        p=weights(9, 4), g=weights(4),
    )  # fmt: skip
    assert find_padding_rows(model) == {"w": 0}


def test_of_another_axis_or_rank():
    model = table("pytorch", zeros=(0,))
    model.graph[0].attributes["axis"] = ir.AttrInt64("axis", 1)
    assert find_padding_rows(model) == {}


def test_a_conversion_keeps_them():
    model = table("pytorch", zeros=(2,))
    normalize(model, opsets=range(21, 22), ir_version=10)
    assert padding_rows(model) == {"w": 2}
    normalize(model, opsets=range(21, 22), ir_version=10)
    assert padding_rows(model.clone()) == {"w": 2}


def test_the_table_may_be_of_another_type():
    model = table("pytorch")
    model.graph.initializers["w"].const_value = ir.tensor(np.zeros((5, 4), np.int64), name="w")
    assert find_padding_rows(model) == {}
