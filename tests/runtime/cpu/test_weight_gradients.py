import pytest

from ortboost.autodiff.engine import differentiate
from ortboost.runtime.cpu import weight_gradients
from tests.autodiff.oracle import graph, random_feeds
from tests.runtime.cpu.forms import assert_same, operators


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(weight_gradients, "_POSITIONS", 8)


def rewrite(model):
    return weight_gradients.weight_gradients(model, threads=1)


def gradient(channels=64, outputs=3, kernel=(3, 3), size=(9, 8), batch="N", before="", **settings):
    """Gradient of the weight of a convolution."""
    written = ", ".join(f"{key} = {list(value)}" for key, value in settings.items())
    written = f"<{written}>" if written else ""
    image = ",".join(map(str, (batch, channels, *size)))
    weight = ",".join(map(str, (outputs, channels, *kernel)))
    model = graph(
        f"""g (float[{image}] x, float[{weight}] w) => (float loss) {{
        {before or "z = Tanh(x)"} y = Conv{written}(z, w)
        e = Tanh(y) s = Mul(e, e) loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    return differentiate(model, "loss", ["w"], "portable")


FIRES = {
    "same": {"pads": (1, 1, 1, 1)},
    "valid": {},
    "one-sided": {"pads": (2, 0, 0, 1)},
    "more at the end": {"pads": (0, 1, 2, 1)},
    "one product for all images": {"pads": (1, 1, 1, 1), "outputs": 80},
    "one row": {"kernel": (1, 3), "pads": (0, 1, 0, 1)},
    "one column": {"kernel": (3, 1)},
    "2x4": {"kernel": (2, 4), "pads": (0, 1, 1, 2)},
    "padding beyond the taps": {"kernel": (2, 2), "pads": (4, 3, 1, 2)},
    "one axis": {"kernel": (5,), "size": (40,), "pads": (2, 2)},
    "three axes": {"kernel": (2, 1, 3), "size": (5, 4, 6), "pads": (1, 0, 1, 0, 0, 1)},
    "known batch": {"pads": (1, 1, 1, 1), "batch": "3"},
}


@pytest.mark.parametrize("name", FIRES)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_same_numbers(name, batch):
    model = gradient(**FIRES[name])
    changed = assert_same(model, rewrite, random_feeds(model, N=batch), tolerance=1e-4)
    found = operators(changed)
    assert found.count("Scan") == 1
    assert "Slice" not in found


KEPT = {
    "stride": {"pads": (1, 1, 1, 1), "strides": (1, 2)},
    "dilation": {"pads": (2, 1, 2, 1), "dilations": (2, 1)},
    "unknown size": {"size": ("H", "W")},
    "few positions": {"size": (4, 4)},
    "pointwise": {"kernel": (1, 1)},
    "images that the model selects": {
        "before": "i = NonZero(x) j = Constant<value_ints = [0]>() k = Gather(i, j) "
        "l = Squeeze(k, j) z = Gather(x, l)"
    },
}


@pytest.mark.parametrize("name", KEPT)
def test_what_does_not_fit_is_left_alone(name):
    model = gradient(**KEPT[name])
    before = operators(model)
    assert not rewrite(model)
    assert operators(model) == before


def test_more_threads_need_larger_images():
    model = gradient()
    assert not weight_gradients.weight_gradients(model, threads=6)
    assert weight_gradients.weight_gradients(model, threads=5)
