from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ortboost.core.errors import ModelError
from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from ortboost.transforms.inference_norm import to_inference
from tests.support import (
    GOLDEN,
    NAMES,
    assert_three_lines,
    model_path,
    run,
    small_mlp,
    text_model,
    weights,
)

OPSETS, IR_VERSION = range(18, 22), 10
EXPORTS = sorted(path.stem for path in (GOLDEN / "exports").glob("*.onnx"))
FILES = [*(GOLDEN / "exports" / f"{name}.onnx" for name in EXPORTS), *map(model_path, NAMES)]


def normalized(source) -> ir.Model:
    model = load_model(source)
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    return model


def inference_bytes(path) -> bytes:
    """The file in inference mode, without ortboost's rewrites."""
    proto = onnx.load(path)
    fixed = {i.name for i in proto.graph.initializer}
    kept = [i for i in proto.graph.input if i.name not in fixed]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for node in proto.graph.node:
        if node.op_type == "Dropout":
            del node.input[2:]
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            for attribute in [a for a in node.attribute if a.name == "training_mode"]:
                node.attribute.remove(attribute)
    return proto


def test_the_exports_are_there():
    assert EXPORTS == [
        "convbn_dynamo",
        "convbn_dynamo_folded",
        "convbn_opset9",
        "convbn_torchscript",
        "mlp_dynamo",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_form_that_comes_out(path):
    model = normalized(path)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert model.opset_imports[""] in OPSETS
    assert model.ir_version <= IR_VERSION
    assert not model.functions
    assert not [v.name for v in model.graph.inputs if v.is_initializer()]
    assert not [n for n in model.graph.all_nodes() if n.op_type == "Constant"]
    names = [node.name for node in model.graph.all_nodes()]
    assert all(names)
    assert len(set(names)) == len(names)
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.shape[0].value == "batch"
        assert all(isinstance(dim, int) for dim in value.shape[1:])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("size", [1, 5])
def test_the_numbers_stay(path, size):
    model = normalized(path)
    to_inference(model)
    spec = model.graph.inputs[0]
    rng = np.random.default_rng(size)
    shape = (size, *(int(d) for d in spec.shape[1:]))
    x = rng.standard_normal(shape).astype(np.float32)
    if spec.dtype == ir.DataType.INT64:
        x = rng.integers(0, 256, shape)
    before = run(inference_bytes(path), {spec.name: x})["logits"]
    np.testing.assert_allclose(run(model, {spec.name: x})["logits"], before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_second_time_changes_nothing(path):
    model = normalized(path)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert normalize(model, opsets=OPSETS, ir_version=IR_VERSION) == []
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_functions_are_inlined():
    function = helper.make_function(
        "local",
        "Scale",
        ["x"],
        ["y"],
        [
            helper.make_node("Constant", [], ["two"], value_float=2.0),
            helper.make_node("Mul", ["x", "two"], ["y"]),
        ],
        [helper.make_opsetid("", 18)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Scale", ["x"], ["a"], domain="local"),
            helper.make_node("Scale", ["a"], ["b"], domain="local"),
        ],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, ["batch", 2])],
    )
    proto = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
        ir_version=10,
    )
    model = load_model(proto)
    reports = normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    assert reports[0].rewrite == "inline_functions"
    assert "local::Scale" in reports[0].changed
    assert [node.op_type for node in model.graph] == ["Mul", "Mul"]
    names = [node.name for node in model.graph]
    assert len(set(names)) == 2
    x = weights(3, 2)
    np.testing.assert_allclose(run(model, {"x": x})["b"], 4 * x)


def test_weights_that_are_inputs_are_named_in_the_report():
    model = load_model(GOLDEN / "exports" / "convbn_opset9.onnx")
    reports = {r.rewrite: r for r in normalize(model, opsets=OPSETS, ir_version=IR_VERSION)}
    assert "conv1.weight" in reports["weights_are_not_inputs"].changed
    assert reports["convert_opset"].changed == {"model": "opset 9 -> 18"}
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_a_newer_opset_comes_down():
    model = text_model(
        '<ir_version: 11, opset_import: ["" : 23]> net (float[batch,4] x) => (float[batch,4] y)'
        " { y = Relu(x) }"
    )
    reports = {r.rewrite: r for r in normalize(model, opsets=OPSETS, ir_version=IR_VERSION)}
    assert model.opset_imports[""] == 21
    assert model.ir_version == 10
    assert {"convert_opset", "ir_version"} <= set(reports)
    x = weights(2, 4)
    np.testing.assert_array_equal(run(model, {"x": x})["y"], np.maximum(x, 0))


def test_a_model_without_a_standard_opset_is_refused():
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"com.microsoft": 1}), ir_version=10)
    with pytest.raises(ModelError) as info:
        normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    assert_three_lines(info.value)


def test_duplicate_and_missing_node_names_are_mended():
    proto = ir.to_proto(small_mlp())
    for node in proto.graph.node:
        node.name = "same"
    model = normalized(proto)
    names = [node.name for node in model.graph]
    assert names[0] == "same"
    assert len(set(names)) == 3


