import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.core.errors import FileError, ModelError, ParityError, UsageError
from ortboost.deploy.rewrites.clamp_infinite import clamp_infinite
from ortboost.deploy.tensorrt.checker import check_tensorrt
from ortboost.deploy.tensorrt.fix_model import fix_for_tensorrt
from ortboost.deploy.tensorrt.fixes import (
    apply_fixes,
    doubles_to_floats,
    strip_training_mode,
)
from ortboost.deploy.tensorrt.profiles import parse_profile
from ortboost.deploy.tensorrt.table import parse_release
from ortboost.graph.io import load_model, save_model
from ortboost.graph.query import FLOAT_TYPES
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.deploy.tensorrt.cases import FULL, one
from tests.support import (
    GOLDEN,
    MODELS,
    NAMES,
    assert_three_lines,
    run,
    small_convnet,
    small_mlp,
    text_model,
    weights,
)

ELEVEN = parse_release("tensorrt=11")
X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


def checked(model):
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model


def twice(fix, model):
    """Apply a fix two times: the second must find nothing."""
    report = fix(model)
    assert not fix(model).changed
    return report


@pytest.mark.parametrize("target", ["tensorrt=10", "tensorrt=11"])
@pytest.mark.parametrize("name", NAMES)
def test_shipped_models_have_no_error_left(name, target, tmp_path):
    fixed = fix_for_tensorrt(MODELS / f"{name}.onnx", tmp_path / "m.onnx", parse_release(target))
    assert not fixed.after.errors
    assert not fixed.after.fixable
    assert fixed.parity.ok
    assert os.listdir(tmp_path) == ["m.onnx"]
    checked(load_model(tmp_path / "m.onnx"))
    again = fix_for_tensorrt(tmp_path / "m.onnx", tmp_path / "n.onnx", parse_release(target))
    assert not again.reports


@pytest.mark.parametrize("name", ["convbn_opset9", "convbn_torchscript", "convbn_dynamo"])
def test_old_and_odd_exports(name, tmp_path):
    source = GOLDEN / "exports" / f"{name}.onnx"
    fixed = fix_for_tensorrt(source, tmp_path / "m.onnx", ELEVEN)
    assert fixed.before.errors
    assert fixed.stripped
    assert not fixed.after.errors


def test_batch_statistics_give_way_to_stored_ones():
    text = "[n] y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s)"
    outputs = "float[2,3] y, float[3] m, float[3] v"
    model = text_model(one(text, "float[2,3] x, float[3] s", outputs), s=FULL)
    report = twice(strip_training_mode, model)
    assert report.changed == {"n": "BatchNormalization uses its stored statistics"}
    assert [value.name for value in model.graph.outputs] == ["y"]
    expected = (X - 1) / np.sqrt(1 + 1e-5) + 1
    np.testing.assert_allclose(run(checked(model), {"x": X})["y"], expected, rtol=1e-5)


def test_a_loss_goes_with_its_labels():
    model = text_model(
        one(
            "[r] y = Relu(x) [n] l = SoftmaxCrossEntropyLoss(y, t)",
            "float[2,3] x, int64[2] t",
            "float[2,3] y, float l",
        )
    )
    report = twice(strip_training_mode, model)
    assert report.changed == {"n": "removed", "t": "removed: only the loss used this input"}
    assert [value.name for value in model.graph.inputs] == ["x"]
    np.testing.assert_array_equal(run(checked(model), {"x": X})["y"], np.maximum(X, 0))


def test_what_would_leave_nothing_is_kept():
    text = "[n] l = SoftmaxCrossEntropyLoss(x, t)"
    model = text_model(one(text, "float[2,3] x, int64[2] t", "float l"))
    assert strip_training_mode(model).kept == {"n": "it is the only output"}
    text = "[n] y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s) [k] z = Neg(m)"
    model = text_model(one(text, "float[2,3] x, float[3] s", "float[2,3] y, float[3] z"), s=FULL)
    assert "n" in strip_training_mode(model).kept


def test_a_dropout_stops_dropping():
    model = text_model(
        one("[n] y, m = Dropout(x, r, t)", "float[2,3] x, float r, bool t"),
        r=np.float32(0.5),
        t=np.bool_(True),
    )
    assert twice(strip_training_mode, model).changed
    np.testing.assert_array_equal(run(checked(model), {"x": X})["y"], X)
    still = text_model(one("[n] y, m = Dropout(x)"))
    assert not strip_training_mode(still).changed


def test_nodes_without_names_are_reported_one_by_one():
    nodes = "a = Dropout(x, r, t) y = Dropout(a, r, t)"
    model = text_model(
        one(nodes, "float[2,3] x, float r, bool t"), r=np.float32(0.5), t=np.bool_(True)
    )
    assert list(twice(strip_training_mode, model).changed) == ["a", "y"]


def test_doubles_become_floats():
    model = text_model(
        one(
            "c = Cast<to = 11>(h) a = Add(x, c) [n] y = Mul(a, w)",
            "double[2,3] x, float16[3] h, double[3] w",
            "double[2,3] y",
        ),
        w=np.array([1.0, 1e300, -1e300]),
    )
    report = twice(doubles_to_floats, model)
    assert report.changed["w"] == "DOUBLE -> FLOAT"
    assert not [f for f in check_tensorrt(checked(model), ELEVEN).findings if f.rule == "TRT030"]
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(
        model.graph.initializers["w"].const_value.numpy(), [1, largest, -largest]
    )
    found = run(model, {"x": X, "h": np.zeros(3, np.float16)})["y"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, 0], X[:, 0])


