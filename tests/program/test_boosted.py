"""The configuration of a program for a level."""

from __future__ import annotations

import dataclasses

import pytest

from ortboost.boosts import AdaSum, DimReduce, FullNormHead, MixedPrecision
from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.grad_centralization import CentralizeConfig
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, GroupedScaleConfig
from ortboost.optimizers import Momentum
from ortboost.program.boost_config import resolve_boost
from ortboost.program.boosted import boosted, split_settings, with_settings
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ProgramConfig
from tests.support import ENGINES, assert_three_lines, batch_for, model_path, stepper


def test_o0_changes_nothing():
    config = ProgramConfig(accumulate=3)
    assert boosted(config, resolve_boost("O0"))[0] == config


def test_o1_is_less_bn_with_all_that_belongs_to_it_and_freeze():
    config, report = boosted(ProgramConfig(learning_rate="0.3"), resolve_boost("O1"))
    assert config == ProgramConfig(
        learning_rate="0.3",
        boosts=(FullNormHead(if_present=True),),
        less_bn=True,
        centralize=CentralizeConfig(multiple_of=16),
        grad_freeze=FreezeConfig(),
    )
    assert ProgramConfig.from_dict(config.to_dict()) == config
    assert list(report.changed) == ["less_bn", "less_bn.fn_flag", "less_bn.gc_flag", "grad_freeze"]
    assert not report.kept


def test_o2_is_o1_and_adasum():
    one, two = (boosted(ProgramConfig(), resolve_boost(level)) for level in ("O1", "O2"))
    assert two[0] == one[0].with_boosts(AdaSum(8))
    assert "one process" in two[1].notes[0]


def test_settings_arrive():
    source = {
        "boost": {"mode": "manual", "grad_accumulation": True},
        "less_bn": {"fn_flag": False, "gc_multiple_of": 1},
        "grad_freeze": {"param_groups": 4, "freeze_type": 2, "freeze_p": 0.4, "seed": 7},
        "grad_accumulation": {"grad_accumulation_step": 4},
    }
    config, report = boosted(ProgramConfig(), resolve_boost("O1", source))
    assert config.less_bn
    assert not config.full_norm_head
    assert config.centralize == CentralizeConfig(multiple_of=1)
    assert config.grad_freeze == FreezeConfig(4, 2, 0.4, seed=7)
    assert config.accumulate == 4
    assert "GradFreeze(p=0.4" in report.changed["grad_freeze"]
    source["less_bn"]["gc_flag"] = False
    assert boosted(ProgramConfig(), resolve_boost("O1", source))[0].centralize is None


def test_what_the_configuration_has_of_its_own_stays():
    own = ProgramConfig(grad_freeze=FreezeConfig(2), accumulate=8)
    sets = [("boost.grad_accumulation", True), ("grad_accumulation.grad_accumulation_step", 2)]
    config, report = boosted(own, resolve_boost("O1", None, sets))
    assert (config.grad_freeze, config.accumulate) == (FreezeConfig(2), 8)
    assert "already has" in report.kept["grad_freeze"]
    assert "already has" in report.kept["grad_accumulation"]
    assert config.less_bn


def test_a_window_of_one_is_none():
    config, report = boosted(
        ProgramConfig(), resolve_boost("O0", None, [("boost.grad_accumulation", True)])
    )
    assert config.accumulate == 1
    assert "is 1" in report.kept["grad_accumulation"]


def test_components_must_be_named():
    for source in (
        {"boost": {"mode": "manual", "dim_reduce": True}},
        {"boost": {"mode": "enable_all"}},
    ):
        with pytest.raises(ConfigError, match="principal components") as raised:
            boosted(ProgramConfig(), resolve_boost("O1", source))
        assert_three_lines(raised.value)
        assert "ortboost pca" in raised.value.fix


def test_the_section_of_dimension_reduction_arrives():
    section = {"pca_mat_path": "p.npy", "n_components": 4, "rho": 0.5, "alpha": 0.0}
    source = {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": section}
    config, _ = boosted(ProgramConfig(), resolve_boost("O0", source))
    assert config.line_search == DimReduce("p.npy", 4, rho=0.5, alpha=0.0)


def test_groups_of_the_loss_scale_must_be_named():
    boost = resolve_boost("O0", {"boost": {"mode": "manual", "loss_scale_group": True}})
    with pytest.raises(ConfigError, match="loss_scale_group") as raised:
        boosted(ProgramConfig(), boost)
    assert_three_lines(raised.value)
    config = ProgramConfig(loss_scale=GroupedScaleConfig(groups=3))
    found, report = boosted(config, boost)
    assert found == config
    assert "defines its own groups" in report.kept["loss_scale_group"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_boosted_program_trains(engine):
    base = ProgramConfig(loss_scale=NO_SCALE, check_finite=False, engine=engine)
    config, _ = boosted(base, resolve_boost("O1", {"grad_freeze": {"param_groups": 3}}))
    training = stepper(build_program(model_path("resnet_bottleneck"), config))
    feeds = batch_for(training.program, 4)
    losses = [training.step(feeds, {"learning_rate": 0.02}).loss for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]


# ---- single settings of the configuration itself ----------------------------------------------


def test_settings_are_those_of_boosts_or_of_the_configuration():
    sets = [("boost.less_bn", True), ("centralize.multiple_of", 1), ("less_bn.fn_flag", False)]
    assert split_settings(sets) == ([sets[0], sets[2]], [sets[1]])
    assert split_settings([("freeze_p", 1)]) == ([("freeze_p", 1)], [])  # rejected by its reader


def test_a_part_is_changed_key_by_key_and_made_if_it_is_not_there():
    sets = [("centralize.multiple_of", 4), ("optimizer.momentum", 0.5), ("loss_scale.window", 7)]
    sets += [("clip.by", "norm")]
    with pytest.raises(ConfigError):
        with_settings(ProgramConfig(), sets)  # a clipping has a limit
    clipped = with_settings(ProgramConfig(), [*sets, ("clip.limit", 2.0)])
    assert clipped.clip == ClipConfig("norm", 2.0)
    config = with_settings(ProgramConfig(weight_decay=0.1), sets[:3])
    assert config == ProgramConfig(
        weight_decay=0.1,
        centralize=CentralizeConfig(multiple_of=4),
        optimizer=Momentum(0.5),
        loss_scale=dataclasses.replace(ProgramConfig().loss_scale, scale_window=7),
    )


def test_a_part_replaces_a_boost_that_it_cannot_describe():
    config = ProgramConfig(boosts=(MixedPrecision("fp32"),))
    assert with_settings(config, [("precision.compute", "fp16")]).precision.compute == "fp16"


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("centralise.multiple_of", 1, "did you mean 'centralize'"),
        ("weight_decay.x", 1, "centralize"),
        ("centralize.multiple", 1, "did you mean 'multiple_of'"),
        ("centralize.multiple_of", "a", "a whole number"),
        ("centralize.multiple_of", 0, "1 or more"),
        ("centralize.patterns", "fc*", "fc*"),
        ("centralize.patterns", [1], "a list of strings"),
        ("optimizer.momentun", 1, "did you mean 'momentum'"),
        ("clip.limit", 1, "every key"),
        ("loss.name", 3, ""),
    ],
)
def test_settings_that_make_no_sense(key, value, nearest):
    with pytest.raises(ConfigError) as raised:
        with_settings(ProgramConfig(), split_settings([(key, value)])[1])
    assert_three_lines(raised.value)
    assert nearest in raised.value.fix
