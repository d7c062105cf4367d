from __future__ import annotations

import numpy as np
import pytest

import ortboost
from ortboost import Tensor, nn
from ortboost.core.errors import OrtBoostError
from ortboost.mindspore.core.network import load
from ortboost.program.config import ProgramConfig
from tests.mindspore.nn import golden
from tests.support import text_model


def affine(scale_name="bn.scale"):
    """`y = w x + b` elementwise, through a LayerNormalization-free graph of named vectors."""
    return load(
        text_model(
            f"""<ir_version: 10, opset_import: ["" : 18]>
            net (float[N,3] x, float[3] "{scale_name}", float[3] "b") => (float[N,3] y) {{
              s = Mul(x, "{scale_name}")
              y = Add(s, "b")
            }}""",
            **{scale_name: np.full(3, 2, np.float32), "b": np.full(3, 4, np.float32)},
        )
    )


def one_step(net, optimizer, count=1):
    """Steps with zero gradients (no error anywhere): only weight decay moves the weights."""
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    x = np.ones([2, 3], np.float32)
    for _ in range(count):
        step(x, net(x))
    return {p.name: float(p.asnumpy()[0]) for p in net.get_parameters()}


def test_flat_lists_spare_names_with_beta_and_gamma():
    net = affine("my_gamma")
    end = one_step(net, nn.SGD(net.trainable_params(), learning_rate=1.0, weight_decay=0.5))
    assert end == {"my_gamma": 2.0, "b": 2.0}


def test_groups_decay_everything_they_hold():
    net = affine("my_gamma")
    own = net.parameters_dict()
    groups = [{"params": [own["my_gamma"]], "weight_decay": 0.25}, {"params": [own["b"]]}]
    end = one_step(net, nn.SGD(groups, learning_rate=1.0, weight_decay=0.5))
    assert end == {"my_gamma": 1.5, "b": 2.0}


def test_group_rates_may_be_lists_and_count_applied_updates():
    net = affine()
    own = net.parameters_dict()
    groups = [{"params": [own["b"]], "lr": [1.0, 0.5]}, {"params": [own["bn.scale"]]}]
    optimizer = nn.SGD(groups, learning_rate=0.25, weight_decay=0.5)
    assert optimizer.get_lr() == (1.0, 0.25)
    end = one_step(net, optimizer, count=2)
    assert end["b"] == 4 * 0.5 * 0.75
    assert end["bn.scale"] == 2 * 0.875**2
    with pytest.raises(RuntimeError, match="ends after 2"):
        optimizer.get_lr()


def test_the_rate_of_a_parameter_is_the_one_that_was_given():
    net = affine()
    own = net.parameters_dict()
    rates = nn.CosineDecayLR(0.01, 0.1, 5)
    groups = [{"params": [own["b"]], "lr": [1.0, 0.5]}, {"params": [own["bn.scale"]]}]
    optimizer = nn.SGD(groups, learning_rate=rates)
    assert optimizer.get_lr_parameter(own["b"]).tolist() == [1.0, 0.5]
    assert optimizer.get_lr_parameter([own["bn.scale"]]) == [rates]
    assert nn.SGD(net.trainable_params(), 0.5).get_lr_parameter(net.trainable_params()) == [0.5] * 2
    with pytest.raises(TypeError, match="a Parameter is needed"):
        optimizer.get_lr_parameter("b")
    with pytest.raises(ValueError, match="does not have the parameter 'b'"):
        optimizer.get_lr_parameter(affine().parameters_dict()["b"])


def test_order_params_sets_the_order():
    net = affine()
    own = net.parameters_dict()
    groups = [{"params": [own["b"]]}, {"params": [own["bn.scale"]]}]
    assert [p.name for p in nn.SGD(groups).parameters] == ["b", "bn.scale"]
    groups.append({"order_params": net.trainable_params()})
    assert [p.name for p in nn.SGD(groups).parameters] == ["bn.scale", "b"]
    with pytest.raises(ValueError, match="order_params"):
        nn.SGD([groups[0], {"order_params": net.trainable_params()}])


