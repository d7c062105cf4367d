"""Field types of configurations: wrong types are rejected, always with a ConfigError."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

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
from ortboost.core.field_types import Range, check_kinds, check_value, read_config, write_config
from ortboost.core.field_words import UnfitError, describe_type, field_error
from ortboost.core.loss_scale import DynamicScaleConfig, FixedScaleConfig, GroupedScaleConfig
from ortboost.optimizers import Adam, Lars, Sgd
from ortboost.program.config import ClipConfig, ParameterGroup, ProgramConfig
from ortboost.training.callbacks import Adaptable, Callback
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
    key: bytes = b""
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
        ("key", [b"", b"a"], [None, "a", 1, [1], {"no": "such"}]),
        ("maybe", [None, 3], ["", False, 0.5]),
        ("words", [(), ("a",), ["a"]], [None, 1, "a", (1,), (("a",),)]),
        ("pair", [("a", 1)], [("a",), ("a", "b"), (1, 2), ()]),
        ("nested", [(), (("a",), ())], ["a", ("a",), ((1,),)]),
        ("choice", ["a"], ["anything", 1, None, []]),
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


@dataclasses.dataclass(frozen=True)
class Inner:
    size: Annotated[int, Range(1)]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_kinds(self, "inner")


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    share: Annotated[float, Range(above=0, most=1)] = 0.5
    by: Literal["mean", "sum"] = "mean"
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_kinds(self, "outer")


def test_any_dataclass_is_read_and_written():
    data = {"inner": {"size": 2, "names": ["a"]}, "many": [{"size": 1}], "share": 1, "by": "sum"}
    found = read_config(Outer, data)
    assert found == Outer(Inner(2, ("a",)), (Inner(1),), 1, "sum")
    assert read_config(Outer, write_config(found)) == found
    assert read_config(Outer, {"inner": Inner(3)}).inner == Inner(3)  # objects are kept
    assert write_config(Inner(np.int64(4)))["size"] == 4


@pytest.mark.parametrize(
    ("data", "where", "words"),
    [
        ({"iner": {}}, "outer", "did you mean 'inner'"),
        ({"inner": {"size": 1, "name": "a"}}, "outer, inner", "did you mean 'names'"),
        ({"inner": {"names": []}}, "outer, inner, size", "'size' is missing"),
        ({"inner": {"size": 0}}, "inner, size", "'size' is 0; a whole number of 1 or more"),
        ({"inner": {"size": "1"}}, "inner, size", "'size' is '1'"),
        ({"inner": 3}, "outer, inner", "{'inner': {...}}"),
        ({"many": [{"size": 1}, {"sise": 1}]}, "outer, many", "did you mean 'size'"),
        ({"share": 0}, "outer, share", "a number above 0 to 1"),
        ({"share": float("nan")}, "outer, share", "'share' is nan"),
        ({"share": True}, "outer, share", "'share' is True"),
        ({"by": "men"}, "outer, by", "did you mean 'mean'"),
        ([], "outer", "an Outer"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_to_it(data, where, words):
    with pytest.raises(ConfigError) as info:
        read_config(Outer, data, "outer")
    assert_three_lines(info.value)
    assert words in str(info.value)
    if isinstance(data, dict):
        assert info.value.where.endswith(where.removeprefix("outer"))


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (Range(1), [1, 1e9], [0, INF, NAN]),
        (Range(above=0, below=1), [0.5], [0, 1, NAN]),
        (Range(0, 1), [0, 1], [-0.1, 1.1, -INF]),
    ],
)
def test_ranges(kind, inside, outside):
    assert all(map(kind.holds, inside))
    assert not any(map(kind.holds, outside))


@pytest.mark.parametrize("value", [INF, NAN])
def test_what_is_not_finite_is_said_to_be_so(value):
    error = field_error("lr", UnfitError(value, Annotated[float, Range(0)], type_fits=True), "rate")
    assert error.what == f"'lr' is {value}; a finite number of 0 or more is needed."


def test_a_whole_number_of_more_than_64_bits_is_told_the_limit():
    with pytest.raises(UnfitError) as info:
        check_value(2**63, int)
    assert (
        describe_type(info.value.hint) == "a whole number from -9.223372037e+18 to 9.223372037e+18"
    )


def test_each_member_of_a_list_of_several_kinds_has_its_plural():
    hint = Sequence[Callback | Adaptable]  # was "a list of Callback or an Adaptables"
    assert describe_type(hint) == "a list of Callbacks or Adaptables"
    assert describe_type(tuple[tuple[str, ...], ...]) == "a list of lists of strings"
