from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.normalize import normalize
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.weights import store_weights as module
from ortboost.graph.weights.origins import Origin, stamp_origin
from ortboost.graph.weights.parameters import find_parameters
from ortboost.graph.weights.store_weights import store_weights
from ortboost.transforms.trainable_norm import to_training
from tests.support import run, text_model, weights

MADE = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,3] x, int64[2] shape, int64[1] long, float[4] stored) => (float[N,4] y) {
  w = ConstantOfShape<value = float[1] {0.5}>(shape)
    half = ConstantOfShape<value = float[1] {2}>(shape)
  both = Mul(w, half)  b = ConstantOfShape(long)  h = Gemm(x, both, b)  y = Mul(h, stored)
}"""


def made() -> ir.Model:
    model = text_model(MADE, shape=np.array([3, 4]), long=np.array([4]), stored=weights(4))
    infer_shapes(model)
    return model


def test_what_is_made_of_constants_is_stored_and_trained():
    model, before = made(), made()
    report = store_weights(model)
    assert [node.op_type for node in model.graph] == ["Gemm", "Mul"]
    assert report.changed == {
        "both": "computed by Mul from constants",
        "b": "computed by ConstantOfShape from constants",
    }
    roles = {name: p.role for name, p in find_parameters(model).items()}
    assert roles == {"both": "weight", "b": "bias", "stored": "weight"}
    np.testing.assert_array_equal(
        model.graph.initializers["both"].const_value.numpy(), np.ones((3, 4), np.float32)
    )
    feeds = {"x": weights(2, 3)}
    np.testing.assert_array_equal(run(model, feeds)["y"], run(before, feeds)["y"])
    assert not store_weights(model).modified


def test_the_mask_that_the_definition_of_an_attention_adds_is_no_weight():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 23]>
        net (float[N,6,8] x, float[8,8] w) => (float[N,6,8] y) {
          q = MatMul(x, w)
          y = Attention<q_num_heads = 2, kv_num_heads = 2, softcap = 2.0>(q, q, q) }""",
        w=weights(8, 8),
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    store_weights(model)
    trained = [p.name for p in find_parameters(model).values() if p.trainable]
    assert trained == ["w"]


TABLES = {
    "square roots of positions": "c = Cast<to = 1>(r) t = Sqrt(c)",
    "distances of positions": (
        "i = Unsqueeze(r, axis) d = Sub(r, i) a = Cast<to = 1>(d) b = Abs(a) t = Mul(b, half)"
    ),
    "a mask": "i = Unsqueeze(r, axis) m = Less(r, i) t = Where(m, low, half)",
    "a mask as numbers": (
        "i = Unsqueeze(r, axis) m = Less(r, i) c = Cast<to = 1>(m) t = Mul(c, low)"
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_what_is_computed_from_positions_is_no_weight(table):
    """As jax2onnx writes `h * jnp.sqrt(jnp.arange(1, 5))`, or ALiBi."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[4,3] x, float[3,4] w) => (float[4,4] y)
        <int64 one = {{1}}, int64 five = {{5}}, int64[1] axis = {{1}}, float half = {{-0.5}},
         float low = {{-10000.0}}> {{
          h = MatMul(x, w) r = Range(one, five, one) {TABLES[table]} y = Add(h, t) }}""",
        w=weights(3, 4),
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    store_weights(model)
    found = find_parameters(model)
    assert [p.name for p in found.values() if p.trainable] == ["w"]
    assert found["t"].doubt.startswith("used as a weight, but it")


def test_what_torch_makes_of_shapes_is_no_weight():
    """The ones in an exported ``torch.cdist``: torch stores all its parameters."""
    model = made()
    model.producer_name = "pytorch"
    store_weights(model)
    trained = [name for name, p in find_parameters(model).items() if p.trainable]
    assert trained == ["stored"]


def test_zeros_of_a_length_that_the_exporter_computed_are_no_weight():
    """Those of ``new_zeros`` in graph networks: torch folds shapes as well as weights."""
    model = made()
    model.producer_name = "pytorch"
    for name in ("shape", "long"):
        stamp_origin(model.graph.initializers[name], Origin("folded", ("a", "b"), known=True))
    store_weights(model)
    trained = [name for name, p in find_parameters(model).items() if p.trainable]
    assert trained == ["stored"]


def test_stored_tensors_are_not_multiplied_together():
    """A weight normalization has two parameters; training their product is a different model."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] v, float[4,1] g) => (float[N,4] y) {
          w = Mul(g, v)  y = MatMul(x, w) }""",
        v=weights(4, 4),
        g=weights(4, 1),
    )
    infer_shapes(model)
    assert not store_weights(model).modified


def test_a_tensor_of_one_number_stays_tied_to_its_identity():
    """The slope that two PReLUs share: a copy of it would be trained apart."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[1] slope) => (float[N,4] y) {
          a = PRelu(x, slope)  same = Identity(slope)  y = PRelu(a, same) }""",
        slope=np.full(1, 0.25, np.float32),
    )
    infer_shapes(model)
    store_weights(model)
    assert list(find_parameters(model)) == ["slope"]
    assert [node.inputs[1].name for node in model.graph] == ["slope", "slope"]


