import collections
import dataclasses
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from ortboost.core.errors import ConfigError, UsageError
from ortboost.deploy.export import export_model
from ortboost.deploy.int8.config import CALIBRATIONS, Int8Config
from ortboost.deploy.int8.quantize import quantize_int8
from ortboost.deploy.int8.saturation import SAFE_WEIGHT, can_saturate, saturating_weights
from ortboost.deploy.tensorrt.checker import check_tensorrt
from ortboost.deploy.tensorrt.table import parse_release
from tests.deploy.int8.saturating import multiply, run_as
from tests.support import (
    assert_three_lines,
    digits,
    run,
    shipped_program,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

TENSORRT, RUNTIME = (Int8Config.for_target(name) for name in ("tensorrt", "onnxruntime"))


def feeds(*shape, count=4, size=8):
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((size, *shape)).astype(np.float32)} for _ in range(count)]


def checked(model):
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model


def ops(model):
    return collections.Counter(node.op_type for node in model.graph)


def by_name(model, name):
    return next(node for node in model.graph if node.name == name)


def optimized_ops(model, tmp_path):
    """The outputs of ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    content = ir.to_proto(model).SerializeToString()
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return collections.Counter(n.op_type for n in onnx.load(tmp_path / "o.onnx").graph.node)


@pytest.fixture(scope="module", params=["mlp", "lenet5"])
def trained(request):
    """An exported network that knows the digits, and its accuracy."""
    program = shipped_program(request.param)
    data = digits()
    shape = [d if isinstance(d, int) else -1 for d in program.catalogue.batch[0].shape]
    x, y = data["x_train"].astype(np.float32).reshape(shape), data["y_train"].astype(np.int64)
    training, rng = stepper(program), np.random.default_rng(0)
    for _ in range(6):
        order = rng.permutation(len(x))
        for i in range(0, len(x) - 63, 64):
            rows = order[i : i + 64]
            training.step({"x": x[rows], "labels": y[rows]}, {"learning_rate": 0.1})
    model = export_model(program, training.state()).model
    test = data["x_test"].astype(np.float32).reshape(shape), data["y_test"]
    return model, [{"x": x[i : i + 64]} for i in range(0, 256, 64)], test


def accuracy(model, test):
    return float((run(model, {"x": test[0]})["logits"].argmax(1) == test[1]).mean())


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime", "generic"])
def test_the_digits_keep_their_accuracy(trained, target, calibration):
    model, data, test = trained
    quantized = model.clone()
    report = quantize_int8(quantized, data, Int8Config.for_target(target, calibration=calibration))
    assert not report.kept
    before, after = accuracy(model, test), accuracy(checked(quantized), test)
    assert before > 0.9
    assert after >= before - 0.01
    answers = run(quantized, {"x": test[0]})["logits"]
    exact = run(model, {"x": test[0]})["logits"]
    error, size = answers - exact, np.sqrt(np.mean(exact**2))
    clips = calibration != "minmax"  # it gives outliers up, so the largest error says nothing
    assert 0 < np.sqrt(np.mean(error**2)) < (0.1 if clips else 0.02) * size
    assert clips or np.abs(error).max() < 0.05 * np.abs(exact).max()
    stored = [v for v in quantized.graph.initializers.values() if v.dtype == ir.DataType.FLOAT]
    assert max(v.const_value.size for v in stored) <= 120  # biases and scales: no weight is left


@pytest.mark.parametrize("target", ["onnxruntime", "generic"])
def test_it_answers_alike_with_and_without_vnni(trained, target):
    """And in full range it does not: the reference sees the defect on every machine."""
    model, data, test = trained
    x = {"x": test[0][:48]}
    answers = {}
    for full in (False, True):
        quantized = model.clone()
        config = Int8Config.for_target(target, full_range=full)
        report = quantize_int8(quantized, data, config)
        assert bool(saturating_weights(quantized)) is full
        assert any(
            ("can saturate" if full else "results are the same") in note for note in report.notes
        )
        exact, saturated = (
            run_as(quantized, x, saturates=there)["logits"] for there in (False, True)
        )
        off = np.sqrt(np.mean((saturated - exact) ** 2) / np.mean(exact**2))
        answers[full] = (off, exact, run(quantized, x)["logits"])
    assert answers[False][0] == 0
    assert answers[True][0] > 0.01
    _, exact, found = answers[False]
    # The reference is what the runtime computes, but for what rounds to the other side of one half.
    assert np.sqrt(np.mean((found - exact) ** 2)) < 0.01 * np.sqrt(np.mean(exact**2))


def test_any_two_weights_of_64_fit_into_16_bits():
    a = np.full((1, 2), 255)
    for w, fits in ((64, True), (-64, True), (65, False), (-65, False)):
        pair = np.full((2, 1), w, np.int8)
        equal = multiply(a, pair, saturates=True) == multiply(a, pair, saturates=False)
        assert equal.all() == fits
        assert can_saturate(pair, 1) != fits
    assert SAFE_WEIGHT == 64


def test_tensorrt_accepts_what_was_made_for_it(trained):
    model, data, _ = trained
    quantized = model.clone()
    quantize_int8(quantized, data, TENSORRT)
    for version in ("10.1", "10", "11"):
        report = check_tensorrt(quantized, parse_release(f"tensorrt={version}"))
        assert {f.rule for f in report.findings} == {"TRT040"}
    wrong = model.clone()
    quantize_int8(wrong, data, RUNTIME)
    rules = {f.rule for f in check_tensorrt(wrong, parse_release("tensorrt")).findings}
    assert {"TRT031", "TRT034"} <= rules  # unsigned, and biases in int32


def test_onnxruntime_runs_it_in_int8(trained, tmp_path):
    model, data, _ = trained
    quantized = model.clone()
    quantize_int8(quantized, data, RUNTIME)
    found = optimized_ops(quantized, tmp_path)
    assert not set(found) & {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "DequantizeLinear"}
    assert found["QGemm"] + found["QLinearConv"] == ops(model)["Conv"] + ops(model)["Gemm"]


@pytest.mark.parametrize(("reduce_range", "most"), [(True, 64), (False, 127)])
def test_the_numbers_are_those_of_the_definition(reduce_range, most):
    """A Gemm by hand, and by the reference evaluator of ONNX."""
    model = small_mlp()
    w = model.graph.initializers["w1"].const_value.numpy()
    x = feeds(4)[0]["x"]
    quantize_int8(model, [{"x": x}], Int8Config(reduce_range=reduce_range))
    node = by_name(model, "fc1")
    q = node.inputs[1].producer().inputs[0].const_value.numpy()
    scales = np.abs(w).max(1) / np.float32(most)
    np.testing.assert_array_equal(q, np.rint(w / scales[:, None]).astype(np.int8))
    assert q.dtype == np.int8
    assert np.abs(q).max() == most
    pair = node.inputs[0].producer()
    scale = pair.inputs[1].const_value.numpy()
    np.testing.assert_allclose(scale, np.abs(x).max() / 127, rtol=1e-6)
    assert int(pair.inputs[2].const_value.numpy()) == 0
    proto = ir.to_proto(model)
    proto.opset_import[0].version = 21  # the evaluator has these operators from 19 on
    reference = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    np.testing.assert_allclose(run(model, {"x": x})["logits"], reference, rtol=1e-5, atol=1e-6)


def test_unsigned_ranges_take_in_zero():
    data = [{"x": np.linspace(2, 6, 32, dtype=np.float32).reshape(8, 4)}]
    model = small_mlp()
    quantize_int8(model, data, Int8Config(symmetric=False))
    pair = by_name(model, "fc1").inputs[0].producer()
    assert pair.inputs[2].const_value.numpy() == 0
    np.testing.assert_allclose(pair.inputs[1].const_value.numpy(), 6 / 255, rtol=1e-6)
    data = [{"x": np.linspace(-1, 3, 32, dtype=np.float32).reshape(8, 4)}]
    model = small_mlp()
    quantize_int8(model, data, Int8Config(symmetric=False))
    pair = by_name(model, "fc1").inputs[0].producer()
    assert pair.inputs[2].const_value.numpy() == 64  # rint(1 / (4 / 255))
    assert pair.inputs[2].dtype == ir.DataType.UINT8


AXES = [
    ("[n] y = Conv(x, w)", (3, 5, 5), (4, 3, 2, 2), 0),
    ("[n] y = Conv<group = 3>(x, w)", (3, 5, 5), (6, 1, 2, 2), 0),
    ("[n] y = ConvTranspose(x, w)", (3, 5, 5), (3, 4, 2, 2), 1),
    ("[n] y = ConvTranspose<group = 3>(x, w)", (3, 5, 5), (3, 2, 2, 2), None),
    ("[n] y = Gemm(x, w)", (3,), (3, 5), 1),
    ("[n] y = Gemm<transB = 1>(x, w)", (3,), (5, 3), 0),
    ("[n] y = MatMul(x, w)", (2, 3), (3, 5), 1),
    ("[n] y = MatMul(x, w)", (2, 3), (1, 3, 5), None),
]


def layer(body, shape, weight, scale=None):
    dims, sizes = (",".join(map(str, s)) for s in (shape, weight))
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[b,{dims}] x, float[{sizes}] w) => (float y) {{ {body} }}"""
    array = weights(*weight, seed=4) * (1 if scale is None else scale)
    model = text_model(text, w=array)
    model.graph.outputs[0].shape = None
    return model


