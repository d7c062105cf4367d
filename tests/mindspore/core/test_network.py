from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortboost import nn
from ortboost.core.errors import FileError
from ortboost.mindspore.core import network
from ortboost.mindspore.core.network import Network, Parameter, load
from ortboost.mindspore.core.tensor import Tensor
from tests.mindspore.nn import golden
from tests.support import MODELS, NAMES, assert_three_lines, model_path


def in_inference_form(name: str) -> onnx.ModelProto:
    """The file with the training modes of its BatchNormalization and Dropout nodes turned off."""
    model = onnx.load(model_path(name))
    dropped = set()
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0
            dropped.update(node.output[1:])
            del node.output[1:]
        elif node.op_type == "Dropout":
            del node.input[1:]
    kept = [output for output in model.graph.output if output.name not in dropped]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_every_model_answers_as_its_file_does_in_inference_form(name):
    net = load(model_path(name))
    shape = [d if isinstance(d, int) else 2 for d in net.inputs[0].shape]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(net.inputs[0].dtype)
    if net.inputs[0].dtype.kind == "i":
        x = rng.integers(0, 4, shape).astype(net.inputs[0].dtype)
    session = onnxruntime.InferenceSession(
        in_inference_form(name).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = session.run(None, {net.inputs[0].name: x})[0]
    np.testing.assert_allclose(net(x), want, rtol=1e-5, atol=1e-6)


def test_it_loads_from_path_proto_and_ir():
    path = MODELS / "mlp.onnx"
    x = np.ones([2, 64], np.float32)
    answers = [load(source)(x) for source in (path, str(path), onnx.load(path), ir.load(path))]
    assert all(np.array_equal(answers[0], answer) for answer in answers)
    assert isinstance(answers[0], Tensor)
    with pytest.raises(FileError):
        load("missing.onnx")


def test_parameters_have_mindspores_methods():
    net = golden.network("convbn")
    trainable = [p.name for p in net.trainable_params()]
    assert trainable[:3] == ["conv1.weight", "bn1.weight", "bn1.bias"]
    assert [p.name for p in net.untrainable_params()] == [
        "bn1.running_mean",
        "bn1.running_var",
        "bn2.running_mean",
        "bn2.running_var",
    ]
    assert iter(net.get_parameters()) is not net.get_parameters()
    assert set(net.parameters_dict()) == {p.name for p in net.get_parameters()}
    assert next(n for n, _ in net.parameters_and_names("net")) == "net.conv1.weight"
    weight = net.parameters_dict()["conv1.weight"]
    assert (weight.shape, weight.dtype, weight.requires_grad) == ((4, 1, 3, 3), np.float32, True)
    assert (weight.ndim, weight.size) == (4, 36)
    assert "name=conv1.weight, shape=(4, 1, 3, 3)" in repr(weight)
    assert np.asarray(weight).shape == weight.data.shape == weight.value().shape
    weight.requires_grad = False
    assert "conv1.weight" not in [p.name for p in net.trainable_params()]
    assert isinstance(net.set_train(False), Network)
    assert net.set_grad() is net


def test_set_data_changes_what_the_network_answers():
    net = golden.network("mlp")
    x = np.ones([1, 64], np.float32)
    before = net(x)
    bias = net.parameters_dict()["fc2.bias"]
    old = bias.asnumpy()
    assert bias.set_data(Tensor(old + 1)) is bias
    np.testing.assert_allclose(net(x), before + 1, rtol=1e-5)
    bias.asnumpy()[:] = 7  # a copy
    np.testing.assert_array_equal(bias.asnumpy(), old + 1)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (np.ones([2, 2], np.float32), ValueError),
        (1.0, TypeError),
        ([1.0] * 10, TypeError),
        (np.array(["a"] * 10), TypeError),
        (np.ones(10, np.complex64), TypeError),
    ],
)
def test_set_data_checks(data, kind):
    bias = golden.network("mlp").parameters_dict()["fc2.bias"]
    with pytest.raises(kind):
        bias.set_data(data)
    with pytest.raises(ValueError, match="set_data"):
        bias.set_data(np.ones(10), slice_shape=True)
    bias.set_data(np.ones(10))  # another float precision is converted
    assert bias.asnumpy().dtype == np.float32


