from __future__ import annotations

import onnx
import pytest

from ortboost.core.errors import UsageError
from ortboost.deploy.check_runtime import check_onnxruntime
from ortboost.deploy.int8.config import Int8Config
from ortboost.deploy.targets import (
    CHECKERS,
    PRECISIONS,
    TARGETS,
    get_checker,
    get_target,
    ir_version_for,
)
from ortboost.deploy.tensorrt.checker import check_tensorrt
from ortboost.deploy.tensorrt.profiles import parse_profile
from tests.support import assert_three_lines, small_mlp


def test_names():
    assert get_target("tensorrt").name == "tensorrt=11"
    assert get_target("tensorrt=10").opsets[-1] == 20
    with pytest.raises(UsageError, match="Unknown target") as info:
        get_target("onnxruntim")
    assert "'onnxruntime'" in info.value.fix


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_a_target_is_consistent(target):
    assert target.lifts_to in (0, *target.opsets)
    assert "fp32" not in target.refused
    assert target.refused.keys() <= set(PRECISIONS)
    opset = onnx.helper.make_opsetid("", target.lifts_to or target.opsets[0])
    assert onnx.helper.find_min_ir_version_for([opset]) <= target.ir_version
    target.require()


@pytest.mark.parametrize(
    ("name", "precision", "opset", "reason"),
    [
        ("tensorrt=10", "fp32", 21, "opset 21"),
        ("tensorrt=10", "bf16", None, "needs opset 22"),
        ("tensorrt=10", "fp32", 8, "opset 8"),
        ("onnxruntime", "bf16", None, "no bfloat16 kernels"),
        ("tensorrt=11", "bf16", 20, "no bfloat16 convolutions"),
        ("generic", "fp8", None, "Unknown precision"),
    ],
)
def test_what_does_not_go_together(name, precision, opset, reason):
    with pytest.raises(UsageError) as info:
        get_target(name).require(precision, opset)
    assert_three_lines(info.value)
    assert reason in info.value.what


@pytest.mark.parametrize(
    ("opset", "present", "expected"), [(18, 10, 10), (18, 14, 10), (20, 8, 9), (24, 8, 12)]
)
def test_ir_version(opset, present, expected):
    assert ir_version_for(opset, present, newest=10) == expected


def test_checkers():
    assert get_checker("ort") is check_onnxruntime
    assert get_checker("trt=10.3") is get_checker("tensorrt") is check_tensorrt
    assert {name.partition("=")[0] for name in TARGETS} >= set(CHECKERS) - {
        "cuda"
    }  # a device for steps
    with pytest.raises(UsageError, match="The target 'openvino' has no checker") as info:
        get_checker("openvino")
    assert_three_lines(info.value)
    with pytest.raises(UsageError, match="shape profiles"):
        check_onnxruntime(small_mlp(), "onnxruntime", [parse_profile("x:1x4")])


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_says_how_it_is_quantized(name):
    config = Int8Config.for_target(name)
    assert {"reduce_range"} <= TARGETS[name].int8.keys()
    assert config.reduce_range == TARGETS[name].int8["reduce_range"]
    assert not Int8Config.for_target(name, full_range=True).reduce_range
