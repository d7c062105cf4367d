"""Exports of plain models, comparisons, and their verbs."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost import api
from ortboost.cli import main
from ortboost.core.errors import FileError, OrtBoostError, ParityError, UsageError
from ortboost.deploy.int8.config import Int8Config
from ortboost.deploy.pipeline import REWRITES
from ortboost.graph import io
from ortboost.graph.io import load_model, save_model
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.config import ProgramConfig
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.transforms.attach_loss import LossConfig
from tests.support import (
    ROOT,
    assert_same_bits,
    assert_three_lines,
    digits,
    model_path,
    run,
    small_convnet,
    small_mlp,
    text_model,
    weights,
)

DIGITS = str(ROOT / "models/digits.npz")


@pytest.fixture
def convnet(tmp_path):
    path = tmp_path / "net.onnx"
    save_model(small_convnet(), path)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exporting") / "run"
    api.convert(model_path("mlp"), folder)
    api.train(folder, DIGITS, epochs=2, learning_rate="0.1", device="cpu", threads=1)
    return folder


# ---- a plain model -------------------------------------------------------------------------------


def test_a_plain_model(convnet, tmp_path):
    out = tmp_path / "out.onnx"
    result = api.export(convnet, out, device="cpu")
    assert result.synthetic
    assert result.parity.ok
    assert result.step is None
    proto = onnx.load(out)
    onnx.checker.check_model(proto, full_check=True)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert metadata["ortboost.source"] == "net.onnx"
    assert metadata["ortboost.target"] == "onnxruntime"
    assert "fold_bn" in metadata["ortboost.rewrites"]
    x = {"x": weights(2, 1, 6, 6)}
    want, have = run(convnet, x), run(out, x)
    np.testing.assert_allclose(have["logits"], want["logits"], rtol=1e-4, atol=1e-5)
    assert json.dumps(result.to_dict())


def test_with_data_the_accuracy_is_told(tmp_path):
    result = api.export(
        model_path("lenet5"), tmp_path / "out.onnx", verify=DIGITS, device="cpu", batch_size=50
    )
    assert not result.synthetic
    assert result.parity.samples == 360
    before, after = result.metrics["accuracy"]
    scores = run(model_path("lenet5"), {"x": digits()["x_test"].astype(np.float32) / 255})
    labels = digits()["y_test"]
    assert before == after == pytest.approx(float((scores["logits"].argmax(1) == labels).mean()))


def test_texts_are_fed_and_compared(tmp_path):
    path = tmp_path / "text.onnx"
    save_model(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (string[n] x) => (string[n] y, int64 count) {
            i = Identity(x) y = Identity(i) count = Size(i) }"""
        ),
        path,
    )
    assert api.export(path, tmp_path / "o.onnx", device="cpu").parity.ok


def test_the_accuracy_leaves_out_the_padding_along_the_batch_axis(tmp_path):
    """Labels [positions, samples] of a graph with a fixed batch: six samples in batches of four."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[5,4,3] x, float[3,3] w) => (float[5,4,3] y) { y = MatMul(x, w) }""",
        w=np.eye(3, dtype=np.float32),
    )
    config = ProgramConfig(
        loss=LossConfig(class_axis=-1), inputs=InputConfig(batch_axes={"x": 1, "labels": 1})
    )
    api.convert(model, tmp_path / "run", config)
    labels = np.random.default_rng(0).integers(0, 3, (5, 6))
    data = {"x": np.eye(3, dtype=np.float32)[labels], "labels": labels}
    data["x"][3:] = data["x"][3:, :, ::-1]  # some of the last two positions are wrong
    data["x"][:, 4:] = -data["x"][:, 4:]  # all of the last two samples
    result = api.export(
        tmp_path / "run", tmp_path / "o.onnx", checkpoint="initial", verify=data, device="cpu"
    )
    wanted = api.evaluate(tmp_path / "run", data, checkpoint="initial", device="cpu")["accuracy"]
    assert 0 < wanted < 1
    assert result.metrics["accuracy"] == pytest.approx((wanted, wanted))


