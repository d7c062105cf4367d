"""Weights are dequantized where they are used: same results, less memory."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts import Lora
from ortboost.core.loss_scale import NO_SCALE
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.session import open_session
from ortboost.transforms.dequantize_again import dequantize_again
from ortboost.transforms.loss_config import LossConfig
from tests.support import ENGINES, batch_for, stepper, text_model, weights

Q = np.random.default_rng(0).integers(-100, 100, (6, 6)).astype(np.int8)
TWO = """d = DequantizeLinear<axis = 1>(w, s, z) h = MatMul(x, d) r = Relu(h) y = MatMul(r, d)"""


def network(body=TWO, types="float[6] s, int8[6] z"):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[N,6] x, {types}, int8[6,6] w) => (float[N,6] y) {{ {body} }}""",
        w=Q,
        s=np.linspace(0.01, 0.06, 6).astype(np.float32),
        z=np.arange(6).astype(np.int8),
    )
    infer_shapes(model)
    return model


def result(model):
    (found,) = open_session(model, device="cpu").run(None, {"x": weights(3, 6, seed=1)})
    return found


@pytest.mark.parametrize("body", [TWO, TWO.replace("MatMul(x, d)", "MatMul(a, d)")])
def test_each_reader_has_its_own_with_the_same_bits(body):
    model = network(body if body == TWO else f"a = Relu(x) {body}")
    expected = result(model)
    dequantize_again(model)
    nodes = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert [len(node.outputs[0].uses()) for node in nodes] == [1, 1]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_array_equal(result(model), expected)


def test_a_runtime_does_not_merge_or_move_them(tmp_path):
    """Each waits for the other operand of its reader, which no runtime knows before."""
    model = network()
    dequantize_again(model)
    made = {node.outputs[0].name: node for node in model.graph}
    for product in (node for node in model.graph if node.op_type == "MatMul"):
        pending, behind = [product.inputs[1].name], set()
        while pending:
            node = made.get(pending.pop())
            if node is not None and node not in behind:
                behind.add(node)
                pending += [value.name for value in node.inputs if value is not None]
        source = made.get(product.inputs[0].name)
        assert source is None or source in behind
        assert any(node.op_type == "Less" for node in behind) == (source is not None)


@pytest.mark.parametrize(
    "body",
    [
        "d = DequantizeLinear<axis = 1>(w, s, z) y = MatMul(x, d)",  # one reader
        "q = QuantizeLinear(x, t, u) d = DequantizeLinear(q, t, u) h = Relu(d) y = MatMul(d, h)",
    ],
)
def test_others_are_left_alone(body):
    types = "float[6] s, int8[6] z"
    if "Quantize" in body and "(q" in body:
        body = f"t = Constant<value_float = 0.1>() u = Constant<value = int8 {{3}}>() {body}"
        body = body.replace("MatMul(d, h)", "Mul(d, h)")
    model = network(body, types)
    before = [node.op_type for node in model.graph]
    dequantize_again(model)
    assert [node.op_type for node in model.graph] == before


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_dequantizes_in_both_passes(engine):
    config = ProgramConfig(
        boosts=(Lora(2),), loss=LossConfig("mse"), loss_scale=NO_SCALE, engine=engine
    )
    program = build_program(network(), config)
    nodes = [n for n in program.step.graph if n.op_type == "DequantizeLinear"]
    # The native gradient builder folds them. In the other, the second product has a backward pass.
    assert len(nodes) == (0 if engine == "native" else 3)
    assert all(len(node.outputs[0].uses()) == 1 for node in nodes)
    real = (Q.astype(np.float32) - np.arange(6)) * np.linspace(0.01, 0.06, 6).astype(np.float32)
    plain = text_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[N,6] x, float[6,6] w) => (float[N,6] y) {
          h = MatMul(x, w) r = Relu(h) y = MatMul(r, w) }""",
        w=real.astype(np.float32),
    )
    trainings = [stepper(program), stepper(build_program(plain, config))]
    for seed in range(3):
        batch = batch_for(program, seed=seed)
        losses = [t.step(batch, {"learning_rate": 0.05}).loss for t in trainings]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
