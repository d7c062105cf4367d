from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate
from ortboost.core.errors import ModelError
from ortboost.graph.query import known_shape
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.weights.origins import Origin, stamp_origin
from ortboost.transforms.dropout import dropout_to_training
from ortboost.transforms.inference_norm import to_inference
from ortboost.transforms.trainable_norm import (
    batch_norms,
    next_name,
    running_statistics,
    to_training,
)
from tests.support import run

HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'
ONE = """net (float[N,3,L] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3,L] y) {
    [bn] y = BatchNormalization<momentum=0.7, epsilon=0.001>(x, s, b, m, v) }"""


def model_of(text, **initializers):
    model = ir.from_onnx_text(HEAD + text)
    for name, array in initializers.items():
        (value,) = (v for v in model.graph.inputs if v.name == name)
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(np.asarray(array, np.float32), name=name)
        model.graph.register_initializer(value)
    infer_shapes(model)
    return model


def expose(model, state):
    values = {o.name: o for node in model.graph for o in node.outputs}
    model.graph.outputs.extend(values[name] for name in state.next_of.values())


def feeds_of(model, seed=0, n=4, length=5):
    rng = np.random.default_rng(seed)
    sizes = {"N": n, "L": length}
    return {
        v.name: rng.uniform(
            0.2, 2, [d if isinstance(d, int) else sizes[d.value] for d in v.shape]
        ).astype("f4")
        for v in model.graph.inputs
    }


@pytest.mark.parametrize("variance", ["unbiased", "onnx"])
@pytest.mark.parametrize(("n", "length"), [(4, 5), (1, 1), (2, 1), (1, 7)])
def test_next_statistics(variance, n, length):
    model = model_of(ONE)
    state = to_training(model, running_variance=variance)
    assert state.next_of == {"m": "ortboost/next/m", "v": "ortboost/next/v"}
    assert variance in state.report.changed["bn"]
    expose(model, state)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    feeds = feeds_of(model, n=n, length=length)
    before = {k: a.copy() for k, a in feeds.items()}
    found = run(model, feeds)
    count = n * length
    flat = before["x"].transpose(1, 0, 2).reshape(3, -1).astype(np.float64)
    mean, var = flat.mean(1), flat.var(1)
    factor = count / max(count - 1, 1) if variance == "unbiased" else 1.0
    np.testing.assert_allclose(found["ortboost/next/m"], 0.7 * before["m"] + 0.3 * mean, rtol=1e-5)
    np.testing.assert_allclose(
        found["ortboost/next/v"], 0.7 * before["v"] + 0.3 * var * factor, rtol=1e-5
    )
    normal = (flat - mean[:, None]) / np.sqrt(var + 0.001)[:, None]
    wanted = normal * before["s"][:, None] + before["b"][:, None]
    got = found["y"].transpose(1, 0, 2).reshape(3, -1)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)
    # The fed state is not overwritten, although the runtime's kernel would do so.
    for name, array in feeds.items():
        assert np.array_equal(array, before[name]), name


def test_a_momentum_of_1_is_the_default():
    """torch's exporters write it for momentum=None; the statistics would never move."""
    feeds, found = feeds_of(model_of(ONE)), []
    for momentum in ("1.0", "0.9"):
        model = model_of(ONE.replace("0.7", momentum))
        state = to_training(model)
        expose(model, state)
        found.append(run(model, feeds)["ortboost/next/m"])
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert not np.allclose(found[0], feeds["m"])


def test_fixed_sizes_need_no_counting_in_the_graph():
    model = model_of(ONE.replace("[N,3,L]", "[4,3,5]"))
    state = to_training(model)
    assert "Size" not in {node.op_type for node in model.graph}
    expose(model, state)
    feeds = feeds_of(model)
    flat = feeds["x"].transpose(1, 0, 2).reshape(3, -1)
    wanted = 0.7 * feeds["v"] + 0.3 * flat.var(1, ddof=1)
    np.testing.assert_allclose(run(model, feeds)["ortboost/next/v"], wanted, rtol=1e-5)


