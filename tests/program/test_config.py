from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost.api.learning_rates import schedules
from ortboost.boosts import AdaSum, DimReduce, GroupLossScale, LossScale
from ortboost.core.errors import ConfigError, OrtBoostError
from ortboost.core.field_types import write_config
from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
)
from ortboost.graph.weights.parameters import Parameter
from ortboost.optimizers import Adam, AdamW, Lars, Sgd
from ortboost.program.config import (
    ClipConfig,
    ParameterGroup,
    ProgramConfig,
    decays,
    scale_from_dict,
)
from ortboost.training.schedules import Constant
from ortboost.transforms.attach_loss import LossConfig
from tests.support import assert_three_lines

CONFIGS = [
    ProgramConfig(),
    ProgramConfig(loss=LossConfig("mse", "sum", label_shape=("batch", 1)), optimizer=AdamW()),
    ProgramConfig(optimizer=Lars(inner=Sgd(momentum=0.5)), loss_scale=NO_SCALE, check_finite=False),
    ProgramConfig(
        loss_scale=FixedScaleConfig(64.0),
        clip=ClipConfig("global-norm", 1.0),
        groups=(
            ParameterGroup("head", ("fc*",), "cosine:0.1", 0.5),
            ParameterGroup("rest", ("*",)),
        ),
        trainable=("fc*",),
        freeze=("conv*",),
        frozen_norm=("bn*",),
        metrics=("accuracy",),
        new_head=5,
        gate_buffers=False,
        running_variance="onnx",
        gradient_divisor=4.0,
        decay="all",
        weight_decay=0.1,
    ),
    ProgramConfig(loss_scale=DynamicScaleConfig(max_scale=None, scale_factor=3.0)),
]


def test_an_unknown_keyword_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match="Unknown argument 'optimiser'") as caught:
        ProgramConfig(optimiser=Sgd())
    assert_three_lines(caught.value)
    assert "did you mean 'optimizer'" in caught.value.fix


@pytest.mark.parametrize("config", CONFIGS)
def test_survives_json(config):
    assert ProgramConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_loss_weights_survive_json():
    config = ProgramConfig(
        loss=LossConfig("bce-with-logits", weight=np.float32([1, 2]), pos_weight=[3.0, 4.0])
    )
    again = ProgramConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert list(again.loss.weight) == [1.0, 2.0]
    assert list(again.loss.pos_weight) == [3.0, 4.0]


def test_keys_may_stay_out():
    assert ProgramConfig.from_dict({}) == ProgramConfig()
    assert (
        ProgramConfig.from_dict({"loss_scale": {"kind": "fixed"}}).loss_scale == FixedScaleConfig()
    )
    assert ProgramConfig.from_dict({"loss_scale": {"init": 8.0}}).loss_scale == DynamicScaleConfig(
        8.0
    )


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ({"optimiser": {}}, "'optimizer'"),
        ({"loss": {"reductoin": "sum"}}, "'reduction'"),
        ({"loss": {"name": "softmax-crossentropy"}}, "'softmax-cross-entropy'"),
        ({"optimizer": {"name": "addam"}}, "'adam'"),
        ({"clip": {"by": "global", "limit": 1.0}}, "'global-norm'"),
        ({"clip": {"by": "norm", "limits": 1.0}}, "'limit'"),
        ({"loss_scale": {"kind": "dynamc"}}, "'dynamic'"),
        ({"loss_scale": {"kind": "dynamic", "windw": 5}}, "scale_window"),
        ({"loss_scale": {"kind": "off", "scale": 5}}, "no settings"),
        ({"groups": [{"name": "a", "pattern": ["x"]}]}, "'patterns'"),
        ({"groups": [{"name": "a", "patterns": "fc*"}]}, "fc*"),
        ({"freeze": "fc*"}, "fc*"),
        ({"decay": "weight"}, "'weights'"),
        ({"metrics": ["acuracy"]}, "'accuracy'"),
        ({"running_variance": "biased"}, "'unbiased'"),
    ],
)
def test_mistakes_name_the_cure(data, hint):
    with pytest.raises(ConfigError) as info:
        ProgramConfig.from_dict(data)
    assert_three_lines(info.value)
    assert hint in info.value.fix


