"""LessBN against MindSpore 2.10 (tests/golden/mindspore/less_bn.npz), and as a network."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ortboost import amp, nn
from ortboost.core.loss_scale import NO_SCALE
from ortboost.mindspore.boost import LessBN
from ortboost.mindspore.core.arguments import ArgumentTypeError
from ortboost.mindspore.core.network import Network, load
from ortboost.optimizers import Adam, Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ParameterGroup, ProgramConfig
from tests.support import (
    ENGINES,
    GOLDEN,
    assert_three_lines,
    model_path,
    run,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
)

STEPS = 10


@functools.cache
def golden() -> dict[str, Any]:
    with np.load(GOLDEN / "mindspore" / "less_bn.npz") as file:
        arrays: dict[str, Any] = {key: file[key] for key in file.files}
    return {**arrays, "meta": json.loads(str(arrays["meta"]))}


def unpacked(row: np.ndarray, shapes: Mapping[str, list[int]]) -> dict[str, np.ndarray]:
    """A row of concatenated tensors, apart."""
    found, place = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        found[name] = row[place : place + size].reshape(shape)
        place += size
    assert place == row.size
    return found


def initial(net: str) -> dict[str, np.ndarray]:
    return unpacked(golden()[f"{net}/init"], golden()["meta"]["init"][net])


class Writer:
    """Writes a net as ONNX text; parameters have the names of the golden file."""

    def __init__(self, values: Mapping[str, np.ndarray]) -> None:
        self.values, self.lines = values, []

    def conv(self, name: str, x: str, stride: int = 1) -> str:
        pad = self.values[f"{name}.weight"].shape[-1] // 2
        pads = ", ".join([str(pad)] * 4)
        y = name.replace(".", "_")
        self.lines.append(
            f'["{name}"] {y} = Conv<pads = [{pads}], strides = [{stride}, {stride}]>'
            f'({x}, "{name}.weight")'
        )
        return y

    def bn(self, name: str, x: str) -> str:
        y = name.replace(".", "_")
        rest = ", ".join(f'"{name}.{p}"' for p in ("weight", "bias", "running_mean", "running_var"))
        self.lines.append(
            f'["{name}"] {y} = BatchNormalization<epsilon = 0.00001, momentum = 0.9>({x}, {rest})'
        )
        return y

    def op(self, op_type: str, *inputs: str) -> str:
        y = f"v{len(self.lines)}"
        self.lines.append(f"{y} = {op_type}({', '.join(inputs)})")
        return y

    def bottleneck(self, name: str, x: str, stride: int, turned: bool = False) -> str:
        y = self.op("Relu", self.bn(f"{name}.bn1", self.conv(f"{name}.conv1", x)))
        y = self.op("Relu", self.bn(f"{name}.bn2", self.conv(f"{name}.conv2", y, stride)))
        return self.end(
            name, x, self.bn(f"{name}.bn3", self.conv(f"{name}.conv3", y)), stride, turned
        )

    def basic(self, name: str, x: str, stride: int, turned: bool = False) -> str:
        y = self.op("Relu", self.bn(f"{name}.bn1", self.conv(f"{name}.conv1", x, stride)))
        return self.end(
            name, x, self.bn(f"{name}.bn2", self.conv(f"{name}.conv2", y)), stride, turned
        )

    def end(self, name: str, x: str, y: str, stride: int, turned: bool) -> str:
        if f"{name}.down.weight" in self.values:
            x = self.bn(f"{name}.bnd", self.conv(f"{name}.down", x, stride))
        return self.op("Relu", self.op("Add", *((x, y) if turned else (y, x))))

    def model(self, x: str, shape: str, last: str) -> ir.Model:
        self.lines.append(
            f'["{last}"] logits = Gemm<transB = 1>({x}, "{last}.weight", "{last}.bias")'
        )
        types = ", ".join(
            f'float[{",".join(map(str, v.shape))}] "{n}"' for n, v in self.values.items()
        )
        return text_model(
            f'<ir_version: 10, opset_import: ["" : 18]> net (float[batch,{shape}] x, {types}) '
            f"=> (float[batch,5] logits) {{ {' '.join(self.lines)} }}",
            **self.values,
        )


def net(name: str, turned: bool = False) -> ir.Model:
    w = Writer(initial(name))
    if name == "mlp":
        h = 'h = Gemm<transB = 1>(x, "fc1.weight", "fc1.bias")'
        w.lines.append(h)
        return w.model(w.op("Relu", "h"), "12", "fc2")
    x = w.op("Relu", w.bn("bn0", w.conv("conv0", "x")))
    block = w.bottleneck if name == "bottleneck" else w.basic
    for part, stride in zip(
        ("one", "two"), (2, 1) if name == "bottleneck" else (1, 2), strict=True
    ):
        x = block(part, x, stride, turned)
    return w.model(w.op("Flatten", w.op("GlobalAveragePool", x)), "1,8,8", "fc")


RUNS = [(n, r["name"]) for n, runs in golden()["meta"]["runs"].items() for r in runs]


def recorded(name: str, which: str) -> dict[str, Any]:
    return next(r for r in golden()["meta"]["runs"][name] if r["name"] == which)


def batches(name: str):
    for step in range(STEPS):
        yield golden()["rows" if name == "mlp" else "x"][step], golden()["labels"][step]


def worst(state: Mapping[str, np.ndarray], name: str, which: str, step: int) -> float:
    """Largest difference of a weight or statistic to MindSpore's."""
    entry = recorded(name, which)
    shapes = dict(zip(entry["names"], entry["shapes"], strict=True))
    want = unpacked(golden()[f"{name}/{which}/{step}"], shapes)
    return max(float(np.abs(state[key] - value).max()) for key, value in want.items())