@pytest.mark.parametrize(("body", "shape", "weight", "axis"), AXES)
def test_each_output_channel_has_a_scale_of_its_own(body, shape, weight, axis):
    ramp = None
    if axis is not None:  # channels of very different size: one scale could not serve them
        ramp = (10.0 ** np.arange(weight[axis])).reshape(
            [-1 if i == axis else 1 for i in range(len(weight))]
        )
        ramp = ramp.astype(np.float32)
    model = layer(body, shape, weight, ramp)
    data = feeds(*shape)
    exact = run(model, data[0])["y"]
    report = quantize_int8(model, data, Int8Config())
    assert list(report.changed) == ["n"]
    node = by_name(model, "n").inputs[1].producer()
    if axis is None:
        assert node.inputs[1].const_value.numpy().shape == ()
    else:
        assert node.attributes.get_int("axis") == axis
        assert node.inputs[1].const_value.numpy().shape == (weight[axis],)
    found = run(checked(model), data[0])["y"]
    channel = 1 if "Conv" in body else -1
    others = tuple(i for i in range(exact.ndim) if i != channel % exact.ndim)
    off = np.abs(found - exact).max(others) / np.abs(exact).max(others)
    assert off.max() < 0.03


def test_one_scale_on_request():
    model = small_mlp()
    quantize_int8(model, feeds(4), Int8Config(per_channel=False))
    assert by_name(model, "fc1").inputs[1].producer().inputs[1].const_value.numpy().shape == ()


