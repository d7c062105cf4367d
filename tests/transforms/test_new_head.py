from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.core.errors import ModelError, UsageError
from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.transforms.new_head import find_head, new_head
from tests.support import (
    NAMES,
    assert_three_lines,
    model_path,
    run,
    small_convnet,
    small_mlp,
    text_model,
    weights,
)

HEADS = {
    "gemm": ("logits = Gemm(x, w, b)", (4, 3), 1),
    "gemm_transposed": ("logits = Gemm<transB = 1>(x, w, b)", (3, 4), 0),
    "matmul_add": ("h = MatMul(x, w) logits = Add(h, b)", (4, 3), 1),
    "add_first": ("h = MatMul(x, w) logits = Add(b, h)", (4, 3), 1),
    "transposed_matmul": (
        "t = Transpose<perm = [1, 0]>(w) h = MatMul(x, t) logits = Add(h, b)",
        (3, 4),
        0,
    ),
    "softmax": ("h = Gemm(x, w, b) logits = Softmax(h)", (4, 3), 1),
    "cast": ("h = Gemm(x, w, b) i = Identity(h) logits = Cast<to = 1>(i)", (4, 3), 1),
}


def headed(kind: str) -> ir.Model:
    body, shape, _ = HEADS[kind]
    return text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4] x, float[4,3] w, float[3] '
        "b)"
        f" => (float[batch,3] logits) {{ {body} }}",
        w=weights(*shape),
        b=weights(3, seed=1),
    )


def values(model: ir.Model) -> dict[str, np.ndarray]:
    return {name: v.const_value.numpy() for name, v in model.graph.initializers.items()}


@pytest.mark.parametrize("kind", HEADS)
def test_the_head_is_found(kind):
    head = find_head(headed(kind))
    assert head.weight.name == "w"
    assert head.bias.name == "b"
    assert head.out_axis == HEADS[kind][2]


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("kind", HEADS)
def test_the_head_gets_its_size_and_new_weights(kind, size):
    model = headed(kind)
    before = values(model)
    report = new_head(model, size)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    found = run(model, {"x": weights(5, 4)})["logits"]
    assert found.shape == (5, size)
    output = model.graph.outputs[0].shape
    assert output[0].value == "batch"
    assert output[1] == size
    assert set(report.changed) == {"w", "b"}
    after = values(model)
    assert after["b"].shape == (size,)
    bound = 1 / np.sqrt(4)
    for name in ("w", "b"):
        assert after[name].dtype == np.float32
        assert np.abs(after[name]).max() <= bound
        assert not np.isin(after[name], before[name]).any()


def test_a_head_without_bias_stays_without():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4] x, float[4,3] w) =>'
        " (float[batch,3] logits) { logits = MatMul(x, w) }",
        w=weights(4, 3),
    )
    assert set(new_head(model, 5).changed) == {"w"}
    assert run(model, {"x": weights(2, 4)})["logits"].shape == (2, 5)


def test_the_spread_is_that_of_a_linear_layer():
    model = small_mlp(hidden=64)
    new_head(model, 500)
    drawn = values(model)["w2"]
    assert drawn.shape == (500, 64)
    # Uniform on [-1/8, 1/8]: standard deviation 1 / (8 sqrt 3).
    np.testing.assert_allclose(drawn.std(), 1 / (8 * np.sqrt(3)), rtol=0.02)
    np.testing.assert_allclose(drawn.mean(), 0, atol=0.002)


def test_the_seed_decides():
    drawn = []
    for seed in (0, 0, 1):
        model = small_mlp()
        new_head(model, 5, seed=seed)
        drawn.append(values(model)["w2"])
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).all()


@pytest.mark.parametrize("make", [small_mlp, small_convnet])
def test_the_backbone_keeps_its_bits(make):
    model = make()
    before = values(model)
    changed = set(new_head(model, 5).changed)
    for name, array in values(model).items():
        if name not in changed:
            np.testing.assert_array_equal(array, before[name])
    assert len(changed) == 2


