from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.core.errors import ModelError
from ortboost.deploy.fold_bn import fold_bn
from ortboost.deploy.rewrites.common_subexpressions import common_subexpressions
from tests.support import assert_three_lines, run, text_model, weights

NORM = {
    "s": 1 + 0.3 * weights(4, seed=1),
    "b": weights(4, seed=2),
    "m": weights(4, seed=3),
    "v": 0.5 + np.abs(weights(4, seed=4)),
}
NORM_TYPES = "float[4] s, float[4] b, float[4] m, float[4] v"
BN = "BatchNormalization<epsilon = 0.001>"


def net(
    body: str, types: str, outputs: str = "float[batch,4,h,w] y", x: str = "batch,4,h,w", **inits
):
    return text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net (float[{x}] x, {types}, {NORM_TYPES}) =>'
        f" ({outputs}) {{ {body} }}",
        **inits,
        **NORM,
    )


def check(model: ir.Model, x: np.ndarray):
    """Fold, and compare with the results from before."""
    before = run(model, {"x": x})
    report = fold_bn(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, {"x": x})
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-4, atol=1e-5)
    left = {node.name for node in model.graph if node.op_type == "BatchNormalization"}
    assert left == set(report.kept)
    assert not left & set(report.changed)
    names = {node.name for node in model.graph}
    assert {f"folded into {name}" for name in names} >= set(report.changed.values())
    return report


IMAGE = weights(2, 4, 6, 6, seed=7, scale=1.0)

FOLDED = {
    "conv": (
        f"[c] h = Conv(x, w) [bn] y = {BN}(h, s, b, m, v)",
        "float[4,4,3,3] w",
        {"w": weights(4, 4, 3, 3)},
    ),
    "conv_bias": (
        f"[c] h = Conv<pads = [1,1,1,1]>(x, w, k) [bn] y = {BN}(h, s, b, m, v)",
        "float[4,4,3,3] w, float[4] k",
        {"w": weights(4, 4, 3, 3), "k": weights(4, seed=5)},
    ),
    "depthwise": (
        f"[c] h = Conv<group = 4>(x, w, k) [bn] y = {BN}(h, s, b, m, v)",
        "float[4,1,3,3] w, float[4] k",
        {"w": weights(4, 1, 3, 3), "k": weights(4, seed=5)},
    ),
    "grouped": (
        f"[c] h = Conv<group = 2, strides = [2,2]>(x, w) [bn] y = {BN}(h, s, b, m, v)",
        "float[4,2,3,3] w",
        {"w": weights(4, 2, 3, 3)},
    ),
    "dilated": (
        f"[c] h = Conv<dilations = [2,2]>(x, w) [bn] y = {BN}(h, s, b, m, v)",
        "float[4,4,2,2] w",
        {"w": weights(4, 4, 2, 2)},
    ),
    "transposed": (
        f"[c] h = ConvTranspose(x, w, k) [bn] y = {BN}(h, s, b, m, v)",
        "float[4,4,3,3] w, float[4] k",
        {"w": weights(4, 4, 3, 3), "k": weights(4, seed=5)},
    ),
}


@pytest.mark.parametrize("case", FOLDED)
def test_folded(case):
    body, types, inits = FOLDED[case]
    report = check(net(body, types, **inits), IMAGE)
    assert report.changed == {"bn": "folded into c"}
    assert report.kept == {}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed, bias):
    model = net(
        f"[c] h = Gemm<transB = {transposed}, alpha = 0.5, beta = 2.0>(x, w{', k' if bias else ''})"
        f" [bn] y = {BN}(h, s, b, m, v)",
        "float[4,4] w" + (", float[4] k" if bias else ""),
        outputs="float[batch,4] y",
        x="batch,4",
        w=weights(4, 4),
        **({"k": weights(4, seed=5)} if bias else {}),
    )
    assert check(model, weights(3, 4, seed=7)).changed == {"bn": "folded into c"}