def test_a_model_of_two_classes_that_ends_with_a_sigmoid(tmp_path):
    """Its probabilities are above 0 for both classes."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,2] x, float[2,1] w) => (float[batch,1] p) {
            y = MatMul(x, w)
            p = Sigmoid(y) }""",
        w=np.ones((2, 1), np.float32),
    )
    config = ProgramConfig(loss=LossConfig("bce-with-logits"))
    api.convert(model, tmp_path / "run", config)
    x = weights(40, 2)
    data = {"x": x, "labels": (x.sum(axis=1, keepdims=True) > 0.2).astype(np.float32)}
    result = api.export(
        tmp_path / "run", tmp_path / "o.onnx", checkpoint="initial", verify=data, device="cpu"
    )
    found = run(load_model(tmp_path / "o.onnx"), {"x": x})["p"]
    wanted = ((found > 0.5) == (data["labels"] > 0.5)).mean()
    assert 0.5 < wanted < 1
    assert result.metrics["accuracy"] == pytest.approx((wanted, wanted))
    for target, more in ((tmp_path / "run", {"checkpoint": "initial"}), (tmp_path / "o.onnx", {})):
        measured = api.evaluate(target, data, metrics=["accuracy"], device="cpu", **more)
        assert measured["accuracy"] == pytest.approx(wanted)


@pytest.mark.parametrize("settings", [{}, {"precision": "fp16"}])
def test_results_can_be_pickled(settings, trained, tmp_path):
    """As joblib and multiprocessing do; the steps of an export are closures."""
    result = api.export(trained, tmp_path / "out.onnx", **settings)
    found = pickle.loads(pickle.dumps(result))
    assert found.to_dict() == result.to_dict()
    assert ir.to_proto(found.exported.model) == ir.to_proto(result.exported.model)
    program, state, checkpoint = pickle.loads(pickle.dumps(api.load_run(trained)))
    assert_same_bits(state, checkpoint.state)
    assert program.fingerprint == api.load_run(trained)[0].fingerprint
    comparison = api.compare(trained, tmp_path / "out.onnx")
    assert pickle.loads(pickle.dumps(comparison)) == comparison


@pytest.mark.parametrize("form", ["proto", "model"])
def test_a_model_in_memory_is_as_good_as_its_file(form, convnet, tmp_path):
    held = onnx.load(convnet) if form == "proto" else load_model(convnet)
    before = ir.to_proto(held) if form == "model" else onnx.load(convnet)
    result = api.export(held, tmp_path / "memory.onnx")
    of_file = api.export(convnet, tmp_path / "file.onnx")
    graphs = [ir.to_proto(found.exported.model).graph for found in (result, of_file)]
    assert graphs[0] == graphs[1]
    assert api.compare(held, held, bisect=True).parity.ok
    assert api.compare(tmp_path / "file.onnx", held).parity.ok
    data = {"x": weights(6, 1, 6, 6), "labels": np.arange(6) % 3}
    assert api.evaluate(held, data) == api.evaluate(convnet, data)
    found, expected = api.inspect(held), api.inspect(convnet)
    assert dataclasses.replace(found, path="", bytes=0) == dataclasses.replace(
        expected, path="", bytes=0
    )
    assert found.bytes is None
    # It is not changed, and messages name it.
    assert (ir.to_proto(held) if form == "model" else held) == before
    for refused in (
        lambda: api.evaluate(held, data, update_bn=data),
        lambda: api.compare(held, small_mlp()),
    ):
        with pytest.raises(UsageError) as caught:
            refused()
        assert_three_lines(caught.value)
        assert found.path in caught.value.where


def test_data_without_labels_will_do(convnet, tmp_path):
    data = tmp_path / "x.npz"
    np.savez(data, x=weights(9, 1, 6, 6))
    result = api.export(convnet, tmp_path / "o.onnx", verify=data, device="cpu")
    assert result.parity.samples == 9
    assert result.metrics == {}


