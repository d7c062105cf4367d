from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import ParityError, UsageError
from ortboost.deploy.synthetic_inputs import seeded_batch
from ortboost.deploy.tolerance import Tolerance, tolerance_for
from ortboost.deploy.verify import compare
from ortboost.program.catalogue import TensorSpec
from tests.support import assert_three_lines


def batches(*arrays, name="y"):
    return [{name: np.asarray(array, np.float32)} for array in arrays]


def test_equal_batches():
    data = batches([[1, 2], [3, 4]], [[5, 6]])
    parity = compare(data, data, ["y"])
    assert parity.ok
    assert parity.samples == 3
    assert parity.worst.max_abs == 0
    parity.require("here")


@pytest.mark.parametrize(
    ("off", "ok"), [(1e-4, True), (2e-3, True), (2.2e-3, False), (np.nan, False), (np.inf, False)]
)
def test_the_tolerance_is_absolute_plus_relative(off, ok):
    # At 2.0 it is 1e-4 + 1e-3 * 2.
    tolerance = Tolerance(1e-3, 1e-4)
    parity = compare(batches([2.0]), batches([2.0 + off]), ["y"], tolerance=tolerance)
    assert parity.ok == ok


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_equal_non_finite_values_are_equal(value):
    assert compare(batches([value, 1]), batches([value, 1]), ["y"]).ok
    assert not compare(batches([value, 1]), batches([0, 1]), ["y"]).ok
    assert not compare(batches([0, 1]), batches([value, 1]), ["y"]).ok


def test_opposite_infinities_differ():
    assert not compare(batches([np.inf]), batches([-np.inf]), ["y"]).ok


def test_another_shape_differs():
    assert not compare(batches([[1, 2]]), batches([1, 2]), ["y"]).ok


def test_a_missing_batch_is_an_error():
    with pytest.raises(ValueError, match="shorter"):
        compare(batches([1], [2]), batches([1]), ["y"])


def test_scalars_count_as_one_sample():
    assert compare(batches(1.0, 2.0), batches(1.0, 2.0), ["y"]).samples == 2


def test_the_worst_output_is_named():
    want = [{"a": np.ones(2), "b": np.ones(2), "c": np.ones(2)}]
    have = [{"a": np.ones(2) * 1.01, "b": np.ones(2) * 1.5, "c": np.ones(2)}]
    parity = compare(want, have, ["a", "b", "c"])
    with pytest.raises(ParityError) as info:
        parity.require("net.onnx")
    assert_three_lines(info.value)
    assert "output 'b'" in info.value.where
    assert parity.to_dict()["outputs"]["c"]["within"]
    assert not parity.to_dict()["ok"]


def test_synthetic_inputs_fit_and_repeat():
    specs = [
        TensorSpec("x", np.dtype(np.float32), ("batch", 3)),
        TensorSpec("ids", np.dtype(np.int64), (2, None)),
    ]
    one, other = seeded_batch(specs, seed=1), seeded_batch(specs, seed=1)
    assert (one["x"].shape, one["x"].dtype) == ((4, 3), np.float32)
    assert one["ids"].shape == (2, 4)
    assert set(np.unique(one["ids"])) <= {0, 1}
    np.testing.assert_array_equal(one["x"], other["x"])
    assert (one["x"] != seeded_batch(specs, seed=2)["x"]).any()


def test_a_tolerance_for_one_output():
    want = [{"a": np.array([1.0]), "b": np.array([1.0])}]
    have = [{"a": np.array([1.05]), "b": np.array([1.0])}]
    assert not compare(want, have, ["a", "b"]).ok
    loose = Tolerance(atols={"a": 0.1})
    assert compare(want, have, ["a", "b"], tolerance=loose).ok
    assert compare(want, have, ["a", "b"], tolerance=Tolerance(rtols={"a": 0.06})).ok
    assert not compare(want, have, ["a", "b"], tolerance=Tolerance(atols={"b": 0.1})).ok
    loose.check(["a", "b"])
    with pytest.raises(UsageError, match="no such output") as info:
        loose.check(["aa"])
    assert "'aa'" in info.value.fix


def test_the_tolerance_of_short_formats_is_in_proportion():
    want, have = batches([100.0, 0.0]), batches([100.5, 0.5])
    assert not compare(want, have, ["y"]).ok
    assert compare(want, have, ["y"], tolerance=tolerance_for("fp16")).ok
    assert not compare(want, have, ["y"], tolerance=tolerance_for("fp16", atol=0.1)).ok
    assert not compare(want, batches([100.0, 3.0]), ["y"], tolerance=tolerance_for("fp16")).ok
    assert compare(want, batches([100.0, 3.0]), ["y"], tolerance=tolerance_for("bf16")).ok
    assert tolerance_for("fp32", rtol=0.5) == Tolerance(0.5, 1e-4, agreement=None)


