from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.weights.parameters import find_parameters
from ortboost.graph.weights.separate_equals import separate_equals
from tests.support import run, text_model, weights

NORMS = """net (float[N,4] x, float[4,4] w, float[4] one) => (float[N,4] y) {
  norm2_weight = Identity(one) a = Mul(x, one) h = MatMul(a, w) y = Mul(h, norm2_weight) }"""


def torchscript(text: str, producer: str = "pytorch", **stored: np.ndarray) -> ir.Model:
    return text_model(
        f'<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]> {text}', **stored
    )


def norms(producer: str = "pytorch", text: str = NORMS) -> ir.Model:
    return torchscript(text, producer, w=weights(4, 4), one=np.ones(4, np.float32))


def test_an_equal_parameter_gets_its_own_tensor():
    model = norms()
    x = weights(3, 4)
    before = run(model.clone(), {"x": x})["y"]
    report = separate_equals(model)
    assert report.changed == {"norm2_weight": "equal to 'one' when exported"}
    assert "first 'norm2_weight'" in report.notes[0]
    assert np.array_equal(run(model, {"x": x})["y"], before)
    assert [n for n, p in find_parameters(model).items() if p.trainable] == [
        "one", "w", "norm2_weight",
    ]  # fmt: skip
    assert not separate_equals(model).modified


@pytest.mark.parametrize(
    "model",
    [
        norms("tf2onnx"),
        norms(text=NORMS.replace("norm2_weight", "val_2")),  # an Identity of the code
        norms(text=NORMS.replace("Identity(one)", "Identity(x)")),
        norms(text="""net (float[4,4] w, float[4] one) => (float[4] norm2_weight) {
            norm2_weight = Identity(one) }"""),
    ],
    ids=["producer", "name", "data", "output"],
)  # fmt: skip
def test_other_identities_stay(model):
    assert not separate_equals(model).changed


def test_the_dynamo_exporter_writes_identities_of_its_own():
    model = norms()
    key = "pkg.torch.export.ExportedProgram.graph_signature"
    model.graph.metadata_props[key] = "\n# inputs\np_one: PARAMETER target='one'\n"
    assert not separate_equals(model).changed
