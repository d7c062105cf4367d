from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortboost as ob
from ortboost.core.errors import FileError, ModelError, ParityError, UsageError
from ortboost.deploy.export import export_model, export_network
from ortboost.deploy.pipeline import REWRITES
from ortboost.deploy.strip import inference_model
from ortboost.deploy.targets import TARGETS
from ortboost.deploy.tolerance import Tolerance
from ortboost.deploy.write_verified import write_verified
from ortboost.graph.io import load_model
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.transforms.attach_loss import LossConfig
from tests.program.test_build import own_loss
from tests.support import (
    NAMES,
    WITH_NORM,
    assert_three_lines,
    batch_for,
    model_path,
    run,
    shipped_program,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

TRAINING_OPS = {"Dropout", "SoftmaxCrossEntropyLoss", "If"}


def trained(program, steps=2):
    training = stepper(program)
    for i in range(steps):
        training.step(batch_for(program, 8, seed=i), {"learning_rate": 0.05}, seed=i)
    feeds = [batch_for(program, size, seed=50 + size) for size in (1, 5)]
    expected = [training.evaluator().evaluate(batch) for batch in feeds]
    return training.state(), feeds, expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimize", [True, False])
def test_every_shipped_model(name, optimize, tmp_path):
    program = shipped_program(name)
    state, feeds, expected = trained(program)
    exported = export_model(program, state, optimize=optimize, provenance={"step": "2"})
    path = tmp_path / "out.onnx"
    parity = write_verified(
        exported, path, expected=expected, feeds=feeds, tolerance=Tolerance(1e-4, 1e-5)
    )
    assert parity.ok
    assert parity.samples == 6
    assert os.listdir(tmp_path) == ["out.onnx"]
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert {opset.domain for opset in proto.opset_import} <= {"", "ai.onnx"}
    assert not {node.op_type for node in proto.graph.node} & TRAINING_OPS or not optimize
    assert not [n for n in proto.graph.node if "Grad" in n.op_type]
    assert [i.name for i in proto.graph.input] == [
        spec.name for spec in program.catalogue.batch if spec.name != "labels"
    ]
    assert [o.name for o in proto.graph.output] == ["logits"]
    for value in (*proto.graph.input, *proto.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert (metadata["ortboost.target"], metadata["ortboost.precision"]) == ("generic", "fp32")
    assert metadata["ortboost.program"] == program.fingerprint
    assert metadata["ortboost.source"] == f"{name}.onnx"
    assert metadata["ortboost.step"] == "2"
    assert "max_abs" in metadata["ortboost.parity"]
    assert "ortboost.catalogue" not in metadata
    for batch, answers in zip(feeds, expected, strict=True):
        data = {k: v for k, v in batch.items() if k != "labels"}
        np.testing.assert_allclose(
            run(path, data)["logits"], answers["logits"], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", WITH_NORM)
def test_norms_are_gone(name):
    program = shipped_program(name)
    state, _, _ = trained(program, steps=1)
    exported = export_model(program, state)
    ops = [node.op_type for node in exported.model.graph]
    assert "BatchNormalization" not in ops
    assert len(ops) < len(list(program.evaluation.graph))
    report = next(r for r in exported.reports if r.rewrite == "fold_bn")
    assert not report.kept


@pytest.mark.parametrize("optimize", [True, False])
def test_a_foreign_model_is_stripped_of_nothing_else(optimize):
    program = build_program(small_convnet(), ProgramConfig())
    state, feeds, expected = trained(program)
    exported = export_model(program, state, optimize=optimize)
    found = run(exported.model, {"x": feeds[1]["x"]})
    np.testing.assert_allclose(found["logits"], expected[1]["logits"], rtol=1e-4, atol=1e-5)
    assert not [n for n in exported.model.graph.initializers if n.startswith("ortboost/slot")]


def test_the_program_is_not_changed():
    program = build_program(small_convnet(), ProgramConfig())
    state, _, _ = trained(program)
    before = ir.to_proto(program.evaluation).SerializeToString(deterministic=True)
    values = {name: array.tobytes() for name, array in state.items()}
    export_model(program, state)
    assert ir.to_proto(program.evaluation).SerializeToString(deterministic=True) == before
    assert {name: array.tobytes() for name, array in state.items()} == values


@pytest.mark.parametrize("opset", [18, 20, 21, 23])
def test_opset_on_request(opset, tmp_path):
    program = build_program(small_convnet(), ProgramConfig())
    state, feeds, expected = trained(program)
    exported = export_model(program, state, opset=opset)
    proto = ir.to_proto(exported.model)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == opset
    assert proto.ir_version >= onnx.helper.find_min_ir_version_for(proto.opset_import)
    if opset <= 21:
        write_verified(exported, tmp_path / "o.onnx", expected=expected, feeds=feeds)


def test_an_opset_that_cannot_be_reached():
    program = build_program(small_convnet(), ProgramConfig())
    for opset, kind in ((99, UsageError), (8, ModelError)):
        with pytest.raises(kind) as info:
            export_model(program, program.initial, opset=opset)
        assert_three_lines(info.value)
        assert str(opset) in str(info.value)


def test_a_state_without_a_weight():
    program = build_program(small_mlp(), ProgramConfig())
    state = {n: a for n, a in program.initial.items() if n != "w1"}
    with pytest.raises(FileError) as info:
        inference_model(program, state)
    assert_three_lines(info.value)
    assert "'w1'" in info.value.what


@pytest.mark.parametrize("name", ["cost", "loss"])
@pytest.mark.parametrize("labels", ["labels", "target"])
def test_a_model_with_its_own_loss(labels, name, tmp_path):
    model = own_loss(labels)
    model.graph.outputs[1].name = name
    program = build_program(model, ProgramConfig(loss=LossConfig("output", output=name)))
    feeds = [{"x": weights(5, 4), labels: weights(5, 3, seed=1)}]
    training = stepper(program)
    training.step(feeds[0], {"learning_rate": 0.1})
    expected = [training.evaluator().evaluate(feeds[0])]
    exported = export_model(program, training.state())
    parity = write_verified(exported, tmp_path / "o.onnx", expected=expected, feeds=feeds)
    assert parity.ok
    proto = onnx.load(tmp_path / "o.onnx")
    assert {i.name for i in proto.graph.input} == {"x", labels}
    assert [o.name for o in proto.graph.output] == ["scores", name]


def test_several_outputs_are_compared(tmp_path):
    model = small_mlp()
    relu = next(n for n in model.graph if n.op_type == "Relu")
    model.graph.outputs.append(relu.outputs[0])
    program = build_program(model, ProgramConfig(loss=LossConfig(output="logits")))
    state, feeds, expected = trained(program)
    parity = write_verified(
        export_model(program, state), tmp_path / "o.onnx", expected=expected, feeds=feeds
    )
    assert {d.output for d in parity.differences} == {"logits", "a"}


# ---- a wrong rewrite is caught -------------------------------------------------------------------


real_fold_bn = REWRITES["fold_bn"]


def corrupted(model, target):
    report = real_fold_bn(model, target)
    value = next(v for v in model.graph.initializers.values() if len(v.shape) == 2)
    array = value.const_value.numpy().copy()
    array[0, 0] += 0.01
    value.const_value = ir.tensor(array, name=value.name)
    return report


@pytest.mark.parametrize("existing", [True, False])
def test_a_wrong_rewrite_writes_nothing(existing, tmp_path, monkeypatch):
    program = build_program(small_convnet(), ProgramConfig())
    state, feeds, expected = trained(program)
    path = tmp_path / "out.onnx"
    if existing:
        write_verified(export_model(program, state), path, expected=expected, feeds=feeds)
        before = path.read_bytes()
    monkeypatch.setitem(REWRITES, "fold_bn", corrupted)
    exported = export_model(program, state)
    with pytest.raises(ParityError) as info:
        write_verified(exported, path, expected=expected, feeds=feeds)
    assert_three_lines(info.value)
    assert "the rewrite 'fold_bn'" in info.value.what
    assert info.value.exit_status == 5
    assert os.listdir(tmp_path) == (["out.onnx"] if existing else [])
    if existing:
        assert path.read_bytes() == before


def test_a_rewrite_that_loses_an_output_is_caught(tmp_path, monkeypatch):
    model = small_convnet()
    model.graph.outputs.append(next(n for n in model.graph if n.op_type == "Relu").outputs[0])
    program = build_program(model, ProgramConfig(loss=LossConfig(output="logits")))
    state, feeds, expected = trained(program)

    def losing(model, target):
        del model.graph.outputs[1:]
        return real_fold_bn(model, target)

    monkeypatch.setitem(REWRITES, "fold_bn", losing)
    with pytest.raises(ParityError, match="the rewrite 'fold_bn'"):
        write_verified(
            export_model(program, state), tmp_path / "o.onnx", expected=expected, feeds=feeds
        )
    assert not os.listdir(tmp_path)


def test_without_data_nothing_is_written(tmp_path):
    program = build_program(small_mlp(), ProgramConfig())
    with pytest.raises(ParityError) as info:
        write_verified(
            export_model(program, program.initial), tmp_path / "o.onnx", expected=[], feeds=[]
        )
    assert_three_lines(info.value)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_does_not_exist(tmp_path):
    program = build_program(small_mlp(), ProgramConfig())
    with pytest.raises(FileError) as info:
        write_verified(
            export_model(program, program.initial),
            tmp_path / "no" / "o.onnx",
            expected=[],
            feeds=[],
        )
    assert_three_lines(info.value)


def test_an_export_can_be_trained_again(tmp_path):
    program = build_program(small_convnet(), ProgramConfig())
    state, feeds, expected = trained(program)
    path = tmp_path / "out.onnx"
    write_verified(export_model(program, state), path, expected=expected, feeds=feeds)
    again = build_program(load_model(path), ProgramConfig())
    training = stepper(again)
    np.testing.assert_allclose(
        training.evaluator().evaluate(feeds[1])["loss"], expected[1]["loss"], rtol=1e-4
    )
    assert np.isfinite(training.step(feeds[1], {"learning_rate": 0.01}).loss)


def test_a_network_with_its_present_weights():
    network = ob.load(model_path("resnet20"), device="cpu", threads=1)
    for parameter in network.trainable_params():
        parameter.set_data(parameter.asnumpy() * np.float32(1.1))
    exported = export_network(network.to_model())
    assert next(r for r in exported.reports if r.rewrite == "fold_bn").changed
    x = weights(2, 3, 32, 32)
    answer = run(exported.model, {"x": x})["logits"]
    np.testing.assert_allclose(answer, network(x).asnumpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimize", [True, False])
def test_an_output_that_nodes_read_keeps_the_names_of_its_axes(optimize):
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[N,4] x) => (int64[2,K] found, float[pairs,2] view, float[N,4] normal, float[N] y)
        <float[4] one = {1, 1, 1, 1}, int64[2] two = {-1, 2}, int64[1] axis = {1}> {
            found = NonZero(x)
            turned = Transpose(found)
            values = GatherND(x, turned)
            view = Reshape(x, two)
            shape = Shape(x)
            back = Reshape(view, shape)
            normal = com.microsoft.SkipLayerNormalization(back, x, one)
            total = ReduceSum<keepdims=0>(values)
            sums = ReduceSum<keepdims=0>(normal, axis)
            y = Add(sums, total)
        }"""
    )
    exported = export_network(model, optimize=optimize, target=TARGETS["onnxruntime"]).model
    shapes = [tuple(map(str, value.shape or ())) for value in exported.graph.outputs]
    assert shapes == [("2", "K"), ("pairs", "2"), ("N", "4"), ("N",)]
    onnx.checker.check_model(ir.to_proto(exported), full_check=True)


@pytest.mark.parametrize("optimize", [True, False])
def test_an_output_of_a_trained_program_keeps_the_names_of_its_axes(optimize, tmp_path):
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,4] x, float[4,2] w) => (float[N,2] y, int64[2,K] found, int64[K,2] turned) {
            y = MatMul(x, w) found = NonZero(x) turned = Transpose(found) }""",
        w=np.ones((4, 2), np.float32),
    )
    config = ProgramConfig(loss=LossConfig("mse", output="y"))
    program = Program.load(build_program(model, config).save(tmp_path / "run"))
    exported = export_model(program, program.initial, optimize=optimize).model
    shapes = [tuple(map(str, value.shape or ())) for value in exported.graph.outputs]
    assert shapes == [("N", "2"), ("2", "K"), ("K", "2")]


@pytest.mark.parametrize(
    ("target", "optimize", "kept"),
    [("onnxruntime", True, True), ("generic", True, False), ("generic", False, True)],
)
def test_operators_of_onnxruntime_stay_for_onnxruntime(target, optimize, kept):
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[N,4] x, float[4] g) => (float[N,4] y) {
          y = com.microsoft.SkipSimplifiedLayerNormalization (x, x, g) }""",
        g=weights(4),
    )
    x = weights(3, 4)
    expected = run(model, {"x": x})["y"]
    exported = export_network(model, target=TARGETS[target], optimize=optimize)
    assert any(node.domain for node in exported.model.graph) == kept
    np.testing.assert_allclose(run(exported.model, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "guarded"), [("onnxruntime", True), ("generic", True), ("tensorrt=11", False)]
)
def test_pads_are_guarded_where_onnxruntime_reads_the_file(target, guarded, tmp_path):
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,2,6,6] x) => (float[N,2,H,W] y)
        <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}> {
          p = Pad (x, pads)  y = MaxPool <kernel_shape = [3, 3]> (p) }"""
    )
    exported = export_network(model, target=TARGETS[target], optimize=False)
    assert any(r.rewrite == "guard_pads" and r.changed for r in exported.reports) == guarded
    # TensorRT does not have the wrong fusion: it is not held against the file.
    x = -1 - np.abs(weights(2, 2, 6, 6))
    expected = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(expected, (3, 3), (2, 3))
    answer = {"y": windows.max((-2, -1))}
    write_verified(exported, tmp_path / "m.onnx", feeds=[{"x": x}], expected=[answer])
