"""``boost.DimReduce`` and AutoBoost's section ``dim_reduce``, against MindSpore 2.10 if it runs."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost import boost, nn
from tests.mindspore.boost.common import momentum, with_loss
from tests.mindspore.nn import golden
from tests.support import NAMES, assert_three_lines, model_path

FILE = golden.read("dim_reduce")
RUNS = FILE["meta"]["runs"]
DEFAULTS = {"rho": 0.55, "gamma": 0.9, "alpha": 0.001, "sigma": 0.4}


def components(net, k=4, seed=1, size=1.0):
    length = sum(p.size for p in net.trainable_params())
    rows = np.random.default_rng(seed).standard_normal((k, length))
    return (rows * size / np.sqrt(length)).astype(np.float32)


def reduced(net, weight=None, p=None, **settings):
    weight = tuple(net.trainable_params()) if weight is None else weight
    p = components(net) if p is None else p
    given = {**DEFAULTS, "n_components": len(p), "rank": 0, "rank_size": 1, **settings}
    return boost.DimReduce(net, momentum(net), weight, p, **given)


@pytest.mark.parametrize("sens", [None, 64.0])
@pytest.mark.parametrize("name", RUNS)
def test_it_goes_where_mindspores_goes(name, sens):
    run, net = RUNS[name], golden.network("mlp")
    settings = {key: run[key] for key in DEFAULTS if key in run}
    p = components(net, run["k"], run["seed"], run["size"])
    step = boost.BoostTrainOneStepCell(with_loss(net), reduced(net, p=p, **settings), sens)
    assert step.enable_dim_reduce
    losses = []
    for index, (x, labels) in enumerate(golden.batches("mlp", 10)):
        losses.append(float(step(x, labels)))
        if index + 1 in FILE["meta"]["steps"]:
            row = FILE[f"{name}/params"][FILE["meta"]["steps"].index(index + 1)]
            assert max(golden.errors(net, FILE["meta"]["layout"], row).values()) < 1e-5
    np.testing.assert_allclose(losses, FILE[f"{name}/loss"], rtol=1e-5)


def test_the_order_of_the_weights_is_that_of_the_columns():
    def trained(turned):
        net = golden.network("mlp")
        weight, p = net.trainable_params(), components(net)
        if turned:
            parts = np.split(p, np.cumsum([w.size for w in weight])[:-1], axis=1)
            weight, p = weight[::-1], np.concatenate(parts[::-1], axis=1)
        step = boost.BoostTrainOneStepCell(with_loss(net), reduced(net, tuple(weight), p))
        for x, labels in golden.batches("mlp", 3):
            step(x, labels)
        return golden.values(net)

    one, other = trained(turned=False), trained(turned=True)
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", NAMES)
def test_the_step_has_the_order_of_the_network(name):
    net = ob.load(model_path(name))
    step = boost.BoostTrainOneStepCell(with_loss(net), reduced(net, p=components(net, k=1)))
    stepper = step._steps.stepper(np.zeros(2, np.int64))  # refuses another order
    assert stepper.program.config.line_search is not None


def test_a_loss_scale_goes_with_it():
    net = golden.network("mlp")
    scale = nn.DynamicLossScaleUpdateCell(2**12, 2, 1000)
    step = boost.BoostTrainOneStepWithLossScaleCell(with_loss(net), reduced(net), scale)
    plain = golden.network("mlp")
    other = boost.BoostTrainOneStepCell(with_loss(plain), reduced(plain))
    for x, labels in golden.batches("mlp", 4):
        loss, overflow, _ = step(x, labels)
        assert not overflow
        assert float(loss) == pytest.approx(float(other(x, labels)), abs=1e-5)


def test_the_rates_of_the_optimizer_are_not_used():
    def trained(rates):
        net = golden.network("mlp")
        weight, p = tuple(net.trainable_params()), components(net)
        optimizer = nn.SGD([{"params": weight[:2], "lr": rates}, {"params": weight[2:]}], rates)
        place = boost.DimReduce(net, optimizer, weight, p, 4, **DEFAULTS, rank=0, rank_size=1)
        step = boost.BoostTrainOneStepCell(with_loss(net), place)
        for x, labels in golden.batches("mlp", 3):
            step(x, labels)
        return golden.values(net)

    one, other = trained([0.1]), trained(0.5)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def section(**settings):
    return {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": settings}


def after(net, auto, count=4):
    network, optimizer = auto.network_auto_process_train(net, momentum(net))
    step = boost.BoostTrainOneStepCell(with_loss(network), optimizer)
    for x, labels in golden.batches("mlp", count):
        step(x, labels)
    return golden.values(net)


@pytest.mark.parametrize("mode", ["manual", "enable_all"])
def test_autoboost_takes_a_file(tmp_path, mode):
    net, other = golden.network("mlp"), golden.network("mlp")
    np.save(tmp_path / "p.npy", components(net, k=6))
    config = section(n_components=4, pca_mat_path=str(tmp_path / "p.npy"))
    config["boost"]["mode"] = mode
    auto = boost.AutoBoost("O1", config)
    found = after(net, auto)
    (report,) = auto.reports
    assert report.changed == {"dim_reduce": "4 components"}
    assert "replaces the whole step" in report.kept["less_bn"]
    opt = reduced(other, p=components(other, k=6)[:4])
    step = boost.BoostTrainOneStepCell(with_loss(other), opt)
    for x, labels in golden.batches("mlp", 4):
        step(x, labels)
    assert all(np.array_equal(found[name], value) for name, value in golden.values(other).items())


def test_autoboost_makes_components_of_checkpoints(tmp_path):
    net = golden.network("mlp")
    step = nn.TrainOneStepCell(with_loss(net), momentum(net))
    rows = []
    for index, (x, labels) in enumerate(golden.batches("mlp", 6)):
        step(x, labels)
        ob.save_checkpoint(net, tmp_path / f"{index}.safetensors")
        rows.append(np.concatenate([p.asnumpy().ravel() for p in net.trainable_params()]))
    _, optimizer = boost.AutoBoost(
        "O1", section(n_components=3, weight_load_dir=str(tmp_path))
    ).network_auto_process_train(net, momentum(net))
    basis = np.load(optimizer.updates().line_search.pca_mat_path)
    centred = np.asarray(rows, np.float64) - np.mean(rows, axis=0)
    expected = np.linalg.svd(centred, full_matrices=False)[2][:3]
    np.testing.assert_allclose(np.abs((basis * expected).sum(axis=1)), 1, atol=1e-4)


def test_wrong_arguments_are_refused(tmp_path):
    net, other = golden.network("mlp"), golden.network("mlp")
    weight, p = tuple(net.trainable_params()), components(net)
    cases = [
        ({"p": p[:, 1:]}, ValueError, "components are float32"),
        ({"n_components": 5}, ValueError, "components are float32"),
        ({"p": p * np.nan}, ValueError, "component 0 is not finite"),
        ({"weight": weight[1:], "p": p[:, weight[0].size :]}, ValueError, "optimizer trains"),
        ({"weight": tuple(other.trainable_params())}, ValueError, "another network"),
        ({"rank": 1, "rank_size": 2}, ValueError, "is not this one"),
        ({"rho": 1.0}, ValueError, "'rho' is 1.0"),
        ({"sigma": "much"}, TypeError, "'sigma' is 'much'"),
    ]
    for settings, kind, what in cases:
        with pytest.raises(kind, match=what) as info:
            reduced(net, **settings)
        assert_three_lines(info.value)
    with pytest.raises(NotImplementedError, match="called with gradients"):
        reduced(net)(1.0, (), (), ())
    optimizer = reduced(net)
    weight[0].requires_grad = False
    step = boost.BoostTrainOneStepCell(with_loss(net), optimizer)
    with pytest.raises(ob.OrtBoostError) as info:
        step(*next(golden.batches("mlp", 1)))
    assert_three_lines(info.value)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({}, "needs principal components"),
        ({"pca_mat_path": "nowhere.npy"}, "does not exist"),
        ({"weight_load_dir": "."}, "too few for 32 components"),
    ],
)
def test_a_section_without_components_is_refused(settings, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = golden.network("mlp")
    with pytest.raises(ValueError, match=what) as info:
        boost.AutoBoost("O1", section(**settings)).network_auto_process_train(net, momentum(net))
    assert_three_lines(info.value)
