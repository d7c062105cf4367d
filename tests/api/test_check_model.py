"""``ob.check``: for training, and for a target."""

import numpy as np
import pytest

import ortboost as ob
from tests.support import assert_three_lines, model_path, text_model, weights

pytestmark = pytest.mark.each_runtime  # every engine that is here is asked


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


def test_check_tells_what_a_conversion_tells():
    net = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,2] w) => (float[N,2] y) {
          r = RandomNormalLike(x) s = Add(x, r) y = MatMul(s, w) }""",
        w=weights(3, 2),
    )
    told = [note for report in ob.build_program(net).reports for note in report.notes]
    assert any("Evaluation and exported files draw them, too" in note for note in told)
    assert set(told) <= set(ob.check(net).notes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_cannot_be_trained(value):
    """Training ended with the advice to look for NaN in the data."""
    stray = weights(3, 2)
    stray[1, 1] = value
    net = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,2] w, float[2,2] v) => (float[N,2] y) {
          h = MatMul(x, w) y = MatMul(h, v) }""",
        w=stray,
        v=weights(2, 2),
    )
    (found,) = ob.check(net).blockers
    assert (found.node, "NaN or infinite" in found.reason) == ("w", True)
    with pytest.raises(ob.ModelError, match="cannot be trained"):
        ob.build_program(net)
    ob.build_program(net, ob.ProgramConfig(freeze=("w",)))


def test_inspect_lists_the_weights_that_a_conversion_would_store():
    net = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,2] x, float[3,2] v) => (float[N,2] y) <int64[2] shape = {2, 3}> {
          w = ConstantOfShape(shape) h = MatMul(x, w) y = MatMul(h, v) }""",
        v=weights(3, 2),
    )
    found = {p.name: p.trainable for p in ob.inspect(net).parameters}
    assert found == {p["name"]: p["trained"] for p in ob.check(net).parameters}
    assert found["w"]
