from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.normal_form.ceil_pools import leave_out_windows, write_out_counted_padding
from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from tests.support import run, text_model, weights


def pool(attributes: str, size: str = "7,6", mode: str = "ceil_mode = 1") -> ir.Model:
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 19]>
        net (float[N,2,{size}] x) => (y) {{
          y = AveragePool<{mode}, count_include_pad = 1, {attributes}>(x) }}"""
    )
    normalize(model, opsets=range(19, 22), ir_version=10)
    return model


@pytest.mark.parametrize(
    ("kernel", "strides", "pads"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0)),
        ((3, 3), (2, 2), (1, 1, 1, 1)),
        ((4, 3), (3, 2), (0, 1, 1, 0)),
        ((3, 2), (2, 2), (1, 0, 1, 0)),
    ],
)
def test_positions_after_the_padding_are_not_counted(kernel, strides, pads):
    model = pool(f"kernel_shape = {[*kernel]}, strides = {[*strides]}, pads = {[*pads]}")
    x = weights(3, 2, 7, 6)
    assert write_out_counted_padding(model).changed
    expected = means(x, kernel, strides, pads)
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    assert not write_out_counted_padding(model).modified


def means(x, kernel, strides, pads):
    """The standard's definition: windows start before the padding at the end."""
    padded = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    rows, columns = (
        [o for o in range(0, n + pads[i], s) if o < n + pads[i] + pads[2 + i] - k + s]
        for i, (n, k, s) in enumerate(zip(x.shape[2:], kernel, strides, strict=True))
    )
    windows = [
        [padded[:, :, r : r + kernel[0], c : c + kernel[1]].mean((2, 3)) for c in columns]
        for r in rows
    ]
    return np.moveaxis(np.array(windows), (0, 1), (2, 3))


def test_lengths_may_be_unknown_if_no_window_can_start_in_the_padding():
    attributes = "kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]"
    assert write_out_counted_padding(pool(attributes, size="H,W")).changed
    attributes = "kernel_shape = [2,2], strides = [2,2], pads = [1,1,1,1]"
    assert not write_out_counted_padding(pool(attributes, size="H,W")).changed
    assert write_out_counted_padding(pool(attributes, size="6,6")).changed


@pytest.mark.parametrize("kernel", [(2, 2), (2, 3)])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 1, 1, 0), (0, 0, 1, 1)])
def test_a_window_that_starts_in_the_padding_is_left_out(kernel, pads):
    attributes = f"kernel_shape = {[*kernel]}, strides = [2,2], pads = {[*pads]}"
    model = pool(attributes, size="7,8")
    x = weights(3, 2, 7, 8)
    expected = means(x, kernel, (2, 2), pads)
    assert known_shape(model.graph.outputs[0])[2:] == expected.shape[2:]
    write_out_counted_padding(model)
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    assert not leave_out_windows(model).modified


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kernel", [(2, 2), (2, 3)])
def test_lengths_with_auto_pad(kind, padding, kernel):
    """Shape inference adds a window to these forms, which no runtime has."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 19]>
        net (float[N,2,6,8] x) => (y, int64[4] n) {{
          y = {kind}<ceil_mode=1, strides=[2,3], auto_pad="{padding}", kernel_shape={[*kernel]}>(x)
          n = Shape(y) }}"""
    )
    feeds = {"x": weights(3, 2, 6, 8)}
    before = run(model, feeds)
    normalize(model, opsets=range(19, 22), ir_version=10)
    assert known_shape(model.graph.outputs[0])[1:] == before["y"].shape[1:]
    after = run(model, feeds)
    np.testing.assert_array_equal(after["n"], before["n"])
    np.testing.assert_allclose(after["y"], before["y"], rtol=1e-6)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "VALID"])
def test_pads_beside_auto_pad_have_no_effect(op, mode):
    """Runtimes ignore them, but shape inference counts them."""
    attributes = f'kernel_shape = [3,3], strides = [2,2], auto_pad = "{mode}", pads = [1,1,1,1]'
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,2,7,8] x) => (y) {{ y = {op}<{attributes}>(x) }}"""
    )
    feeds = {"x": weights(3, 2, 7, 8)}
    before = run(model, feeds)["y"]
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert known_shape(model.graph.outputs[0])[1:] == before.shape[1:]
    np.testing.assert_array_equal(run(model, feeds)["y"], before)


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads"),
    [
        ((2, 3), (2, 2), (1, 1, 1, 1)),
        ((1, 3), (4, 1), (0, 0, 0, 0)),
        ((2, 2), (4, 2), (0, 0, 1, 0)),
    ],
)
def test_lengths_beside_an_axis_of_unknown_length(op, kernel, strides, pads):
    """A Reshape that relied on a wrong length would mix the elements of the samples."""
    results = {}
    for width in ("8", "W"):
        sizes = f"kernel_shape = {[*kernel]}, strides = {[*strides]}, pads = {[*pads]}"
        model = text_model(
            f"""<ir_version: 10, opset_import: ["" : 18]>
            net (float[N,2,7,{width}] x) => (y) {{ y = {op}<ceil_mode = 1, {sizes}>(x) }}"""
        )
        normalize(model, opsets=range(18, 22), ir_version=10)
        results[width] = run(model, {"x": weights(3, 2, 7, 8)})["y"]
        assert known_shape(model.graph.outputs[0])[2] == results[width].shape[2]
    np.testing.assert_allclose(results["W"], results["8"], rtol=1e-6)


def test_lengths_after_a_window_that_is_left_out_are_right():
    """The shape inference of opset 18 counts such windows, and the layer would not fit."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,7,7] x, float[4,1] w) => (float[N,1] y, int64[N,1,4,4] i) {
          p, i = MaxPool<kernel_shape = [2,2], strides = [2,2], pads = [1,1,1,1], ceil_mode = 1>(x)
          q = MaxPool<kernel_shape = [2,2], strides = [3,3], pads = [1,1,1,1], ceil_mode = 1>(p)
          f = Flatten(q) y = MatMul(f, w) }""",
        w=weights(4, 1),
    )
    reports = normalize(model, opsets=range(18, 22), ir_version=10)
    assert [r.rewrite for r in reports].count("leave_out_windows") == 2
    x = weights(2, 1, 7, 7)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-np.inf)[:, :, :8, :8]
    first = padded.reshape(2, 1, 4, 2, 4, 2).max((3, 5))
    rows = np.stack([first[:, :, 0], first[:, :, 2:].max(2)], 2)
    second = np.stack([rows[..., 0], rows[..., 2:].max(3)], 3)
    found = run(model, {"x": x})
    assert found["i"].shape == (2, 1, 4, 4)
    np.testing.assert_allclose(found["y"], second.reshape(2, 4) @ weights(4, 1), rtol=1e-5)


@pytest.mark.parametrize("mode", ["ceil_mode = 0", 'ceil_mode = 1, auto_pad = "SAME_UPPER"'])
def test_where_no_window_overhangs_nothing_changes(mode):
    report = write_out_counted_padding(pool("kernel_shape = [3,3], strides = [2,2]", mode=mode))
    assert not report.changed
    assert not report.kept