GROUP = ParameterGroup("a", ("x",))
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ProgramConfig(weight_decay=-1.0),
        lambda: ProgramConfig(weight_decay="much"),
        lambda: ProgramConfig(accumulate=2.5),
        lambda: ProgramConfig(accumulate="4"),
        lambda: ProgramConfig(accumulate=10**30),
        lambda: Adam(amsgrad=NAN),
        lambda: Adam(beta1="0.9"),
        lambda: ProgramConfig(gate_buffers="no"),
        lambda: ProgramConfig(check_finite=3),
        lambda: ProgramConfig(gradient_divisor="2"),
        lambda: ProgramConfig(gradient_divisor=1e39),
        lambda: ProgramConfig(adapt="fc*"),
        lambda: ClipConfig("norm", None),
        lambda: FixedScaleConfig(1e-46),
        lambda: DynamicScaleConfig(1e39, max_scale=None),
        lambda: ProgramConfig.from_dict({"clip": {"by": "norm"}}),
        lambda: ProgramConfig.from_dict({"groups": [{"name": "a"}]}),
        lambda: ProgramConfig.from_dict({"groups": 5}),
        lambda: ProgramConfig.from_dict({"loss": {"name": "mse", "label_shape": 5}}),
        lambda: ProgramConfig(weight_decay=NAN),
        lambda: ProgramConfig(weight_decay=INF),
        lambda: ProgramConfig(seed=-1),
        lambda: DimReduce("p.npy", first=1e300),
        lambda: ProgramConfig(gradient_divisor=0.0),
        lambda: ProgramConfig(gradient_divisor=NAN),
        lambda: ProgramConfig(gradient_divisor=INF),
        lambda: ProgramConfig(groups=(GROUP, GROUP)),
        lambda: ProgramConfig(check_finite=False),
        lambda: ProgramConfig(trainable="fc*"),
        lambda: ProgramConfig(frozen_norm="bn*"),
        lambda: ProgramConfig(metrics="accuracy"),
        lambda: ProgramConfig(loss="mse"),
        lambda: ProgramConfig(optimizer="adamw"),
        lambda: ProgramConfig(optimizer=AdamW),
        lambda: ProgramConfig(optimizer={"name": "adamw"}),
        lambda: ProgramConfig(loss_scale="off"),
        lambda: ProgramConfig(loss_scale=1024),
        lambda: ProgramConfig(clip=1.0),
        lambda: ProgramConfig(learning_rate=True),
        lambda: ProgramConfig(learning_rate=[0.05]),
        lambda: ProgramConfig(groups=(ParameterGroup("a", ("x",), learning_rate=(0.1,)),)),
        lambda: ParameterGroup("", ("x",)),
        lambda: ParameterGroup("a/b", ("x",)),
        lambda: ParameterGroup("a", "fc*"),
        lambda: ParameterGroup("a", ("x",), weight_decay=-0.1),
        lambda: ClipConfig("norm", 0.0),
        lambda: ClipConfig("norm", NAN),
        lambda: ClipConfig("norm", INF),
        lambda: ClipConfig("norm", 1e300),
        lambda: ClipConfig("norm", 1e-320),
        lambda: ProgramConfig(weight_decay=1e300),
        lambda: Sgd(momentum=1e300),
        lambda: Adam(eps=1e300),
        lambda: ClipConfig("norms", 1.0),
    ],
)
def test_values_out_of_range(make):
    with pytest.raises(OrtBoostError) as info:
        make()
    assert isinstance(info.value, ConfigError)
    assert_three_lines(info.value)


@pytest.mark.parametrize(
    ("decay", "roles"),
    [
        ("all", {"weight", "bias", "norm_scale", "norm_shift"}),
        ("no-norm", {"weight", "bias"}),
        ("weights", {"weight"}),
    ],
)
def test_decay_filters(decay, roles):
    every = ("weight", "bias", "norm_scale", "norm_shift")
    kept = {r for r in every if decays(Parameter("p", (1,), None, r, ""), decay)}
    assert kept == roles


SCALES = [
    NO_SCALE,
    FixedScaleConfig(3.0),
    DynamicScaleConfig(init_scale=4.0),
    GroupedScaleConfig(groups=3),
    GroupedScaleConfig((4.0, 8.0), (("fc*", "b"), ("*",)), marks=(("h", 1, 2),)),
]


@pytest.mark.parametrize("scale", SCALES)
def test_scales_survive_json(scale):
    assert scale_from_dict(json.loads(json.dumps(write_config(scale)))) == scale


@pytest.mark.parametrize(
    ("added", "names"),
    [
        ((), ["group-loss-scale", "adasum"]),
        ((AdaSum(4),), ["group-loss-scale", "adasum"]),
        ((LossScale(),), ["loss-scale", "adasum"]),  # there is one loss scale
    ],
)
def test_an_added_boost_replaces_its_like_and_no_other(added, names):
    config = ProgramConfig().with_boosts(GroupLossScale(), AdaSum(2)).with_boosts(*added)
    assert [boost.name for boost in config.boosts] == names
    assert all(boost in config.boosts for boost in added)


def test_a_learning_rate_may_be_a_number():
    group = ParameterGroup("head", ("fc*",), learning_rate=1)
    config = ProgramConfig(learning_rate=0.05, groups=(group,))
    found = ProgramConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert found == config
    assert schedules(found, None, None) == {
        "learning_rate": Constant(0.05),
        "learning_rate/head": Constant(1.0),
    }
    assert schedules(found, 0.2, None)["learning_rate"] == Constant(0.2)
    with pytest.raises(ConfigError):
        schedules(found, -1.0, None)
