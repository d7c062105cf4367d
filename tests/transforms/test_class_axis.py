"""The class axis is inferred from the graph, or the error gives both interpretations."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.core.errors import ModelError, UsageError
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.transforms.class_axis import find_class_axis
from tests.support import assert_three_lines, text_model, weights


def net(x: str, body: str, opset: int = 18, **initializers) -> ir.Model:
    """A network of one float input that ends in `y`; inference finds its shape."""
    shapes = "".join(
        f", float[{','.join(map(str, w.shape))}] {name}" for name, w in initializers.items()
    )
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        net (float[{x}] x{shapes}) => (float y) {{ {body} }}""",
        **initializers,
    )
    model.graph.outputs[0].shape = None
    infer_shapes(model)
    return model


W, B, K = weights(6, 6), weights(6), weights(6, 3, 1, 1)
FOUND = {
    "rows": ("n,6", "y = MatMul(x, w)", 1, {"w": W}),
    "linear": ("n,6,6", "h = MatMul(x, w) y = Add(h, b)", 2, {"w": W, "b": B}),
    "tied": ("n,6,6", "t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)", 2, {"w": W}),
    "head after softmax": ("n,6,6", "h = MatMul(x, w) y = Softmax<axis=-1>(h)", 2, {"w": W}),
    "softmax says it": ("n,6,6", "y = LogSoftmax<axis=1>(x)", 1, {}),
    "convolution": ("n,3,6,6", "h = Conv(x, k) y = Relu(h)", 1, {"k": K}),
    "turned": ("n,3,6,6", "h = Conv(x, k) y = Transpose<perm=[0,2,3,1]>(h)", 3, {"k": K}),
    "pixels in a row": (
        "n,3,6,6",
        "h = Conv(x, k) s = Constant<value_ints=[0,6,36]>() y = Reshape(h, s)",
        1,
        {"k": K},
    ),
    "gemm over tokens": (
        "7,6",
        "h = Gemm(x, w, b) s = Constant<value_ints=[1,7,6]>() y = Reshape(h, s)",
        2,
        {"w": W, "b": B},
    ),
    "slice of a sequence": (
        "n,6,6",
        "h = MatMul(x, w) a = Constant<value_ints=[1]>() e = Constant<value_ints=[9]>() "
        "y = Slice(h, a, e, a)",
        2,
        {"w": W},
    ),
    "lengths, images": ("n,6,h,w", "y = Erf(x)", 1, {}),
    "lengths, tokens": ("n,t,6", "y = Erf(x)", 2, {}),
}


@pytest.mark.parametrize("case", FOUND)
def test_it_is_found(case):
    x, body, axis, initializers = FOUND[case]
    model = net(x, body, **initializers)
    assert find_class_axis(model, model.graph.outputs[0]) == axis


AS_THEIR_INPUT = {
    "BatchNormalization": "(h, b, b, b, b)",
    "Cast": "<to = 1>(h)",
    "CastLike": "(h, x)",
    "Clip": "(h)",
    "Dropout": "(h)",
    "LayerNormalization": "(h, b)",
    "LeakyRelu": "(h)",
    "PRelu": "(h, b)",
    "Pad": "(h, p)",
    "Resize": "(h, , r)",
    "Slice": "(h, e, r2, e)",
    **dict.fromkeys(("Celu", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSwish"), "(h)"),
    **dict.fromkeys(("Identity", "Log", "Mish", "Neg", "Relu", "Sigmoid"), "(h)"),
    **dict.fromkeys(("Softplus", "Tanh"), "(h)"),
    **dict.fromkeys(("Add", "Div", "Max", "Mean", "Min", "Mul", "Sub", "Sum"), "(h, h)"),
    "Concat": "<axis = 1>(h, h)",
    "Where": "(c, h, h)",
}


@pytest.mark.parametrize("op", AS_THEIR_INPUT)
def test_it_is_that_of_what_the_operator_reads(op):
    constants = (
        "e = Constant<value_ints = [1]>() r2 = Constant<value_ints = [3]>() "
        "p = Constant<value_ints = [0, 1, 0, 0, 0, 0]>() "
        "r = Constant<value_floats = [1.0, 2.0, 1.0]>() c = Less(b, b)"
    )
    body = f"{constants} h = MatMul(x, w) y = {op}{AS_THEIR_INPUT[op]}"
    model = net("n,6,6", body, opset=20, w=W, b=B)
    assert find_class_axis(model, model.graph.outputs[0]) == 2


CHANNELS_FIRST = {
    "ConvTranspose": "(x, k)",
    "InstanceNormalization": "(x, b, b)",
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), "<kernel_shape = [1, 1]>(x)"),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), "<blocksize = 1>(x)"),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), "(x)"),
}


@pytest.mark.parametrize("op", CHANNELS_FIRST)
def test_it_is_1_where_the_standard_has_channels_there(op):
    body = f"y = {op}{CHANNELS_FIRST[op]}"
    model = net("n,6,6,6", body, k=weights(6, 4, 1, 1), b=B)
    assert find_class_axis(model, model.graph.outputs[0]) == 1


REFUSED = {
    "no evidence": ("n,6,6", "y = Erf(x)", {}),
    "all lengths open": ("n,t,c", "y = Erf(x)", {}),
    "two products of activations": ("n,6,6", "y = MatMul(x, x)", {}),
    "two heads of both kinds": (
        "n,6,6",
        "a = MatMul(x, w) b = LogSoftmax<axis=1>(x) y = Add(a, b)",
        {"w": W},
    ),
    "classes cut up": (
        "n,3,6,6",
        "h = Conv(x, k) s = Constant<value_ints=[0,2,3,36]>() y = Reshape(h, s)",
        {"k": K},
    ),
    "operator and lengths disagree": ("n,6,t", "y = Softmax<axis=2>(x)", {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_both_readings(case):
    x, body, initializers = REFUSED[case]
    model = net(x, body, **initializers)
    with pytest.raises(ModelError, match="is ambiguous") as info:
        find_class_axis(model, model.graph.outputs[0])
    assert_three_lines(info.value)
    assert info.value.where.count("classes with labels") == 2
    assert "--class-axis 1 (images) or --class-axis -1" in info.value.fix
    assert find_class_axis(model, model.graph.outputs[0], 1) == 1
    assert find_class_axis(model, model.graph.outputs[0], -1) == len(x.split(",")) - 1


@pytest.mark.parametrize("given", [0, 3, -3, -4])
def test_an_axis_that_cannot_be_is_refused(given):
    model = net("n,6,6", "y = Erf(x)")
    with pytest.raises(UsageError, match="cannot be the class axis") as info:
        find_class_axis(model, model.graph.outputs[0], given)
    assert_three_lines(info.value)


def test_the_product_may_be_far_from_the_output():
    steps = " ".join(f"h{i} = Relu(h{i - 1})" for i in range(1, 1500))
    model = net("n,6,6", f"h0 = MatMul(x, w) {steps} y = Relu(h1499)", w=W)
    assert find_class_axis(model, model.graph.outputs[0]) == 2


def test_many_paths_to_one_value_are_searched_once():
    steps = " ".join(f"h{i} = Add(h{i - 1}, h{i - 1})" for i in range(1, 80))
    model = net("n,6,6", f"h0 = MatMul(x, w) {steps} y = Relu(h79)", w=W)  # 2^79 paths
    assert find_class_axis(model, model.graph.outputs[0]) == 2