@pytest.mark.parametrize(
    ("forms", "tolerance"), [(False, 1e-6), (True, 2e-6)], ids=["as_written", "on_the_cpu"]
)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "which"), RUNS)
def test_ten_steps_of_mindspore(name, which, engine, forms, tolerance, monkeypatch):
    """The step as it is written, and in the CPU's forms, which sum in another order."""
    if not forms:
        monkeypatch.setattr(
            "ortboost.runtime.compiled_graph.for_device", lambda model, *_, **_more: model
        )
    entry = recorded(name, which)
    # MindSpore decays the multiplier of the head too; here that has to be asked for.
    decay = entry.get("decay", 0.0)
    config = ProgramConfig(
        optimizer=Adam(eps_hat=True) if entry["optimizer"] == "Adam" else Momentum(),
        weight_decay=decay,
        groups=(ParameterGroup("m", ("*.multiplier",), weight_decay=decay),) if decay else (),
        less_bn=name != "mlp",
        full_norm_head=entry["fn"],
        loss_scale=NO_SCALE,
        check_finite=False,
        engine=engine,
    )
    program = build_program(net(name), config)
    training = stepper(program)
    held = {e.name for e in program.catalogue.state if e.kind in ("parameter", "buffer")}
    assert held == set(entry["names"])
    for step, (x, labels) in enumerate(batches(name), 1):
        result = training.step(
            {"x": x, "labels": labels.astype(np.int64)}, {"learning_rate": entry["lr"]}
        )
        np.testing.assert_allclose(
            result.loss, golden()[f"{name}/{which}/loss"][step - 1], rtol=2e-6
        )
        if step in (1, 2, 10):
            assert worst(training.state(), name, which, step) < tolerance


@pytest.mark.parametrize(("name", "which"), [run for run in RUNS if run[1] != "fn_decay"])
def test_the_face_trains_like_mindspore(name, which):
    entry = recorded(name, which)
    network = LessBN(load(net(name), threads=1), fn_flag=entry["fn"])
    kind = getattr(nn, entry["optimizer"])
    more = {"momentum": 0.9} if entry["optimizer"] == "Momentum" else {}
    optimizer = kind(network.trainable_params(), entry["lr"], **more)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    step = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
    for x, labels in batches(name):
        step(x, labels)
    state = {p.name: p.asnumpy() for p in network.get_parameters()}
    assert worst(state, name, which, STEPS) < 2e-6  # ten steps; 1.2e-6 on an AMD processor


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ["bottleneck", "basic"])
def test_the_same_norms_go(name, turned):
    """Also where the shortcut is the first operand, where MindSpore finds nothing."""
    network = LessBN(load(net(name, turned)))
    assert sorted(network.reports[0].changed) == recorded(name, "less_bn")["removed"]


# ---- as a network -----------------------------------------------------------------------------


def image(batch: int = 3) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((batch, 1, 8, 8)).astype(np.float32)


def test_it_shares_the_parameters_of_the_network():
    network = load(net("bottleneck"))
    less = LessBN(network)
    before = np.array(less(image()))
    for name, parameter in less.parameters_dict().items():
        assert parameter is network.parameters_dict()[name]
    parameter = network.parameters_dict()["conv0.weight"]
    value = parameter.asnumpy()
    parameter.set_data(np.zeros(parameter.shape, np.float32))
    assert not np.array_equal(np.array(less(image())), before)
    parameter.set_data(value)
    assert "one.bn1.weight" in network.parameters_dict()
    assert isinstance(less, Network)
    bare = run(less.to_model(), {"x": image()})["logits"]
    np.testing.assert_allclose(before, bare, rtol=1e-6, atol=1e-6)