@pytest.mark.parametrize("name", NAMES)
def test_shipped_models_get_a_head(name):
    model = load_model(model_path(name))
    normalize(model, opsets=range(18, 22), ir_version=10)
    report = new_head(model, 5)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert model.graph.outputs[0].shape[1] == 5
    assert model.graph.outputs[0].shape[0].value == "batch"
    assert len(report.changed) == 2


def test_the_output_can_be_named():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,3] v, float[4,2] w) => (float[batch,3] a, float[batch,2] b) {
          a = MatMul(x, v)
          b = MatMul(x, w)
        }""",
        v=weights(4, 3),
        w=weights(4, 2),
    )
    assert set(new_head(model, 5, output="b").changed) == {"w"}
    found = run(model, {"x": weights(2, 4)})
    assert (found["a"].shape, found["b"].shape) == ((2, 3), (2, 5))


def refused(kind, model, *args, **kwargs):
    before = values(model)
    with pytest.raises(kind) as info:
        new_head(model, *args, **kwargs)
    assert_three_lines(info.value)
    for name, array in values(model).items():
        np.testing.assert_array_equal(array, before[name])
    return info.value


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_makes_no_sense(size):
    refused(UsageError, small_mlp(), size)


def test_a_size_that_no_memory_holds(monkeypatch):
    """The fix is another limit; a smaller batch, as for other tensors, would not help."""
    found = refused(UsageError, small_mlp(), 10**12)
    assert "'w2' has 6 inputs" in found.where
    assert "ORTBOOST_LIMITS=tensor_bytes=24000000000000" in found.fix
    monkeypatch.setenv("ORTBOOST_LIMITS", "tensor_bytes=240")
    refused(UsageError, small_mlp(), 11)
    new_head(small_mlp(), 10)


def test_an_unknown_output():
    assert "logits" in refused(UsageError, small_mlp(), 5, output="no").fix


def test_a_shared_head_is_not_replaced():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w) => (float[batch,4] y) {
          h = MatMul(x, w)
          y = MatMul(h, w)
        }""",
        w=weights(4, 4),
    )
    assert "'w'" in refused(ModelError, model, 5).what


@pytest.mark.parametrize(
    "body", ["y = Relu(x)", "y = MatMul(x, x)", "h = MatMul(x, w) y = Relu(h)"]
)
def test_a_model_that_does_not_end_in_a_dense_layer(body):
    model = text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net (float[4,4] x, float[4,4] w) =>'
        f" (float[4,4] y) {{ {body} }}",
        w=weights(4, 4),
    )
    refused(ModelError, model, 5)


