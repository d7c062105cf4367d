"""A guarded Dropout stays in any session."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from ortboost.graph.io import load_model
from ortboost.graph.normal_form.guard_dropouts import guard_dropouts
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import batch_for, text_model, weights

TRAINING = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n] x) => (float[n] y) <float ratio = {0.5}, bool training = {1}> {
      h = Neg(x)  [drop] y = Dropout<seed = 3>(h, ratio, training) }"""


def plainly(model, feeds):
    """As users run the file: with all fusions."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize(
    "text",
    [
        TRAINING,
        TRAINING.replace("y = Dropout", "d, unread = Dropout").replace(" }", " y = Abs(d) }"),
        TRAINING.replace("x) =>", "x, bool training) =>").replace(", bool training = {1}", ""),
    ],
    ids=["output", "inner", "asked"],
)
def test_it_drops(text):
    model = ir.from_onnx_text(text)
    assert list(guard_dropouts(model).changed) == ["drop"]
    assert not guard_dropouts(model).changed
    assert model.graph.outputs[0].name == "y"
    feeds = {"x": np.ones(64, np.float32), "training": np.array(True)}
    given = {value.name for value in model.graph.inputs}
    (found,) = plainly(model, {name: array for name, array in feeds.items() if name in given})
    assert set(np.abs(found)) == {0.0, 2.0}


@pytest.mark.parametrize(
    "text",
    [
        TRAINING.replace("{1}", "{0}"),
        TRAINING.replace("y = Dropout", "d, m = Dropout").replace(" }", " y = Where(m, d, h) }"),
    ],
    ids=["inference", "read"],
)
def test_what_needs_no_guard(text):
    assert not guard_dropouts(ir.from_onnx_text(text)).changed


def test_a_frozen_layer_keeps_its_dropout_in_a_session_of_ones_own():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,8] x, float[8,8] body, float[8,3] head) => (float[batch,3] logits) {
          h = MatMul(x, body)  a = Relu(h)  ratio = Constant<value_float = 0.5>()
          d = Dropout(a, ratio)  logits = MatMul(d, head) }""",
        body=weights(8, 8),
        head=weights(8, 3, seed=1),
    )
    program = build_program(model, ProgramConfig(freeze=("body",), engine="portable"))
    assert not guard_dropouts(program.step).changed
    step = load_model(ir.to_proto(program.step))
    feeds = {**batch_for(program, 64), "learning_rate": np.array(0.0, np.float32)}
    feeds |= {entry.name: program.initial[entry.name] for entry in program.catalogue.state}
    losses = {float(plainly(step, feeds)[0]) for _ in range(3)}
    assert len(losses) > 1