def test_through_autodiff():
    text = ONE.replace("float[N,3,L] y)", "float loss)").replace(
        "m, v) }", "m, v) z = Mul(y, y) loss = ReduceMean<keepdims=0>(z) }"
    )
    model = model_of(text)
    state = to_training(model)
    expose(model, state)
    result = differentiate(model, "loss", ["s", "b", "x"])
    assert [v.name for v in result.graph.outputs] == [
        "loss",
        "ortboost/next/m",
        "ortboost/next/v",
        "s_grad",
        "b_grad",
        "x_grad",
    ]
    feeds = feeds_of(model)
    before = {k: a.copy() for k, a in feeds.items()}
    first, second = run(result, feeds), run(result, feeds)
    for name in first:
        assert np.array_equal(first[name], second[name]), name
        assert np.isfinite(first[name]).all()
    assert all(np.array_equal(feeds[k], before[k]) for k in feeds)
    flat = before["x"].transpose(1, 0, 2).reshape(3, -1)
    wanted = 0.7 * before["v"] + 0.3 * flat.var(1, ddof=1)
    np.testing.assert_allclose(first["ortboost/next/v"], wanted, rtol=1e-5)


def test_the_dynamo_exporter_passes_on_the_statistics_of_a_module_in_train_by_an_identity():
    model = model_of(
        """net (float[N,3] x, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float[N,3] y) { m2 = Identity(m)  v2 = Identity(v)
        [one] h = BatchNormalization(x, s, b, m, v)
        [two] y = BatchNormalization(h, s, b, m2, v2) }""",
        m=np.zeros(3),
        v=np.ones(3),
    )
    for value in running_statistics(batch_norms(model)[0]):
        stamp_origin(value, Origin("buffer"))
    state = to_training(model)
    assert state.next_of.keys() == {"m", "v"}
    assert not state.report.notes


def test_twice_is_once_and_back_is_the_original():
    model = model_of(ONE)
    original = ir.to_proto(model).SerializeToString(deterministic=True)
    first = to_training(model)
    again = to_training(model)
    assert not again.report.modified
    assert again.next_of == first.next_of
    expose(model, first)
    report = to_inference(model)
    assert report.changed == {"bn": "put in inference mode"}
    assert len(report.notes) == 2
    assert not to_inference(model).modified
    restored = ir.from_proto(ir.to_proto(model))
    for value in [*model.graph.outputs]:
        assert value.name == "y"
    assert [n.op_type for n in restored.graph] == ["BatchNormalization"]
    assert restored.graph.node(0).attributes["momentum"].as_float() == pytest.approx(0.7)
    assert [i.name for i in restored.graph.node(0).inputs] == ["x", "s", "b", "m", "v"]
    assert not restored.graph.initializers
    assert original


def test_frozen_nodes_stay():
    model = model_of(ONE)
    state = to_training(model, frozen=lambda node: node.name == "bn")
    assert state.next_of == {}
    assert state.report.kept == {"bn": "frozen: it keeps its running statistics"}
    assert [n.op_type for n in model.graph] == ["BatchNormalization"]


def test_frozen_node_exported_in_training_mode_is_put_back():
    text = ONE.replace("[bn] y =", "[bn] y, om, ov =").replace("momentum=0.7", "training_mode=1")
    model = model_of(text)
    state = to_training(model, frozen=lambda _: True)
    assert state.report.changed == {"bn": "put in inference mode: frozen"}
    (node,) = batch_norms(model)
    assert len(node.outputs) == 1


def test_node_exported_in_training_mode_gets_its_state():
    text = ONE.replace("[bn] y =", "[bn] y, om, ov =").replace("momentum=0.7", "training_mode=1")
    state = to_training(model_of(text))
    assert "outputs its running statistics" in state.report.changed["bn"]
    assert state.next_of == {"m": next_name("m"), "v": next_name("v")}