def test_a_head_that_other_nodes_read_too():
    # Both outputs come from the same layer: a new size would change the other output too.
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,3] w) => (float[batch,3] logits, float[batch,3] p) {
          logits = MatMul(x, w)
          p = Softmax(logits)
        }""",
        w=weights(4, 3),
    )
    new_head(model, 6)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    found = run(model, {"x": weights(2, 4)})
    assert found["p"].shape == found["logits"].shape == (2, 6)


def test_a_stack_of_matrices_is_no_head():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[2,5,4] x, float[2,4,3] w) =>'
        " (float[2,5,3] logits) { logits = MatMul(x, w) }",
        w=weights(2, 4, 3),
    )
    with pytest.raises(ModelError, match="No fully connected layer") as info:
        new_head(model, 5)
    assert_three_lines(info.value)


def test_a_bias_that_is_added_after_a_gemm_is_replaced_too():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4] x, float[4,3] w, float[3] b)'
        " => (float[batch,3] logits) { h = Gemm(x, w) logits = Add(h, b) }",
        w=weights(4, 3),
        b=weights(3),
    )
    assert set(new_head(model, 5).changed) == {"w", "b"}
    assert run(model, {"x": weights(2, 4)})["logits"].shape == (2, 5)


def test_a_number_that_is_added_to_all_outputs_stays():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4] x, float[4,3] w, float[3] b,'
        " float half) => (float[batch,3] y) { h = MatMul(x, w) i = Add(h, b) y = Add(i, half) }",
        w=weights(4, 3),
        b=weights(3),
        half=np.float32(0.5),
    )
    assert set(new_head(model, 5).changed) == {"w", "b"}
    assert run(model, {"x": weights(2, 4)})["y"].shape == (2, 5)


def test_a_gemm_with_two_biases_is_refused():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4] x, float[4,3] w, float[3] b,'
        " float[3] c) => (float[batch,3] y) { h = Gemm(x, w, b) y = Add(h, c) }",
        w=weights(4, 3),
        b=weights(3),
        c=weights(3, seed=1),
    )
    refused(ModelError, model, 5)


@pytest.mark.parametrize(("target", "size", "fits"), [("-1, 3", 6, False), ("0, -1", 6, True)])
def test_a_reshape_after_the_head(target, size, fits):
    """To a fixed number of classes, it would put the scores of one sample into several rows."""
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    net (float[batch,4] x, float[4,3] w) => (float[batch,3] y) <int64[2] to = {{{target}}}> {{
      h = MatMul(x, w) y = Reshape(h, to) }}"""
    model = text_model(text, w=weights(4, 3))
    if fits:
        new_head(model, size)
        assert run(model, {"x": weights(2, 4)})["y"].shape == (2, size)
    else:
        assert "[-1, 3]" in refused(ModelError, model, size).what


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("end", ["s = Identity(h)", "s = Softmax<axis = 1>(h)"])
def test_a_convolution_is_a_head(bias, end):
    """That of a segmentation network."""
    operands = "x, w, b" if bias else "x, w"
    stored = {"w": weights(3, 4, 1, 1)} | ({"b": weights(3)} if bias else {})
    shift = ", float[3] b" if bias else ""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4,h,8] x, float[3,4,1,1] w{shift}) => (float[batch,3,h,8] s)
        {{ h = Conv({operands}) {end} }}""",
        **stored,
    )
    report = new_head(model, 6)
    assert list(report.changed) == list(stored)
    found = values(model)
    assert found["w"].shape == (6, 4, 1, 1)
    assert np.abs(found["w"]).max() <= 0.5  # 1 / sqrt(4)
    assert [str(d) for d in model.graph.outputs[0].shape] == ["batch", "6", "h", "8"]
    assert run(model, {"x": weights(2, 4, 5, 8)})["s"].shape == (2, 6, 5, 8)
    with pytest.raises(ModelError):
        find_head(model)  # a full-normalization head needs a fully connected layer


@pytest.mark.parametrize(
    "body",
    [
        "h = Conv<group = 2>(x, w) s = Identity(h)",
        "h = Conv(x, w) s = Reshape(h, r)",
        "h = Conv(x, w) s = Identity(h) t = Reshape(h, k)",
        "h = Conv(x, w) s = Identity(h) t = Reshape(h, m)",
        "h = Conv(x, w) s = Identity(h) t = Transpose(h)",
        "h = Conv(x, w) s = Identity(h) t = Resize(h, , , z)",
        "h = Conv(x, w) s = Add(h, c)",
    ],
)
def test_other_convolutions_are_none(body):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4,8,8] x, float[4,n,1,1] w,
             int64[3] r, int64[3] k, int64[2] m, int64[4] z, float[4,1,1] c) => (float[batch,p,q] s)
        {{ {body} }}""",
        w=weights(4, 2 if "group" in body else 4, 1, 1),
        r=np.array([0, -1, 64]),
        k=np.array([0, 4, -1]),
        m=np.array([256, -1]),
        z=np.array([1, 4, 16, 16]),
        c=weights(4, 1, 1),
    )
    with pytest.raises(ModelError) as caught:
        new_head(model, 6)
    assert_three_lines(caught.value)
