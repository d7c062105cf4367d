import pytest

from ortboost.autodiff.engine import differentiate
from ortboost.runtime.cpu import depthwise
from tests.autodiff.oracle import graph, random_feeds
from tests.runtime.cpu.forms import PADS, assert_same, needs_blocks, operators

pytestmark = needs_blocks


def gradient(channels=4, kernel=(3, 3), size=(9, 8), batch="N", **attributes):
    """Gradient of the weight of a depthwise convolution."""
    written = ", ".join(f"{key} = {list(value)}" for key, value in attributes.items())
    dims = f"{batch},{channels},{size[0]},{size[1]}"
    model = graph(
        f"""g (float[{dims}] x, float[{channels},1,{kernel[0]},{kernel[1]}] w) => (float loss) {{
        y = Conv<group = {channels}{", " if written else ""}{written}>(x, w)
        e = Tanh(y) s = Mul(e, e) loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    return differentiate(model, "loss", ["w"], "portable")


FIRES = {
    **PADS,
    "stride 2, even": {"pads": (1, 1, 1, 1), "strides": (2, 2), "size": (8, 10)},
    "stride 2, odd": {"pads": (1, 1, 1, 1), "strides": (2, 2), "size": (9, 7)},
    "stride 3 and 2": {"pads": (1, 1, 1, 1), "strides": (3, 2), "kernel": (5, 3), "size": (12, 9)},
    "dilation": {"pads": (2, 1, 2, 1), "dilations": (2, 1)},
    "dilation and stride": {"pads": (2, 2, 2, 2), "dilations": (2, 2), "strides": (2, 2)},
    "5x5": {"pads": (2, 2, 2, 2), "kernel": (5, 5), "channels": 20},
    "2x4": {"kernel": (2, 4), "pads": (0, 1, 1, 2)},
    "known batch": {"pads": (1, 1, 1, 1), "batch": "3"},
}


@pytest.mark.parametrize("name", FIRES)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_same_numbers(name, batch):
    model = gradient(**FIRES[name])
    changed = assert_same(
        model, depthwise.depthwise_gradients, random_feeds(model, N=batch), tolerance=1e-4
    )
    found = operators(changed)
    assert found.count("nchwc.Conv") == 1
    assert "Slice" not in found


KEPT = {
    "padding beyond the taps": {"pads": (4, 4, 1, 1)},
    "stride beyond the taps": {"kernel": (2, 2), "strides": (4, 4)},
    "unknown size": {"size": ("H", "W")},
    "channels that cannot be reordered": {"channels": 5},
    "one row of taps": {"kernel": (1, 3)},
}


@pytest.mark.parametrize("name", KEPT)
def test_what_does_not_fit_is_left_alone(name):
    model = gradient(**KEPT[name])
    before = operators(model)
    assert not depthwise.depthwise_gradients(model)
    assert operators(model) == before


def test_without_the_layout_nothing_changes(monkeypatch):
    monkeypatch.setattr(depthwise, "block_size", lambda: None)
    model = gradient(**FIRES["same"])
    assert not depthwise.depthwise_gradients(model)