def test_what_is_too_large_is_told(monkeypatch):
    monkeypatch.setattr(module, "_LARGEST", 11)
    model = made()
    report = store_weights(model)
    assert "b" in report.changed
    assert "12 elements: too many" in report.kept["w"]
    assert any("'w' is computed at each step" in note for note in report.notes)


@pytest.mark.parametrize(
    ("compute", "function"), [("Mul(deviation, deviation)", np.square), ("Exp(deviation)", np.exp)]
)
def test_running_statistics_are_stored_whatever_they_are_made_of(compute, function):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,2] x, float[2] s, float[2] b, float[1,2] mean, float[2] deviation,
          int64[1] two) => (y) {{
          m = Reshape(mean, two)  v = {compute}
          [bn] y = BatchNormalization(x, s, b, m, v) }}""",
        s=weights(2),
        b=weights(2),
        mean=weights(1, 2),
        deviation=weights(2),
        two=np.array([2]),
    )
    infer_shapes(model)
    expected = function(model.graph.initializers["deviation"].const_value.numpy())
    assert set(store_weights(model).changed) == {"m", "v"}
    np.testing.assert_allclose(model.graph.initializers["v"].const_value.numpy(), expected)
    assert set(to_training(model).next_of) == {"m", "v"}


def test_weights_leave_branches():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (bool c, float[N,2] x) => (float[N,2] y) {
          y = If(c) <
            then_branch = yes () => (float[N,2] t) <float[2] w = {2, 3}> { t = Mul(x, w) },
            else_branch = no () => (float[N,2] e) <float one = {1}> { e = Add(x, one) }
          >
        }"""
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    store_weights(model)
    assert find_parameters(model)["w"].trainable
    found = run(model, {"c": np.array(True), "x": np.ones((1, 2), np.float32)})["y"]
    np.testing.assert_array_equal(found, [[2, 3]])


def test_weights_of_one_name_leave_both_branches():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (bool c, float[N,2] x) => (float[N,2] y) {
          y = If(c) <
            then_branch = yes () => (float[N,2] t) <float[2] w = {2, 3}> { t = Mul(x, w) },
            else_branch = no () => (float[N,2] e) <float[2] w = {4, 5}> { e = Mul(x, w) }
          >
        }"""
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert set(store_weights(model).changed) == {"w", "w_1"}
    assert {name for name, found in find_parameters(model).items() if found.trainable} == {
        "w",
        "w_1",
    }
    for c, expected in ((True, [[2, 3]]), (False, [[4, 5]])):
        found = run(model, {"c": np.array(c), "x": np.ones((1, 2), np.float32)})["y"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("op", ["RandomNormal<shape = [3, 4]>()", "Bernoulli(half)"])
def test_random_numbers_are_not_stored(op):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,4] half) => (float[N,4] y) {{ r = {op} y = MatMul(x, r) }}""",
        half=np.full((3, 4), 0.5, np.float32),
    )
    infer_shapes(model)
    assert not store_weights(model).modified


