"""Kinds of the fields of configurations: nothing of another kind gets in, and nothing raises bare errors."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest

from ortboost.boosts import (
    GradAccumulation,
    GradFreeze,
    GroupLossScale,
    LossScale,
    MixedPrecision,
)
from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.grad_centralization import CentralizeConfig
from ortboost.core.errors import ConfigError
from ortboost.core.field_types import check_kinds
from ortboost.core.loss_scale import DynamicScaleConfig, FixedScaleConfig, GroupedScaleConfig
from ortboost.optimizers import Adam, Lars, Sgd
from ortboost.program.config import ClipConfig, ParameterGroup, ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from ortboost.transforms.precision import PrecisionConfig
from tests.support import assert_three_lines

NAN, INF = float("nan"), float("inf")


@dataclasses.dataclass
class Sample:
    whole: int = 1
    real: float = 1.0
    flag: bool = False
    word: str = ""
    maybe: int | None = None
    words: tuple[str, ...] = ()
    pair: tuple[str, int] = ("", 0)
    nested: tuple[tuple[str, ...], ...] = ()
    choice: Literal["a", "b"] = "a"
    inner: Sgd | None = None
    any: Any = None


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("whole", [0, -3, np.int64(4)], [None, 2.0, "1", True, 1.5, NAN, INF, 2**63, [], b""]),
        ("real", [0, 1.5, NAN, np.float32(2)], [None, "1", False, 10**400, [], (1.0,)]),
        ("flag", [True, False], [0, 1, None, "true", []]),
        ("word", ["", "a"], [None, 1, [], ["a"]]),
        ("maybe", [None, 3], ["", False, 0.5]),
        ("words", [(), ("a",), ["a"]], [None, 1, "a", (1,), (("a",),)]),
        ("pair", [("a", 1)], [("a",), ("a", "b"), (1, 2), ()]),
        ("nested", [(), (("a",), ())], ["a", ("a",), ((1,),)]),
        ("choice", ["a", "anything"], [1, None, []]),
        ("inner", [None, Sgd()], [Sgd, "sgd", {}]),
        ("any", [None, 1, "a", []], []),
    ],
)
def test_what_fits_and_what_does_not(field, good, bad):
    for value in good:
        check_kinds(dataclasses.replace(Sample(), **{field: value}), "sample")
    for value in bad:
        with pytest.raises(ConfigError) as info:
            check_kinds(dataclasses.replace(Sample(), **{field: value}), "sample")
        assert_three_lines(info.value)
        assert info.value.where == f"sample, {field}"


CONFIGS = {
    ProgramConfig: {},
    LossConfig: {},
    ClipConfig: {"by": "norm", "limit": 1.0},
    ParameterGroup: {"name": "head", "patterns": ("fc*",)},
    CentralizeConfig: {},
    PrecisionConfig: {"compute": "fp16"},
    MixedPrecision: {},
    LossScale: {},
    GroupLossScale: {},
    GradAccumulation: {"steps": 2},
    GradFreeze: {},
    FreezeConfig: {},
    DynamicScaleConfig: {},
    FixedScaleConfig: {},
    GroupedScaleConfig: {},
    Sgd: {},
    Adam: {},
    Lars: {},
}
STRANGE = (
    *(None, True, False, "", "text", 0, -1, 1.5, NAN, INF, -INF, 10**400, 2**70, -(2**70), 1e300),
    *((), [], [1], ["a"], (1,), ("a",), ((1,),), (("a",),), {}, {"a": 1}, object(), b"x"),
)


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)
def test_whatever_is_given_it_is_taken_or_refused(kind):
    refused = 0
    for field in dataclasses.fields(kind):
        for value in STRANGE:
            try:
                kind(**{**CONFIGS[kind], field.name: value})
            except ConfigError as error:
                assert_three_lines(error)
                refused += 1
    assert refused > 10