KEPT = {
    "after_relu": (
        f"[c] h = Conv(x, w) [r] g = Relu(h) [bn] y = {BN}(g, s, b, m, v)",
        {},
        "Relu",
    ),
    "after_the_input": (f"[bn] g = {BN}(x, s, b, m, v) [c] y = Conv(g, w)", {}, "an input"),
    "output_used_twice": (
        f"[c] h = Conv(x, w) [bn] g = {BN}(h, s, b, m, v) y = Add(g, h)",
        {},
        "used elsewhere",
    ),
    "output_of_the_model": (
        f"[c] h = Conv(x, w) [bn] y = {BN}(h, s, b, m, v)",
        {"outputs": "float[batch,4,h,w] y, float[batch,4,h2,w2] h"},
        "used elsewhere",
    ),
    "shared_weight": (
        f"[c] h = Conv<pads = [1,1,1,1]>(x, w) [bn] g = {BN}(h, s, b, m, v)"
        " d = ReduceMax(w) y = Add(g, d)",
        {},
        "shared",
    ),
    "computed_weight": (
        f"u = Relu(w) [c] h = Conv(x, u) [bn] y = {BN}(h, s, b, m, v)",
        {},
        "computed",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_kept_with_the_reason(case):
    body, extra, reason = KEPT[case]
    report = check(net(body, "float[4,4,3,3] w", w=weights(4, 4, 3, 3), **extra), IMAGE)
    assert report.changed == {}
    assert reason in report.kept["bn"]


@pytest.mark.parametrize(
    "case", ["after_relu", "output_used_twice", "shared_weight", "computed_weight"]
)
def test_one_that_cannot_be_folded_does_not_ride_along(case):
    """The same beside a convolution that can be folded."""
    body, _, reason = KEPT[case]
    body += f" [e] p = Conv(y, z) [bn2] q = {BN}(p, s, b, m, v)"
    model = net(
        body,
        "float[4,4,3,3] w, float[4,4,1,1] z",
        outputs="float[batch,4,h,w] q",
        w=weights(4, 4, 3, 3),
        z=weights(4, 4, 1, 1),
    )
    report = check(model, IMAGE)
    assert report.changed == {"bn2": "folded into e"}
    assert reason in report.kept["bn"]


def test_a_module_that_is_applied_twice():
    """Each application gets weights of its own; equal ones are merged afterwards."""
    model = net(
        f"[c] h = Conv(x, w) [bn] g = {BN}(h, s, b, m, v)"
        f" [c2] h2 = Conv(g, w) [bn2] y = {BN}(h2, s, b, m, v)",
        "float[4,4,1,1] w",
        w=weights(4, 4, 1, 1),
    )
    assert check(model, IMAGE).changed == {"bn": "folded into c", "bn2": "folded into c2"}
    common_subexpressions(model)
    one, two = model.graph
    assert one.inputs[1:] == two.inputs[1:]


def test_a_weight_that_is_an_output_of_the_model():
    model = net(
        f"[c] h = Conv(x, w) [bn] y = {BN}(h, s, b, m, v)",
        "float[4,4,3,3] w",
        w=weights(4, 4, 3, 3),
    )
    model.graph.outputs.append(model.graph.initializers["w"])
    assert "shared" in check(model, IMAGE).kept["bn"]


def test_the_new_bias_does_not_take_the_name_of_another_tensor():
    model = net(
        f"[c] h = Conv(x, w) [bn] g = {BN}(h, s, b, m, v) y = Add(g, w_bias)",
        "float[4,4,3,3] w, float[4,1,1] w_bias",
        w=weights(4, 4, 3, 3),
        w_bias=weights(4, 1, 1, seed=6),
    )
    assert check(model, IMAGE).changed == {"bn": "folded into c"}
    assert {"w", "w_bias"} <= set(model.graph.initializers)


def half(weight: float, **norm: np.ndarray) -> tuple[ir.Model, np.ndarray]:
    """A float16 convolution with weights of this size, and a normalization."""
    kinds = {np.dtype(np.float16): "float16", np.dtype(np.float32): "float"}
    types = ", ".join(f"{kinds[array.dtype]}[4] {name}" for name, array in norm.items())
    model = text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net (float16[n,4,6,6] x, float16[4,4,3,3] w, '
        f"{types}) => (float16[n,4,4,4] y) {{ [c] h = Conv(x, w) [bn] y = {BN}(h, s, b, m, v) }}",
        w=weights(4, 4, 3, 3, scale=weight).astype(np.float16),
        **norm,
    )
    return model, IMAGE.astype(np.float16)


def test_half_precision_with_parameters_in_float():
    """As automatic mixed precision leaves them; allowed from opset 15 on."""
    model, x = half(1.0, **NORM)
    before = run(model, {"x": x})["y"]
    assert fold_bn(model).changed == {"bn": "folded into c"}
    after = run(model, {"x": x})["y"]
    assert after.dtype == np.float16
    np.testing.assert_allclose(after, before, rtol=1e-2, atol=1e-2)


def test_weights_that_would_overflow_are_kept():
    norm = {name: np.full(4, {"s": 1e3, "v": 1e-3}.get(name, 0), np.float16) for name in NORM}
    model, _ = half(100.0, **norm)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert "finite" in fold_bn(model).kept["bn"]
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_the_layer_keeps_its_names_and_takes_that_of_the_result():
    """A comparison tensor by tensor would otherwise call the layer wrong."""
    body = f"[c] h = Conv(x, w, k) [bn] g = {BN}(h, s, b, m, v) y = Relu(g)"
    model = net(body, "float[4,4,3,3] w, float[4] k", w=weights(4, 4, 3, 3), k=weights(4))
    check(model, IMAGE)
    conv = model.graph[0]
    assert [value.name for value in (*conv.inputs, *conv.outputs)] == ["x", "w", "k", "g"]


def test_one_weight_for_two_norms():
    """A layer applied twice, each time with its own statistics."""
    model = net(
        f"[c] h = Conv<pads = [1,1,1,1]>(x, w) [bn] g = {BN}(h, s, b, m, v)"
        f" [d] k = Conv<pads = [1,1,1,1]>(g, w) [bn2] y = {BN}(k, b, s, m, v)",
        "float[4,4,3,3] w",
        w=weights(4, 4, 3, 3),
    )
    assert set(check(model, IMAGE).changed) == {"bn", "bn2"}


def test_a_training_norm_is_left_alone():
    model = net(
        "[c] h = Conv(x, w) [bn] y, nm, nv = BatchNormalization<training_mode = 1>(h, s, b, m, v)",
        "float[4,4,3,3] w",
        w=weights(4, 4, 3, 3),
    )
    assert "training mode" in fold_bn(model).kept["bn"]


def test_a_second_time_changes_nothing():
    body, types, inits = FOLDED["conv_bias"]
    model = net(body, types, **inits)
    fold_bn(model)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not fold_bn(model).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_bias_of_another_shape_is_left_to_the_runtime():
    """torch.export writes one of [channels, 2] for a convolution over three axes that has none."""
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> net (float[n,2,5,5] x, float[4,2,3,3] w, '
        "float[4,2] c, "
        f"{NORM_TYPES}) => (float[n,4,h,k] y) {{ [conv] t = Conv(x, w, c) [bn] y = {BN}(t, s, b, "
        f"m, v) }}"
    )
    model = text_model(text, w=weights(4, 2, 3, 3), c=np.zeros((4, 2), np.float32), **NORM)
    report = fold_bn(model)
    assert "shape [4, 2]" in report.kept["bn"]
    assert not report.changed


@pytest.mark.parametrize(
    ("host", "shape"),
    [
        ("Conv", (16, 4, 3, 3)),
        ("ConvTranspose<group = 2>", (4, 4, 3, 3)),
        ("Gemm<transB = 1>", (5, 4)),
        ("Gemm", (4, 5)),
    ],
)
def test_parameters_for_other_channels_are_refused(host, shape):
    dims = ",".join(map(str, shape))
    body = f"[c] h = {host}(x, w) [bn] y = {BN}(h, s, b, m, v)"
    model = net(body, f"float[{dims}] w", "float y", w=weights(*shape))
    with pytest.raises(ModelError, match="does not fit the layer before") as caught:
        fold_bn(model)
    assert_three_lines(caught.value)
