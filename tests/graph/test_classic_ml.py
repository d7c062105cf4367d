"""Models from scikit-learn's converter: a scaler first, maps and class names last."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortboost import api
from ortboost.core.errors import ModelError
from ortboost.graph.classic_ml import (
    cut_maps,
    infer_elementwise,
    require_network,
    standard_norms,
)
from ortboost.graph.io import load_model, save_model
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import ENGINES, assert_three_lines, run, stepper, weights

FLOAT, ML = TensorProto.FLOAT, "ai.onnx.ml"
OFFSET, SCALE = [1.0, -2.0, 0.5, 0.0], [0.5, 2.0, 1.0, 3.0]


def node(op, inputs, outputs, domain="", **attributes):
    return helper.make_node(op, inputs, outputs, name=outputs[0], domain=domain, **attributes)


def classifier(*, scaler=True, zipmap=True, texts=False, opset=18):
    """``Scaler, MatMul, Add, Relu, MatMul, Add, Softmax, ZipMap``, and the class names."""
    names = {"classlabels_strings": ["a", "b", "c"]} if texts else {"classlabels_int64s": [3, 4, 5]}
    key = TensorProto.STRING if texts else TensorProto.INT64
    nodes = [
        node("Scaler", ["X"], ["scaled"], ML, offset=OFFSET, scale=SCALE)
        if scaler
        else node("Identity", ["X"], ["scaled"]),
        node("MatMul", ["scaled", "w1"], ["m1"]),
        node("Add", ["m1", "b1"], ["a1"]),
        node("Relu", ["a1"], ["h"]),
        node("MatMul", ["h", "w2"], ["m2"]),
        node("Add", ["m2", "b2"], ["scores"]),
        node("Softmax", ["scores"], ["probabilities"], axis=1),
        node("ArgMax", ["probabilities"], ["best"], axis=1, keepdims=0),
        node("ArrayFeatureExtractor", ["classes", "best"], ["picked"], ML),
        node("Reshape", ["picked", "flat"], ["label"]),
    ]
    outputs = [helper.make_tensor_value_info("label", key, [None])]
    if zipmap:
        nodes.append(node("ZipMap", ["probabilities"], ["maps"], ML, **names))
        kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(FLOAT, []))
        outputs.append(helper.make_value_info("maps", helper.make_sequence_type_proto(kind)))
    else:
        outputs.append(helper.make_tensor_value_info("probabilities", FLOAT, [None, 3]))
    classes = np.array(["a", "b", "c"], object) if texts else np.array([3, 4, 5])
    stored = {
        "w1": weights(4, 6),
        "b1": weights(6, seed=1),
        "w2": weights(6, 3, seed=2),
        "b2": weights(3, seed=3),
        "flat": np.array([-1]),
        "classes": classes,
    }
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("X", FLOAT, [None, 4])],
        outputs,
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset > 9 else 4)


def test_maps_are_read_and_written(tmp_path):
    raw = classifier()
    path = tmp_path / "raw.onnx"
    onnx.save(raw, path)
    for source in (path, raw):
        model = load_model(source)
        save_model(model.clone(), tmp_path / "again.onnx")
        again = onnx.load(tmp_path / "again.onnx")
        assert [o.type for o in again.graph.output] == [o.type for o in raw.graph.output]
        infer_shapes(model)
        assert {n.domain for n in model.graph if n.op_type == "ZipMap"} == {ML}
        shape = next(n for n in model.graph if n.name == "scores").outputs[0].shape
        assert (len(shape), shape[1]) == (2, 3)


def test_maps_in_external_data_files(tmp_path):
    onnx.save(classifier(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    model = load_model(tmp_path / "m.onnx")
    np.testing.assert_array_equal(model.graph.initializers["w1"].const_value.numpy(), weights(4, 6))


def test_a_map_as_input_is_refused():
    raw = classifier()
    raw.graph.input[0].type.CopyFrom(raw.graph.output[1].type)
    with pytest.raises(ModelError, match="The input 'X' is a map") as info:
        load_model(raw)
    assert_three_lines(info.value)


@pytest.mark.parametrize(("texts", "opset"), [(False, 18), (True, 18), (False, 9)])
def test_exports_keep_the_maps(texts, opset, tmp_path):
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(classifier(texts=texts, opset=opset), path)
    result = api.export(path, out, device="cpu")
    assert result.parity.ok
    assert {d.output for d in result.parity.differences} == {"label", "maps"}
    onnx.checker.check_model(onnx.load(out), full_check=True)
    x = {"X": weights(5, 4, seed=7, scale=2.0)}
    want, have = run(path, x), run(out, x)
    assert want["maps"] == have["maps"]
    assert list(want["maps"][0]) == (["a", "b", "c"] if texts else [3, 4, 5])


def test_what_is_cut_off_for_training():
    model = load_model(classifier(texts=True))
    infer_shapes(model)
    report = cut_maps(model)
    assert set(report.changed) == {"maps", "label"}
    assert [value.name for value in model.graph.outputs] == ["probabilities"]
    assert not {n.op_type for n in model.graph} & {"ZipMap", "ArgMax", "ArrayFeatureExtractor"}
    assert not cut_maps(model).changed
    plain = load_model(classifier(zipmap=False))
    infer_shapes(plain)
    assert not cut_maps(plain).changed
    assert len(plain.graph.outputs) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_network_behind_a_scaler_trains_as_one_that_is_fed_scaled_data(engine):
    x, labels = weights(8, 4, seed=5, scale=2.0), np.arange(8) % 3
    scaled = ((x - np.array(OFFSET)) * np.array(SCALE)).astype(np.float32)
    states = []
    for raw, fed in ((classifier(), x), (classifier(scaler=False, zipmap=False), scaled)):
        program = build_program(raw, ProgramConfig(engine=engine))
        training = stepper(program)
        for _ in range(3):
            training.step({"X": fed, "labels": labels}, {"learning_rate": 0.1})
        states.append(training.state())
        assert program.prediction == "probabilities"
    for name in ("w1", "b1", "w2", "b2"):
        np.testing.assert_allclose(states[0][name], states[1][name], rtol=1e-5, atol=1e-6)
    assert not np.array_equal(states[0]["w1"], weights(4, 6))


def behind_a_norm(**norm):
    """Numbers of both signs, scaled to length 1, before the network."""
    model = classifier(zipmap=False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.node[1].input[0] = "unit"
    model.graph.node.insert(1, node("Normalizer", ["scaled"], ["unit"], ML, **norm))
    return model


def test_a_norm_keeps_the_signs(tmp_path):
    """onnxruntime's kernel loses them where it knows the shape."""
    x = weights(8, 4, seed=5, scale=2.0)
    scaled = ((x - np.array(OFFSET)) * np.array(SCALE)).astype(np.float32)
    unit = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    expected = run(classifier(scaler=False, zipmap=False), {"X": unit})["probabilities"]
    raw = behind_a_norm(norm="L2")
    api.export(raw, tmp_path / "o.onnx", device="cpu")
    api.convert(raw, tmp_path / "run")
    trained = api.compare(raw, tmp_path / "run", checkpoint="initial", device="cpu", data={"X": x})
    assert trained.parity.ok
    found = run(tmp_path / "o.onnx", {"X": x})["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("norm", "rank", "left"), [("L2", 2, 0), ("L1", 2, 1), ("L2", 3, 1)])
def test_which_norms_are_written_in_standard_operators(norm, rank, left):
    model = load_model(behind_a_norm(norm=norm))
    infer_shapes(model)
    if rank == 3:
        next(n for n in model.graph if n.op_type == "Scaler").outputs[0].shape = ir.Shape(
            [2, None, 4]
        )
    standard_norms(model)
    assert sum(n.op_type == "Normalizer" for n in model.graph) == left


def test_what_is_no_network_is_refused_by_name():
    graph = helper.make_graph(
        [node("LinearRegressor", ["X"], ["y"], ML, coefficients=[1.0, 2.0], intercepts=[0.5])],
        "linear",
        [helper.make_tensor_value_info("X", FLOAT, [None, 2])],
        [helper.make_tensor_value_info("y", FLOAT, [None, 1])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with pytest.raises(ModelError, match="LinearRegressor cannot be trained") as info:
        build_program(model, ProgramConfig())
    assert_three_lines(info.value)
    require_network(load_model(classifier()))


def test_shapes_pass_through_a_scaler_only():
    model = load_model(classifier())
    scaler = model.graph[0]
    assert infer_elementwise(model)
    assert scaler.outputs[0].shape == [None, 4]
    assert scaler.outputs[0].dtype == ir.DataType.FLOAT
    assert not infer_elementwise(model)
