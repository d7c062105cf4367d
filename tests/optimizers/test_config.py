from __future__ import annotations

import json

import pytest

from ortboost.core.errors import ConfigError
from ortboost.core.field_types import write_config
from ortboost.optimizers import (
    OPTIMIZERS,
    Adam,
    AdamW,
    Lars,
    Momentum,
    Optimizer,
    Sgd,
    optimizer_from_dict,
)
from tests.support import assert_three_lines

ALL = [
    Sgd(),
    Sgd(momentum=0.5, nesterov=True),
    Sgd(momentum=0.5, dampening=0.5),
    Momentum(),
    Momentum(momentum=0.8),
    Adam(),
    Adam(beta1=0.8, beta2=0.9, eps=1e-6, amsgrad=True, nesterov=True, eps_hat=True),
    AdamW(bias_correction=False),
    Lars(),
    Lars(inner=Sgd(momentum=0.5), trust_coefficient=0.02, use_clip=True),
    Lars(inner=Adam()),
]


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_survives_json(optimizer):
    again = optimizer_from_dict(json.loads(json.dumps(write_config(optimizer))))
    assert again == optimizer
    assert type(again) is type(optimizer)


def test_the_trust_coefficient_keeps_its_short_name_in_files():
    assert write_config(Lars(trust_coefficient=0.02))["coefficient"] == 0.02
    for key in ("coefficient", "trust_coefficient"):
        assert optimizer_from_dict({"name": "lars", key: 0.02}) == Lars(trust_coefficient=0.02)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_rule_starts_from_its_name(name):
    optimizer = optimizer_from_dict({"name": name})
    assert isinstance(optimizer, Optimizer)
    assert optimizer.name == name
    assert len(set(optimizer.slots)) == len(optimizer.slots)


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (Sgd(), ()),
        (Momentum(), ("momentum",)),
        (Adam(), ("exp_avg", "exp_avg_sq")),
        (AdamW(amsgrad=True), ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")),
        (Lars(inner=Sgd()), ()),
    ],
)
def test_slots(optimizer, slots):
    assert optimizer.slots == slots


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        (Sgd, {"momentum": -0.1}),
        (Sgd, {"momentum": NAN}),
        (Sgd, {"momentum": INF}),
        (Sgd, {"momentum": 0.9, "dampening": 1.1}),
        (Sgd, {"dampening": -0.1}),
        (Sgd, {"nesterov": True}),
        (Momentum, {"nesterov": True, "dampening": 0.1}),
        (Momentum, {"momentum": 0.0, "nesterov": True}),
        (Adam, {"beta1": 1.0}),
        (Adam, {"beta1": -0.1}),
        (Adam, {"beta2": 1.0}),
        (Adam, {"beta2": NAN}),
        (Adam, {"eps": 0.0}),
        (Adam, {"eps": INF}),
        (AdamW, {"eps": -1e-8}),
        (Lars, {"trust_coefficient": 0.0}),
        (Lars, {"trust_coefficient": NAN}),
        (Lars, {"epsilon": -1.0}),
    ],
)
def test_values_out_of_range(rule, arguments):
    with pytest.raises(ConfigError) as info:
        rule(**arguments)
    assert_three_lines(info.value)
    assert rule.name in info.value.where


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ({"name": "momentun"}, "'momentum'"),
        ({}, "choices: sgd"),
        ({"name": "adam", "beta": 0.9}, "beta1"),
        ({"name": "adam", "beta1": "high"}, "number"),
        ({"name": "adam", "beta1": None}, "number"),
        ({"name": "lars", "inner": {"name": "adm"}}, "'adam'"),
        ({"name": "lars", "inner": "momentum"}, "inner=Momentum()"),
        ({"name": "lars", "inner": 3}, "inner=Sgd(...)"),
        ({"name": "sgd", "momentum": Sgd()}, "number"),
    ],
)
def test_mistakes_in_a_description(data, hint):
    with pytest.raises(ConfigError) as info:
        optimizer_from_dict(data)
    assert_three_lines(info.value)
    assert hint in info.value.fix


def test_lars_of_lars_is_refused():
    with pytest.raises(ConfigError, match="twice"):
        Lars(inner=Lars())
