"""MatMulNBits written out, against onnxruntime's own kernel."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortboost.boosts import Lora
from ortboost.core.errors import ModelError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.deploy.export import export_model
from ortboost.deploy.targets import get_target
from ortboost.graph.normal_form.runtime_operators import write_out_runtime_operators
from ortboost.graph.normalize import normalize
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.session import open_session, runtime
from ortboost.transforms.loss_config import LossConfig
from tests.support import ENGINES, assert_three_lines, batch_for, run, stepper, text_model, weights

INNER, OUTER, BLOCK = 40, 6, 16
RUNS_8_BITS = tuple(map(int, runtime().__version__.split(".")[:2])) >= (1, 23)


def packed(numbers, bits):
    """Numbers of a row in bytes, the first one in the lowest bits, by Python's integers."""
    count = 8 // bits
    rows = []
    for row in numbers:
        filled = [*map(int, row), *[0] * (-len(row) % count)]
        groups = [filled[i : i + count] for i in range(0, len(filled), count)]
        rows.append([sum(n << (bits * k) for k, n in enumerate(group)) for group in groups])
    return np.array(rows, np.uint8)


def quantized(bits=4, inner=INNER, points=True, bias=False, seed=0, **attributes):
    """A file with one MatMulNBits, and its weight ``[inner, OUTER]`` in float32."""
    rng = np.random.default_rng(seed)
    blocks = math.ceil(inner / BLOCK)
    q = rng.integers(0, 1 << bits, (OUTER, blocks * BLOCK))
    scales = rng.uniform(0.01, 0.1, (OUTER, blocks)).astype(np.float32)
    half = 1 << (bits - 1)
    zero = rng.integers(0, 1 << bits, (OUTER, blocks)) if points else np.full(scales.shape, half)
    weight = (q - np.repeat(zero, BLOCK, 1)) * np.repeat(scales, BLOCK, 1)
    stored = {
        "w_Q": packed(q, bits).reshape(OUTER, blocks, -1),
        "s": scales.ravel(),
        **({"z": packed(zero, bits).ravel()} if points else {}),
        **({"b": weights(OUTER, seed=5)} if bias else {}),
    }
    names = ["x", "w_Q", "s", "z" if points else "", "", "b" if bias else ""]
    node = helper.make_node(
        "MatMulNBits",
        names[: 6 if bias else 4 if points else 3],
        ["y"],
        "layer",
        domain="com.microsoft",
        **{"K": inner, "N": OUTER, "bits": bits, "block_size": BLOCK, **attributes},
    )
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3, OUTER])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, weight[:, :inner].T.astype(np.float32)


def exact(model, x):
    """Its result without the rounding of activations, which is the default of a session."""
    return open_session(model, device="cpu").run(None, {"x": x})[0]


def written_out(model):
    rewritten = ir.from_proto(model)
    normalize(rewritten, opsets=range(18, 22), ir_version=10)
    return rewritten


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"points": False},
        {"inner": 48},  # whole blocks
        {"bias": True},
        {"bits": 8},
        {"bits": 8, "points": False},
    ],
)
def test_it_computes_what_the_kernel_computes(case):
    model, weight = quantized(**case)
    rewritten = written_out(model)
    found = [node.op_type for node in rewritten.graph]
    assert found == ["DequantizeLinear", "MatMul", *(["Add"] if case.get("bias") else [])]
    assert rewritten.opset_imports[""] == 21
    onnx.checker.check_model(ir.to_proto(rewritten), full_check=True)
    x = weights(2, 3, case.get("inner", INNER), seed=7)
    result = exact(rewritten, x)
    expected = x @ weight + (weights(OUTER, seed=5) if case.get("bias") else 0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    if case.get("bits") != 8 or RUNS_8_BITS:
        np.testing.assert_allclose(run(model, {"x": x})["y"], result, rtol=1e-5, atol=1e-5)


def test_numbers_of_2_bits():
    """Not every runtime has the kernel."""
    model, weight = quantized(bits=2)
    x = weights(2, 3, INNER, seed=7)
    result = exact(written_out(model), x)
    np.testing.assert_allclose(result, x @ weight, rtol=1e-5, atol=1e-5)


def test_the_weight_keeps_its_name_and_stays_small():
    weight = written_out(quantized()[0]).graph.initializers["w_Q"]
    assert (weight.dtype, tuple(weight.shape)) == (ir.DataType.UINT4, (INNER, OUTER))


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"N": 7}, "does not have the size"),
        ({"block_size": 32}, "does not have the size"),
        ({"K": 0}, "does not have the size"),
        ({"N": 0}, "does not have the size"),
        ({"z": 11}, "does not have the size"),
        ({"bits": 3}, "only 2, 4 or 8 bits"),
    ],
)
def test_what_is_not_known_is_refused(attributes, reason):
    model, _ = quantized()
    for attribute in model.graph.node[0].attribute:
        attribute.i = attributes.get(attribute.name, attribute.i)
    if "z" in attributes:
        points = np.zeros(attributes["z"], np.uint8)
        (stored,) = (t for t in model.graph.initializer if t.name == "z")
        stored.CopyFrom(numpy_helper.from_array(points, "z"))
    rewritten = ir.from_proto(model)
    rewritten.opset_imports[""] = 21
    report = write_out_runtime_operators(rewritten)
    assert reason in report.kept["layer"]
    assert not report.changed


def test_blocks_need_opset_21():
    rewritten = ir.from_proto(quantized()[0])
    rewritten.opset_imports[""] = 20
    assert "from opset 21 on" in write_out_runtime_operators(rewritten).kept["layer"]


@pytest.mark.parametrize("engine", ENGINES)
def test_adapters_beside_it_train_as_beside_its_weight(engine):
    model, weight = quantized()
    plain = text_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[batch,3,{INNER}] x, float[{INNER},{OUTER}] w) => (float[batch,3,{OUTER}] y) {{
          y = MatMul(x, w) }}""",
        w=weight,
    )
    config = ProgramConfig(
        boosts=(Lora(2),), loss=LossConfig("mse"), loss_scale=NO_SCALE, engine=engine
    )
    programs = [build_program(source, config) for source in (model, plain)]
    assert "w_Q.lora_A" in programs[0].initial
    trainings = [stepper(program) for program in programs]
    for seed in range(4):
        batch = batch_for(programs[0], seed=seed)
        losses = [t.step(batch, {"learning_rate": 0.1}).loss for t in trainings]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for half in "AB":
        found, expected = trainings[0].get(f"w_Q.lora_{half}"), trainings[1].get(f"w.lora_{half}")
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    target = get_target("onnxruntime")
    exported = export_model(programs[0], trainings[0].state(), target=target).model
    assert [n.op_type for n in exported.graph].count("MatMulNBits") == 1
    onnx.checker.check_model(ir.to_proto(exported))
    found = run(exported, {"x": batch["x"]})["y"]
    expected = trainings[1].evaluator().evaluate(batch)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_without_a_choice_of_parameters_it_is_refused():
    with pytest.raises(ModelError) as caught:
        build_program(quantized()[0], ProgramConfig(loss=LossConfig("mse")))
    assert_three_lines(caught.value)
    assert "the weight 'w_Q' is quantized" in str(caught.value)
    assert "--boost lora" in str(caught.value)
