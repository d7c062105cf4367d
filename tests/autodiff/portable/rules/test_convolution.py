"""Convolutions of all forms against sums written out in float64, and against the native engine."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.autodiff.portable.registry import conditions
from ortboost.core.errors import DependencyError, ModelError
from tests.autodiff.numeric import evaluate
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import run


def make(case: dict, declared: str = "sizes", *, bias: bool = True):
    """`loss = sum(conv(x, w, b) r)` and its feeds; `declared` is the declared static shape."""
    x, w, out = case["x"], case["w"], case["out"]
    attributes = ", ".join(
        f"{name} = {list(value) if isinstance(value, tuple) else value}"
        for name, value in case["attributes"].items()
    )
    dims = {
        "sizes": list(x),
        "batch": ["N", *x[1:]],
        "last": ["N", x[1], *(f"L{axis}" for axis in range(len(x) - 3)), x[-1]],
        "symbols": ["N", x[1], *(f"L{axis}" for axis in range(len(x) - 2))],
        "result": ["N", x[1], *(f"L{axis}" for axis in range(len(x) - 2))],
    }[declared]
    result = out if declared == "sizes" else [f"R{axis}" for axis in range(len(out))]
    text, weight, weights = (",".join(map(str, shape)) for shape in (dims, w, result))
    count = out[1]
    known = ""
    if declared == "result":  # as in files with an image resized to a computed size
        known = f"<float[N,{','.join(map(str, out[1:]))}] y>"
    model = graph(
        f"""g (float[{text}] x, float[{weight}] w, float[{count}] b, float[{weights}] r)
        => (float loss) {known} {{
        y = {case["op"]}<{attributes}>(x, w{", b" if bias else ""})
        s = Mul(y, r) loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    rng = np.random.default_rng(7)
    feeds = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", x), ("w", w), ("b", (count,)), ("r", out))
    }
    return model, feeds if bias else {k: v for k, v in feeds.items() if k != "b"}


def expected(case: dict, feeds: dict) -> dict[str, np.ndarray]:
    """Gradients of a convolution tap by tap; of a transposed one with image and output swapped."""
    image, result = ("x", "r") if case["op"] == "Conv" else ("r", "x")
    x, g = feeds[image].astype(np.float64), feeds[result].astype(np.float64)
    w, groups = feeds["w"].astype(np.float64), case["attributes"]["group"]
    strides, dilations = case["attributes"]["strides"], case["attributes"]["dilations"]
    nd = x.ndim - 2
    begins, ends = case["attributes"]["pads"][:nd], case["attributes"]["pads"][nd:]
    padded = np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
    gx, gw, forward = np.zeros_like(padded), np.zeros_like(w), np.zeros_like(g)
    m, c = w.shape[0] // groups, w.shape[1]

    def flat(array: np.ndarray) -> np.ndarray:
        return array.reshape(*array.shape[:2], -1)

    for group, tap in itertools.product(range(groups), np.ndindex(*w.shape[2:])):
        outs, ins = slice(group * m, group * m + m), slice(group * c, group * c + c)
        space = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(tap, dilations, g.shape[2:], strides, strict=True)
        )
        seen, weight = padded[(slice(None), ins, *space)], w[(outs, slice(None), *tap)]
        gw[(outs, slice(None), *tap)] += np.einsum("nmo,nco->mc", flat(g[:, outs]), flat(seen))
        gx[(slice(None), ins, *space)] += np.einsum("nm...,mc->nc...", g[:, outs], weight)
        forward[:, outs] += np.einsum("nc...,mc->nm...", seen, weight)
    inner = tuple(slice(p, p + length) for p, length in zip(begins, x.shape[2:], strict=True))
    gx = gx[(slice(None), slice(None), *inner)]
    r = feeds["r"].astype(np.float64)
    bias = r.sum((0, *range(2, r.ndim)))
    return {"x": gx if case["op"] == "Conv" else forward, "w": gw, "b": bias}


@st.composite
def convolutions(draw, op: str = "Conv") -> dict:
    nd = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 4 if nd < 3 else 2)) for _ in range(nd))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(nd))
    dilations = tuple(draw(st.integers(1, 2)) for _ in range(nd))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(2 * nd))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    inner = draw(st.sampled_from([1, 2, 4, 5, 17] if groups == 1 else [1, 1, 2]))
    outer = draw(st.integers(1, 3))
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [max(1, r - pads[i] - pads[nd + i]) for i, r in enumerate(reaches)]
    space = tuple(low + draw(st.integers(0, 4)) for low in least)
    windows = tuple(
        (length + pads[i] + pads[nd + i] - reaches[i]) // strides[i] + 1
        for i, length in enumerate(space)
    )
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    batch = draw(st.integers(1, 3))
    case = {"op": op, "attributes": attributes}
    image, result = (batch, groups * inner, *space), (batch, groups * outer, *windows)
    case["w"] = (groups * outer, inner, *kernel)
    case["x"], case["out"] = (image, result) if op == "Conv" else (result, image)
    if op == "ConvTranspose":
        attributes["output_padding"] = tuple(
            (length + pads[i] + pads[nd + i] - reaches[i]) % strides[i]
            for i, length in enumerate(space)
        )
    return case