def test_readers_of_new_statistics_still_read_the_running_ones():
    """They got those of the batch."""
    text = ONE.replace("[bn] y =", "[bn] y, om, ov =").replace("momentum=0.7", "training_mode=1")
    text = text.replace("(float[N,3,L] y)", "(float[N,3,L] y, float[3] om, float[3] z)")
    model = model_of(text.replace("v) }", "v) z = Sqrt(ov) }"))
    names = ["y", "om", "z", next_name("m"), next_name("v")]
    for _ in range(2):  # the second time, nothing changes
        state = to_training(model)
        expose(model, state)
        assert [v.name for v in model.graph.outputs][:5] == names
        del model.graph.outputs[5:]
    feeds = feeds_of(model)
    found = run(model, feeds)
    assert found["om"].tolist() == found[next_name("m")].tolist()
    wanted = 0.9 * feeds["m"] + 0.1 * feeds["x"].mean((0, 2))
    np.testing.assert_allclose(found["om"], wanted, rtol=1e-5)
    np.testing.assert_allclose(found["z"], np.sqrt(found[next_name("v")]), rtol=1e-6)


@pytest.mark.parametrize("own", ["", "CastLike({}, x)"])
def test_a_module_applied_twice_continues_its_statistics(own):
    """With ``affine=False``, torch's exporters write ones and zeros for each application."""
    made = "".join(f"{v}{i} = {own.format(v)} " for v in "sb" for i in "12" if own)
    one, two = ("s1, b1", "s2, b2") if own else ("s, b", "s, b")
    model = model_of(f"""net (float[N,3] x, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float[N,3] y) {{ {made}
        [one] h = BatchNormalization<momentum=0.6>(x, {one}, m, v)
        [two] y = BatchNormalization<momentum=0.6>(h, {two}, m, v) }}""")
    state = to_training(model)
    assert "continues" in state.report.changed["two"]
    assert state.next_of == {"m": "ortboost/next/m", "v": "ortboost/next/v"}
    expose(model, state)
    model.graph.outputs.append(model.graph.outputs[0].producer().inputs[0])
    feeds = feeds_of(model)
    found = run(model, feeds)
    after_one = 0.6 * feeds["m"] + 0.4 * feeds["x"].mean(0)
    after_two = 0.6 * after_one + 0.4 * found["h"].mean(0)
    np.testing.assert_allclose(found["ortboost/next/m"], after_two, rtol=1e-5)
    var_one = 0.6 * feeds["v"] + 0.4 * feeds["x"].var(0, ddof=1)
    var_two = 0.6 * var_one + 0.4 * found["h"].var(0, ddof=1)
    np.testing.assert_allclose(found["ortboost/next/v"], var_two, rtol=1e-5)
    to_inference(model)
    for node in batch_norms(model):
        assert [v.name for v in node.inputs[3:]] == ["m", "v"]


@pytest.mark.parametrize("through", ["", "Identity"])
def test_statistics_stored_once_by_the_exporter_are_separated(through):
    """New networks have equal statistics everywhere, and exporters store equal tensors once."""
    second = "m2 = Identity(m) v2 = Identity(v) " if through else ""
    names = "m2, v2" if through else "m, v"
    model = model_of(
        f"""net (float[N,3] x, float[3] s, float[3] b, float[3] t, float[3] m, float[3] v)
            => (float[N,3] y) {{
        {second}
        [one] h = BatchNormalization(x, s, b, m, v)
        [two] y = BatchNormalization(h, t, b, {names}) }}""",
        m=np.zeros(3),
        v=np.ones(3),
    )
    state = to_training(model)
    assert len(state.next_of) == 4
    assert len(state.report.notes) == 2
    if through:
        assert set(state.next_of) == {"m", "v", "m2", "v2"}
    for name in state.next_of:
        assert model.graph.initializers[name].const_value is not None
    first, second_node = batch_norms(model)
    assert first.inputs[3] is not second_node.inputs[3]