def test_a_program_needs_no_labels_either(trained, tmp_path):
    x, y = (np.load(DIGITS)[name] for name in ("x_test", "y_test"))
    out = tmp_path / "o.onnx"
    result = api.export(trained, out, verify={"x": x}, device="cpu")
    assert (result.parity.samples, result.metrics) == (360, {})
    assert api.compare(trained, out, data={"x": x}, device="cpu").metrics == {}
    settings = {"precision": "int8", "calibration": {"x": x}, "device": "cpu"}
    unlabelled = api.export(trained, tmp_path / "a.onnx", **settings)
    api.export(trained, tmp_path / "b.onnx", **settings | {"calibration": (x, y)})
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert any("No accuracy was measured" in note for note in unlabelled.notes)
    with pytest.raises(UsageError, match="The label 10 is not a class"):
        api.export(trained, out, verify=(x, y + 1), device="cpu")


def test_labels_of_another_size_than_the_data_are_needed(tmp_path):
    """Every second value: the inputs do not have the length of the labels."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,length,2] x, float[2,3] w) => (float[batch,half,3] y) {
          scaled = MatMul(x, w)
          one = Constant<value = int64[1] {1}>()
          two = Constant<value = int64[1] {2}>()
          end = Constant<value = int64[1] {99}>()
          y = Slice(scaled, one, end, one, two)
        }""",
        w=weights(2, 3),
    )
    api.convert(model, tmp_path / "run", ProgramConfig(loss=LossConfig("mse")))
    data = {"x": weights(6, 4, 2)}
    with pytest.raises(UsageError, match="No array feeds the input 'labels'"):
        api.export(
            tmp_path / "run", tmp_path / "o.onnx", verify=data, checkpoint="initial", device="cpu"
        )


def test_labels_that_the_model_reads_are_drawn_with_its_other_inputs(tmp_path):
    """The dynamo exporter names the axes of each input differently."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[a,4] x, int64[b] labels, float[4,3] w) => (float loss) {
        y = MatMul(x, w) loss = SoftmaxCrossEntropyLoss(y, labels) }""",
        w=weights(4, 3),
    )
    assert api.export(model, tmp_path / "out.onnx", device="cpu").synthetic


def test_a_program_tells_accuracies_of_real_samples_only(trained, tmp_path):
    result = api.export(trained, tmp_path / "o.onnx", verify=DIGITS, device="cpu")
    measured = api.evaluate(tmp_path / "o.onnx", DIGITS, device="cpu")["accuracy"]
    assert result.metrics["accuracy"] == (pytest.approx(measured), pytest.approx(measured))
    fixed = tmp_path / "fixed.onnx"
    model = load_model(tmp_path / "o.onnx")
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = ir.Shape(
            [7, *value.shape[1:]]
        )  # 360 is not a multiple: the last batch is padded
    save_model(model, fixed)
    result = api.export(fixed, tmp_path / "p.onnx", verify=DIGITS, device="cpu")
    assert result.metrics["accuracy"][1] == pytest.approx(measured)
    assert result.parity.samples == 360
    assert api.compare(fixed, tmp_path / "p.onnx", data=DIGITS, device="cpu").parity.samples == 360


def test_a_program_of_numbers_has_no_accuracy(tmp_path):
    """With one it would decide about int8: numbers above 0 would count as class 1."""
    rng = np.random.default_rng(0)
    data = {
        "x": rng.standard_normal((32, 4), np.float32),
        "labels": rng.random((32, 1), np.float32),
    }
    run, out = tmp_path / "run", tmp_path / "o.onnx"
    api.convert(small_mlp(classes=1), run, ProgramConfig(loss=LossConfig("mse")))
    settings = {"checkpoint": "initial", "verify": data, "precision": "int8", "calibration": data}
    assert not api.export(run, out, **settings).metrics
    assert not api.compare(run, out, checkpoint="initial", data=data).metrics
    with pytest.raises(ParityError, match="below 200 dB"):
        api.export(run, out, **settings, min_sqnr=200.0)


def test_a_ratio_that_does_not_decide_is_told(trained, tmp_path):
    settings = {"verify": DIGITS, "precision": "int8", "calibration": DIGITS}
    found = api.export(trained, tmp_path / "o.onnx", **settings, min_sqnr=200.0)
    assert "For 'logits', the accuracy was checked instead of --min-sqnr." in found.notes


