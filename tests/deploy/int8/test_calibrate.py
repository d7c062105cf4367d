"""Ranges, held against the calibrators of onnxruntime.quantization."""

import contextlib
import io

import numpy as np
import onnx_ir as ir
import onnxruntime.quantization.calibrate as oracle
import pytest

from ortboost.core.errors import UsageError
from ortboost.deploy.int8.calibrate import (
    Range,
    _histogram,
    calibrate,
    entropy_threshold,
    percentile_threshold,
)
from ortboost.graph.opsets.convert_opset import quiet
from tests.support import text_model, weights

MODEL = """<ir_version: 9, opset_import: ["" : 18]>
g (float[batch,64] x, float[64,64] w) => (float[batch,64] y) { h = MatMul(x, w) y = Relu(h) }"""


def network():
    return text_model(MODEL, w=weights(64, 64, seed=3))


def batches(count=4, size=64):
    rng = np.random.default_rng(7)
    return [{"x": rng.standard_normal((size, 64)).astype(np.float32)} for _ in range(count)]


class Reader(oracle.CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


def theirs(model, feeds, method, tmp_path, **options):
    path = tmp_path / "m.onnx"
    ir.save(model, path)
    with contextlib.redirect_stdout(io.StringIO()), quiet("root"):
        calibrator = oracle.create_calibrator(
            str(path), None, str(tmp_path / "a.onnx"), method, extra_options=options
        )
        for feed in feeds:
            calibrator.collect_data(Reader([feed]))
        found = calibrator.compute_data()
    return {
        name: [float(np.ravel(end)[0]) for end in data.range_value] for name, data in found.items()
    }


def test_minmax_is_that_of_onnxruntime(tmp_path):
    feeds = batches()
    expected = theirs(network(), feeds, oracle.CalibrationMethod.MinMax, tmp_path)
    found = calibrate(network(), feeds, ["h", "y"])
    for name in ("h", "y"):
        np.testing.assert_allclose([found[name].low, found[name].high], expected[name], rtol=1e-6)
    x = np.concatenate([feed["x"] for feed in feeds])
    inputs = calibrate(network(), feeds, ["x"])["x"]
    assert (inputs.low, inputs.high) == (float(x.min()), float(x.max()))


@pytest.mark.parametrize("percentile", [99.0, 99.9])
def test_percentiles_are_near_those_of_onnxruntime(percentile, tmp_path):
    """Theirs has bins of another width: one bin of each is the difference allowed."""
    feeds = batches()
    method = oracle.CalibrationMethod.Percentile
    expected = theirs(network(), feeds, method, tmp_path, symmetric=True, percentile=percentile)
    found = calibrate(network(), feeds, ["h"], "percentile", percentile=percentile)["h"]
    values = np.concatenate([np.abs(f["x"] @ weights(64, 64, seed=3)).ravel() for f in feeds])
    width = values.max() / 2048
    assert abs(found.high - np.percentile(values, percentile)) <= 2 * width
    # theirs cuts half of what is left off at each side
    assert found.high <= expected["h"][1] * 1.1


def test_entropy_clips_as_much_as_that_of_onnxruntime(tmp_path):
    feeds = batches()
    method = oracle.CalibrationMethod.Entropy
    expected = theirs(network(), feeds, method, tmp_path, symmetric=True)
    found = calibrate(network(), feeds, ["h"], "entropy")["h"]
    full = calibrate(network(), feeds, ["h"])["h"]
    assert 0.4 * full.magnitude < found.magnitude <= full.magnitude
    assert 0.5 < found.magnitude / max(map(abs, expected["h"])) < 2


def test_entropy_cuts_a_far_outlier():
    rng = np.random.default_rng(0)
    values = np.abs(rng.standard_normal(100_000))
    counts = np.histogram(np.append(values, 40.0), bins=2048, range=(0, 40.0))[0]
    threshold = entropy_threshold(counts) * 40.0 / 2048
    assert 2.0 < threshold < 10.0
    flat = np.full(2048, 10)
    assert entropy_threshold(flat) == 2048


def test_percentile_by_hand():
    assert percentile_threshold(np.array([90, 9, 1]), 90.0) == 1
    assert percentile_threshold(np.array([90, 9, 1]), 99.5) == 3
    assert percentile_threshold(np.array([0, 0, 5]), 100.0) == 3


def test_one_side_stays_one_sided():
    found = calibrate(network(), batches(), ["y"], "percentile", percentile=99.0)["y"]
    assert found.low == 0


def test_what_is_not_finite_says_so():
    feeds = batches(2)
    feeds[1]["x"][0, 0] = np.nan
    for method in ("minmax", "percentile", "entropy"):
        assert not calibrate(network(), feeds, ["h"], method)["h"].finite
    feeds[1]["x"][0, 0] = np.inf
    assert not calibrate(network(), feeds, ["x"])["x"].finite


def test_zeros_have_a_range_of_nothing():
    found = calibrate(network(), [{"x": np.zeros((2, 64), np.float32)}], ["h"], "entropy")["h"]
    assert found == Range(0.0, 0.0)


def test_no_data_and_no_tensors():
    with pytest.raises(UsageError):
        calibrate(network(), [], ["h"])
    assert calibrate(network(), batches(1), []) == {}


def test_the_model_is_not_changed():
    model = network()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    calibrate(model, batches(1), ["h", "x"])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_counts_are_those_of_numpy():
    values = weights(1000, seed=5)
    for largest in (float(np.abs(values).max()), 1e-38):
        scaled = values * np.float32(largest / np.abs(values).max())
        counts = _histogram(scaled, float(np.abs(scaled).max()))
        exact = np.histogram(np.abs(scaled).astype(np.float64), 2048, (0, np.abs(scaled).max()))[0]
        assert counts.sum() == 1000
        assert np.abs(np.cumsum(counts) - np.cumsum(exact)).max() <= 3  # rounding at an edge
