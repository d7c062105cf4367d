"""The text of --loss-scale."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost.boosts import LossScale
from ortboost.cli.app import run
from ortboost.cli.parse import parse_loss_scale
from ortboost.core.errors import ConfigError, UsageError
from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
)
from ortboost.program.config import ProgramConfig
from tests.support import assert_three_lines, digits, model_path


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("off", NO_SCALE),
        ("fixed:1024", FixedScaleConfig(1024)),
        ("fixed:scale=8", FixedScaleConfig(8)),
        ("dynamic", DynamicScaleConfig()),
        ("dynamic:4096", DynamicScaleConfig(init_scale=4096)),
        ("dynamic:4096,window=10", DynamicScaleConfig(init_scale=4096, scale_window=10)),
        ("dynamic:init=2**12,window=10", DynamicScaleConfig(init_scale=4096, scale_window=10)),
        ("dynamic:max=none", DynamicScaleConfig(max_scale=None)),
        (
            "dynamic:init=2,min=2,max=64,factor=4",
            DynamicScaleConfig(init_scale=2, min_scale=2, max_scale=64, scale_factor=4),
        ),
        (
            "dynamic:init=65536,window=2000,hysteresis=2",
            DynamicScaleConfig(init_scale=65536, scale_window=2000, hysteresis=2),
        ),
        (
            "dynamic:hysteresis=2,consecutive=true",
            DynamicScaleConfig(hysteresis=2, consecutive_hysteresis=True),
        ),
        ("grouped", GroupedScaleConfig()),
        ("grouped:4096,groups=4", GroupedScaleConfig(4096, 4)),
        ("grouped:64;1024", GroupedScaleConfig((64, 1024), 2)),
        (
            "grouped:64;2**10,groups=conv*|bn*;fc*,min=none,max=none,grow=1.5,shrink=.25",
            GroupedScaleConfig(
                (64, 1024), (("conv*", "bn*"), ("fc*",)), 1.5, 0.25, min_scale=None, max_scale=None
            ),
        ),
        ("grouped:groups=*", GroupedScaleConfig(groups=(("*",),))),
    ],
)
def test_loss_scale(text, wanted):
    assert parse_loss_scale(text) == wanted


def test_files_keep_the_short_names_and_both_are_read():
    policy = DynamicScaleConfig(init_scale=4.0, scale_factor=3.0, scale_window=5)
    data = LossScale(policy).to_dict()
    assert {key: data[key] for key in ("init", "factor", "window")} == {
        "init": 4.0,
        "factor": 3.0,
        "window": 5,
    }
    long = {"init_scale": 4.0, "scale_factor": 3.0, "scale_window": 5}
    assert LossScale.from_dict(data) == LossScale.from_dict(long) == LossScale(policy)

    with pytest.raises(ConfigError, match="'init' is given twice"):
        LossScale.from_dict({"init": 4.0, "init_scale": 8.0})


def test_dynamic_is_the_default():
    """With a setting, too: `dynamic:window=7` starts where `dynamic` does."""
    assert parse_loss_scale("dynamic") == ProgramConfig().loss_scale
    assert parse_loss_scale("dynamic:window=7").init_scale == ProgramConfig().loss_scale.init_scale


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("dynamik", UsageError, "did you mean 'dynamic'"),
        ("fixed:scal=3", ConfigError, "did you mean 'scale'"),
        ("fixed:none", ConfigError, "'scale' is None; a number is needed"),
        ("fixed:much", ConfigError, "much"),
        ("off:1", UsageError, "'1' is not"),
        ("dynamic:window=0", ConfigError, "window"),
        ("dynamic:window=2.5", ConfigError, "whole number"),
        ("dynamic:window=none", ConfigError, "'scale_window' is None"),
        ("dynamic:min=none", ConfigError, "'min_scale' is None"),
        ("dynamic:init=true", ConfigError, "'init_scale' is True"),
        ("dynamic:hysteresis=0", ConfigError, "'hysteresis' is 0"),
        ("dynamic:hysteresis=1.5", ConfigError, "whole number"),
        ("dynamic:hysteresis=true", ConfigError, "'hysteresis' is True"),
        ("dynamic:consecutive=2", ConfigError, "True or False is needed"),
        ("dynamic:2,3", UsageError, "'3' is not of the form"),
        ("dynamic:groups=2", ConfigError, "groups"),
        ("grouped:groups=0", ConfigError, "groups"),
        ("grouped:groups=2.5", ConfigError, "whole number or a list of lists of strings"),
        ("grouped:groups=none", ConfigError, "'groups' is None"),
        ("grouped:groups=true", ConfigError, "'groups' is True"),
        ("grouped:groups=;a", UsageError, "between groups"),
        ("grouped:64;x", ConfigError, "a list of numbers"),
        ("grouped:64;true", ConfigError, "a list of numbers"),
        ("grouped:64;1024;5,groups=2", ConfigError, "3 initial scales and 2 groups"),
        ("grouped:marks=3", UsageError, "--config"),
        ("grouped:grow=x", ConfigError, "grow"),
        ("grouped:shrink=2", ConfigError, "shrink"),
    ],
)
def test_bad_loss_scale_names_the_cure(text, kind, words):
    with pytest.raises(kind) as caught:
        parse_loss_scale(text)
    assert_three_lines(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("dynamic:init=64,window=4,hysteresis=2", 64 * 2.0**4),
        ("grouped:64;1024,groups=fc1.*;fc2.*", 64 * 2.0 ** (16 / 1000)),
        ("grouped:64,groups=2", 64 * 2.0 ** (16 / 1000)),
    ],
)
def test_a_program_of_such_a_scale_trains_and_goes_on(text, last, tmp_path, capsys):
    images = digits()
    np.savez(
        tmp_path / "data.npz",
        x=images["x_train"][:128].reshape(128, -1),
        labels=images["y_train"][:128],
    )
    folder, data = str(tmp_path / "run"), str(tmp_path / "data.npz")
    assert run(["convert", str(model_path("mlp")), "-o", folder, "--loss-scale", text, "-q"]) == 0
    train = ["train", folder, "--data", data, "--batch-size", "16", "-q"]
    assert run([*train, "--epochs", "1"]) == 0
    assert run([*train, "--epochs", "2", "--resume"]) == 0
    capsys.readouterr()
    assert run(["inspect", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["loss_scale"]["kind"] == text.split(":")[0]
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    steps = [event for event in map(json.loads, log) if event["event"] == "step"]
    assert not any(event["overflow"] for event in steps)
    newest = max((tmp_path / "run" / "checkpoints").glob("*.json"))
    scale = _number(json.loads(newest.read_text()), "loss_scale")
    assert scale == pytest.approx(last, rel=1e-5)


def _number(data, key):
    """The first number of this name, wherever it is in the record."""
    found = [value for name, value in _items(data) if name == key and isinstance(value, float)]
    return found[0]


def _items(data):
    for key, value in data.items() if isinstance(data, dict) else ():
        yield key, value
        yield from _items(value)