SHAPES = {"w": (1, 40, 6), "r": (1, 40, 10), "k": (10, 2)}


def test_int8_says_which_weights_it_leaves_in_float32_and_that_it_takes_longer(
    tmp_path, monkeypatch
):
    net = text_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[b,5,6] x, float[1,40,6] w, float[1,40,10] r, float[10,2] k) => (float y) {
          s = Transpose<perm = [1, 0, 2]>(x) a, h = LSTM<hidden_size = 10>(s, w, r)
          y = MatMul(a, k) }""",
        **{name: weights(*shape) for name, shape in SHAPES.items()},
    )
    monkeypatch.setattr("ortboost.api.export_model.not_faster", lambda *_: "It takes longer.")
    settings = {"precision": "int8", "calibration": {"x": weights(4, 5, 6)}, "device": "cpu"}
    found = {
        target: api.export(net, tmp_path / "o.onnx", target=target, **settings).notes
        for target in ("onnxruntime", "tensorrt")
    }
    note = "96 % of the weights stay in float32: --explain says why."
    assert [note in notes for notes in found.values()] == [False, True]
    assert ["It takes longer." in notes for notes in found.values()] == [True, False]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize(("dtype", "why"), [("double", "none computes"), ("float", "--explain")])
def test_a_note_if_no_node_was_converted(precision, dtype, why, tmp_path):
    path, out = tmp_path / "net.onnx", tmp_path / "o.onnx"
    graph = f"net ({dtype}[n,4] x, {dtype}[4] w) => ({dtype}[n,4] y) {{ y = Softplus(x) }}"
    model = text_model(f'<ir_version: 10, opset_import: ["" : 18]> {graph}', w=weights(4))
    save_model(model, path)
    data = {"x": np.ones((8, 4), np.float64 if dtype == "double" else np.float32)}
    found = api.export(path, out, precision=precision, calibration=data, verify=data)
    assert [note for note in found.notes if f"No node was converted to {precision}: {why}" in note]


def test_only_a_program_has_checkpoints(convnet, tmp_path):
    for verb in (
        lambda: api.export(convnet, tmp_path / "o.onnx", checkpoint="last"),
        lambda: api.compare(convnet, convnet, checkpoint="last"),
        lambda: api.evaluate(convnet, DIGITS, checkpoint="last"),
    ):
        with pytest.raises(UsageError, match="Only a program folder has checkpoints"):
            verb()
    with pytest.raises(FileError, match="does not exist"):  # a program that was not made
        api.evaluate(tmp_path / "run", DIGITS, checkpoint="last")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"target": "tensorrt=9"}, "Unknown target"),
        ({"target": "tensorrt=10", "opset": 21}, "does not support opset 21"),
        ({"precision": "bf16"}, "no bfloat16"),
        ({"precision": "half"}, "Unknown precision"),
        ({"calibration": DIGITS}, "lower precision"),
        ({"rtols": {"nope": 1.0}}, "no such output"),
        ({"opset": 4}, "opset 4"),
        ({"int8": Int8Config()}, "Settings of int8"),
        ({"precision": "int8", "min_sqnr": float("nan")}, "a finite number"),
        ({"precision": "int8", "max_drop": float("nan")}, "0 or more"),
    ],
)
def test_what_is_refused(settings, text, convnet, tmp_path):
    out = tmp_path / "o.onnx"
    with pytest.raises(OrtBoostError, match=text) as info:
        api.export(convnet, out, device="cpu", **settings)
    assert_three_lines(info.value)
    assert not out.exists()


def test_the_model_itself_is_not_overwritten(convnet):
    before = convnet.read_bytes()
    with pytest.raises(UsageError, match="overwrite the model"):
        api.export(convnet, convnet.parent / "." / convnet.name, device="cpu")
    assert convnet.read_bytes() == before


def test_a_model_in_training_mode(tmp_path):
    """The comparison is with its inference form: Dropout off, running statistics."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,4,5,5] x, float[4] s, float[4] b, float[4] m, float[4] v, float r, bool t)
        => (float[n,4,5,5] y) {
          h, nm, nv = BatchNormalization<training_mode = 1>(x, s, b, m, v)
          d = Dropout(h, r, t)  y = Relu(d)
        }""",
        s=weights(4), b=weights(4), m=weights(4), v=1 + weights(4) ** 2,
        r=np.float32(0.5), t=np.array(True),
    )  # fmt: skip
    save_model(model, tmp_path / "t.onnx")
    result = api.export(tmp_path / "t.onnx", tmp_path / "o.onnx", device="cpu")
    assert result.parity.ok
    assert [node.op_type for node in result.exported.model.graph] == ["BatchNormalization", "Relu"]
    assert "training mode" in result.notes[0]
    found = api.compare(tmp_path / "t.onnx", tmp_path / "o.onnx", bisect=True, device="cpu")
    assert not found.parity.ok  # compared unchanged
    assert found.first.op_type == "BatchNormalization"


def test_a_note_on_an_input_that_becomes_part_of_the_model(tmp_path):
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,2] x, float t, float[2,2] w) => (float[N,2] y) {
          h = MatMul(x, w) y = Mul(h, t) }""",
        t=np.float32(2),
        w=weights(2, 2),
    )
    model.graph.inputs.append(model.graph.initializers["t"])
    done = api.export(model, tmp_path / "net.onnx", device="cpu")
    assert any("1 input with a default value, first 't'" in note for note in done.notes)