def test_statistics_computed_in_the_graph_are_refused_all_at_once():
    model = model_of("""net (float[N,3] x, float[3] s, float[3] m, float[3] v) => (float[N,3] y) {
        q = Exp(v) [one] h = BatchNormalization(x, s, m, m, q)
        [two] y = BatchNormalization(h, s, m, m, q) }""")
    with pytest.raises(ModelError) as error:
        to_training(model)
    assert error.value.where == "one, two"
    assert to_training(model, frozen=lambda _: True).next_of == {}


DROP = """net (float[N,40] x) => (float[N,40] y) <float r = {0.5}, float zero = {0.0}> {
    [a] h = Dropout(x, r) [b] k = Dropout(h, zero) [c] y = Identity(k) }"""


def test_dropout_on_and_off():
    model = model_of(DROP)
    report = dropout_to_training(model)
    assert report.changed == {"a": "put in training mode (ratio 0.5)"}
    assert report.kept == {"b": "its ratio is 0"}
    assert not dropout_to_training(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    x = np.ones((50, 40), np.float32)
    y = run(model, {"x": x})["y"]
    assert set(np.unique(y)) == {0.0, 2.0}
    assert to_inference(model).changed == {"a": "put in inference mode"}
    assert not to_inference(model).modified
    assert np.array_equal(run(model, {"x": x})["y"], x)


def test_dropout_default_ratio_and_computed_mode():
    model = ir.from_onnx_text(
        HEAD
        + """net (float[N,4] x, bool t) => (float[N,4] y) <float r = {0.25}> {
        [a] h = Dropout(x) [b] y = Dropout(h, r, t) }"""
    )
    report = dropout_to_training(model)
    assert report.changed == {"a": "put in training mode (ratio 0.5)"}
    assert report.kept == {"b": "its training_mode is computed in the graph"}


def test_layers_of_one_size_share_the_correction_of_the_variance():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[N,2,4,4] x, float[2] s, float[2] b, float[2] m1, float[2] v1, float[2] m2,
      float[2] v2,
         float[2] m3, float[2] v3) => (float[N,2,2,2] y) {
      [a] h = BatchNormalization(x, s, b, m1, v1)  [b] k = BatchNormalization(h, s, b, m2, v2)
      [p] q = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(k)
      [c] y = BatchNormalization(q, s, b, m3, v3)
    }"""
    model = ir.from_onnx_text(text)
    infer_shapes(model)
    to_training(model)
    sizes = [node for node in model.graph if node.op_type == "Size"]
    assert len(sizes) == 4  # elements and channels, for 4 x 4 and for 2 x 2


@pytest.mark.parametrize("variance", ["unbiased", "onnx"])
def test_nothing_is_left_to_infer(variance):
    model = model_of(ONE)
    to_training(model, running_variance=variance)
    values = [output for node in model.graph for output in node.outputs]
    assert len(values) > 8
    assert [v.name for v in values if v.type is None or v.shape is None] == []
    given = {value.name: known_shape(value) for value in values}
    infer_shapes(model)
    assert {value.name: known_shape(value) for value in values} == given


@pytest.mark.parametrize("mode", ["", "<training_mode=1>"])
def test_nodes_in_bodies_are_refused_unless_frozen(mode):
    model = ir.from_onnx_text(f"""{HEAD}
    net (bool c, float[N,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3] y) {{
        y = If (c) <then_branch = yes () => (float[N,3] p) {{
            [bn] p{", q, r" if mode else ""} = BatchNormalization{mode}(x, s, b, m, v) }},
            else_branch = no () => (float[N,3] n) {{ n = Neg(x) }}>
    }}""")
    with pytest.raises(ModelError, match="in a body of If, Loop or Scan cannot be") as caught:
        to_training(model)
    assert caught.value.where == "bn"
    report = to_training(model, frozen=lambda node: node.name == "bn").report
    assert ("bn" in report.changed) == bool(mode)
    (node,) = (n for n in model.graph.all_nodes() if n.op_type == "BatchNormalization")
    assert len(node.outputs) == 1
    assert "training_mode" not in node.attributes