def test_names_with_pattern_characters_are_taken_literally():
    net = affine("w[0]*")
    own = net.parameters_dict()
    end = one_step(net, nn.SGD([{"params": [own["w[0]*"]], "weight_decay": 0.5}], 1.0))
    assert end == {"w[0]*": 1.0, "b": 4.0}


def test_centralization_is_asked_for_by_group():
    net = golden.network("mlp")
    own = net.trainable_params()
    groups = [{"params": own[:1], "grad_centralization": True}, {"params": own[1:]}]
    optimizer = nn.SGD(groups, 0.1)
    assert optimizer.centralized() == ("fc1.weight",)
    assert optimizer.init_params["params"] == groups
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(True, "mean")), optimizer
    )
    before = golden.values(net)
    for x, labels in golden.batches("mlp", 1):
        step(x, labels)
    moved = {name: value - before[name] for name, value in golden.values(net).items()}
    assert np.abs(moved["fc1.weight"].sum(1)).max() < 1e-6
    assert np.abs(moved["fc2.weight"].sum(1)).max() > 1e-4
    with pytest.raises(TypeError):
        nn.SGD([{"params": own, "grad_centralization": 1}])


def test_amsgrad_ignores_nesterov_as_mindspore_does_on_every_device():
    own = affine().trainable_params()
    both = nn.Adam(own, use_amsgrad=True, use_nesterov=True)
    assert both.rule() == nn.Adam(own, use_amsgrad=True).rule()
    assert nn.Adam(own, use_nesterov=True).rule().nesterov


def test_momentum_honours_nesterov_where_mindspore_ignores_it():
    """MindSpore 2.10 ignores it on the CPU; our weights equal those of nn.SGD."""
    ends = []
    for make in (
        lambda p: nn.Momentum(p, 0.05, 0.9, use_nesterov=True),
        lambda p: nn.SGD(p, 0.05, 0.9, nesterov=True),
        lambda p: nn.Momentum(p, 0.05, 0.9),
    ):
        net = golden.network("mlp")
        step = nn.TrainOneStepCell(
            nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(True, "mean")),
            make(net.trainable_params()),
        )
        for x, labels in golden.batches("mlp", 3):
            step(x, labels)
        ends.append(golden.values(net)["fc2.weight"])
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-3


def test_a_lars_filter_says_who_is_adapted_and_decays():
    def end(chosen):
        net = affine()
        inner = nn.SGD(net.trainable_params(), learning_rate=1.0, weight_decay=0.5)
        return one_step(net, nn.LARS(inner, coefficient=0.5, lars_filter=chosen))

    # With a zero gradient LARS's rate is 1 (no norm to compare with), so only the decay is seen.
    assert end(lambda p: p.name == "b") == {"bn.scale": 2.0, "b": 2.0}
    assert end(lambda p: False) == {"bn.scale": 2.0, "b": 4.0}


def test_lars_shares_rates_and_steps_of_its_inner_optimizer():
    net = affine()
    inner = nn.SGD(net.trainable_params(), learning_rate=[0.5, 0.25])
    inner.gc_multiple_of = 1
    outer = nn.LARS(inner)
    assert outer.gc_multiple_of == 1
    one_step(net, outer)
    assert (outer.global_step, outer.get_lr(), outer.learning_rate.tolist()) == (
        1,
        0.25,
        [0.5, 0.25],
    )


def test_the_learning_rate_can_be_replaced():
    net = affine()
    optimizer = nn.SGD(net.trainable_params(), learning_rate=1.0, weight_decay=0.5)
    one_step(net, optimizer)
    optimizer.learning_rate = 0.5
    assert one_step(net, optimizer)["b"] == 4 * 0.5 * 0.75
    assert optimizer.get_weight_decay() == 0.5
    with pytest.raises(ValueError, match="learning_rate"):
        optimizer.learning_rate = -1.0