def test_a_note_on_integers_only_where_there_are_some(convnet, tmp_path):
    result = api.export(convnet, tmp_path / "o.onnx", target="tensorrt=10", device="cpu")
    assert not any("INT64" in note for note in result.notes)
    words = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[n,4] ids, float[9,2] table) => (float[n,4,2] y) { y = Gather(table, ids) }""",
        table=weights(9, 2),
    )
    save_model(words, tmp_path / "w.onnx")
    result = api.export(
        tmp_path / "w.onnx", tmp_path / "p.onnx", target="tensorrt=10", device="cpu"
    )
    assert any("INT64" in note for note in result.notes)


def test_external_data_everywhere(tmp_path, monkeypatch):
    """Beyond the limit nothing is ever one message: the files are read by the runtime itself."""
    monkeypatch.setattr(
        io.save_model, "__kwdefaults__", {"external_data_threshold": 100, "proto": None}
    )
    source, out = tmp_path / "net.onnx", tmp_path / "out" / "net.onnx"
    out.parent.mkdir()
    save_model(small_convnet(), source)
    assert (tmp_path / "net.onnx.data").is_file()

    opened = []
    original = ModelEvaluator.__init__

    def watch(self, model, **kwargs):
        opened.append(type(model).__name__)
        original(self, model, **kwargs)

    monkeypatch.setattr(ModelEvaluator, "__init__", watch)
    result = api.export(source, out, device="cpu")
    assert result.parity.ok
    assert sorted(os.listdir(out.parent)) == ["net.onnx", "net.onnx.data"]
    assert "Model" not in opened
    x = {"x": weights(2, 1, 6, 6)}
    np.testing.assert_allclose(
        run(out, x)["logits"], run(source, x)["logits"], rtol=1e-4, atol=1e-5
    )
    assert api.compare(source, out, bisect=True, device="cpu").first is None


def test_an_output_of_nan_is_told(tmp_path):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]> net
        (float[n,4] x, float c) => (float[n,4] y, float[n,4] z)
        { z = Relu(x) y = Add(x, c) }""",
        c=np.float32(np.nan),
    )
    save_model(model, tmp_path / "n.onnx")
    result = api.export(tmp_path / "n.onnx", tmp_path / "o.onnx", device="cpu")
    assert ["'y'" in note for note in result.notes if "NaN" in note] == [True]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_output_of_random_numbers_is_written_and_told(tmp_path, precision):
    """A VAE that draws its noise itself: no two runs agree."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]> net
        (float[n,4] x, float[4,4] w) => (float[n,4] y, float[n,4] z)
        { z = MatMul(x, w) r = RandomNormalLike(z) y = Add(z, r) }""",
        w=weights(4, 4),
    )
    save_model(model, tmp_path / "n.onnx")
    result = api.export(tmp_path / "n.onnx", tmp_path / "o.onnx", precision=precision, device="cpu")
    assert [n for n in result.notes if "random" in n] == [
        "'y': computed from random numbers, so only the shape was compared."
    ]
    assert {d.output: d.within for d in result.parity.differences} == {"y": True, "z": True}