def test_normalization_is_folded_first():
    model = small_convnet()
    data = feeds(1, 6, 6)
    exact = run(model, data[0])["logits"]
    report = quantize_int8(model, data, TENSORRT)
    assert "BatchNormalization" not in ops(checked(model))
    assert len(report.changed) == 2
    assert any("folded into" in note for note in report.notes)
    np.testing.assert_allclose(
        run(model, data[0])["logits"], exact, atol=0.05 * np.abs(exact).max()
    )


def test_islands_stay_in_float():
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[b,8] x, float[8,8] w, float[8] s) => (float[b,8] y) {
      [a] h = MatMul(x, w) [n] l = LayerNormalization(h, s, s)
      [e] p = Softmax(l) [z] y = MatMul(p, w)
    }"""
    for config in (TENSORRT, RUNTIME):
        model = text_model(text, w=weights(8, 8), s=np.ones(8, np.float32))
        report = quantize_int8(model, feeds(8), config)
        assert set(report.changed) == {"a", "z"}
        assert by_name(model, "n").inputs[0].producer().name == "a"
        assert by_name(model, "e").inputs[0].producer().name == "n"
        assert any("LayerNormalization" in note and "Softmax" in note for note in report.notes)
        shared = {by_name(model, n).inputs[1].producer().name for n in "az"}
        assert len(shared) == 1  # one weight, stored once
        checked(model)


RESIDUAL = """<ir_version: 9, opset_import: ["" : 18]>
g (float[b,4,6,6] x, float[4,4,3,3] w, float[4,4,3,3] v) => (float[b,4,6,6] y) {
  [c1] a = Conv<pads = [1, 1, 1, 1]>(x, w) [r1] r = Relu(a)
  [c2] c = Conv<pads = [1, 1, 1, 1]>(r, v) [add] s = Add(c, x) [r2] t = Relu(s)
  [c3] y = Conv<pads = [1, 1, 1, 1]>(t, w)
}"""


def residual(op="Conv"):
    return text_model(
        RESIDUAL.replace("c = Conv", f"c = {op}"),
        w=weights(4, 4, 3, 3),
        v=weights(4, 4, 3, 3, seed=1),
    )


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_the_shortcut_is_quantized_for_tensorrt(op):
    model = residual(op)
    quantize_int8(model, feeds(4, 6, 6), TENSORRT)
    sides = [value.producer().op_type for value in by_name(model, "add").inputs]
    assert sides == [op, "DequantizeLinear"]
    plain = residual()
    quantize_int8(plain, feeds(4, 6, 6), Int8Config())
    assert [v.name for v in by_name(plain, "add").inputs] == ["c", "x"]


def test_the_sum_is_quantized_for_onnxruntime(tmp_path):
    model = residual()
    quantize_int8(model, feeds(4, 6, 6), RUNTIME)
    found = optimized_ops(checked(model), tmp_path)
    assert found["QLinearConv"] >= 2
    assert found["QLinearAdd"] == 1


def test_skipped_and_refused_nodes_have_a_reason():
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[b,4] x, float[4,4] w, float[4,4] u, float16[4,4] h, float[4,4] bad)
    => (float y, float16 z) {
      [skipped] a = MatMul(x, w) [two] t = MatMul(a, u) [left] l = MatMul(w, u)
      [ok] o = MatMul(l, w)
      [nan] n = MatMul(o, bad) [both] q = MatMul(w, w) y = Add(n, q)
      c = Cast<to = 10>(x) [half] z = MatMul(c, h)
    }"""
    stored = {"w": weights(4, 4), "h": weights(4, 4).astype(np.float16)}
    model = text_model(text, bad=np.full((4, 4), np.nan, np.float32), **stored)
    for value in model.graph.outputs:
        value.shape = None
    data = [{"x": weights(4, 4), "u": weights(4, 4, seed=2)}]
    report = quantize_int8(model, data, Int8Config(skip=("skip*",)))
    assert list(report.changed) == ["ok"]
    reasons = {
        "skipped": "pattern 'skip*'",
        "two": "two activations",
        "left": "on the left",
        "nan": "not finite",
        "both": "two constants",
        "half": "FLOAT16",
    }
    assert set(report.kept) == set(reasons)
    for name, words in reasons.items():
        assert words in report.kept[name]