def test_a_number_stays_a_number():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float w, float half) => (int64[1] y) {
          p = Pow(w, half)  c = Cast<to=7>(p)  a = Constant<value = int64[1] {0}>()
          y = Unsqueeze(c, a) }""",
        w=np.float32(16),
        half=np.float32(0.5),
    )
    infer_shapes(model)
    assert store_weights(model).changed == {"p": "computed by Pow from constants"}
    assert model.graph.initializers["p"].const_value.numpy().shape == ()
    np.testing.assert_array_equal(run(model, {"x": weights(1, 4)})["y"], [4])


NORM = "BatchNormalization"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (f"y = {NORM}(x, s, b, b, s)", ["b/running_mean", "s/running_var"]),
        (f"m = Identity(b) v = Identity(s) y = {NORM}(x, s, b, m, v)", ["m", "v"]),
        (f"m = Identity(b) v = Identity(s) y = {NORM}(x, v, m, b, s)", None),
    ],
)
def test_statistics_that_are_stored_with_scale_and_bias_get_their_own_tensors(body, names):
    """A new BatchNormalization, from an exporter that stores equal tensors once."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3] s, float[3] b) => (float[N,3] y) {{ {body} }}""",
        s=np.ones(3, np.float32),
        b=np.zeros(3, np.float32),
    )
    infer_shapes(model)
    changed = store_weights(model).changed
    assert list(changed) == (names or ["b/running_mean", "s/running_var"])
    roles = {name: parameter.role for name, parameter in find_parameters(model).items()}
    mean, var = changed
    assert roles == {"s": "norm_scale", "b": "norm_shift", mean: "running_mean", var: "running_var"}
    x = weights(2, 3)
    np.testing.assert_allclose(run(model, {"x": x})["y"], x, rtol=1e-4)
    assert not store_weights(model).modified


def test_a_module_that_is_applied_twice_keeps_one_pair_of_statistics():
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3] s, float[3] b) => (float[N,3] y) {{
          h = {NORM}(x, s, b, b, s) y = {NORM}(h, s, b, b, s) }}""",
        s=np.ones(3, np.float32),
        b=np.zeros(3, np.float32),
    )
    store_weights(model)
    first, second = model.graph
    assert first.inputs[3:5] == second.inputs[3:5]
    assert [value.name for value in first.inputs[3:5]] == ["b/running_mean", "s/running_var"]


def test_what_is_computed_from_a_selected_number_stays_computed():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[N,3] x, float t) => (float[N,3] y) { scale = Sqrt(t)  y = Mul(x, scale) }"""
    model = text_model(text, t=np.float32(0.5))
    infer_shapes(model)
    assert not store_weights(model, keep={"t"}).modified
    assert store_weights(model).changed == {"scale": "computed by Sqrt from constants"}


def test_a_number_behind_an_exponential_stays_and_is_doubtful():
    """A learned temperature of a JAX model: neither trained nor named before."""
    text = """<ir_version: 10, opset_import: ["" : 18], producer_name: "jax2onnx">
    net (float[N,3] x, float t) => (float[N,3] y) { scale = Exp(t)  y = Mul(x, scale) }"""
    model = text_model(text, t=np.float32(0.5))
    infer_shapes(model)
    assert not store_weights(model).modified
    found = find_parameters(model)["t"]
    assert (found.role, bool(found.doubt)) == ("constant", True)


def test_positions_are_stored_whose_frequencies_come_from_a_logarithm():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[N,3] x, float base, float zero, float three, float one)
      => (float[N,3] y) {
      log = Log(base)  n = Range(zero, three, one)  angle = Mul(n, log)  wave = Exp(angle)
      y = Add(x, wave) }"""
    base, zero, three, one = np.float32([1e4, 0, 3, 1])
    model = text_model(text, base=base, zero=zero, three=three, one=one)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert "wave" in store_weights(model).changed
