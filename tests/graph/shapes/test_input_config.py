from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import ConfigError, UsageError
from ortboost.graph.shapes.input_config import InputConfig, dimension_name, fit_dims
from ortboost.program.config import ProgramConfig
from tests.support import assert_three_lines


@pytest.mark.parametrize(
    "name", ["?", "", "*", "-1", "None", "none", "unknown", "UNK", "dynamic_dim", "any", "123"]
)
def test_a_placeholder_names_no_dimension(name):
    assert dimension_name(name) is None


@pytest.mark.parametrize("name", ["batch", "N", "s0", "unk__12", "p2o.DynamicDimension.0", "dim"])
def test_a_name_is_kept(name):
    assert dimension_name(name) == name


SHAPES = {"x": ("n", 3, "h", "w"), "y": ("n", None), "a:0": ("n", 4)}


@pytest.mark.parametrize(
    ("dims", "changed"),
    [
        ({"h": 8}, {"x": ("n", 3, 8, "w")}),
        ({"n": 2}, {"x": (2, 3, "h", "w"), "y": (2, None), "a:0": (2, 4)}),
        ({"x:0": 2}, {"x": (2, 3, "h", "w"), "y": (2, None), "a:0": (2, 4)}),
        ({"y:1": 5, "a:0:0": 1}, {"x": (1, 3, "h", "w"), "y": (1, 5), "a:0": (1, 4)}),
        ({"x:1": 3, "x:2": 8, "h": 8}, {"x": ("n", 3, 8, "w")}),
    ],
)
def test_dims_by_name_and_by_axis(dims, changed):
    assert fit_dims(SHAPES, dims) == {**SHAPES, **changed}


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"height": 8}, "no dimension 'height'"),
        ({"z:0": 8}, "no dimension 'z:0'"),
        ({"x:4": 8}, "no dimension 'x:4'"),
        ({"x:1": 4}, "is 3; it cannot be 4"),
        ({"h": 8, "x:2": 9}, "is 8; it cannot be 9"),
        ({"x:2": 8, "h": 9}, "is 8; it cannot be 9"),
    ],
)
def test_what_does_not_fit_is_refused(dims, words):
    with pytest.raises(UsageError, match=words) as info:
        fit_dims(SHAPES, dims)
    assert_three_lines(info.value)


def test_the_names_that_there_are_come_in_order():
    with pytest.raises(UsageError, match="no dimension") as info:
        fit_dims(SHAPES, {"height": 8})
    assert "choices: h, n, w; or write INPUT:AXIS" in info.value.fix
    with pytest.raises(UsageError, match="no dimension") as info:
        fit_dims({"x": (None, 3)}, {"height": 8})
    assert info.value.fix == "None of them has a name: write INPUT:AXIS."


@pytest.mark.parametrize(
    "fields",
    [
        {"dims": {"h": 0}},
        {"dims": {"h": 2.5}},
        {"dims": {"h": True}},
        {"dims": {"h": "8"}},
        {"batch_axes": {"x": "none"}},
        {"values": {"x": "text"}},
        {"values": {"x": [[1], [2, 3]]}},
        {"values": {"x": None}},
    ],
)
def test_a_setting_of_another_kind_is_refused(fields):
    with pytest.raises(ConfigError) as info:
        InputConfig(**fields)
    assert_three_lines(info.value)


def test_it_is_part_of_the_configuration_of_a_program():
    inputs = InputConfig({"h": 8}, {"sr": np.array([1, 2])}, {"state": 1, "sr": None})
    data = ProgramConfig(inputs=inputs).to_dict()
    again = ProgramConfig.from_dict(data)
    assert again.to_dict() == data
    assert again.inputs.values == {"sr": [1, 2]}
    with pytest.raises(ConfigError, match="Unknown key 'dim'"):
        ProgramConfig.from_dict({"inputs": {"dim": {"h": 8}}})