def test_stale_shapes_of_a_fixed_batch_do_not_survive():
    proto = ir.to_proto(small_mlp())
    proto.graph.value_info.append(
        helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [7, 6])
    )
    model = normalized(proto)
    hidden = next(node.outputs[0] for node in model.graph if node.outputs[0].name == "h")
    assert hidden.shape[0].value == "batch"
    assert run(model, {"x": weights(3, 4)})["logits"].shape == (3, 3)


def test_unnamed_nodes_are_called_after_their_output():
    proto = ir.to_proto(small_mlp())
    for node in proto.graph.node:
        node.name = ""
    assert [node.name for node in normalized(proto).graph] == ["h/Gemm", "a/Relu", "logits/Gemm"]


def test_axes_of_unsqueeze_are_a_vector():
    """torch's dynamo exporter writes one number; its gradient, a Squeeze, does not run."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[3] x) => (y) <int64 axis = {1}> { y = Unsqueeze(x, axis) }"""
    )
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    (node,) = model.graph
    assert node.inputs[1].shape == (1,)
    assert run(model, {"x": weights(3)})["y"].shape == (3, 1)


@pytest.mark.parametrize(
    ("opset", "node"),
    [
        (8, "y = BatchNormalization<spatial = 0>(x, s, s, s, s)"),
        (10, 'y = Pad<mode = "edge", pads = [0, 1, 0, 2], value = 0.0>(x)'),
    ],
)
def test_idle_attributes_do_not_stop_the_converter(opset, node):
    model = normalized(
        onnx.parser.parse_model(f"""<ir_version: 4, opset_import: ["" : {opset}]>
        g (float[2,3] x, float[3] s) => (float[2,n] y) {{ {node} }}""")
    )
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_a_sequence_out_of_a_branch_is_no_tensor():
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (bool c, float[2] x, int64 i) => (float[k] y)
    { s = If(c)<then_branch = t () => (seq(float[2]) u) { u = SequenceConstruct(x) },
                else_branch = e () => (seq(float[2]) u) { z = Neg(x) u = SequenceConstruct(x, z) }>
      y = SequenceAt(s, i) }"""
    model = normalized(onnx.parser.parse_model(text))
    x = weights(2)
    found = run(model, {"c": np.array(False), "x": x, "i": np.array(1)})
    np.testing.assert_array_equal(found["y"], -x)


@pytest.mark.parametrize("then", [True, False])
def test_a_value_may_be_several_outputs_of_a_branch(then):
    """onnxruntime would return zeros for the first one."""
    model = text_model("""<ir_version: 10, opset_import: ["" : 18]>
    g (float[2] x, bool c) => (float[2] a, float[2] b) {
        a, b = If(c) <then_branch = t () => (float[2] u, float[2] w) { u = Relu(x)
                                                                       w = Neg(u) },
                      else_branch = e () => (float[2] v, float[2] v) { v = Neg(x) }>
    }""")
    x = np.array([1, 2], np.float32)
    expected = [x, -x] if then else [-x, -x]
    found = run(normalized(model), {"x": x, "c": np.array(then)})
    np.testing.assert_array_equal([*found.values()], expected)


def test_a_convolution_gives_the_number_of_channels():
    model = normalized(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[N,C,H,W] x, float[8,3,1,1] w, float[N,C] z) => (float[N,8,H,W] y, float[N,C] v) {
          y = Conv<group = 2>(x, w) v = Neg(z) }""")
    )
    x, _, z = model.graph.inputs
    assert known_shape(x) == ("N", 6, "H", "W")
    assert known_shape(z) == ("N", "C")


@pytest.mark.parametrize(("opset", "declared"), [(17, ""), (18, ""), (18, "[1]")])
def test_a_loop_without_condition_and_states(opset, declared):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        net (float[2] x, int64 n) => (float[a,2] y) {{
          y = Loop(n, "") <body = b (int64 i, bool{declared} c) => (bool g, float[2] h) {{
            g = Identity(c) h = Neg(x) }}> }}"""
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    onnx.checker.check_model(ir.to_proto(model))
    assert run(model, {"x": np.ones(2, np.float32), "n": np.array(3)})["y"].shape == (3, 2)


@pytest.mark.parametrize(("listed", "noted"), [(("t",), True), (("t", "w"), False)])
def test_an_input_with_a_default_value_is_noted(listed, noted):
    """Old exporters list all weights; a file that lists some of its tensors means inputs."""
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,2] x, float t, float[2,2] w) => (float[N,2] y) {
          h = MatMul(x, w) y = Mul(h, t) }""",
        t=np.float32(2),
        w=np.eye(2, dtype=np.float32),
    )
    model.graph.inputs.extend(model.graph.initializers[name] for name in listed)
    notes = [
        note
        for report in normalize(model, opsets=range(18, 22), ir_version=10)
        for note in report.notes
    ]
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert any("'t'" in note for note in notes) == noted
