"""Decomposed GridSample: values of the runtime's kernel, gradients against differences."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from ortboost.autodiff.check import check_trainable
from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.oracle import graph
from tests.support import ENGINES, run

PADDINGS = ("zeros", "border", "reflection")
FORMS = list(itertools.product(("linear", "nearest", "cubic"), PADDINGS, (0, 1)))
SYMBOLIC = "float[N,C,H,W] x, float[N,P,Q,2] k"
SOLID_SIZES = ((2, 2, 3, 2, 4), (1, 2, 5))
SOLID = "float[N,C,D,H,W] x, float[N,O,P,Q,3] k"


def reflected(p, low, high):
    while high > low and (p < low or p > high):
        p = 2 * low - p if p < low else 2 * high - p
    return p


def inside(p, length, padding, corners):
    if padding == "border":
        return min(max(p, 0), length - 1)
    if padding == "reflection":
        p = reflected(p, 0, length - 1) if corners else reflected(p, -0.5, length - 0.5)
        return min(max(p, 0), length - 1)
    return p


def keys(u, a=-0.75):
    """The kernel of Keys, 1981, equation 15."""
    u = abs(u)
    if u <= 1:
        return (a + 2) * u**3 - (a + 3) * u**2 + 1
    return a * u**3 - 5 * a * u**2 + 8 * a * u - 4 * a if u < 2 else 0.0


def sample(x, grid, mode, padding, corners):
    """GridSample in float64, point by point, from the text of the standard."""
    sizes = x.shape[:1:-1]
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for n, *at in np.ndindex(*grid.shape[:-1]):
        place = []
        for value, length in zip(grid[(n, *at)], sizes, strict=True):
            p = (value + 1) / 2 * (length - 1) if corners else ((value + 1) * length - 1) / 2
            p = np.rint(p) if mode == "nearest" else p
            place.append(p if mode == "cubic" else inside(p, length, padding, corners))
        steps = (-1, 0, 1, 2) if mode == "cubic" else (0, 1)
        for near in itertools.product(*([np.floor(p) + step for step in steps] for p in place)):
            weights = [
                keys(p - q) if mode == "cubic" else 1 - abs(p - q)
                for p, q in zip(place, near, strict=True)
            ]
            pixel = [
                inside(q, length, padding, corners) if mode == "cubic" else q
                for q, length in zip(near, sizes, strict=True)
            ]
            if all(0 <= q < length for q, length in zip(pixel, sizes, strict=True)):
                picked = x[(n, slice(None), *(int(q) for q in reversed(pixel)))]
                y[(n, slice(None), *at)] += np.prod(weights) * picked
    return y


def model(mode, padding, corners, inputs=SYMBOLIC, opset=18):
    if opset < 20:
        mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    text = f'mode="{mode}", padding_mode="{padding}", align_corners={corners}'
    out = "N,C,O,P,Q" if inputs == SOLID else "N,C,P,Q"
    return graph(
        f"g ({inputs}) => (float[{out}] y, float loss) {{ y = GridSample<{text}>(x, k) "
        "q = Mul(y, y) loss = ReduceSum<keepdims=0>(q) }",
        opset,
    )


def feeds(corners, seed=0, shape=(2, 2, 4, 5), points=(2, 4)):
    """Points within one and a half images, none nearer than a tenth to a pixel or to a border."""
    rng = np.random.default_rng(seed)
    grid = []
    for length in shape[:1:-1]:
        whole = rng.integers(-length - 2, 2 * length + 2, size=(shape[0], *points))
        p = whole + rng.choice([0.1, 0.3, 0.4, 0.6, 0.9], size=whole.shape)
        p = np.where(rng.random(whole.shape) < 0.5, p, p % (length - 1) if length > 1 else p)
        grid.append(p * 2 / max(length - 1, 1) - 1 if corners else (2 * p + 1) / length - 1)
    x = rng.uniform(-1, 1, size=shape)
    return {"x": x.astype(np.float32), "k": np.stack(grid, -1).astype(np.float32)}


@functools.cache
def differences(wrt, form, seed=0, solid=False):
    """Central differences of the sum of squares."""
    fed = feeds(form[2], seed, *(SOLID_SIZES if solid else ()))
    double = {name: array.astype(np.float64) for name, array in fed.items()}
    found, step = np.zeros(fed[wrt].shape), 1e-5
    for index in np.ndindex(*found.shape):
        values = []
        for sign in (1, -1):
            moved = double[wrt].copy()
            moved[index] += sign * step
            at = {**double, wrt: moved}
            values.append(np.square(sample(at["x"], at["k"], *form)).sum())
        found[index] = (values[0] - values[1]) / (2 * step)
    return found


def trained(source, wrt, engine):
    work = source.clone()
    report = decompose(work, wrt=wrt, loss="loss", engine=get_engine(engine))
    assert not report.kept
    assert "GridSample" not in {node.op_type for node in work.graph}
    return differentiate(work, "loss", wrt, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("inputs", [SYMBOLIC, "float[N,2,4,5] x, float[N,2,4,2] k"], ids=len)
def test_values_and_gradients(form, inputs, engine):
    source, fed = model(*form, inputs), feeds(form[2])
    wrt = ["x"] if form[0] == "nearest" else ["x", "k"]
    found = run(trained(source, wrt, engine), fed)
    np.testing.assert_allclose(found["y"], sample(fed["x"], fed["k"], *form), atol=2e-5)
    np.testing.assert_allclose(found["y"], run(source, fed)["y"], atol=2e-5)
    for name in wrt:
        expected = differences(name, form)
        assert found[f"{name}_grad"].shape == expected.shape
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_values_at_pixels_borders_and_far_away(form, engine):
    """Half and whole pixels, and images of one pixel, where the runtime is well-defined."""
    steps = np.linspace(-3, 3, 25)
    grid = np.stack(np.meshgrid(steps, steps), -1)[None].astype(np.float32)
    fed = {"x": feeds(0, shape=(1, 2, 4, 8))["x"], "k": grid}
    found = run(trained(model(*form), ["x"], engine), fed)
    np.testing.assert_allclose(found["y"], run(model(*form), fed)["y"], atol=1e-5)
    far = np.array([[[[1e30, -1e30], [np.inf, 0], [np.nan, np.nan]]]], np.float32)
    one = {"x": np.full((1, 1, 1, 1), 2, np.float32), "k": np.concatenate([far, far / 2], 1)}
    found = run(trained(model(*form), ["x"], engine), one)  # no index is out of bounds
    assert found["x_grad"].shape == (1, 1, 1, 1)
    one["k"] = np.zeros((1, 1, 1, 2), np.float32)
    assert run(trained(model(*form), ["x"], engine), one)["y"].item() == pytest.approx(2)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_names_of_opset_20_and_an_empty_batch(engine):
    form = ("linear", "zeros", 0)
    fed = feeds(0, seed=1)
    result = trained(model(*form, opset=20), ["x", "k"], engine)
    found = run(result, fed)
    np.testing.assert_allclose(
        found["k_grad"], differences("k", form, seed=1), rtol=2e-5, atol=2e-5
    )
    found = run(result, {"x": np.zeros((0, 2, 4, 5), "f"), "k": np.zeros((0, 2, 4, 2), "f")})
    assert found["x_grad"].shape == (0, 2, 4, 5)
    assert found["k_grad"].shape == (0, 2, 4, 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", [form for form in FORMS if form[0] != "cubic"], ids=str)
def test_images_of_three_axes(form, engine):
    fed = feeds(form[2], 0, *SOLID_SIZES)
    source = model(*form, SOLID, opset=20)
    wrt = ["x"] if form[0] == "nearest" else ["x", "k"]
    found = run(trained(source, wrt, engine), fed)
    np.testing.assert_allclose(found["y"], sample(fed["x"], fed["k"], *form), atol=2e-5)
    for name in wrt:
        expected = differences(name, form, solid=True)
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_many_points_in_one_pixel_are_all_counted(engine):
    source = model("linear", "border", 1)
    fed = {"x": np.ones((2, 3, 2, 2), np.float32), "k": np.full((2, 200, 200, 2), 0.2, np.float32)}
    result = trained(source, ["x"], engine)
    for _ in range(3):
        total = run(result, fed)["x_grad"].sum((2, 3))
        np.testing.assert_allclose(total, np.full((2, 3), 80000), rtol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_has_no_gradient_says_so(engine):
    solid = model("cubic", "zeros", 0, SOLID, 20)
    (blocker,) = check_trainable(solid, wrt=["x"], engine=get_engine(engine), loss="loss").blockers
    assert "cubic over three spatial axes" in str(vars(blocker))
    nearest = check_trainable(
        model("nearest", "zeros", 0), wrt=["x", "k"], engine=get_engine(engine), loss="loss"
    )
    assert nearest.trainable
    assert "'k' will not be trained" in nearest.notes[0]