def test_a_parameter_of_ones_own():
    parameter = Parameter(Tensor(2.0), name="scale", requires_grad=False)
    assert (parameter.name, float(parameter.asnumpy())) == ("scale", 2.0)
    with pytest.raises(TypeError):
        parameter.requires_grad = 1


def test_the_trained_network_can_be_saved_and_loaded(tmp_path):
    net = golden.network("convbn")
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(True, "mean")),
        nn.SGD(net.trainable_params(), 0.1),
    )
    x, labels = next(iter(golden.batches("convbn", 1)))
    step(x, labels)
    net.save(tmp_path / "trained.onnx")
    onnx.checker.check_model(str(tmp_path / "trained.onnx"), full_check=True)
    again = load(tmp_path / "trained.onnx")
    np.testing.assert_array_equal(again(x), net(x))
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(again.parameters_dict()[name].asnumpy(), value)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((), TypeError),
        ((np.ones([1, 64]), np.ones([1, 64])), TypeError),
        ((1,), TypeError),
        ((np.ones([1, 63], np.float32),), ValueError),
        ((np.ones(64, np.float32),), ValueError),
    ],
)
def test_calls_are_checked(arguments, kind):
    with pytest.raises(kind):
        golden.network("mlp")(*arguments)


def test_whole_numbers_are_not_made_of_fractions():
    net = load(model_path("transformer_tiny"))
    if net.inputs[0].dtype.kind == "i":
        with pytest.raises(TypeError):
            net(np.zeros([1, *net.inputs[0].shape[1:]], np.float32))


def test_a_value_that_its_input_cannot_hold_is_refused():
    """Cut to 32 bits, 2^32 + 1 would be the token 1."""
    net = Network(
        ir.from_onnx_text(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (int32[n] ids) => (float[n] y) { y = Cast<to = 1>(ids) }"""
        )
    )
    assert net(np.array([7], np.int64)).tolist() == [7.0]
    with pytest.raises(ValueError, match="do not fit into int32") as raised:
        net(np.array([2**32 + 1]))
    assert_three_lines(raised.value)


def test_weights_that_did_not_reach_the_device_are_copied_again(monkeypatch):
    net, x = golden.network("mlp"), np.ones([1, 64], np.float32)
    before, bias = net(x), net.parameters_dict()["fc2.bias"]
    bias.set_data(bias.asnumpy() + 1)
    with monkeypatch.context() as broken:
        full = SimpleNamespace(ortvalue_from_numpy=lambda *_: 1 / 0)
        broken.setattr(network, "runtime", lambda: SimpleNamespace(OrtValue=full))
        with pytest.raises(ZeroDivisionError):
            net(x)
    np.testing.assert_allclose(net(x), before + 1, rtol=1e-5)


def test_copies_go_their_own_ways_with_the_latest_values():
    """Callbacks keep the best parameters, or the network, by a deep copy."""
    net, batches = golden.network("mlp"), list(golden.batches("mlp", 4))
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, loss), nn.Momentum(net.trainable_params(), 0.1, 0.9)
    )
    for batch in batches[:2]:
        step(*batch)
    values, outputs = golden.values(net), np.array(net(batches[0][0]))
    parameters, other, again = copy.deepcopy((net.parameters_dict(), net, step))
    step_of_copy = copy.deepcopy(step)
    first = [float(step(*batch)) for batch in batches[2:]]
    for name, value in values.items():
        np.testing.assert_array_equal(parameters[name].asnumpy(), value)
    np.testing.assert_array_equal(other(batches[0][0]), outputs)
    for copied in (again, step_of_copy):  # with the moments
        assert [float(copied(*batch)) for batch in batches[2:]] == first
    np.testing.assert_array_equal(other(batches[0][0]), net(batches[0][0]))  # copied with its step


def test_a_parameter_cannot_be_renamed():
    parameter = golden.network("mlp").trainable_params()[0]
    with pytest.raises(NotImplementedError, match=r"'fc1\.weight' cannot be renamed") as raised:
        parameter.name = "other"
    assert_three_lines(raised.value)
    assert parameter.name == "fc1.weight"


def test_what_mindspores_scripts_call_is_answered_with_its_place():
    net = load(model_path("mlp"))
    for name, words in (("to_float", "auto_mixed_precision"), ("cells_and_names", "ONNX file")):
        assert not hasattr(net, name)
        with pytest.raises(NotImplementedError, match=words):
            getattr(net, name)
