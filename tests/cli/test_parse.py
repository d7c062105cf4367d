import numpy as np
import pytest

from ortboost.boosts import Thor
from ortboost.cli.parse import (
    parse_clip,
    parse_groups,
    parse_inputs,
    parse_mapping,
    parse_optimizer,
    parse_settings,
    parse_shapes,
    parse_tolerances,
)
from ortboost.core.errors import ConfigError, FileError, UsageError


def test_mapping():
    assert parse_mapping(["x=images", "labels=y"]) == {"x": "images", "labels": "y"}
    with pytest.raises(UsageError, match="INPUT=KEY"):
        parse_mapping(["x="])


def test_clip():
    assert parse_clip("value:0.5").limit == 0.5
    for text in ("1.0", "norm:", "norm:x"):
        with pytest.raises(UsageError):
            parse_clip(text)
    with pytest.raises(ConfigError, match="'global-norm'"):
        parse_clip("globalnorm:1")


def test_group():
    for comma in ";,":
        text = f"head:fc*|out.*:lr=cosine:0.1{comma}warmup=5,weight_decay=0"
        (group,) = parse_groups([text])
        assert (group.name, group.patterns) == ("head", ("fc*", "out.*"))
        assert group.learning_rate == "cosine:0.1,warmup=5"
        assert group.weight_decay == 0
    for text in (
        "head",
        "head:fc*",
        "head:fc*:rate=1",
        "head:fc*:lr=1,rate=1",
        "head:fc*:weight_decay=x",
        "::lr=1",
    ):
        with pytest.raises((UsageError, ConfigError)):
            parse_groups([text])


def test_shapes_are_lengths_of_axes():
    assert parse_shapes(["ids:Nx128", "m:2:3x4"]) == ["ids:1=128", "m:2:0=3", "m:2:1=4"]
    for text in ("ids", "ids:", ":3x4", "ids:3xa", "ids:0x4", "ids:Nx-1"):
        with pytest.raises(UsageError, match="is not the shape of an input"):
            parse_shapes([text])


def test_tolerances_are_for_all_outputs_or_for_one():
    assert parse_tolerances([], "--rtol") == (None, {})
    assert parse_tolerances(["1e-3", "a:b:0.5", "y:0"], "--rtol") == (1e-3, {"a:b": 0.5, "y": 0})
    for text in ("-1", "nan", "inf", "true", "y:", "1e300", "y:x"):
        with pytest.raises(UsageError, match="is not a tolerance") as caught:
            parse_tolerances([text], "--rtol")
        assert caught.value.where == "--rtol"


def test_inputs_are_lengths_constants_and_batch_axes(tmp_path):
    np.save(tmp_path / "h.npy", np.arange(3))
    config = parse_inputs(["x:2=640"], ["sr=16000", f"h={tmp_path / 'h.npy'}"], ["state=none"])
    assert (config.dims, config.batch_axes) == ({"x:2": 640}, {"state": None})
    assert (config.values["sr"], config.values["h"].tolist()) == (16000, [0, 1, 2])
    with pytest.raises(FileError, match="Cannot read the array"):
        parse_inputs(None, [f"h={tmp_path / 'none.npy'}"], None)
    with pytest.raises(UsageError, match="'x' is given twice"):
        parse_inputs(["x=1", "x=2"], None, None)


def test_an_optimizer_has_settings_and_thor_is_momentum_with_a_boost():
    rule, boosts = parse_optimizer("momentum:nesterov=true", {"momentum": 0.8})
    assert (rule.name, rule.nesterov, rule.momentum, boosts) == ("momentum", True, 0.8, ())
    rule, (boost,) = parse_optimizer("thor:frequency=50,momentum=0.8,nesterov=true")
    assert (rule.name, rule.nesterov, rule.momentum) == ("momentum", True, 0.8)
    assert boost == Thor(frequency=50)
    with pytest.raises(ConfigError, match="Unknown optimizer 'thro'"):
        parse_optimizer("thro")


def test_settings_are_keys_of_sections():
    found = parse_settings(["a.b=0.5", "a.c=[2, 4]"])
    assert found == [("a.b", 0.5), ("a.c", [2, 4])]