def recurrent(**attributes):
    """A bidirectional LSTM of 6 inputs and 5 units, with a bias and peepholes."""
    given = "".join(f", {name} = {value}" for name, value in attributes.items())
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[b,t,6] x, float[2,20,6] w, float[2,20,5] r, float[2,40] c, float[2,15] p)
    => (float[t,2,b,5] y, float[2,b,5] h) {{
      s = Transpose<perm = [1, 0, 2]>(x)
      [cell] y, h = LSTM<hidden_size = 5, direction = "bidirectional"{given}>(s, w, r, c,,,,p)
    }}"""
    shapes = {"w": (2, 20, 6), "r": (2, 20, 5), "c": (2, 40), "p": (2, 15)}
    return text_model(
        text, **{n: weights(*shape, seed=i) for i, (n, shape) in enumerate(shapes.items())}
    )


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_recurrent_layer_has_int8_weights_for_onnxruntime(per_channel):
    model, data = recurrent(layout=0), {"x": weights(4, 7, 6)}
    before = run(model, data)
    config = dataclasses.replace(RUNTIME, per_channel=per_channel)
    report = quantize_int8(model, [data], config)
    assert list(report.changed) == ["cell"]
    assert dict(ops(checked(model))) == {"Transpose": 1, "DynamicQuantizeLSTM": 1}
    stored = model.graph.initializers.values()
    assert [v.dtype for v in stored if v.shape.rank() == 3] == [ir.DataType.INT8] * 2
    for name, found in run(model, data).items():
        noise = np.square(found - before[name]).sum() / np.square(before[name]).sum()
        assert noise < 1e-3
    assert not saturating_weights(model)


def test_a_recurrent_layer_stays_in_float_elsewhere():
    data = [{"x": weights(4, 7, 6)}]
    for config, reason in (
        (TENSORRT, "only the CPU of ONNX Runtime"),
        (dataclasses.replace(RUNTIME, skip=("cel*",)), "skipped by the pattern"),
    ):
        report = quantize_int8(recurrent(), data, config)
        assert reason in report.kept["cell"]


def test_8_bits_of_a_recurrent_layer_may_saturate():
    model = recurrent()
    full = Int8Config.for_target("onnxruntime", full_range=True)
    quantize_int8(model, [{"x": weights(4, 7, 6)}], full)
    assert len(saturating_weights(model)) == 2


def test_nodes_are_skipped_by_the_name_of_their_weight_too():
    model = small_convnet()  # folding gives the convolution another name
    report = quantize_int8(model, feeds(1, 6, 6), Int8Config(skip=("cw",)))
    assert list(report.changed) == ["fc"]
    assert "pattern 'cw'" in next(iter(report.kept.values()))


def test_a_pattern_that_skips_nothing_is_refused():
    with pytest.raises(UsageError, match=r"'fd\*' matches no layer") as caught:
        quantize_int8(small_mlp(), feeds(4), Int8Config(skip=("fc1", "fd*")))
    assert_three_lines(caught.value)


def test_an_input_that_is_not_finite_is_left_alone():
    model = small_mlp()
    data = feeds(4)
    data[0]["x"][0, 0] = np.inf
    report = quantize_int8(model, data)
    assert "fc1" in report.kept
    assert "not finite" in report.kept["fc1"]
    assert all(v is None or v.producer() is None for v in by_name(model, "fc1").inputs)
    checked(model)


def test_zero_channels_and_zero_inputs():
    model = small_mlp()
    w = model.graph.initializers["w1"]
    array = w.const_value.numpy().copy()
    array[2] = 0
    w.const_value = ir.tensor(array, name="w1")
    data = [{"x": np.zeros((2, 4), np.float32)}]
    exact = run(model, data[0])["logits"]
    quantize_int8(model, data)
    found = run(checked(model), data[0])["logits"]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, exact, atol=0.05)


def test_a_second_run_does_nothing():
    model = small_mlp()
    quantize_int8(model, feeds(4))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    report = quantize_int8(model, feeds(4))
    assert not report.changed
    assert "already" in report.notes[0]
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_an_old_opset_is_raised():
    model = text_model(
        """<ir_version: 6, opset_import: ["" : 11]>
        g (float[b,4] x, float[4,3] w) => (float[b,3] y) { [n] y = MatMul(x, w) }""",
        w=weights(4, 3),
    )
    quantize_int8(model, feeds(4))
    assert model.opset_imports[""] == 13
    checked(model)


def test_inputs_and_outputs_keep_their_names_and_types():
    for config in (TENSORRT, RUNTIME, Int8Config()):
        model = small_mlp()
        quantize_int8(model, feeds(4), config)
        assert [(v.name, v.dtype) for v in model.graph.inputs] == [("x", ir.DataType.FLOAT)]
        assert [(v.name, v.dtype) for v in model.graph.outputs] == [("logits", ir.DataType.FLOAT)]


def test_no_data():
    with pytest.raises(UsageError) as info:
        quantize_int8(small_mlp(), [])
    assert_three_lines(info.value)


@pytest.mark.parametrize(
    "settings",
    [{"calibration": "mean"}, {"percentile": 40}, {"percentile": 101}, {"ops": ("Softmax",)}],
)
def test_configurations_that_make_no_sense(settings):
    with pytest.raises(ConfigError) as info:
        Int8Config(**settings)
    assert_three_lines(info.value)


def test_an_unknown_target():
    with pytest.raises(UsageError):
        Int8Config.for_target("tensorflow")


def test_torch_and_the_training_package_are_not_imported():
    code = (
        "import sys, ortboost.deploy.int8; "
        "print([m for m in ('torch', 'onnxruntime.training', 'onnxruntime.quantization') if m in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_activation_between_convolutions_keeps_them_in_int8(tmp_path):
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[b,4,6,6] x, float[4,4,3,3] w) => (float[b,4,6,6] y) {
      [c1] a = Conv<pads = [1, 1, 1, 1]>(x, w) [h] r = HardSwish(a)
      [c2] c = Conv<pads = [1, 1, 1, 1]>(r, w) [s] y = Sigmoid(c)
    }"""
    model = text_model(text, w=weights(4, 4, 3, 3))
    quantize_int8(model, feeds(4, 6, 6), RUNTIME)
    found = optimized_ops(checked(model), tmp_path)
    assert found["QLinearConv"] == 2
    assert not found["Conv"]


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_a_bias_whose_scale_would_be_zero_stays_float(bias):
    """The product of two tiny scales is 0 in float32, and 0 / 0 is no integer."""
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> net (float[n,4] x, float[4,3] w, float[3] b) '
        "=> (float[n,3] y) { [fc] y = Gemm(x, w, b) }"
    )
    w, b = np.full((4, 3), 1e-30, np.float32), np.full(3, bias, np.float32)
    model = text_model(text, w=w, b=b)
    report = quantize_int8(model, [{"x": np.full((2, 4), 1e-30, np.float32)}], RUNTIME)
    assert any("fc: its bias does not fit in int32" in note for note in report.notes)
    assert by_name(model, "fc").inputs[2].name == "b"
    checked(model)
