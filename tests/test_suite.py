"""The options of the suite; tests declared to need no runtime find none (tests/conftest.py)."""

from __future__ import annotations

import subprocess
import sys

import onnxruntime
import pytest

from ortboost.autodiff.native.engine import NativeEngine
from ortboost.autodiff.portable.engine import PortableEngine
from tests import conftest
from tests.support import ROOT


def suite(*words: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def test_what_runs_once_exists():
    listed = (*conftest.WITHOUT_RUNTIME, *conftest.EITHER_RUNTIME, *conftest.SAMPLED)
    assert [name for name in listed if not (conftest.TESTS / name).exists()] == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda: onnxruntime.InferenceSession(b""),
        lambda: onnxruntime.get_available_providers(),  # by name, at the call
        lambda: NativeEngine().unavailable(),
        lambda: PortableEngine().opsets,
    ],
    ids=["session", "providers", "native", "portable"],
)
def test_a_test_without_runtime_finds_none(ask):
    """This file is one of them."""
    with pytest.raises(pytest.fail.Exception, match="WITHOUT_RUNTIME"):
        ask()


def test_what_needs_no_runtime_can_be_left_out():
    files = ("core/test_report.py", "api/test_bench_models.py", "runtime/test_diagnosis.py")
    found = suite("--collect-only", "--runtime-only", *(f"tests/{file}" for file in files))
    assert "test_diagnosis.py" in found
    assert "test_report.py" not in found
    assert "test_bench_models.py" not in found
    assert "deselected" in found


def test_what_needs_the_native_engine_or_says_so_is_not_left_out():
    files = ("api/test_check_model.py", "boosts/test_ema.py", "cli/test_verbs.py")
    found = suite("--collect-only", "--runtime-only", *(f"tests/{file}" for file in files))
    assert "test_a_target_has_its_own_report" in found
    assert "test_an_opset_beyond_the_runtime_is_named" in found
    assert "test_help" not in found
    assert "-native]" in found or "[native]" in found
    assert "portable" not in found


def test_every_fifth_of_many_cases_of_a_kind_runs_with_onnxruntime_training():
    file = "tests/autodiff/portable/test_probe.py"
    every, some = suite("--collect-only", file), suite("--collect-only", "--runtime-only", file)
    cases = every.count("::test_gradient[")
    assert cases > 1000
    assert some.count("::test_gradient[") == -(-cases // 5)
    assert some.count("::test_a_group_normalization_of_unknown_channels[") == 2


def test_five_values_of_a_kind_have_their_turn_too():
    found = suite(
        "--collect-only", "--runtime-only", "tests/autodiff/portable/rules/test_reductions.py"
    )
    for operator in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum"):
        assert f"-Reduce{operator}]" in found


def test_what_is_left_when_the_time_is_over_is_skipped_and_told():
    found = suite("--budget", "0", "tests/core/test_report.py")
    assert "the 0 seconds are over" in found
    assert " skipped" in found
    assert "passed" not in found
