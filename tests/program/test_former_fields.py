"""Former fields for boosts: given, read, replaced, and in configuration files.

``golden/program/former_fields.json`` holds ``ProgramConfig.to_dict()`` of commit d3ee7e8, the last
without objects.
"""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from ortboost.boosts import (
    Clip,
    FullNormHead,
    GradAccumulation,
    GradCentralization,
    GradFreeze,
    GroupLossScale,
    LessBN,
    LossScale,
    MixedPrecision,
)
from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
)
from ortboost.program.config import ProgramConfig
from ortboost.program.former_fields import FORMER
from ortboost.transforms.precision import PrecisionConfig
from tests.support import ROOT, assert_three_lines

OLD = json.loads((ROOT / "tests" / "golden" / "program" / "former_fields.json").read_text())
GROUPS = (("a", "b"), ("b",))
PAIRS = [
    ("less_bn", True, LessBN()),
    ("full_norm_head", True, FullNormHead()),
    ("centralize", GradCentralization(("fc*",), 1), GradCentralization(("fc*",), 1)),
    ("precision", PrecisionConfig("bf16", emulate=True), MixedPrecision("bf16", emulate=True)),
    ("loss_scale", FixedScaleConfig(8.0), LossScale(FixedScaleConfig(8.0))),
    ("loss_scale", NO_SCALE, LossScale(NO_SCALE)),
    ("loss_scale", GroupedScaleConfig(groups=3), GroupLossScale(GroupedScaleConfig(groups=3))),
    ("accumulate", 4, GradAccumulation(4)),
    ("clip", Clip("norm", 2.0), Clip("norm", 2.0)),
    ("grad_freeze", FreezeConfig(4, 2, 0.4, 99, 7), GradFreeze(0.4, "cost", 4, 99, 7)),
    (
        "grad_freeze",
        FreezeConfig(freeze_type=0, groups=GROUPS),
        GradFreeze(by="continuous", groups=GROUPS),
    ),
    (
        "grad_freeze",
        FreezeConfig(separate_state=False, sequence=(0, 1)),
        GradFreeze(separate_state=False, sequence=(0, 1)),
    ),
]  # fmt: skip


def test_every_field_is_tested():
    assert {name for name, _, _ in PAIRS} == set(FORMER)


@pytest.mark.parametrize(("name", "value", "boost"), PAIRS)
def test_a_field_and_its_boost_are_one(name, value, boost):
    by_field, by_boost = ProgramConfig(**{name: value}), ProgramConfig(boosts=[boost])
    assert by_field == by_boost
    assert boost in by_field.boosts
    assert getattr(by_boost, name) == value
    assert ProgramConfig.from_dict(json.loads(json.dumps(by_boost.to_dict()))) == by_boost
    as_listed = ProgramConfig.from_dict(json.loads(json.dumps({"boosts": [boost.to_dict()]})))
    assert as_listed == by_boost
    without = dataclasses.replace(by_boost, **{name: getattr(ProgramConfig(), name)})
    assert without == ProgramConfig()


def test_a_loss_scale_is_there_unless_it_is_turned_off():
    assert ProgramConfig().boosts == (LossScale(DynamicScaleConfig(init_scale=2.0**16)),)
    assert ProgramConfig(boosts=(LessBN(),)).boosts == (LessBN(), LossScale())
    off = ProgramConfig(boosts=(LessBN(), LossScale(NO_SCALE)))
    assert off.enabled_boosts == (LessBN(),)
    assert off.scaler is None


def test_a_given_field_replaces_its_like_and_nothing_else():
    config = ProgramConfig(boosts=(GradAccumulation(2), Clip("norm", 1.0)), accumulate=3)
    assert config.boosts == (LossScale(), GradAccumulation(3), Clip("norm", 1.0))
    assert dataclasses.replace(config, accumulate=1).boosts == (LossScale(), Clip("norm", 1.0))
    assert dataclasses.replace(config, boosts=()).boosts == (LossScale(),)
    assert dataclasses.replace(config, seed=3).boosts == config.boosts
    grouped = dataclasses.replace(config, loss_scale=GroupedScaleConfig())
    assert grouped.boosts[0] == GroupLossScale()


@pytest.mark.parametrize("name", OLD)
def test_an_old_document_is_read_and_written_as_it_was(name):
    config = ProgramConfig.from_dict(OLD[name])
    assert json.loads(json.dumps(config.to_dict())) == OLD[name]
    assert len(config.boosts) == (1 if name == "defaults" else 8)


def test_plain_data_with_a_text_for_an_object_is_not_told_to_use_from_dict():
    with pytest.raises(ConfigError, match="'precision' is 'fp16'; an object with") as caught:
        ProgramConfig.from_dict({"precision": "fp16"})
    assert_three_lines(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"less_bn": 1}, "less_bn"),
        ({"clip": 1.0}, "a Clip or None is needed"),
        ({"loss_scale": {"kind": "off"}}, "plain data"),
        ({"precision": "fp16"}, r"Write precision=PrecisionConfig\('fp16'\)"),
        ({"loss": "mse"}, r"Write loss=LossConfig\('mse'\)"),
        ({"optimizer": "adam"}, r"Write optimizer=Adam\(\)"),
        ({"accumulate": 0}, "'steps' is 0"),
        ({"accumulat": 2}, "accumulat"),
    ],
)
def test_a_wrong_value_is_refused(fields, said):
    with pytest.raises((ConfigError, TypeError)) as caught:
        ProgramConfig(**fields)
    assert re.search(said, str(caught.value))
    assert_three_lines(caught.value)