# ---- compare -------------------------------------------------------------------------------------


def spoilt(path, target, name="s", factor=1.5):
    model = load_model(path)
    value = model.graph.initializers[name]
    value.const_value = ir.tensor(value.const_value.numpy() * np.float32(factor), name=name)
    save_model(model, target)
    return target


def test_compare(convnet, tmp_path):
    found = api.compare(convnet, convnet, device="cpu")
    assert found.parity.ok
    assert found.parity.worst.max_abs == 0
    other = spoilt(convnet, tmp_path / "b.onnx")
    found = api.compare(convnet, other, bisect=True, device="cpu")
    assert not found.parity.ok
    assert found.first.node == "bn"
    assert "'n' of BatchNormalization 'bn'" in found.first_text()
    assert found.to_dict()["first"]["tensor"] == "n"
    assert api.compare(convnet, other, device="cpu", atol=100.0).parity.ok
    assert api.compare(convnet, other, device="cpu", atols={"logits": 100.0}).parity.ok


def test_the_search_runs_on_the_batch_that_differs(tmp_path):
    """Of three batches only the second has negative numbers; the constant has no samples."""
    for name, op in (("one", "Identity"), ("other", "Relu")):
        model = text_model(
            f"""<ir_version: 10, opset_import: ["" : 18]>
            net (float c, float[2] s, float[n,2] x) => (float[n,2] y)
            {{ h = {op}(x) g = Add(h, c) y = Mul(g, s) }}""",
            s=np.ones(2, np.float32),
        )
        save_model(model, tmp_path / f"{name}.onnx")
    found = api.compare(
        tmp_path / "one.onnx",
        tmp_path / "other.onnx",
        data={"x": np.float32([[1, 1], [1, 1], [-1, 1], [1, 1], [1, 1], [1, 1]])},
        inputs=InputConfig(values={"c": 0.0}),
        batch_size=2,
        bisect=True,
        device="cpu",
    )
    assert (found.parity.worst.sample, found.first.difference.output) == (2, "h")


def test_a_program_and_its_export(trained, tmp_path):
    out = tmp_path / "o.onnx"
    api.export(trained, out, device="cpu")
    found = api.compare(trained, out, data=DIGITS, device="cpu", bisect=True)
    assert found.parity.ok
    assert found.metrics["accuracy"][0] == found.metrics["accuracy"][1]
    found = api.compare(trained, spoilt(out, tmp_path / "b.onnx", "fc2.bias", 3.0), data=DIGITS,
                        device="cpu", bisect=True)  # fmt: skip
    assert not found.parity.ok
    assert found.first.difference.output == "logits"


def test_a_model_with_16_bit_nodes_is_compared_as_they_allow(tmp_path):
    """The trained program rounds each of them, the runtime only some: 4 in 10,000 here."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,8] x, float[8,16] v, float[16,16] w) => (float[N,16] y) {
          a = MatMul(x, v)  b = Cast<to = 10>(a)  c = Cast<to = 10>(w)  d = MatMul(b, c)
          e = Mul(d, d)  f = Cast<to = 1>(e)  y = MatMul(f, w) }""",
        v=weights(8, 16),
        w=weights(16, 16),
    )
    save_model(model, tmp_path / "net.onnx")
    config = ProgramConfig(loss=LossConfig("mse"), engine="portable")
    api.convert(tmp_path / "net.onnx", tmp_path / "run", config)
    out = tmp_path / "out.onnx"
    found = api.export(tmp_path / "run", out, checkpoint="initial", device="cpu")
    assert found.parity.ok
    with pytest.raises(ParityError):
        api.export(tmp_path / "run", out, checkpoint="initial", rtol=1e-3, atol=1e-4, device="cpu")
    assert api.compare(tmp_path / "run", out, checkpoint="initial", device="cpu").parity.ok


