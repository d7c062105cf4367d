import json
import re
import subprocess
import sys

import pytest

from ortboost.core.errors import UsageError
from ortboost.deploy.tensorrt import table
from ortboost.deploy.tensorrt.profiles import parse_profile, settle_profiles, suggestion
from ortboost.deploy.tensorrt.rules.types import TENSORRT_TYPES
from ortboost.deploy.tensorrt.table import parse_release, releases
from tests.support import ROOT, assert_three_lines

DATA = json.loads((ROOT / "ortboost/deploy/tensorrt/trt_ops.json").read_text())
# Codes that a rule reads, as `kind` or `kind:...`.
KNOWN = {
    "constant",
    "static-axis",
    "static-input",
    "attribute",
    "one-of",
    "spatial",
    "rank",
    "no-dilations",
    "symmetric-pads",
    "one-output",
    "no-input",
    "int64",
    "k-below",
    "same-activations",
    "seed-ignored",
    "dense-numbers",
    "zero-point-0",
    "inference-only",
    "if-branches",
    "static-scan",
    "static-carried",
}
# Nothing looks at these: only one form of them exists in a valid file, or the other is refused
# already.
IDLE = {"all-axes", "real-input"}


@pytest.mark.parametrize(
    ("text", "major", "release"),
    [
        ("tensorrt", 11, "11.1"),
        ("tensorrt=11", 11, "11.1"),
        ("trt=11.4", 11, "11.1"),
        ("TensorRT=10", 10, "10.16"),
        ("tensorrt=10.3", 10, "10.1"),
        ("tensorrt=10.0.1", 10, "10.1"),
        ("tensorrt=10.16.1", 10, "10.16"),
    ],
)
def test_a_version_is_judged_by_the_newest_release_before_it(text, major, release):
    target = parse_release(text)
    assert (target.major, target.release) == (major, release)


@pytest.mark.parametrize("text", ["tensorrt=9", "tensorrt=12", "openvino", "tensorrt=", "trt=x"])
def test_other_targets_are_refused(text):
    with pytest.raises(UsageError) as info:
        parse_release(text)
    assert_three_lines(info.value)


def test_the_sources_are_recorded():
    assert set(releases()) == {"10.1", "10.16", "11.1"}
    for entry in releases().values():
        assert re.fullmatch("[0-9a-f]{40}", entry["operators_commit"])
        assert re.fullmatch("[0-9a-f]{40}", entry["plugins_commit"])
        low, high = entry["opset"]
        assert low == 9 < high
    assert "onnx-tensorrt" in DATA["source"]["operators"]


def test_every_code_of_the_table_is_known_to_the_rules():
    used = {
        limit.partition(":")[0]
        for entries in DATA["operators"].values()
        for entry in entries
        for limit in entry.get("limits", ())
    }
    assert used <= KNOWN | IDLE
    types = {
        t for entries in DATA["operators"].values() for e in entries for t in e.get("types", ())
    }
    assert types <= set(TENSORRT_TYPES.values())


@pytest.mark.parametrize(
    ("op", "target", "supported"),
    [
        ("Conv", "tensorrt=10.1", True),
        ("STFT", "tensorrt=10.1", False),
        ("STFT", "tensorrt=10.16", True),
        ("SoftmaxCrossEntropyLoss", "tensorrt=11", False),
        ("QLinearConv", "tensorrt=11", False),
        ("Swish", "tensorrt=10.16", None),
        ("Swish", "tensorrt=11.1", True),
        ("Attention", "tensorrt=10.1", None),
        ("Nonsense", "tensorrt=11", None),
    ],
)
def test_operators_come_and_go_with_releases(op, target, supported):
    known = parse_release(target).operator(op)
    assert (None if known is None else known.supported) is supported


def test_restrictions_come_and_go_with_releases():
    assert "constant:axes" in parse_release("tensorrt=10.1").operator("Slice").limits
    assert not parse_release("tensorrt=11").operator("Slice").limits
    assert parse_release("tensorrt=11").operator("TopK").named("k-below") == ["3840"]


def test_plugins_come_and_go_with_releases():
    assert parse_release("tensorrt=10").plugin("Normalize_TRT") == ("1",)
    assert parse_release("tensorrt=11").plugin("Normalize_TRT") == ()
    assert parse_release("tensorrt=11").plugin("Conv") is None


