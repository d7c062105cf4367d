"""The text of --loss-scale."""

from __future__ import annotations

import pytest

from ortboost.cli.parse_scale import parse_loss_scale
from ortboost.errors import ConfigError, UsageError
from ortboost.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
)
from tests.support import assert_three_lines


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("off", NO_SCALE),
        ("fixed:1024", FixedScaleConfig(1024)),
        ("fixed:scale=8", FixedScaleConfig(8)),
        ("dynamic", DynamicScaleConfig()),
        ("dynamic:4096", DynamicScaleConfig(init=4096)),
        ("dynamic:4096,window=10", DynamicScaleConfig(init=4096, window=10)),
        ("dynamic:init=2**12,window=10", DynamicScaleConfig(init=4096, window=10)),
        ("dynamic:max=none", DynamicScaleConfig(max_scale=None)),
        (
            "dynamic:init=2,min=2,max=64,factor=4",
            DynamicScaleConfig(init=2, min_scale=2, max_scale=64, factor=4),
        ),
        (
            "dynamic:init=65536,window=2000,hysteresis=2",
            DynamicScaleConfig(init=65536, window=2000, hysteresis=2),
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


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("dynamik", UsageError, "did you mean 'dynamic'"),
        ("fixed:scal=3", ConfigError, "did you mean 'scale'"),
        ("fixed:none", UsageError, "'scale' cannot be none"),
        ("fixed:much", ConfigError, "much"),
        ("off:1", UsageError, "'1' is not"),
        ("dynamic:window=0", ConfigError, "window"),
        ("dynamic:window=2.5", UsageError, "whole number"),
        ("dynamic:window=none", UsageError, "'window' cannot be none"),
        ("dynamic:min=none", UsageError, "'min_scale' cannot be none"),
        ("dynamic:init=true", UsageError, "'init' cannot be true"),
        ("dynamic:hysteresis=0", ConfigError, "'hysteresis' is 0"),
        ("dynamic:hysteresis=1.5", UsageError, "whole number"),
        ("dynamic:hysteresis=true", UsageError, "'hysteresis' cannot be true"),
        ("dynamic:consecutive=2", UsageError, "consecutive=true or"),
        ("dynamic:2,3", UsageError, "'3' is not of the form"),
        ("dynamic:groups=2", ConfigError, "groups"),
        ("grouped:groups=0", ConfigError, "groups"),
        ("grouped:groups=2.5", UsageError, "whole number"),
        ("grouped:groups=none", UsageError, "'groups' cannot be none"),
        ("grouped:groups=true", UsageError, "'groups' cannot be true"),
        ("grouped:groups=;a", UsageError, "between groups"),
        ("grouped:64;x", UsageError, "one for each group"),
        ("grouped:64;true", UsageError, "one for each group"),
        ("grouped:64;1024;5,groups=2", ConfigError, "3 first scales and 2 groups"),
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