DECLARED = st.sampled_from(["sizes", "batch", "last", "symbols", "result"])


def holds(case: dict, declared: str) -> None:
    model, feeds = make(case, declared)
    result = run(differentiate(model, "loss", ["x", "w", "b"], "portable"), feeds)
    for name, value in expected(case, feeds).items():
        assert result[f"{name}_grad"].shape == value.shape
        np.testing.assert_allclose(result[f"{name}_grad"], value, rtol=1e-4, atol=1e-4)


def plain(x: tuple, w: tuple, **changes) -> dict:
    nd = len(x) - 2
    attributes = {"strides": (1,) * nd, "dilations": (1,) * nd, "pads": (0,) * 2 * nd, "group": 1}
    attributes.update(changes)
    space = tuple(
        (x[2 + i] + attributes["pads"][i] + attributes["pads"][nd + i] - w[2 + i])
        // attributes["strides"][i]
        + 1
        for i in range(nd)
    )
    return {"op": "Conv", "attributes": attributes, "x": x, "w": w, "out": (x[0], w[0], *space)}


@given(convolutions(), DECLARED)
@example(plain((2, 3, 4, 4), (5, 3, 1, 1)), "sizes")  # pointwise, one product per image
@example(plain((2, 3, 4, 4), (5, 3, 1, 1)), "symbols")
@example(plain((2, 3, 4, 4), (5, 3, 1, 1)), "result")
@example(plain((2, 16, 1, 1), (64, 16, 1, 1)), "batch")  # pointwise, one product for all
@example(plain((2, 17, 5, 5), (3, 17, 3, 3), pads=(1, 1, 1, 1)), "symbols")  # taps
@example(
    plain((2, 16, 8, 8), (2, 16, 3, 3), pads=(1, 1, 1, 1)), "batch"
)  # taps, one product per image
@example(plain((2, 5, 7, 6), (3, 5, 3, 3), strides=(2, 2)), "batch")  # rows
@example(plain((2, 5, 7, 6), (3, 5, 3, 3), strides=(2, 2)), "last")
@example(plain((2, 5, 7, 6, 5), (3, 5, 2, 2, 3), strides=(2, 1, 2)), "last")
@example(plain((2, 1, 8, 8), (6, 1, 5, 5), pads=(2, 2, 2, 2)), "batch")  # swapped
@example(plain((2, 3, 5, 5), (3, 1, 3, 3), pads=(1, 0, 2, 1), group=3), "symbols")  # depthwise
@settings(max_examples=120, deadline=None)
def test_convolution(case, declared):
    holds(case, declared)


@given(convolutions("ConvTranspose"), DECLARED)
@settings(max_examples=80, deadline=None)
def test_transposed_convolution(case, declared):
    holds(case, declared)