def test_a_file_is_compared_as_its_precision_allows(trained, tmp_path):
    out = tmp_path / "h.onnx"
    allowed = api.export(trained, out, precision="fp16", verify=DIGITS, device="cpu").parity
    found = api.compare(trained, out, data=DIGITS, device="cpu").parity
    assert found.tolerance == allowed.tolerance
    assert found.ok
    assert not api.compare(trained, out, data=DIGITS, device="cpu", rtol=0, atol=0).parity.ok
    model = load_model(out)
    model.metadata_props["ortboost.precision"] = "fp4"  # of another version
    save_model(model, out)
    assert api.compare(trained, out, data=DIGITS, device="cpu").parity.tolerance.rtol == 1e-3


def test_models_that_have_nothing_in_common(convnet, tmp_path):
    save_model(small_mlp(), tmp_path / "mlp.onnx")
    with pytest.raises(OrtBoostError) as info:
        api.compare(convnet, tmp_path / "mlp.onnx", device="cpu")
    assert_three_lines(info.value)
    model = small_convnet()
    model.graph.outputs[0].name = "other"
    save_model(model, tmp_path / "c.onnx")
    with pytest.raises(UsageError, match="no output in common") as common:
        api.compare(convnet, tmp_path / "c.onnx", device="cpu")
    assert common.value.where.endswith("c.onnx: other")
    assert "matched by name" in common.value.fix
    model = small_convnet()
    model.graph.inputs[0].name = "image"
    save_model(model, tmp_path / "d.onnx")
    with pytest.raises(UsageError, match="has the input 'image'"):
        api.compare(convnet, tmp_path / "d.onnx", device="cpu")


# ---- the verbs -----------------------------------------------------------------------------------


def test_export_and_compare_as_verbs(convnet, tmp_path, capsys):
    out = str(tmp_path / "o.onnx")
    words = ["export", str(convnet), "-o", out, "--target", "generic", "--explain"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "generic, fp32" in text
    assert "bn: folded into conv" in text
    assert main(["compare", str(convnet), out, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"]
    assert data["compared_on"] == "synthetic inputs"
    other = spoilt(convnet, tmp_path / "b.onnx")
    assert main(["compare", str(convnet), str(other), "--bisect"]) == 5
    text = capsys.readouterr().out
    assert "NO" in text
    assert "First difference: 'n'" in text
    loose = ["--rtol", "logits:1e9", "--atol", "1e9"]
    assert main(["compare", str(convnet), str(other), *loose]) == 0


def test_a_rewrite_that_is_wrong_is_named(convnet, tmp_path, capsys, monkeypatch):
    def wrong(model, target):
        value = model.graph.initializers["fb"]
        value.const_value = ir.tensor(value.const_value.numpy() + 1, name="fb")
        return original(model, target)

    original = REWRITES["merge_views"]
    monkeypatch.setitem(REWRITES, "merge_views", wrong)
    out = tmp_path / "o.onnx"
    assert main(["export", str(convnet), "-o", str(out)]) == 5
    captured = capsys.readouterr()
    assert "the rewrite 'merge_views'" in captured.err
    assert captured.out == ""
    assert not out.exists()
    with pytest.raises(ParityError):
        api.export(convnet, out, device="cpu")
    monkeypatch.undo()
    assert main(["export", str(convnet), "-o", str(out), "--no-optimize", "-q"]) == 0


@pytest.mark.parametrize("text", ["x", "logits:", "-1", "logits:inf", "nan"])
def test_a_tolerance_that_is_none(text, convnet, capsys):
    assert main(["compare", str(convnet), str(convnet), "--rtol", text]) == 2
    assert "is not a tolerance" in capsys.readouterr().err


@pytest.mark.parametrize("setting", [{"mapping": {"x": "images"}}, {"split": "train"}])
def test_how_data_are_read_is_refused_without_data(setting, convnet, tmp_path):
    with pytest.raises(UsageError, match="no data are given"):
        api.export(convnet, tmp_path / "o.onnx", **setting)
    with pytest.raises(UsageError, match="no data are given"):
        api.compare(convnet, convnet, **setting)