def test_a_rate_can_be_set_as_a_parameter():
    net = affine()
    own = net.parameters_dict()
    groups = [{"params": [own["b"]], "lr": 1.0}, {"params": [own["bn.scale"]]}]
    optimizer = nn.SGD(groups, learning_rate=0.5, weight_decay=0.5)
    other = optimizer.renewed(groups)
    rate = optimizer.learning_rate
    assert one_step(net, optimizer) == {"b": 2.0, "bn.scale": 1.5}
    assert rate.set_data(Tensor(0.25)) is optimizer.learning_rate
    optimizer.get_lr_parameter(own["b"]).set_data(rate * 2)
    assert optimizer.get_lr() == (0.5, 0.25)
    assert one_step(net, optimizer) == {"b": 2.0 * 0.75, "bn.scale": 1.5 * 0.875}
    assert other.get_lr() == (1.0, 0.5)
    assert (rate, rate.name, f"{rate:.1f}", repr(rate)) == (0.25, "learning_rate", "0.2", "0.25")
    for wrong, kind in ((0.5, None), (-1.0, ValueError), ([0.5], ValueError)):
        with pytest.raises(kind or TypeError):
            rate.set_data(wrong if kind is None else Tensor(wrong))
    assert nn.LARS(nn.SGD(net.trainable_params(), rate)).learning_rate.set_data(np.float32(2)) == 2
    assert rate == 0.25
    rate.set_data(Tensor(0.0))
    assert not rate


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda p: nn.Adam(p, use_lazy=True), NotImplementedError),
        (lambda p: nn.SGD(p, weight_decay=nn.WarmUpLR(0.1, 2)), NotImplementedError),
        (lambda p: nn.SGD(p, dampening=1.5), ValueError),
        (lambda p: nn.SGD(p, learning_rate=[[0.1]]), ValueError),
        (lambda p: nn.SGD(p, learning_rate=float("nan")), ValueError),
        (lambda p: nn.SGD(p, learning_rate=["a"]), TypeError),
        (lambda p: nn.SGD(p[0]), TypeError),
        (lambda p: nn.SGD([{"params": p}, p[0]]), TypeError),
        (lambda p: nn.SGD([{"params": [p[0]]}, {"order_params": p, "lr": 0.1}]), ValueError),
        (lambda p: nn.LARS(nn.LARS(nn.SGD(p))), TypeError),
        (lambda p: nn.LARS(nn.thor(affine(), Tensor(0.1), 0.03, 0.9)), TypeError),
        (lambda p: nn.SGD(p)([1.0]), NotImplementedError),
    ],
)
def test_refusals(call, kind):
    with pytest.raises(kind) as raised:
        call(affine().trainable_params())
    assert isinstance(raised.value, OrtBoostError)
    assert raised.value.fix


def test_a_rule_has_one_name_for_each_law():
    """``nn.Adam`` is MindSpore's rule, ``{"name": "adam"}`` PyTorch's; the docs say so."""
    params = golden.network("mlp").trainable_params()
    named = ProgramConfig.from_dict({"optimizer": {"name": "adam", "eps_hat": True}}).optimizer
    assert nn.Adam(params).rule() == named == ortboost.Adam(eps_hat=True)
    assert (
        nn.Adam(params).rule() != ProgramConfig.from_dict({"optimizer": {"name": "adam"}}).optimizer
    )
    decay = ortboost.AdamW(eps=1e-6, bias_correction=False)
    assert nn.AdamWeightDecay(params).rule() == decay


def test_lars_leaves_the_count_of_its_inner_optimizer_alone():
    net, batches = golden.network("mlp"), list(golden.batches("mlp", 3))
    inner = nn.Momentum(net.trainable_params(), [0.1, 0.2, 0.3, 0.4], 0.9)
    loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(True, "mean"))
    plain, adapted = (nn.TrainOneStepCell(loss, o) for o in (inner, nn.LARS(inner)))
    for cell in (plain, plain, adapted):
        cell(*batches[0])
    assert (inner.global_step, float(inner.get_lr())) == (2, pytest.approx(0.3))
    assert (adapted.optimizer.global_step, float(adapted.optimizer.get_lr())) == (
        1,
        pytest.approx(0.2),
    )
