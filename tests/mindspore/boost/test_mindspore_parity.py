"""Freeze, accumulation and centralization against MindSpore 2.10 (golden/mindspore/boost.npz)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from ortboost import boost, nn
from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.grad_centralization import CentralizeConfig
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.nn.optimizer import exact_patterns
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.mindspore.nn import golden
from tests.support import ENGINES, stepper

FILE = golden.read("boost")
RUNS: Mapping[str, dict[str, Any]] = FILE["meta"]["runs"]

TOLERANCE = 1e-6
# With accumulation MindSpore runs the second batch norm twice a step, and its statistics move
# twice. PyTorch agrees with us there; see tools/golden/mindspore_boost.py.
TWICE: Mapping[str, list[str]] = FILE["meta"]["twice"]


def fed(run: dict[str, Any]) -> Iterator[tuple[bool, Any, Any]]:
    """Whether the batch is one that overflows, images, labels."""
    for index, (x, labels) in enumerate(golden.batches(run["net"], run["count"])):
        fill = run.get("fill", {}).get(str(index))
        yield fill is not None, x if fill is None else np.full_like(x, float(fill)), labels


def assert_close(state: Mapping[str, Any], name: str, step: int) -> None:
    run = RUNS[name]
    if step not in run["steps"]:
        return
    row = FILE[f"{name}/params"][run["steps"].index(step)]
    for entry in FILE["meta"]["layout"][run["net"]]:
        if entry["name"] in TWICE.get(name, ()):
            continue
        window = tuple(slice(None, None, stride) for stride in entry["stride"])
        want = row[entry["offset"] : entry["offset"] + entry["size"]]
        have = np.asarray(state[entry["name"]])[window].ravel()
        assert np.abs(have - want).max() < TOLERANCE, (step, entry["name"])


def program(name: str, engine: str) -> Any:
    run, hyper = RUNS[name], RUNS[name]["hyper"]
    net = golden.network(run["net"])
    optimizer = golden.optimizer(net, hyper)
    freeze = centralize = None
    if "strategy" in run:
        groups = tuple(map(tuple, run["groups"]))
        freeze = FreezeConfig(groups=groups, sequence=tuple(run["strategy"] or range(len(groups))))
    if "/gc/" in name:
        centralize = CentralizeConfig(exact_patterns(optimizer.centralized()))
    scale: Any = NO_SCALE
    if "scale" in run:
        start, factor, window = run["scale"]
        scale = DynamicScaleConfig(float(start), float(factor), window, max_scale=None)
    return build_program(
        net.to_model(),
        ProgramConfig(
            optimizer=optimizer.rule(),
            weight_decay=hyper.get("weight_decay", 0.0),
            groups=optimizer.groups(),
            loss_scale=scale,
            check_finite="scale" in run,
            accumulate=run.get("accumulate", 1),
            centralize=centralize,
            grad_freeze=freeze,
            engine=engine,
        ),
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RUNS)
def test_the_program_ends_at_the_weights_of_mindspore(name, engine):
    run = RUNS[name]
    training = stepper(program(name, engine))
    rate, updates = run["hyper"]["learning_rate"], 0
    for index, (overflows, x, labels) in enumerate(fed(run)):
        now = rate[updates] if isinstance(rate, list) else rate
        feeds = {"x": x, "labels": labels.astype(np.int64)}
        result = training.step(feeds, {"learning_rate": now})
        updates = result.applied_steps
        assert result.overflow == overflows
        if not overflows:
            np.testing.assert_allclose(result.loss, FILE[f"{name}/loss"][index], atol=5e-6)
        if "scale" in run:
            assert result.loss_scale == FILE[f"{name}/loss_scale"][index]
        assert_close(training.state(), name, index + 1)


def face(name: str) -> tuple[Network, Any]:
    """The network, and MindSpore's cell for it."""
    run = RUNS[name]
    net = golden.network(run["net"])
    own = net.parameters_dict()
    optimizer: Any = golden.optimizer(net, run["hyper"])
    if "strategy" in run:
        groups = [[own[n] for n in group] for group in run["groups"]]
        optimizer = boost.FreezeOpt(optimizer, groups, run["strategy"])
    if run.get("accumulate", 1) > 1:
        optimizer = boost.GradientAccumulation(run["accumulate"], optimizer)
    loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    if "scale" in run:
        scale = nn.DynamicLossScaleUpdateCell(*run["scale"])
        return net, boost.BoostTrainOneStepWithLossScaleCell(loss, optimizer, scale)
    return net, boost.BoostTrainOneStepCell(loss, optimizer)


@pytest.mark.parametrize("name", RUNS)
def test_the_cell_ends_at_the_weights_of_mindspore(name):
    net, cell = face(name)
    for index, (overflows, x, labels) in enumerate(fed(RUNS[name])):
        answer = cell(x, labels)
        loss = answer[0] if isinstance(answer, tuple) else answer
        if isinstance(answer, tuple):
            assert bool(answer[1]) == FILE[f"{name}/overflow"][index]
            assert answer[2] == FILE[f"{name}/loss_scale"][index]
        if not overflows:
            np.testing.assert_allclose(loss, FILE[f"{name}/loss"][index], atol=5e-6)
        assert_close({p.name: p.asnumpy() for p in net.get_parameters()}, name, index + 1)


def own_gradients(weights: Mapping[str, Any], x: Any, labels: Any) -> tuple[float, list[Any]]:
    """Loss and gradients of the perceptron, by hand."""
    x = x.astype(np.float64)
    w1, b1, w2, b2 = (weights[f"fc{i}.{kind}"] for i in (1, 2) for kind in ("weight", "bias"))
    hidden = np.maximum(x @ w1.T + b1, 0)
    logits = hidden @ w2.T + b2
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(x))
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    p /= len(x)
    back = (p @ w2) * (hidden > 0)
    return float(loss), [back.T @ x, back.sum(0), p.T @ hidden, p.sum(0)]


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("mlp/accumulate")])
def test_given_gradients_end_at_the_weights_of_mindspore(name):
    """Gradients that numpy computed, and the graph accumulates and applies."""
    net, cell = face(name)
    own = net.parameters_dict()
    names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert [p.name for p in cell.optimizer.parameters] == names
    for index, (_, x, labels) in enumerate(fed(RUNS[name])):
        loss, grads = own_gradients({n: own[n].asnumpy() for n in names}, x, labels)
        answer = cell.gradient_accumulation_process(loss, grads, None)
        np.testing.assert_allclose(answer, FILE[f"{name}/loss"][index], atol=5e-6)
        assert_close({p.name: p.asnumpy() for p in net.get_parameters()}, name, index + 1)
    assert cell.optimizer.global_step == RUNS[name]["count"] // RUNS[name]["accumulate"]


def test_the_rule_of_sixteen_leaves_the_small_convnet_alone():
    """No weight has a multiple of 16 on axis 1: MindSpore silently changes nothing."""
    reports = {r.rewrite: r for r in program("convbn/gc/momentum", "auto").reports}
    assert "multiple of 16" in reports["grad_centralization"].kept["conv2.weight"]
    reports = {r.rewrite: r for r in program("mlp/gc/momentum", "auto").reports}
    assert sorted(reports["grad_centralization"].changed) == ["fc1.weight", "fc2.weight"]