def test_small_values_of_a_large_output_may_be_rounded_like_the_large_ones():
    want, have = batches([1e6, 0.5]), batches([1e6, 4.5])
    assert compare(want, have, ["y"], tolerance=tolerance_for("fp32")).ok
    assert not compare(want, batches([1e6, 11.0]), ["y"], tolerance=tolerance_for("fp32")).ok
    given = ({"atol": 1e-4}, {"rtol": 1e-3}, {"rtols": {"y": 1e-3}}, {"atols": {"y": 1e-4}})
    for settings in given:  # then it is what the user asks for
        assert not compare(want, have, ["y"], tolerance=tolerance_for("fp32", **settings)).ok
    assert not compare(batches([9, 9]), batches([9, 9.01]), ["y"], tolerance=tolerance_for()).ok


def test_the_worst_sample_is_counted_over_batches():
    want = batches([[1, 1], [1, 1]], [[1, 1], [1, 1], [1, 1]])
    have = batches([[1, 1], [1, 1.1]], [[1, 1], [1, 3], [1, 1]])
    parity = compare(want, have, ["y"])
    assert parity.worst.sample == 3
    assert parity.samples == 5
    with pytest.raises(ParityError, match="sample 3 of 5"):
        parity.require("net.onnx")


def test_the_ratio_of_signal_to_noise_is_that_of_all_batches():
    want, have = batches([3.0, 4.0], [0.0, 5.0]), batches([3.0, 4.3], [0.4, 5.0])
    ratio = compare(want, have, ["y"]).differences[0].sqnr
    assert ratio == pytest.approx(10 * np.log10(50 / 0.25))  # 23 dB
    int8 = tolerance_for("int8")
    assert compare(want, have, ["y"], tolerance=int8).ok
    assert compare(want, have, ["y"], tolerance=tolerance_for("int8", sqnr=24)).ok is False
    assert (
        compare(want, have, ["y"], tolerance=tolerance_for("int8", rtol=1e-3, atol=0)).ok is False
    )
    loose = tolerance_for("int8", sqnr=24, atols={"y": 1.0})
    assert compare(want, have, ["y"], tolerance=loose).ok
    equal = compare(want, want, ["y"], tolerance=int8)
    assert equal.ok
    assert equal.to_dict()["outputs"]["y"]["sqnr"] is None  # JSON has no infinity
    lost = compare(want, batches([3.0, np.nan], [0.0, 5.0]), ["y"], tolerance=int8)
    assert not lost.ok
    with pytest.raises(ParityError, match="below 15 dB"):
        lost.require("net.onnx")


INTEGERS = {
    "token": ([10000], [10005]),
    "beyond float64": ([2**60], [2**60 + 1]),
    "boolean": ([True, False], [True, True]),
    "kind": ([True, False], [1, 0]),
    "kind of number": ([1, 2], [1.0, 2.0]),
}


@pytest.mark.parametrize("case", INTEGERS)
def test_integers_and_booleans_must_be_equal(case):
    """Class numbers and indices: 10005 is no approximation of 10000."""
    want, have = ([{"y": np.array(values)}] for values in INTEGERS[case])
    assert compare(want, want, ["y"]).ok
    parity = compare(want, have, ["y"])
    assert not parity.ok
    with pytest.raises(ParityError) as info:
        parity.require("net.onnx")
    assert_three_lines(info.value)
    if case == "token":
        assert "not all of its elements are equal, off by up to 5" in info.value.what
        assert compare(want, have, ["y"], tolerance=Tolerance(atols={"y": 5})).ok
        assert compare(want, have, ["y"], tolerance=tolerance_for(atol=5)).ok


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_most_class_numbers_are_equal_below_32_bits(precision):
    want, near = [{"y": np.arange(40)}], [{"y": np.r_[7, np.arange(1, 40)]}]
    tolerance = tolerance_for(precision)
    assert compare(want, near, ["y"], tolerance=tolerance).ok
    assert not compare(want, [{"y": np.arange(40) + 1}], ["y"], tolerance=tolerance).ok
    # Another shape is wrong whatever the share of the batches before.
    assert not compare(want * 2, [*want, {"y": np.arange(39)}], ["y"], tolerance=tolerance).ok


def test_samples_are_counted_although_nothing_was_detected():
    batch = [{"boxes": np.zeros((0, 4)), "scores": np.zeros((3, 9))}]
    assert compare(batch, batch, ["boxes", "scores"]).samples == 3


def test_class_numbers_in_int8_are_counted():
    int8 = tolerance_for("int8")
    want = [{"y": np.arange(40)}]
    for wrong, ok in ((2, True), (3, False)):
        have = [{"y": np.concatenate([np.arange(40 - wrong), np.full(wrong, 100)])}]
        parity = compare(want, have, ["y"], tolerance=int8)
        assert parity.ok is ok
        assert parity.differences[0].sqnr is None
    with pytest.raises(ParityError, match="fewer than 95%"):
        parity.require("net.onnx")
    texts = [{"y": np.array(["a", "b"], object)}]
    assert compare(texts, texts, ["y"], tolerance=int8).ok
    assert not compare(texts, [{"y": np.array(["a", "c"], object)}], ["y"], tolerance=int8).ok
