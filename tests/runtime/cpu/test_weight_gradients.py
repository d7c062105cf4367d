import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate
from ortboost.graph.build import Builder
from ortboost.runtime.cpu import weight_gradients
from tests.autodiff.oracle import graph, random_feeds
from tests.runtime.cpu.forms import PADS, assert_same, operators


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
    **PADS,
    "one product for all images": {"pads": (1, 1, 1, 1), "outputs": 80},
    "one row": {"kernel": (1, 3), "pads": (0, 1, 0, 1)},
    "one column": {"kernel": (3, 1)},
    "2x4": {"kernel": (2, 4), "pads": (0, 1, 1, 2)},
    "padding beyond the taps": {"kernel": (2, 2), "pads": (4, 3, 1, 2)},
    "one axis": {"kernel": (5,), "size": (40,), "pads": (2, 2)},
    "three axes": {"kernel": (2, 1, 3), "size": (5, 4, 6), "pads": (1, 0, 1, 0, 0, 1)},
    "known batch": {"pads": (1, 1, 1, 1), "batch": "3"},
    "one output channel": {"outputs": 1},
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
    model = gradient(size=(10, 7))  # 8 x 5 windows
    assert not weight_gradients.weight_gradients(model, threads=6)
    assert weight_gradients.weight_gradients(model, threads=5)


def test_images_that_the_model_selects_from_an_input_of_unknown_length_are_left_alone():
    model = gradient(before=KEPT["images that the model selects"]["before"])
    other = ir.Value(name="u", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None]))
    model.graph.inputs.append(other)
    for node in model.graph:
        if node.op_type == "Gather" and node.outputs[0].shape is not None:
            node.outputs[0].shape = ir.Shape([None, *node.outputs[0].shape[1:]])
    for value in (node.outputs[0] for node in model.graph):
        if value.shape is not None and value.shape.rank() == 4:
            value.shape = ir.Shape([None, *value.shape[1:]])
    assert not rewrite(model)


def first(model, op_type):
    return next(node for node in model.graph if node.op_type == op_type)


def negate(model, node, before):
    """Let a node, and what follows `before` on the way to its first input, see negated numbers."""
    builder = Builder(model.graph, "other")
    value = builder.op("Neg", before.inputs[0], shape=before.inputs[0].shape)
    copied = builder.op(before.op_type, value, *before.inputs[1:], **before.attributes)
    node.replace_input_with(0, copied)
    model.graph.insert_before(node, builder.take())


def another_gradient(model):
    product = [node for node in model.graph if node.op_type == "MatMul"][-1]
    negate(model, product, product.inputs[0].producer())


def another_image(model):
    seen = [node for node in model.graph if node.op_type == "Slice"][-1]
    negate(model, seen, seen.inputs[0].producer())


def a_tap_twice(model):
    joined = next(node for node in model.graph if node.op_type == "Concat")
    more = [*joined.inputs, joined.inputs[-1]]
    joined.resize_inputs(len(more))
    joined.replace_input_with(len(more) - 1, more[-1])


def a_sum_over_channels(model):
    total = [node for node in model.graph if node.op_type == "ReduceSum"][-1]
    total.replace_input_with(1, Builder(model.graph, "other").ints(1))


def reflection(model):
    first(model, "Pad").attributes["mode"] = ir.AttrString("mode", "reflect")


def a_padding_value(model):
    pad = first(model, "Pad")
    pad.resize_inputs(3)
    pad.replace_input_with(2, Builder(model.graph, "other").const(1.0))


def double(model):
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        if value.dtype == ir.DataType.FLOAT:
            value.dtype = ir.DataType.DOUBLE


@pytest.mark.parametrize(
    "change",
    [
        another_gradient,
        another_image,
        a_tap_twice,
        a_sum_over_channels,
        reflection,
        a_padding_value,
        double,
    ],
)
def test_what_looks_like_it_is_left_alone(change):
    model = gradient(pads=(1, 1, 1, 1))
    change(model)
    assert not rewrite(model)
    assert rewrite(gradient(pads=(1, 1, 1, 1)))
