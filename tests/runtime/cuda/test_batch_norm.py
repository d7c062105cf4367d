"""Statistics and factors of batch normalizations."""

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.runtime.cuda.batch_norm import factors_by_channel, statistics_by_image
from tests.runtime.cuda.support import graph, needs_accurate, rewritten, run, types, values

BATCH_NORM = """(SHORT[n,3,12,16] h, float[3] s, float[3] b) => (float[n,3,12,16] y, float[3] var) {
    CAST
    axes = Constant<value_ints = [0, 2, 3]>()
    m = ReduceMean<keepdims = 1>(x, axes)
    c = Sub(x, m)
    sq = Mul(c, c)
    var = ReduceMean<keepdims = 0>(sq, axes)
    flat = Constant<value_ints = [-1]>()
    mean = Reshape(m, flat)
    y = BatchNormalization(x, s, b, mean, var)
}"""


@pytest.mark.parametrize(
    ("short", "cast"), [("float", "x = Identity(h)"), ("float16", "x = Cast<to = 1>(h)")]
)
@pytest.mark.parametrize("mean", [0.0, pytest.param(300.0, marks=needs_accurate)])
def test_statistics_of_each_image_make_those_of_the_batch(short, cast, mean):
    model = graph(BATCH_NORM.replace("SHORT", short).replace("CAST", cast))
    changed = rewritten(model, statistics_by_image)
    assert "LayerNormalization" in types(changed)
    x = values(5, 3, 12, 16, mean=mean) * np.array([1, 10, 0.0]).reshape(1, 3, 1, 1)
    x = x.astype(short.replace("float", "float32") if short == "float" else short)
    feeds = {"h": x, "s": values(3, seed=1), "b": values(3, seed=2)}
    wide = x.astype(np.float64)
    exact = wide.var((0, 2, 3))
    after = run(changed, **feeds)
    np.testing.assert_allclose(after[1], exact, rtol=2e-4, atol=1e-7)
    assert after[1][2] < 1e-12  # a constant channel
    exact_y = (wide - wide.mean((0, 2, 3), keepdims=True)) / np.sqrt(exact + 1e-5)[:, None, None]
    exact_y = exact_y * feeds["s"][:, None, None] + feeds["b"][:, None, None]
    np.testing.assert_allclose(after[0], exact_y, rtol=1e-3, atol=2e-3)


def test_statistics_of_small_images_stay():
    model = graph(
        BATCH_NORM.replace("12,16", "7,7")
        .replace("SHORT", "float")
        .replace("CAST", "x = Identity(h)")
    )
    changed = model.clone()
    statistics_by_image(changed)
    assert "LayerNormalization" not in types(changed)


def test_a_nonfinite_image_is_seen():
    model = graph(BATCH_NORM.replace("SHORT", "float").replace("CAST", "x = Identity(h)"))
    changed = rewritten(model, statistics_by_image)
    x = values(2, 3, 12, 16)
    x[1, 0, 0, 0] = np.inf
    y, variance = run(changed, h=x, s=np.ones(3, np.float32), b=np.zeros(3, np.float32))
    assert not np.isfinite(variance[0])
    assert not np.isfinite(y[:, 0]).any()
    assert np.isfinite(y[:, 1:]).all()


def test_other_axes_and_older_opsets_stay():
    """With as many images as channels, the statistics of another axis have the same shape."""
    text = BATCH_NORM.replace("SHORT[n,3", "float[3,3").replace("CAST", "x = Identity(h)")
    text = text.replace("float[n,3", "float[3,3")
    assert statistics_by_image(graph(text))
    assert not statistics_by_image(graph(text.replace("[0, 2, 3]", "[1, 2, 3]")))
    older = ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    assert not statistics_by_image(older)


SCALED = """(float[n,3,H] x, float[3] s, float[3] zero, float[3] v) => (float[n,3,H] y) {
    y = BatchNormalization<epsilon = 0.125>(x, s, zero, zero, v) }"""


def test_a_batch_normalization_that_only_scales_is_a_product():
    model = graph(SCALED, zero=np.zeros(3, np.float32))
    changed = rewritten(model, factors_by_channel)
    assert types(changed) == ["Add", "Sqrt", "Div", "Mul"]
    feeds = {"x": values(4, 3, 5), "s": values(3, seed=1), "v": np.array([0, 1, 2], np.float32)}
    np.testing.assert_allclose(run(changed, **feeds)[0], run(model, **feeds)[0], rtol=1e-5)


def test_one_that_shifts_stays():
    assert not factors_by_channel(graph(SCALED, zero=np.array([0, 0, 1], np.float32)))
    assert not factors_by_channel(graph(SCALED))


def test_a_vector_has_no_channels():
    text = SCALED.replace("float[n,3,H]", "float[n]").replace("[3]", "[1]")
    assert not factors_by_channel(graph(text, zero=np.zeros(1, np.float32)))
