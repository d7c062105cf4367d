"""``ob.check``: for training, and for a target."""

import pytest

import ortboost as ob
from tests.support import assert_three_lines, model_path


def test_a_target_has_its_own_report():
    assert ob.check(model_path("mlp")).trainable
    assert ob.check(model_path("mlp"), target="train").trainable
    report = ob.check(model_path("mlp"), target="tensorrt=11", shapes=["x:1,8,32x64"])
    assert isinstance(report, ob.TargetReport)
    assert "TensorRT" in report.target


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"config": ob.ProgramConfig(), "target": "tensorrt"}, "config"),
        ({"shapes": ["x:1,8,32x64"]}, "shapes"),
        ({"target": "tensort"}, "tensort"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, where):
    with pytest.raises(ob.UsageError) as info:
        ob.check(model_path("mlp"), **arguments)
    assert_three_lines(info.value)
    assert where in str(info.value)


def test_the_network_of_a_program_can_be_trained_again(tmp_path):
    ob.convert(model_path("mlp"), tmp_path / "run", ob.ProgramConfig(boosts=(ob.LessBN(),)))
    found, given = ob.check(tmp_path / "run"), ob.check(model_path("mlp"))
    assert found.trainable
    assert [p["name"] for p in found.parameters] == [p["name"] for p in given.parameters]