def test_doubles_in_attributes_become_floats():
    model = text_model(
        one(
            "s = Shape(x) [f] c = ConstantOfShape<value = double[1] {2.5}>(s) [k] d = Cast<to = "
            "11>(x)"
            " [n] y = Add(c, d)",
            outputs="double[2,3] y",
        )
    )
    infer_shapes(model)
    assert {"c", "d"} <= set(doubles_to_floats(model).changed)
    np.testing.assert_allclose(run(checked(model), {"x": X})["y"], X + 2.5, rtol=1e-6)


def finite_constants(model):
    return clamp_infinite(model, FLOAT_TYPES)


def test_infinities_become_what_float16_can_hold():
    mask = np.array([0, -np.inf, np.inf], np.float32)
    model = text_model(one("[n] y = Add(x, m)", "float[2,3] x, float[3] m"), m=mask)
    assert twice(finite_constants, model).changed == {"m": "2 infinite values became +-65504"}
    np.testing.assert_array_equal(
        model.graph.initializers["m"].const_value.numpy(), [0, -65504, 65504]
    )
    large = np.full(3, 1e12, np.float32)
    finite = text_model(one("[n] y = Add(x, m)", "float[2,3] x, float[3] m"), m=large)
    assert not finite_constants(finite).changed


def test_a_mask_answers_alike_with_large_numbers(tmp_path):
    mask = np.array([0, -np.inf, 0], np.float32)
    model = text_model(one("a = Add(x, m) [n] y = Softmax(a)", "float[2,3] x, float[3] m"), m=mask)
    fixed = fix_for_tensorrt(model, tmp_path / "m.onnx", ELEVEN)
    assert [report.rewrite for report in fixed.reports][-1:] != []
    assert "clamp_infinite" in {report.rewrite for report in fixed.reports}
    assert fixed.parity.worst.max_abs == 0


def test_beyond_the_tolerance_nothing_is_written(tmp_path):
    """A row that is masked as a whole: nan with infinities, a mean with large numbers."""
    mask = np.full(3, -np.inf, np.float32)
    model = text_model(one("a = Add(x, m) [n] y = Softmax(a)", "float[2,3] x, float[3] m"), m=mask)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"good")
    with pytest.raises(ParityError) as info:
        fix_for_tensorrt(model, path, ELEVEN)
    assert_three_lines(info.value)
    assert "clamp_infinite" in info.value.where
    assert path.read_bytes() == b"good"
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_the_opset_and_the_ir_version_come_into_range(tmp_path):
    model = text_model(one("[n] y = Relu(x)", head='<ir_version: 13, opset_import: ["" : 20]>'))
    fixed = fix_for_tensorrt(model, tmp_path / "m.onnx", parse_release("tensorrt=10"))
    assert load_model(fixed.path).ir_version == 10
    old = text_model(one("[n] y = Relu(x)", head='<ir_version: 3, opset_import: ["" : 7]>'))
    fixed = fix_for_tensorrt(old, tmp_path / "m.onnx", ELEVEN)
    assert load_model(fixed.path).opset_imports[""] == 9


def test_names_become_unique(tmp_path):
    model = text_model(one("[n] a = Relu(x) [n] y = Neg(a)"))
    fixed = fix_for_tensorrt(model, tmp_path / "m.onnx", ELEVEN)
    assert "unique_names" in {report.rewrite for report in fixed.reports}
    assert not fixed.after.findings


def test_weights_leave_the_inputs(tmp_path):
    model = small_mlp()
    model.graph.inputs.append(model.graph.initializers["w1"])
    fixed = fix_for_tensorrt(model, tmp_path / "m.onnx", ELEVEN)
    assert [value.name for value in load_model(fixed.path).graph.inputs] == ["x"]


def test_the_model_itself_is_not_changed(tmp_path):
    model = small_convnet()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    fix_for_tensorrt(model, tmp_path / "m.onnx", ELEVEN)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_the_original_is_never_overwritten(tmp_path):
    path = tmp_path / "m.onnx"
    save_model(small_mlp(), path)
    with pytest.raises(UsageError):
        fix_for_tensorrt(path, path, ELEVEN)
    with pytest.raises(FileError):
        fix_for_tensorrt(path, tmp_path / "no" / "m.onnx", ELEVEN)


def test_what_the_runtime_cannot_run_cannot_be_compared(tmp_path):
    model = text_model(one("[n] y = Bogus(x)"))
    with pytest.raises(ModelError):
        fix_for_tensorrt(model, tmp_path / "m.onnx", ELEVEN)
    assert not os.listdir(tmp_path)


def test_data_and_shapes_reach_the_comparison(tmp_path):
    feeds = [{"x": weights(5, 4)}, {"x": weights(2, 4)}]
    fixed = fix_for_tensorrt(small_mlp(), tmp_path / "m.onnx", ELEVEN, feeds=feeds)
    assert fixed.parity.samples == 7
    shapes = [parse_profile("x:1,3,9x4")]
    fixed = fix_for_tensorrt(small_mlp(), tmp_path / "m.onnx", ELEVEN, profiles=shapes)
    assert fixed.parity.samples == 3
    assert not fixed.after.findings
    assert fixed.to_dict()["compared_with"] == "the original"


def test_a_second_run_of_all_fixes_changes_nothing():
    model = small_convnet()
    assert apply_fixes(model, ELEVEN)
    assert not apply_fixes(model, ELEVEN)
    assert "BatchNormalization" not in [node.op_type for node in model.graph]
