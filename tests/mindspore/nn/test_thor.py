"""`nn.thor`, `ConvertNetUtils`, `ConvertModelUtils` and `Model.train` with them."""

import inspect

import numpy as np
import pytest

import ortboost as ob
from ortboost import Tensor, boost, nn
from ortboost.boosts import Thor
from ortboost.mindspore.amp import DynamicLossScaleManager, FixedLossScaleManager
from ortboost.mindspore.core.arguments import ArgumentTypeError, ArgumentValueError
from ortboost.mindspore.train.model import Model
from ortboost.mindspore.train.train_thor import ConvertModelUtils
from tests.support import assert_three_lines, model_path, text_model, weights

RATE, DAMPING = Tensor([0.1, 0.1, 0.05, 0.1, 0.02, 0.1]), Tensor([0.1, 0.2, 0.05, 0.3, 0.1, 0.02])
LOSS = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def network():
    return ob.load(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (float[batch,4] x, float[6,4] w1, float[6] b1, float[3,6] w2)
            => (float[batch,3] y) {
              h = Gemm<transB = 1>(x, w1, b1)
              a = Relu(h)
              y = Gemm<transB = 1>(a, w2)
            }""",
            w1=weights(6, 4),
            b1=weights(6, seed=1),
            w2=weights(3, 6, seed=2),
        )
    )


def batches(count=6, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((8, 4)).astype(np.float32), rng.integers(0, 3, 8))
        for _ in range(count)
    ]


def by_hand(data, *, frequency, momentum, decay=()):
    """The weights after the batches, float64; ``decay`` names what decays by 0.1."""
    from tests.boosts import thor_replay as replay

    layers = [replay.Dense("w1", "b1", turned=True), replay.Relu(), replay.Dense("w2", turned=True)]
    p = {"w1": weights(6, 4), "b1": weights(6, seed=1), "w2": weights(3, 6, seed=2)}
    p = {name: value.astype(float) for name, value in p.items()}
    mine = replay.Thor(tuple(DAMPING.tolist()), frequency, momentum=momentum)
    for (x, labels), rate in zip(data, RATE.tolist(), strict=True):
        _, grads, terms = replay.gradients(layers, p, x, labels)
        mine.update(
            layers, p, grads, mine.factors_of(layers, terms), rate, decay=dict.fromkeys(decay, 0.1)
        )
    return p


def close(net, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(
            net.parameters_dict()[name].asnumpy(), value, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("sink", [False, True])
def test_model_train_follows_the_replay_at_any_frequency(sink):
    net, data = network(), batches()
    opt = nn.thor(net, RATE, DAMPING, 0.8, frequency=4)
    Model(net, LOSS, opt).train(1, data, dataset_sink_mode=sink)
    close(net, by_hand(data, frequency=4, momentum=0.8))
    assert opt.global_step == 6
    assert opt.get_frequency() == 4


def test_the_decay_filter_says_who_decays():
    net, data = network(), batches()
    opt = nn.thor(
        net,
        RATE,
        DAMPING,
        0.8,
        weight_decay=0.1,
        decay_filter=lambda p: p.name != "w2",
        frequency=2,
    )
    Model(net, LOSS, opt).train(1, data)
    close(net, by_hand(data, frequency=2, momentum=0.8, decay=("w1", "b1")))


@pytest.mark.parametrize(
    "manager",
    [FixedLossScaleManager(128.0, drop_overflow_update=False), DynamicLossScaleManager(2**10)],
    ids=("fixed", "dynamic"),
)
def test_convert_to_thor_model_with_a_manager(manager):
    net, data = network(), batches()
    fixed = isinstance(manager, FixedLossScaleManager)
    opt = nn.thor(net, RATE, DAMPING, 0.8, loss_scale=128.0 if fixed else 1.0, frequency=3)
    parts = {
        "loss_fn": LOSS,
        "optimizer": opt,
        "metrics": {"accuracy"},
        "loss_scale_manager": manager,
    }
    first = Model(net, **parts)
    model = ConvertModelUtils().convert_to_thor_model(
        model=first, network=net, amp_level="O0", **parts
    )
    assert model is not first
    model.train(1, data)
    close(net, by_hand(data, frequency=3, momentum=0.8))
    assert 0 <= model.eval(data)["accuracy"] <= 1


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_convert_to_thor_model_with_mixed_precision(level):
    """Activations and their gradients are rounded to float16, so the weights are only close."""
    net, data = network(), batches()
    opt = nn.thor(net, RATE, DAMPING, 0.8, frequency=3)
    parts = {
        "loss_fn": LOSS,
        "optimizer": opt,
        "loss_scale_manager": DynamicLossScaleManager(2**10),
    }
    model = ConvertModelUtils.convert_to_thor_model(
        Model(net, **parts), network=net, amp_level=level, **parts
    )
    model.train(1, data)
    expected = by_hand(data, frequency=3, momentum=0.8)
    apart = [abs(net.parameters_dict()[n].asnumpy() - v).max() for n, v in expected.items()]
    assert 1e-5 < max(apart) < 1e-3


def test_arguments_and_defaults_are_those_of_mindspore():
    """As in MindSpore 2.10; what follows them is ours."""
    parameters = list(inspect.signature(nn.thor).parameters.values())
    required, optional = parameters[:4], parameters[4:-1]
    assert [p.name for p in required] == ["net", "learning_rate", "damping", "momentum"]
    assert all(p.default is p.empty for p in required)
    defaults = {p.name: p.default for p in optional}
    assert defaults.pop("decay_filter")(None) is True
    assert list(defaults.items()) == [
        ("weight_decay", 0.0),
        ("loss_scale", 1.0),
        ("batch_size", 32),
        ("use_nesterov", False),
        ("split_indices", None),
        ("enable_clip_grad", False),
        ("frequency", 100),
    ]
    assert [p.name for p in optional].index("decay_filter") == 4


def test_another_optimizer_keeps_its_model():
    net = network()
    opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    model = Model(net, LOSS, opt)
    assert ConvertModelUtils.convert_to_thor_model(model, net, LOSS, opt) is model


def test_options_of_ours_reach_the_boost():
    opt = nn.thor(network(), Tensor(0.1), 0.03, 0.9, mode="mindspore", batch_size=8, block=64)
    assert opt.boosts() == (Thor(0.03, mode="mindspore", batch_size=8, block=64),)
    ours = {"pi": True, "kl_clip": 1e-3, "distribute_inverses": True}
    assert nn.thor(network(), Tensor(0.1), 0.03, 0.9, **ours).boosts() == (Thor(0.03, **ours),)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"learning_rate": 0.1}, ArgumentTypeError),
        ({"damping": "0.1"}, ArgumentTypeError),
        ({"damping": Tensor([[0.1]])}, ArgumentTypeError),
        ({"damping": -1.0}, ArgumentValueError),
        ({"momentum": 1}, ArgumentTypeError),
        ({"momentum": -0.1}, ArgumentValueError),
        ({"frequency": 2.0}, ArgumentTypeError),
        ({"frequency": 1}, ArgumentValueError),
        ({"use_nesterov": 1}, ArgumentTypeError),
        ({"enable_clip_grad": 1}, ArgumentTypeError),
        ({"loss_scale": 0.0}, ArgumentValueError),
        ({"weight_decay": -0.1}, ArgumentValueError),
        ({"split_indices": 3}, ArgumentTypeError),
        ({"net": "net"}, ArgumentTypeError),
        ({"mode": "papr"}, ArgumentValueError),
        ({"modus": "paper"}, ArgumentValueError),
    ],
    ids=str,
)
def test_errors(changed, error):
    given = {
        "net": network(),
        "learning_rate": RATE,
        "damping": DAMPING,
        "momentum": 0.9,
        **changed,
    }
    with pytest.raises(error) as caught:
        nn.thor(**given)
    assert_three_lines(caught.value)


def test_groups_have_no_settings_of_their_own():
    own, opt = (net := network()).trainable_params(), nn.thor(net, RATE, DAMPING, 0.9)
    for settings in ({"lr": 0.0}, {"weight_decay": 0.5}):
        with pytest.raises(ArgumentValueError, match="its own") as caught:
            opt.renewed([{"params": own[:1], **settings}, {"params": own[1:]}])
        assert_three_lines(caught.value)
    process = boost.OptimizerProcess(opt)
    process.origin_params = [{"params": own}]
    assert process.generate_new_optimizer().groups() == opt.groups()


def test_a_training_cell_has_its_own_settings():
    net = network()
    opt = nn.thor(net, RATE, DAMPING, 0.9)
    cell = nn.TrainOneStepCell(nn.WithLossCell(net, LOSS), opt)
    convert = ConvertModelUtils.convert_to_thor_model
    assert convert(Model(net), cell, optimizer=opt).train_network is cell
    for settings in (
        {"loss_fn": LOSS},
        {"amp_level": "O2"},
        {"loss_scale_manager": FixedLossScaleManager()},
    ):
        with pytest.raises(ArgumentValueError, match="its own loss") as caught:
            convert(Model(net), cell, optimizer=opt, **settings)
        assert_three_lines(caught.value)


def test_convert_net_utils_leaves_the_network_as_it_is():
    net = ob.load(model_path("mlp"))
    before = {name: p.asnumpy().copy() for name, p in net.parameters_dict().items()}
    nn.ConvertNetUtils().convert_to_thor_net(net)
    for name, p in net.parameters_dict().items():
        np.testing.assert_array_equal(p.asnumpy(), before[name])
