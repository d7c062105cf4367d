"""Outputs that are left out of an exported file."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ortboost as ob
from ortboost.core.errors import UsageError
from ortboost.deploy.keep_outputs import keep_outputs
from tests.support import assert_three_lines, text_model, weights


def siamese():
    """Two outputs and a loss over them, with an input that is returned and one nobody reads."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[N,3] y, float[N,2] aim, float[N] idle, float[3,2] w)
            => (float[N,2] a, float[N,2] b, float loss, float[N,3] y) {
          a = MatMul(x, w) b = MatMul(y, w) d = Sub(a, b) e = Sub(d, aim) s = Mul(e, e)
          loss = ReduceMean <keepdims=0> (s) }""",
        w=weights(3, 2),
    )


def names(values):
    return [value.name for value in values]


@pytest.mark.parametrize(
    ("kept", "inputs", "outputs"),
    [
        (["a"], ["x", "idle"], ["a"]),
        (["b", "a"], ["x", "y", "idle"], ["a", "b"]),
        (["y"], ["y", "idle"], ["y"]),
        (["loss"], ["x", "y", "aim", "idle"], ["loss"]),
    ],
)
def test_what_only_other_outputs_need_goes_with_them(kept, inputs, outputs):
    model = siamese()
    report = keep_outputs(model, kept)
    assert (names(model.graph.inputs), names(model.graph.outputs)) == (inputs, outputs)
    assert set(report.changed) == {"x", "y", "aim", "a", "b", "loss"} - {*inputs, *outputs} | (
        {"y"} - {*outputs}
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_model_with_its_own_loss_is_exported_without_it(tmp_path, precision):
    """The loss and its labels went into production, or had to be cut off by hand."""
    rng = np.random.default_rng(0)
    widths = {"x": 3, "y": 3, "aim": 2}
    data = {name: rng.standard_normal((20, n), np.float32) for name, n in widths.items()}
    data["idle"] = data["x"][:, 0]
    run, out = tmp_path / "run", tmp_path / "out.onnx"
    ob.convert(siamese(), run, ob.ProgramConfig(loss=ob.LossConfig("output", output="loss")))
    lower = {} if precision == "fp32" else {"precision": precision, "calibration": data}
    lower |= {"checkpoint": "initial", "verify": data}
    found = ob.export(run, out, outputs=["a", "b"], **lower)
    assert found.parity.ok
    assert [d.output for d in found.parity.differences] == ["a", "b"]
    graph = onnx.load(out).graph
    assert (names(graph.input), names(graph.output)) == (["x", "y", "idle"], ["a", "b"])
    assert ob.compare(run, out, data=data, checkpoint="initial").parity.ok


def test_accuracy_is_measured_where_its_output_is_kept(tmp_path):
    net = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,2] w, float[3,2] v) => (float[N,2] scores, float[N,2] other) {
          scores = MatMul(x, w) other = MatMul(x, v) }""",
        w=weights(3, 2),
        v=weights(3, 2, seed=1),
    )
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((9, 3), np.float32), "labels": rng.integers(0, 2, 9)}
    run, out = tmp_path / "run", tmp_path / "out.onnx"
    ob.convert(net, run, ob.ProgramConfig(loss=ob.LossConfig(output="scores")))

    def export(*outputs):
        return ob.export(run, out, verify=data, checkpoint="initial", outputs=outputs)

    assert "accuracy" in export("scores").metrics
    assert (export("other").metrics, export("other").notes) == ({}, ())
    with pytest.raises(UsageError, match="no output 'score'") as caught:
        export("score")
    assert_three_lines(caught.value)
