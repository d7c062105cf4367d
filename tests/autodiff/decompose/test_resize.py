"""A decomposed Resize has the values of the runtime's kernel, even in rounding cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.oracle import graph
from tests.support import ENGINES, run

# Without round_prefer_ceil: at ties the kernels of onnxruntime 1.19 and 1.31 differ.
FORMS = [
    'mode="linear"',
    'mode="cubic"',
    'mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1',
    'mode="linear", antialias=1, exclude_outside=1',
    'mode="cubic", cubic_coeff_a=-0.5, antialias=1, exclude_outside=1',
    *(f'mode="nearest", nearest_mode="{way}"' for way in ("floor", "ceil", "round_prefer_floor")),
]
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
SCALES = (2.0, 0.5, 1 / 3, 0.6, 0.7, 0.9, 1.15, 1.7, 2.3)
SIZES = (1, 3, 4, 9, 14)


def resized(length, attributes):
    """Every scale and size of one image, in one graph: sessions take longer than their runs."""
    lines, outputs = [], []
    for i, factor in enumerate((*SCALES, *SIZES)):
        to_size = isinstance(factor, int)
        given = (
            f"value_ints=[1,1,2,{factor}]"
            if to_size
            else f"value_floats=[1.0,1.0,1.0,{factor:#.9g}]"
        )
        lines += [f"r{i} = Constant<{given}>()"]
        lines += [f"y{i} = Resize<{attributes}>(h, {', ,' if to_size else ','} r{i})"]
        lines += [f"l{i} = ReduceSum<keepdims=0>(y{i})"]
        outputs += [f"float[A{i},B{i},C{i},D{i}] y{i}"]
    losses = ", ".join(f"l{i}" for i in range(len(outputs)))
    return graph(
        f"g (float[1,1,2,{length}] x, float[1] w) => ({', '.join(outputs)}, float loss) {{ "
        f"h = Mul(x, w) {' '.join(lines)} loss = Sum({losses}) }}"
    )


@pytest.mark.parametrize(("form", "coordinates"), [*itertools.product(FORMS, COORDINATES)])
def test_same_values_as_the_kernel(form, coordinates):
    attributes = f'{form}, coordinate_transformation_mode="{coordinates}"'
    for length in (5, 6, 10):
        model = resized(length, attributes)
        x = np.random.default_rng(length).uniform(-1, 1, size=(1, 1, 2, length))
        feeds = {"x": x.astype(np.float32), "w": np.ones(1, np.float32)}
        work = model.clone()
        assert not decompose(work, wrt=["w"], loss="loss", engine=get_engine("portable")).kept
        assert "Resize" not in {node.op_type for node in work.graph}
        expected, found = run(model, feeds), run(work, feeds)
        for i, factor in enumerate((*SCALES, *SIZES)):
            y = found[f"y{i}"]
            np.testing.assert_allclose(y, expected[f"y{i}"], atol=2e-5, err_msg=f"{factor}")


COMPUTED = {
    # as torch writes interpolate(x, size=other.shape[-2:]), interpolate(x, scale_factor=2), and
    # opset 9
    "sizes": "a = Shape<start=0, end=2>(h) b = Shape<start=2>(other) s = Concat<axis=0>(a, b) "
    "y = Resize<{0}>(h, , , s)",
    "gathered": "a = Shape(h) b = Slice(a, zero, two) c = Shape(other) d = Gather(c, two) e = "
    "Gather(c, three) "
    "f = Concat<axis=0>(b, d, e) s = Cast<to=7>(f) y = Resize<{0}>(h, , , s)",
    "axes": "s = Shape<start=2>(other) y = Resize<{0}, axes=[2, 3]>(h, , , s)",
    "constant_scales": "s = Constant<value_floats=[1.0, 1.0, 2.0, 1.5]>() y = Resize<{0}>(h, , s)",
    "scales": "a = Shape<start=2>(other) b = Cast<to=1>(a) c = Shape<start=2>(h) d = Cast<to=1>(c) "
    "e = Div(b, d) "
    "s = Concat<axis=0>(ones, e) y = Resize<{0}>(h, , s)",
    "everything": "a = Shape(other) s = Identity(a) y = Resize<{0}>(h, , , s)",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", COMPUTED)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_computed_sizes(mode, way, engine):
    """Lengths of image and result known only at run time, against central differences."""
    attributes = f'mode="{mode}", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
    model = graph(
        "g (float[N,2,H,W] x, float[2,1,1] w, float[M,K,P,Q] other) => (float[A,B,C,D] y, float "
        "loss) <int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}, float[2] "
        f"ones = {{1, 1}}> {{ h = Mul(x, w) {COMPUTED[way].format(attributes)} z = Mul(y, y) loss "
        "= ReduceSum<keepdims=0>(z) }"
    )
    work = model.clone()
    report = decompose(work, wrt=["w", "x"], loss="loss", engine=get_engine(engine))
    assert not report.kept
    products = [node.op_type for node in work.graph].count("MatMul")
    if mode != "nearest":  # batch and channels are recognized as unchanged
        assert products == (4 if way == "everything" else 2)
    result = differentiate(work, "loss", ["w", "x"], engine)
    for height, width in ((3, 5), (1, 2)):
        rng = np.random.default_rng(height)
        feeds = {
            "x": rng.uniform(-1, 1, size=(2, 2, height, width)).astype(np.float32),
            "w": rng.uniform(0.5, 1, size=(2, 1, 1)).astype(np.float32),
            "other": np.zeros((2, 2, 4, 3), np.float32),
        }
        found = run(result, feeds)
        expected = run(model, feeds)
        np.testing.assert_allclose(found["y"], expected["y"], atol=2e-5)
        # y is linear in w and in x, so the loss is quadratic and its central differences are exact
        for name in ("w", "x"):
            moved = {
                sign: run(model, {**feeds, name: feeds[name] * np.float32(1 + sign * 0.5)})["loss"]
                for sign in (1, -1)
            }
            slope = float(moved[1] - moved[-1])
            assert (found[f"{name}_grad"] * feeds[name]).sum() == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("form", ['mode="linear"', 'mode="nearest", nearest_mode="ceil"'])
def test_axes_that_keep_their_computed_length_in_the_coordinates_of_tensorflow(form):
    """`(i + 1/2) / scale` is not `i` at a scale of 1, but onnxruntime leaves such axes alone."""
    attributes = f'{form}, coordinate_transformation_mode="tf_half_pixel_for_nn"'
    model = graph(f"""g (float[1,2,4,5] x, int64[4] s) => (float[A,B,C,D] y, float loss) {{
        y = Resize<{attributes}>(x, , , s) q = Mul(y, y) loss = ReduceSum<keepdims=0>(q) }}""")
    x = np.random.default_rng(0).uniform(-1, 1, size=(1, 2, 4, 5)).astype(np.float32)
    work = model.clone()
    decompose(work, wrt=["x"], loss="loss", engine=get_engine("portable"))
    feeds = {"x": x, "s": np.array([1, 2, 6, 5], np.int64)}
    np.testing.assert_allclose(run(work, feeds)["y"], run(model, feeds)["y"], atol=2e-5)