@given(convolutions())
@example(plain((1, 2, 1, 1, 1), (2, 1, 1, 1, 1), group=2))  # the native engine rejects it
@settings(max_examples=40, deadline=None)
def test_same_as_the_native_engine(case):
    try:
        get_engine("native")
    except DependencyError as error:
        pytest.skip(str(error))
    model, feeds = make(case)
    if case["attributes"]["group"] > 1 and len(case["x"]) == 5:  # not run: it corrupts memory
        with pytest.raises(ModelError, match="in groups over three axes"):
            differentiate(model, "loss", ["x", "w", "b"], "native")
        return
    ours, theirs = (
        run(differentiate(model, "loss", ["x", "w", "b"], engine), feeds)
        for engine in ("portable", "native")
    )
    for name in ("x_grad", "w_grad", "b_grad"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
def test_auto_pad(mode, strides):
    model = graph(
        f"""g (float[2,4,5,6] x, float[3,4,3,2] w) => (float loss) {{
        y = Conv<auto_pad = "{mode}", strides = {strides}>(x, w)
        s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    assert_gradients(model, ["x", "w"], random_feeds(model), engine="portable")


# A product over no elements is 0; a fused one in onnxruntime 1.19 leaves its output uninitialized.
# Steppers reject empty batches.
NOTHING_IS_ZERO = int(onnxruntime.__version__.split(".")[1]) > 19


@pytest.mark.parametrize("channels", [1, 5, 17])
def test_an_empty_batch_has_no_gradient(channels):
    for w in ((3, channels, 1, 1), (3, channels, 3, 3)):
        case = plain((2, channels, 4, 4), w)
        model, feeds = make(case, "batch")
        feeds["x"], feeds["r"] = feeds["x"][:0], feeds["r"][:0]
        result = run(differentiate(model, "loss", ["x", "w"], "portable"), feeds)
        assert result["x_grad"].shape == (0, channels, 4, 4)
        assert result["w_grad"].shape == w
        if NOTHING_IS_ZERO or channels == 1 or w[2] == 1:  # else one product over batch and places
            np.testing.assert_array_equal(result["w_grad"], np.zeros(w))


def test_a_weight_used_twice_gets_both_gradients():
    model = graph(
        """g (float[2,3,5,5] x, float[3,3,3,3] w) => (float loss) {
        a = Conv<pads = [1,1,1,1]>(x, w) h = Tanh(a) y = Conv<pads = [1,1,1,1]>(h, w)
        s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }"""
    )
    assert_gradients(model, ["x", "w"], random_feeds(model), engine="portable", tolerance=5e-3)


@pytest.mark.parametrize("side", [16, 4])
def test_the_factor_of_a_normalization_goes_into_the_weight(side):
    """For large images, the weight is multiplied by the channel factors instead of the image."""
    model = graph(
        f"""g (float[2,2,{side},{side}] x, float[16,2,3,3] w, float[16] s, float[16] t, float[16] m,
               float[16] v, float[2,16,{side},{side}] r) => (float loss) {{
        c = Conv<pads = [1, 1, 1, 1]>(x, w)
        y, nm, nv = BatchNormalization<training_mode = 1>(c, s, t, m, v)
        z = Mul(y, r) loss = ReduceSum<keepdims = 0>(z) }}"""
    )
    result = differentiate(model, "loss", ["x", "w"], "portable")
    kinds = [node.op_type for node in result.graph]
    assert kinds.count("Sqrt") == (1 if side == 16 else 0)  # the factor of each channel, apart
    feeds = random_feeds(model, seed=5)
    found = run(result, feeds)
    rng = np.random.default_rng(3)
    for name in ("x", "w"):
        step = 1e-3 * rng.standard_normal(feeds[name].shape)
        moved = [{**feeds, name: feeds[name] + sign * step} for sign in (1, -1)]
        ahead, behind = (evaluate(model, feed, ["loss"])[0] for feed in moved)
        slope = np.sum(found[f"{name}_grad"].astype(np.float64) * step)
        assert slope == pytest.approx((ahead - behind) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("outputs", "inputs", "op"),
    [
        (16, 64, "Conv"),
        (8, 8, "Conv"),
        (64, 16, "Conv"),
        (65, 16, "ConvTranspose"),
        (16, 15, "ConvTranspose"),
    ],
)
def test_the_faster_form_of_the_gradient_of_an_image(outputs, inputs, op):
    model = graph(
        f"""g (float[2,{inputs},5,4] x, float[{outputs},{inputs},3,2] w) => (float loss) {{
        y = Conv<pads = [1, 1, 1, 0]>(x, w) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    work = differentiate(model, "loss", ["x"], "portable")
    assert [node.op_type for node in work.graph if node.op_type.startswith("Conv")] == ["Conv", op]
    assert_gradients(model, ["x"], random_feeds(model), engine="portable", tolerance=5e-3)


def test_only_what_is_wanted_is_computed():
    case = plain((2, 3, 5, 5), (4, 3, 3, 3))
    model, _ = make(case)
    work = differentiate(model, "loss", ["w"], "portable")
    assert not any(node.op_type == "ConvTranspose" for node in work.graph)


def test_what_is_refused_is_refused_with_a_reason():
    model = graph(
        """g (float[1,2,L] x, float[2,2,3] w) => (float[1,2,P] y) {
        y = Conv<auto_pad = "SAME_UPPER", strides = [2]>(x, w) }"""
    )
    assert "not fixed" in (conditions(model.graph[0]) or "")
    model = graph(
        """g (float[1,2,5] x, float[2,2,3] w) => (float[1,2,P] y) {
        y = ConvTranspose<output_shape = [9], strides = [2]>(x, w) }"""
    )
    assert "output_shape" in (conditions(model.graph[0]) or "")


def test_output_padding_as_large_as_the_stride_is_written_out():
    """onnxruntime 1.19 does not compute the elements behind the last window; 1.31 fails."""
    model = graph(
        """g (float[1,1,3,3] x, float[1,1,3,3] w) => (float loss) {
        y = ConvTranspose<dilations = [3, 3], output_padding = [2, 2]>(x, w) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s) }"""
    )
    (node, *_) = model.graph
    assert "output_padding" in (conditions(node) or "")
    decompose(model, wrt=["x", "w"], loss="loss", engine=get_engine("portable"))
    feeds = {name: np.ones((1, 1, 3, 3), np.float32) for name in ("x", "w")}
    found = run(differentiate(model, "loss", ["x", "w"], "portable"), feeds)
    assert found["loss"] == 81.0  # no windows overlap: each of 9 x 9 products once
    np.testing.assert_array_equal(found["w_grad"], np.full((1, 1, 3, 3), 18.0, np.float32))


def test_the_weight_gradient_of_one_element():
    """It is no empty batch, for which the gradient is written out as zero."""
    model = graph(
        """g (float[N,1,1] x, float[1,1,40] w) => (float loss) {
        y = Conv<pads = [39, 0]>(x, w) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }"""
    )
    feeds = {"x": np.full((1, 1, 1), 3, np.float32), "w": np.ones((1, 1, 40), np.float32)}
    found = run(differentiate(model, "loss", ["w"], "portable"), feeds)["w_grad"]
    np.testing.assert_array_equal(found.ravel(), [0] * 39 + [18])