def test_both_networks_can_be_trained_in_turns():
    """The weights of both after a step of each are those of the last one."""
    network = load(net("basic"))
    less = LessBN(network, fn_flag=True)
    assert less.added == {"fc.multiplier"}
    labels = np.array([0, 1, 2], np.int32)
    for each in (network, less, network):
        before = {name: p.asnumpy() for name, p in network.parameters_dict().items()}
        loss = nn.WithLossCell(each, nn.SoftmaxCrossEntropyWithLogits(True, "mean"))
        nn.TrainOneStepCell(loss, nn.SGD(each.trainable_params(), 0.1))(image(3), labels)
        for name, parameter in network.parameters_dict().items():
            changed = not np.array_equal(parameter.asnumpy(), before[name])
            assert changed == (name in each.parameters_dict()), name
    again = LessBN(network, fn_flag=True)  # the multiplier is that of the first
    both = [n.parameters_dict()["fc.multiplier"].asnumpy() for n in (less, again)]
    assert both[0] == both[1] != 1


def test_it_takes_the_present_weights_and_settings():
    network = load(net("basic"), threads=1, seed=3)
    network.set_train()
    parameters = network.parameters_dict()
    parameters["one.conv1.weight"].set_data(
        np.full(parameters["one.conv1.weight"].shape, 0.25, np.float32)
    )
    parameters["fc.bias"].requires_grad = False
    amp.auto_mixed_precision(network, "O2")
    less = LessBN(network)
    assert (less.threads, less.seed, less.training) == (1, 3, True)
    assert less.precision is network.precision
    assert (less.parameters_dict()["one.conv1.weight"].asnumpy() == 0.25).all()
    assert "fc.bias" not in [p.name for p in less.trainable_params()]
    assert "fc.weight" in [p.name for p in less.trainable_params()]


def test_a_network_without_blocks_is_copied():
    network = load(small_convnet())
    less = LessBN(network)
    assert not less.reports[0].modified
    assert less.reports[0].kept == {"bn": "in no residual or dense block"}
    x = np.random.default_rng(0).standard_normal((2, 1, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(np.array(less(x)), np.array(network(x)))


def test_nothing_is_redone():
    less = LessBN(load(net("bottleneck")), fn_flag=True)
    again = LessBN(less, fn_flag=True)
    assert not any(report.modified for report in again.reports)
    assert list(again.parameters_dict()) == list(less.parameters_dict())
    np.testing.assert_array_equal(np.array(again(image())), np.array(less(image())))


def test_the_head_can_come_later():
    less = LessBN(LessBN(load(net("bottleneck"))), fn_flag=True)
    assert "fc.multiplier" in less.parameters_dict()
    assert "fc.bias" not in less.parameters_dict()


def test_the_head_in_calls_and_files(tmp_path):
    """Evaluation has the same head: MindSpore builds it without one."""
    less = LessBN(load(small_mlp()), fn_flag=True)
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    logits = np.array(less(x))
    assert np.abs(logits).max() <= 1 + 1e-6  # cosines
    less.parameters_dict()["w2.multiplier"].set_data(np.array(3, np.float32))
    np.testing.assert_allclose(np.array(less(x)), 3 * logits, rtol=1e-6)
    less.save(tmp_path / "less.onnx")
    again = load(tmp_path / "less.onnx")
    np.testing.assert_array_equal(np.array(again(x)), np.array(less(x)))
    assert "w2.multiplier" in [p.name for p in again.trainable_params()]


def test_shipped():
    less = LessBN(load(model_path("resnet20")), fn_flag=True)
    assert len(less.reports[0].changed) == 11
    assert not [name for name in less.parameters_dict() if "shortcut.1" in name]


@pytest.mark.parametrize(
    ("network", "flag"),
    [("models/mlp.onnx", False), (None, False), (nn.MSELoss(), False), ("net", 1), ("net", "yes")],
)
def test_wrong_types(network, flag):
    network = load(small_mlp()) if network == "net" else network
    with pytest.raises(ArgumentTypeError) as error:
        LessBN(network, flag)
    assert_three_lines(error.value)
    assert isinstance(error.value, TypeError)


def test_no_head():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4] w) => (float[batch,4] y) { y = Mul(x, w) }""",
        w=np.ones(4, np.float32),
    )
    rewritten = LessBN(load(model), fn_flag=True)
    assert [node.op_type for node in rewritten.to_model().graph] == ["Mul"]
    assert "no fully connected layer was found" in rewritten.reports[-1].notes[0]
