"""Operators of the first ONNX releases, against the kernels that onnxruntime still has for them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ortboost as ob
from ortboost.graph.normal_form.former_operators import write_out_former_operators
from tests.support import run, text_model, weights

_OPERATORS = (
    "Affine <alpha = 0.5, beta = -2.0>",
    "Affine <beta = 1.0>",
    "Crop <border = [1, 2, 0, 3]>",
    "Crop <border = [1, 2, 3, 4], scale = [5, 2]>",
    "ImageScaler <scale = 0.5, bias = [1.0, -2.0, 3.0]>",
    "ParametricSoftplus <alpha = 0.5, beta = 2.0>",
    "ScaledTanh <alpha = 1.5, beta = 0.5>",
)


def _model(operator: str, opset: int):
    kind, _, settings = operator.partition(" ")
    return text_model(
        f"""<ir_version: 7, opset_import: ["" : {opset}]>
        net (float[n,3,9,8] x, float[4,3,2,2] w) => (float[n,4,h,v] y) {{
          a = {kind} {settings} (x)  y = Conv(a, w) }}""",
        w=weights(4, 3, 2, 2),
    )


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("operator", _OPERATORS)
def test_an_export_computes_the_same(operator, opset, tmp_path):
    model, x = _model(operator, opset), weights(2, 3, 9, 8, seed=1)
    ob.export(model, tmp_path / "out.onnx")
    onnx.checker.check_model(tmp_path / "out.onnx")
    exported, raw = run(tmp_path / "out.onnx", {"x": x}), run(_model(operator, opset), {"x": x})
    np.testing.assert_allclose(exported["y"], raw["y"], rtol=1e-5, atol=1e-6)


def test_their_numbers_are_not_trained():
    config = ob.ProgramConfig(loss=ob.LossConfig("mse", output="y"))
    program = ob.build_program(_model(_OPERATORS[4], 7), config)
    assert [e.name for e in program.catalogue.state if e.kind == "parameter"] == ["w"]


@pytest.mark.parametrize("opset", [6, 10])
def test_other_opsets_are_left_alone(opset):
    assert not write_out_former_operators(_model(_OPERATORS[0], opset)).modified
