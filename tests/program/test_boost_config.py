"""Level, mode, dictionary and single settings, resolved."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.core.errors import ConfigError, FileError, OrtBoostError
from ortboost.program.boost_config import LEVELS, MODES, BoostConfig, Switches, resolve_boost
from tests.support import assert_three_lines

NAMES = tuple(vars(Switches()))


def on(config: BoostConfig) -> set[str]:
    return {name for name, value in vars(config.on).items() if value}


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("O0", set()),
        ("O1", {"less_bn", "grad_freeze"}),
        ("O2", {"less_bn", "grad_freeze", "adasum"}),
    ],
)
def test_levels(level, expected):
    assert on(resolve_boost(level)) == expected


@pytest.mark.parametrize(
    ("switch", "boosts"),
    [
        ("less_bn", ["less_bn", "less_bn.fn_flag", "less_bn.gc_flag"]),
        ("grad_freeze", ["grad_freeze"]),
        ("grad_accumulation", ["grad_accumulation"]),
        ("adasum", ["adasum"]),
        ("loss_scale_group", []),  # a setting of the loss scale
    ],
)
def test_a_switch_alone_enables_its_boosts(switch, boosts):
    assert list(BoostConfig(on=Switches(**{switch: True})).boosts()) == boosts


def test_defaults_are_those_of_mindspore():
    config = resolve_boost()
    assert (config.level, config.mode) == ("O0", "auto")
    less = config.less_bn
    assert (less.fn_flag, less.gc_flag, less.gc_multiple_of) == (True, True, 16)
    freeze = config.grad_freeze
    assert (freeze.param_groups, freeze.freeze_type) == (10, 1)
    assert (freeze.freeze_p, freeze.total_steps) == (0.7, 65536)
    assert config.grad_accumulation.grad_accumulation_step == 1
    assert (config.common.gradient_split_groups, config.common.device_number) == (None, 8)
    reduce = config.dim_reduce
    assert (reduce.rho, reduce.gamma, reduce.alpha, reduce.sigma) == (0.55, 0.9, 0.001, 0.4)
    assert (reduce.n_components, reduce.pca_mat_path, reduce.timeout) == (32, None, 1800)


@pytest.mark.parametrize("level", LEVELS)
def test_manual_overrules_the_level_key_by_key(level):
    given_ = {"boost": {"mode": "manual", "less_bn": False, "grad_accumulation": True}}
    found = on(resolve_boost(level, given_))
    assert found == (on(resolve_boost(level)) - {"less_bn"}) | {"grad_accumulation"}


@pytest.mark.parametrize("level", LEVELS)
def test_all_or_nothing(level):
    assert on(resolve_boost(level, {"boost": {"mode": "enable_all"}})) == set(NAMES)
    assert on(resolve_boost(level, {"boost": {"mode": "disable_all"}})) == set()


def test_auto_does_not_read_the_switches_and_says_so():
    config = resolve_boost("O1", {"boost": {"mode": "auto", "less_bn": False, "grad_freeze": True}})
    assert on(config) == {"less_bn", "grad_freeze"}
    assert list(config.idle) == ["boost.less_bn"]
    assert "mode auto" in config.idle["boost.less_bn"]


def test_nothing_is_remembered_and_nothing_is_written_into():
    """MindSpore writes a manual mode into the table of its level, for the rest of the process."""
    source = {"boost": {"mode": "manual", "less_bn": False}, "grad_freeze": {"freeze_p": 0.2}}
    before = json.dumps(source)
    resolve_boost("O1", source, [("grad_freeze.freeze_p", 0.9), ("boost.adasum", True)])
    assert json.dumps(source) == before
    assert on(resolve_boost("O1")) == {"less_bn", "grad_freeze"}
    assert resolve_boost("O1").grad_freeze.freeze_p == 0.7


def test_single_settings_overrule_the_dictionary():
    source = {"grad_freeze": {"freeze_p": 0.2, "param_groups": 4}}
    config = resolve_boost("O1", source, [("grad_freeze.freeze_p", 0.9)])
    assert (config.grad_freeze.freeze_p, config.grad_freeze.param_groups) == (0.9, 4)


def test_a_switch_as_a_setting_makes_the_mode_manual_unless_one_is_given():
    config = resolve_boost("O1", None, [("boost.less_bn", False)])
    assert (config.mode, on(config)) == ("manual", {"grad_freeze"})
    config = resolve_boost("O1", {"boost": {"mode": "auto"}}, [("boost.less_bn", False)])
    assert (config.mode, on(config)) == ("auto", {"less_bn", "grad_freeze"})


def test_settings_of_a_boost_that_is_off_are_named():
    config = resolve_boost("O0", {"grad_freeze": {"freeze_p": 0.5}, "common": {"device_number": 4}})
    assert list(config.idle) == ["grad_freeze", "common.device_number"]
    assert resolve_boost("O1", {"grad_freeze": {"freeze_p": 0.5}}).idle == {}


def test_a_json_file(tmp_path):
    path = tmp_path / "boost.json"
    path.write_text(json.dumps({"boost": {"mode": "manual", "grad_freeze": True}}))
    assert on(resolve_boost("O0", path)) == {"grad_freeze"}
    assert on(resolve_boost("O0", str(path))) == {"grad_freeze"}


@pytest.mark.parametrize("text", ["{", "[1, 2]", "3", '{"boost": 1}', '{"grad_freeze": [1]}'])
def test_a_file_that_holds_something_else(tmp_path, text):
    path = tmp_path / "boost.json"
    path.write_text(text)
    with pytest.raises(OrtBoostError) as raised:
        resolve_boost("O1", path)
    assert_three_lines(raised.value)
    with pytest.raises(FileError):
        resolve_boost("O1", tmp_path / "missing.json")


def test_split_groups_may_be_a_number():
    """MindSpore raises a TypeError for it, although a number is documented."""
    found = resolve_boost("O1", {"common": {"gradient_split_groups": 5}})
    assert found.common.gradient_split_groups == (5,)
    found = resolve_boost("O1", {"common": {"gradient_split_groups": [50, 100]}})
    assert found.common.gradient_split_groups == (50, 100)


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("o1",), "did you mean 'O1'"),
        (("O9",), "O0, O1, O2"),
        ((1,), "O0, O1, O2"),
        (("O1", {"boost": {"mode": "manul"}}), "did you mean 'manual'"),
        (("O1", {"boost": {"mode": 1}}), "auto, manual"),
        (("O1", {"boost": {"lessbn": True}}), "did you mean 'less_bn'"),
        (("O1", {"grad_frezze": {}}), "did you mean 'grad_freeze'"),
        (("O1", {"grad_freeze": {"freeze": 0.5}}), "did you mean 'freeze_p'"),
        (("O1", {"less_bn": {"fn_flg": True}}), "did you mean 'fn_flag'"),
        (("O1", {"dim_reduce": {"rhoo": 0.5}}), "did you mean 'rho'"),
        (("O1", {"common": {"devices": 8}}), "did you mean 'device_number'"),
        (("O1", {"boost": {1: True}}), "'1'"),
        (("O1", None, [("freeze_p", 1)]), "grad_freeze.freeze_p"),
        (("O1", None, [("less_bn", True)]), "boost.less_bn"),
        (("O1", None, [("mode", "auto")]), "boost.mode"),
        (("O1", None, [("nothing", 1)]), "SECTION.KEY"),
        (("O1", None, [("grad_freeze.", 1)]), "SECTION.KEY"),
    ],
)
def test_unknown_names(arguments, nearest):
    with pytest.raises(ConfigError) as raised:
        resolve_boost(*arguments)
    assert_three_lines(raised.value)
    assert nearest in raised.value.fix


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("boost", "less_bn", 1),
        ("boost", "less_bn", "yes"),
        ("less_bn", "fn_flag", 0),
        ("less_bn", "gc_flag", None),
        ("less_bn", "gc_multiple_of", 0),
        ("grad_freeze", "param_groups", 0),
        ("grad_freeze", "param_groups", 2.5),
        ("grad_freeze", "freeze_type", 7),
        ("grad_freeze", "freeze_p", 1.5),
        ("grad_freeze", "freeze_p", "much"),
        ("grad_freeze", "total_steps", -1),
        ("grad_freeze", "groups", 3),
        ("grad_freeze", "groups", [1]),
        ("grad_freeze", "sequence", "abc"),
        ("grad_freeze", "sequence", ["a"]),
        ("grad_freeze", "separate_state", 1),
        ("grad_accumulation", "grad_accumulation_step", 0),
        ("grad_accumulation", "grad_accumulation_step", True),
        ("common", "device_number", 0),
        ("common", "gradient_split_groups", "50"),
        ("common", "gradient_split_groups", [-1]),
        ("common", "gradient_split_groups", [1.5]),
        ("grad_freeze", "freeze_type", True),
        ("grad_freeze", "total_steps", 10**30),
        ("grad_accumulation", "grad_accumulation_step", 10**30),
        ("dim_reduce", "rho", 1),
        ("dim_reduce", "sigma", -0.1),
        ("dim_reduce", "n_components", 0),
        ("dim_reduce", "pca_mat_path", 3),
        ("dim_reduce", "timeout", "long"),
    ],
)
def test_values_that_make_no_sense(section, key, value):
    """Also for a boost that is off, as it may be turned on later."""
    with pytest.raises(ConfigError) as raised:
        resolve_boost("O0", {section: {key: value}})
    assert_three_lines(raised.value)
    assert key in raised.value.where + raised.value.what


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
_SECTIONS = st.sampled_from(
    ["boost", "common", "less_bn", "grad_freeze", "grad_accumulation", "dim_reduce", "x"]
)
_KEYS = st.sampled_from(
    ["mode", *NAMES, "fn_flag", "freeze_p", "param_groups", "groups", "sequence", "device_number",
     "gradient_split_groups", "grad_accumulation_step", "rho", "pca_mat_path", "y"]
)  # fmt: skip


@given(
    level=st.sampled_from([*LEVELS, "O3"]),
    source=st.dictionaries(
        _SECTIONS, st.dictionaries(_KEYS, _JSON, max_size=4) | _JSON, max_size=4
    ),
    mode=st.sampled_from(MODES),
)
@settings(max_examples=100, deadline=None)
def test_whatever_is_given_it_resolves_or_says_what_is_wrong(level, source, mode):
    try:
        config = resolve_boost(level, source, [("boost.mode", mode)])
    except OrtBoostError as error:
        assert_three_lines(error)
    else:
        assert config.mode == mode