HEAD = """TensorRT 10.0 supports operators in the inclusive range of opset 9 to opset 20.

| Operator | Supported | Supported Types | Restrictions |
|---|---|---|---|
"""
ROWS = "".join(f"| Op{i} | Y | FP32 |\n" for i in range(100))
PLUGINS = (
    "| Plugin | Name | Versions |\n|---|---|---|\n| [clip](clip) [DEPRECATED] | Clip_TRT | 1, 2 |\n"
)


def make(tmp_path, rows):
    (tmp_path / "ops.md").write_text(HEAD + ROWS + rows)
    (tmp_path / "plugins.md").write_text(PLUGINS)
    words = ["--release", "10.0", str(tmp_path / "ops.md"), "a" * 40]
    words += [str(tmp_path / "plugins.md"), "b" * 40, "-o", str(tmp_path / "out.json")]
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/make_trt_table.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tool_makes_codes_of_restrictions(tmp_path):
    rows = "| TopK | Y | FP32, INT64 | `sorted` must be 1. `K` input must be less than 3840.\n"
    rows += "| Det | N |\n| Pad | Y | FP32 | `axes` must be an initializer |\n"
    assert make(tmp_path, rows).returncode == 0
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["operators"]["TopK"] == [
        {
            "since": "10.0",
            "supported": True,
            "types": ["FP32", "INT64"],
            "limits": ["attribute:sorted=1", "k-below:3840"],
        }
    ]
    assert data["operators"]["Det"] == [{"since": "10.0", "supported": False}]
    assert data["operators"]["Pad"][0]["limits"] == ["constant:axes"]
    assert data["plugins"] == {"Clip_TRT": {"10.0": ["1", "2"]}}
    assert data["releases"]["10.0"]["opset"] == [9, 20]


def test_the_tool_stops_at_a_restriction_without_a_code(tmp_path):
    done = make(tmp_path, "| Pad | Y | FP32 | only on Tuesdays |\n")
    assert done.returncode != 0
    assert "only on Tuesdays" in done.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x:1,8,32x3x4", ((1, 3, 4), (8, 3, 4), (32, 3, 4))),
        ("a:b:2x3", ((2, 3), (2, 3), (2, 3))),
        ("x:5", ((5,), (5,), (5,))),
    ],
)
def test_shapes_are_read_and_written(text, shapes):
    profile = parse_profile(text)
    assert (profile.minimum, profile.optimum, profile.maximum) == shapes
    assert str(profile) == text


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x:",
        ":1x2",
        "x:1,2x3",
        "x:1,2,3,4",
        "x:0x3",
        "x:8,1,32x3",
        "x:1,8,4x3",
        "x:ax3",
        "x:1xx2",
        "x:-1x2",
    ],
)
def test_shapes_that_make_no_sense_are_refused(text):
    with pytest.raises(UsageError) as info:
        parse_profile(text)
    assert_three_lines(info.value)


INPUTS = {"x": ("batch", 3), "y": ("batch", 2), "z": (4, 4)}


def settle(*texts):
    return settle_profiles(INPUTS, [parse_profile(text) for text in texts])


def test_profiles_meet_the_inputs():
    settled = settle("y:1,2,4x2", "x:1,2,4x3", "z:4x4")
    assert list(settled) == ["x", "y"]
    assert settled["x"].maximum == (4, 3)
    assert settle_profiles({"z": (4, 4)}, []) == {}
    assert settle_profiles({"u": None}, [parse_profile("u:1,2,3x2")])["u"].optimum == (2, 2)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ((), "and no profile"),
        (("x:1x3",), "input 'y'"),
        (("x:1x3", "y:1x2", "w:1"), "no input 'w'"),
        (("x:1x3", "x:1x3", "y:1x2"), "two shapes"),
        (("x:1x4", "y:1x2"), "is 3 in the model"),
        (("x:1x3x1", "y:1x2"), "3"),
        (("x:1,2,4x3", "y:1,2,8x2"), "dimension 'batch'"),
        (("x:1x3", "y:1x2", "z:1,4,4x4"), "is 4 in the model"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(texts, words):
    with pytest.raises(UsageError) as info:
        settle(*texts)
    assert_three_lines(info.value)
    assert words in str(info.value)


def test_a_suggestion_can_be_read_back():
    assert parse_profile(suggestion("x", ("batch", 3))).maximum == (32, 3)
    assert suggestion("x", None) == "x:DIMxDIM..."


def test_the_table_is_read_once():
    assert table._data() is table._data()
