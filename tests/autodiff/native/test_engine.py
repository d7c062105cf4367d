from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import Engine, differentiate, engine_names, get_engine, gradient_name
from ortboost.autodiff.native import bindings as native
from ortboost.autodiff.native.engine import NativeEngine, diagnose
from ortboost.core.errors import DependencyError, ModelError, UsageError
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import assert_three_lines, native_only, run

native_only()


NET = """g (float[N,4] x, float[4,3] w, float[3] b) => (float[N,3] h, float loss) {
    m = MatMul(x, w) h = Add(m, b) t = Tanh(h) s = Mul(t, t) loss = ReduceMean<keepdims=0>(s) }"""


def test_registry():
    assert "native" in engine_names()
    engine = get_engine()
    assert isinstance(engine, Engine)
    assert engine.name == "portable"
    assert get_engine("native").name == "native"
    assert engine.unavailable() is None
    with pytest.raises(UsageError, match="Unknown autodiff engine") as error:
        get_engine("nativ")
    assert "did you mean 'native'" in error.value.fix


def test_order_of_inputs_and_outputs_shapes_and_source_untouched():
    model = graph(NET)
    model.metadata_props["made_by"] = "test"
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    result = differentiate(model, "loss", ["b", "w"], "native")
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert [v.name for v in result.graph.inputs] == ["x", "w", "b"]
    assert [v.name for v in result.graph.outputs] == ["h", "loss", "b_grad", "w_grad"]
    shapes = [str(v.shape) for v in result.graph.outputs]
    assert shapes == ["[N,3]", "[]", "[3]", "[4,3]"]
    assert all(v.dtype == ir.DataType.FLOAT for v in result.graph.outputs)
    assert set(result.opset_imports) <= {"", "com.microsoft"}
    assert result.metadata_props["made_by"] == "test"
    assert result.ir_version <= 10
    names = [node.name for node in result.graph.all_nodes()]
    assert all(names)
    assert len(names) == len(set(names))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_gradients_at_any_batch_size(batch):
    model = graph(NET)
    assert_gradients(model, ["w", "b", "x"], random_feeds(model, N=batch))


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(w, w)",
        "y = Add(w, w)",
        "y = MatMul(w, w)",
        "y = Concat<axis=0>(w, w, w)",
        "a = Mul(w, w) c = Exp(w) y = Mul(a, c)",
        "a = Mul(w, x) c = Mul(w, a) y = Sub(c, w)",
    ],
)
def test_a_parameter_used_more_than_once(body):
    model = graph(f"""g (float[3,3] x, float[3,3] w) => (float loss) {{
        {body} z = Mul(y, y) loss = ReduceMean<keepdims=0>(z) }}""")
    assert_gradients(model, ["w"], random_feeds(model))


LN = "LayerNormalization"


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        (f"a = {LN}(h, s, b) c = {LN}(a, s, b) d = {LN}(c, s, b) y = {LN}(d, s, b)", ""),
        (f"t = Identity(s) a = {LN}(h, t, b) c = {LN}(a, s, b) y = {LN}(c, t, b)", ""),
        (f"t = Exp(s) a = {LN}(h, t, b) c = {LN}(a, t, b) y = {LN}(c, t, s)", ""),
        (f"a = {LN}(h, q, q) c = {LN}(a, q, q) y = {LN}(c, q, q)", "<float[3] q = {1, 2, 3}>"),
        (
            f"a = {LN}(h, q, s) y = {LN}(a, r, b)",
            "<float[3] q = {1, 2, 3}, float[3] r = {1, 2, 3}>",
        ),
        # Scales computed by equal nodes, from inputs or from constants.
        (f"t = Exp(s) u = Exp(s) a = {LN}(h, t, b) y = {LN}(a, u, b)", ""),
        (
            f"t = Identity(q) u = Identity(r) e = Expand(t, n) f = Expand(u, n) "
            f"a = {LN}(h, e, b) y = {LN}(a, f, b)",
            "<float q = {2}, float r = {2}, int64[1] n = {3}>",
        ),
        ("a = Concat<axis=1>(h, x, x) y = Concat<axis=1>(x, a)", ""),
        ("a = Concat<axis=0>(h, q, q) y = Concat<axis=0>(q, a)", "<float[1,3] q = {0, 0, 0}>"),
    ],
)
def test_what_is_frozen_may_be_shared(body, constants):
    model = graph(f"""g (float[3,3] x, float[3,3] w, float[3] s, float[3] b) => (float loss)
        {constants} {{ h = MatMul(x, w) {body} z = Mul(y, y) loss = ReduceMean<keepdims=0>(z) }}""")
    result = assert_gradients(model, ["w"], random_feeds(model))
    assert not [value for value in result.graph.all_nodes() if "native/own" in str(value.name)]


def test_frozen_normalizations_may_share_scale_and_bias():
    layer = "BatchNormalization<training_mode=1>"
    model = graph(f"""g (float[3,3] x, float[3,3] w, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float loss) {{
        h = MatMul(x, w) a, am, av = {layer}(h, s, b, m, v) y, ym, yv = {layer}(a, s, b, m, v)
        z = Mul(y, h) loss = ReduceMean<keepdims=0>(z) }}""")
    assert_gradients(model, ["w"], random_feeds(model))


@pytest.mark.parametrize(
    ("fused", "written_out"),
    [
        ("BiasGelu", "d = Div(u, root) e = Erf(d) o = Add(e, one) m = Mul(u, o) y = Mul(m, half)"),
        (
            "FastGelu",
            """c = Mul(u, u) d = Mul(c, u) e = Mul(d, cubic) g = Add(u, e) k = Mul(g, scale)
            t = Tanh(k) o = Add(t, one) m = Mul(u, half) y = Mul(m, o)""",
        ),
    ],
)
def test_data_that_several_activations_with_a_bias_read(fused, written_out):
    """As onnxruntime's transformer optimizer writes them."""
    found = []
    for layer in (f"y = com.microsoft.{fused}(x, b)", f"u = Add(x, b) {written_out}"):
        other = re.sub(r"\b([a-z])\b(?= =|[,)])", r"\1\1", layer).replace("xx", "x")
        model = graph(f"""g (float[3,3] x, float[3] b, float[3] bb) => (float loss)
            <float root = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}},
            float cubic = {{0.044715}}, float scale = {{0.7978845}}> {{
            {layer} {other} z = Mul(y, yy) loss = ReduceMean<keepdims=0>(z) }}""")
        model.opset_imports["com.microsoft"] = 1
        result = differentiate(model, "loss", ["b", "bb"], "native")
        found.append(run(result, random_feeds(model)))
    for name in ("b_grad", "bb_grad"):
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-4, atol=1e-6)


def test_a_frozen_scale_of_nodes_that_the_optimizer_fuses_may_be_shared():
    """RMSNorm of Gemma2, written out by TorchScript: its equal scales are one initializer."""

    def rms(data, scale, result):
        return f"""{result}p = Pow({data}, two) {result}m = ReduceMean({result}p, last)
            {result}e = Add({result}m, eps) {result}s = Sqrt({result}e)
            {result}d = Div({data}, {result}s) {result} = Mul({result}d, {scale})"""

    model = graph(
        f"""g (float[3,4] x, float[4,4] w) => (float loss)
        <float[4] s = {{1, 1, 1, 1}}, float two = {{2}}, float eps = {{0.00001}},
         int64[1] last = {{-1}}> {{
        h = MatMul(x, w) t = Identity(s) {rms("h", "s", "a")} {rms("a", "t", "b")}
        z = Mul(b, h) loss = ReduceMean<keepdims=0>(z) }}"""
    )
    assert_gradients(model, ["w"], random_feeds(model))


NORM = "BatchNormalization<training_mode = 1>"


@pytest.mark.parametrize(
    "body",
    [
        f"a = {LN}(x, w, b) c = {LN}(x, v, b) i = Identity(x) d = {LN}(i, w, b)",
        f"a, ma, va = {NORM}(x, w, b, m, n) c, mc, vc = {NORM}(x, v, b, m, n) d = Exp(x)",
    ],
)
def test_data_that_are_normalized_twice(body):
    """By the layers of a Perceiver, for example: the builder writes the gradient of the data."""
    model = graph(f"""g (float[3,3] x, float[3] w, float[3] v, float[3] b, float[3] m, float[3] n)
        => (float loss) {{ {body}
        p = Mul(a, c) y = Mul(p, d) loss = ReduceMean<keepdims=0>(y) }}""")
    feeds = random_feeds(model)
    assert_gradients(model, ["w", "v"], {**feeds, "n": np.abs(feeds["n"]) + 0.5})


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_a_frozen_bias_of_a_fused_operator_may_be_shared(op):
    op = f"com.microsoft.{op}"
    text = f"""g (float[3,3] x, float[3,3] w, float[3] s) => (float loss) {{
        h = MatMul(x, w) a = {op}(h, s) c = {op}(a, s) y = {op}(c, s)
        loss = ReduceMean<keepdims=0>(y) }}"""
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>{text}')
    infer_shapes(model)
    both = [
        run(differentiate(model, "loss", ["w"], e), random_feeds(model)) for e in engine_names()
    ]
    np.testing.assert_allclose(both[0]["w_grad"], both[1]["w_grad"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "gates"),
    [
        ('LSTM<hidden_size = 4, direction = "bidirectional">(x, w, r)', 4),
        (
            'GRU<hidden_size = 4, direction = "reverse">(x, w, r)',
            3,
        ),
    ],
)
def test_a_frozen_recurrent_layer_is_not_taken_for_a_trained_one(layer, gates):
    """The kernels of trained ones only go forward."""
    directions = 2 if "bidirectional" in layer else 1
    model = graph(
        f"""g (float[5,N,3] x, float[{directions},{4 * gates},3] w,
        float[{directions},{4 * gates},4] r, float[4,2] v) => (float loss) {{ y, h = {layer}
        m = MatMul(h, v) s = Mul(m, m) loss = ReduceMean<keepdims=0>(s) }}"""
    )
    assert_gradients(model, ["v"], random_feeds(model, N=3))


def test_a_loss_that_is_used_elsewhere():
    model = graph("""g (float[3] x, float[3] w) => (float loss, float scaled, float both) {
        y = Mul(x, w) loss = ReduceMean<keepdims=0>(y)
        two = Constant<value_float=2.0>() scaled = Mul(loss, two) both = Add(scaled, loss) }""")
    result = assert_gradients(model, ["w"], random_feeds(model))
    assert [v.name for v in result.graph.outputs] == ["loss", "scaled", "both", "w_grad"]
    assert_gradients(model, ["w"], random_feeds(model), loss="both")


def test_the_loss_need_not_be_an_output():
    model = graph("""g (float[3] x, float[3] w) => (float[3] y) {
        y = Mul(x, w) loss = ReduceMean<keepdims=0>(y) }""")
    result = differentiate(model, "loss", ["w"], "native")
    assert [v.name for v in result.graph.outputs] == ["y", "w_grad"]
    feeds = random_feeds(model)
    np.testing.assert_allclose(run(result, feeds)["w_grad"], feeds["x"] / 3, rtol=1e-6)


def test_gradient_of_an_inner_value():
    model = graph(NET)
    result = differentiate(model, "loss", ["m", "w"], "native")
    feeds = random_feeds(model)
    found = run(result, feeds)
    t = np.tanh(feeds["x"] @ feeds["w"] + feeds["b"])
    np.testing.assert_allclose(found["m_grad"], 2 * t * (1 - t**2) / t.size, rtol=1e-4, atol=1e-6)


def test_names_of_the_model_that_look_like_gradients():
    model = graph("""g (float[3] x, float[3] w) => (float loss) {
        w_grad = Mul(x, w) loss_grad = Exp(w_grad) w_grad_0 = Mul(loss_grad, w)
        loss = ReduceMean<keepdims=0>(w_grad_0) }""")
    assert_gradients(model, ["w"], random_feeds(model))


def test_an_output_named_as_a_gradient_is_refused():
    model = graph("""g (float[3] x, float[3] w) => (float loss, float[3] w_grad) {
        w_grad = Mul(x, w) loss = ReduceMean<keepdims=0>(w_grad) }""")
    with pytest.raises(ModelError, match="names of gradients"):
        differentiate(model, "loss", ["w"], "native")


def test_unnamed_and_doubly_named_nodes():
    model = graph(NET)
    for node in model.graph:
        node.name = "same"
    assert_gradients(model, ["w"], random_feeds(model))
    for node in model.graph:
        node.name = None
    assert_gradients(model, ["w"], random_feeds(model))


def test_original_outputs_survive_the_optimizer():
    """Gelu, LayerNormalization and constant patterns are fused; values that are outputs stay."""
    model = graph("""g (float[3,4] x, float[4] w)
        => (float loss, float[3,4] e, float[3,4] c, float[3,4] d) {
        h = Mul(x, w) r = Constant<value_float=1.4142135>() one = Constant<value_float=1.0>()
        half = Constant<value_float=0.5>() q = Div(h, r) e = Erf(q) p = Add(e, one) u = Mul(h, p)
        g2 = Mul(u, half) c = Identity(g2) d = Identity(h) y = Mul(c, d)
        loss = ReduceMean<keepdims=0>(y) }""")
    result = assert_gradients(model, ["w"], random_feeds(model))
    assert [v.name for v in result.graph.outputs] == ["loss", "e", "c", "d", "w_grad"]
    feeds = random_feeds(model)
    found, plain = run(result, feeds), run(model, feeds)
    for name in plain:
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-5, atol=1e-6)


def test_large_constants_stay_constants():
    table = np.random.default_rng(0).standard_normal((5000, 2)).astype(np.float32)
    model = graph("""g (float[2] w, int64[N] i) => (float loss) {
        t = Identity(w) loss = ReduceMean<keepdims=0>(t) }""")
    value = ir.Value(
        name="table",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(table.shape),
        const_value=ir.tensor(table),
    )
    model.graph.register_initializer(value)
    rows = ir.node("Gather", [value, model.graph.inputs[1]], attributes={"axis": 0}, name="rows")
    product = ir.node("Mul", [rows.outputs[0], model.graph.inputs[0]], name="product")
    first = model.graph.node(0)
    model.graph.insert_before(first, [rows, product])
    first.replace_input_with(0, product.outputs[0])
    result = differentiate(model, "loss", ["w"], "native")
    assert [v.name for v in result.graph.inputs] == ["w", "i"]
    assert result.graph.initializers["table"].const_value.shape == (5000, 2)
    index = np.array([4999, 3], dtype=np.int64)
    found = run(result, {"w": np.ones(2, np.float32), "i": index})
    np.testing.assert_allclose(found["w_grad"], table[index].sum(0) / 4, rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "wrt", "what", "where"),
    [
        ("los", ["w"], "The loss is not a value", "los"),
        ("h", ["w"], "must be a float scalar", "'h'"),
        ("loss", [], "There is no tensor to differentiate", "loss"),
        ("loss", ["w", "w"], "listed twice", "w"),
        ("loss", ["w", "ww"], "neither graph inputs", "ww"),
        ("loss", ["w", "z"], "does not depend", "z"),
        ("loss", ["i"], "Only float tensors", "i"),
    ],
)
def test_requests_that_make_no_sense_are_refused_by_name(loss, wrt, what, where):
    model = graph("""g (float[N,4] x, float[4] w, float[4] z, int64[N] i)
        => (float[N,4] h, float loss) {
        h = Mul(x, w) loss = ReduceMean<keepdims=0>(h) }""")
    with pytest.raises(ModelError, match=what) as error:
        differentiate(model, loss, wrt, "native")
    assert where in error.value.where
    assert error.value.fix


def test_operators_without_gradient_are_named():
    model = graph("""g (float[3] x, float[3] w) => (float loss) {
        h = Mul(x, w) [rounding] r = Round(h) [flooring] f = Floor(r) y = Add(f, h)
        loss = ReduceMean<keepdims=0>(y) }""")
    with pytest.raises(ModelError, match="have no gradient") as error:
        differentiate(model, "loss", ["w"], "native")
    assert "rounding (Round)" in error.value.where
    assert "flooring (Floor)" in error.value.where


def test_opsets_beyond_the_engine_are_refused():
    with pytest.raises(ModelError, match="supports opset 18 to 21"):
        differentiate(graph(NET, opset=22), "loss", ["w"], "native")


def test_what_the_builder_says_is_told_if_nothing_refused_it_before():
    model = graph("""g (float[3] x, float[3] w) => (float loss) {
        h = Mul(x, w) r = Round(h) loss = ReduceMean<keepdims=0>(r) }""")
    with pytest.raises(ModelError, match="cannot build the gradient graph") as error:
        native.build_gradients(model, "loss", ["w"])
    assert "gradients of 1 tensors" in error.value.where
    assert "Round" in error.value.where
    assert_three_lines(error.value)


def test_gradient_name():
    assert gradient_name("fc.weight") == "fc.weight_grad"


class TestDiagnosis:
    """Diagnosis of the installation from package metadata."""

    @pytest.fixture
    def installed(self, monkeypatch):
        def use(importable=True, **found):
            def version(name):
                try:
                    return found[name.replace("-", "_")]
                except KeyError:
                    raise native.importlib.metadata.PackageNotFoundError(name) from None

            monkeypatch.setattr(native.importlib.metadata, "version", version)
            if not importable:

                def fail():
                    raise ImportError("cannot import name 'GradientGraphBuilder'")

                monkeypatch.setattr(native, "_bindings", fail)

        return use

    def test_good(self, installed):
        installed(onnxruntime_training_cpu="1.19.2")
        assert diagnose() is None

    def test_missing(self, installed):
        installed(importable=False)
        found = diagnose()
        assert "not installed" in found.what
        assert "pip install onnxruntime-training-cpu==1.19.2" in found.fix

    def test_two_wheels(self, installed):
        installed(onnxruntime="1.31.1", onnxruntime_training_cpu="1.19.2")
        found = diagnose()
        assert "share one folder" in found.what
        assert found.fix == (
            "pip uninstall -y onnxruntime-training-cpu onnxruntime && "
            "pip install --force-reinstall --no-deps onnxruntime-training-cpu==1.19.2"
        )

    def test_inference_wheel(self, installed):
        installed(importable=False, onnxruntime_gpu="1.31.1")
        assert "pip uninstall -y onnxruntime-gpu" in diagnose().fix

    def test_damaged(self, installed):
        installed(importable=False, onnxruntime_training_cpu="1.19.2")
        assert "damaged" in diagnose().what

    def test_wrong_version(self, installed, monkeypatch):
        installed(onnxruntime_training_cpu="1.18.0")
        monkeypatch.setattr("onnxruntime.__version__", "1.18.0")
        assert "requires onnxruntime-training 1.19.2, but 1.18.0 is installed" in diagnose().what

    def test_error_has_the_cure(self, installed):
        installed(importable=False)
        with pytest.raises(DependencyError) as error:
            get_engine("native")
        assert "pip install" in error.value.fix
        assert NativeEngine().unavailable().fix == error.value.fix


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_float16_pools_are_computed_in_float32(op):
    """The gradient of a float16 pool crashes the CPU runtime."""
    model = graph(f"""g (float[1,2,4,4] x, float[1] w)
        => (float loss) {{ h = Mul(x, w) c = Cast<to=10>(h)
        p = {op}<kernel_shape=[2,2]>(c) y = Cast<to=1>(p) loss = ReduceMean<keepdims=0>(y) }}""")
    result = differentiate(model, "loss", ["w"], "native")
    (pool,) = (node for node in result.graph if node.op_type == op)
    assert pool.inputs[0].dtype == ir.DataType.FLOAT
    feeds = random_feeds(model)
    found = run(result, feeds)
    np.testing.assert_allclose(found["w_grad"], [found["loss"] / feeds["w"][0]], rtol=1e-2)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("e = Exp(w) y = Pow(h, e)", "the exponent has no gradient"),
        (
            "i = Constant<value_ints=[0,1,2]>() y = SoftmaxCrossEntropyLoss(h, i, w)",
            "the class weights have no gradient",
        ),
        ("e = Exp(w) y, m, v = BatchNormalization<training_mode=1>(x, e, w, w, e)", None),
        (
            "q, m, v = BatchNormalization<training_mode=1>(h, w, w, u, u) y = Add(q, m)",
            "its running statistics have no gradient",
        ),
    ],
)
def test_inputs_and_outputs_without_gradient(body, reason):
    model = graph(f"""g (float[3,3] x, float[3] w, float[3] u)
        => (float loss) {{ h = Mul(x, w) {body}
        z = Mul(y, y) loss = ReduceMean<keepdims=0>(z) }}""")
    if reason is None:
        assert differentiate(model, "loss", ["w"], "native")
        return
    with pytest.raises(ModelError) as error:
        differentiate(model, "loss", ["w"], "native")
    assert reason in error.value.where


def test_equal_operands_share_the_gradient():
    model = graph("""g (float[2] a, float[2] b) => (float loss) {
        y = Max(a, b) loss = ReduceSum<keepdims=0>(y) }""")
    ones = np.ones(2, np.float32)
    found = run(differentiate(model, "loss", ["a", "b"], "native"), {"a": ones, "b": ones})
    assert found["a_grad"].tolist() == found["b_grad"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "body",
    [
        "a = Cast<to = 1>(h) b = Cast<to = 1>(h) y = Mul(a, b)",
        "a = Cast<to = 1>(h) b = CastLike(h, x) y = Mul(a, b)",
        "a = Cast<to = 1>(h) y = Mul(a, a)",
    ],
)
def test_casts_that_change_nothing(body):
    """Keras on torch writes them; the builder would fail: ``mismatch when removing edge``."""
    model = graph(
        f"""g (float[N,4] x, float[4,3] w) => (float loss) {{
        h = MatMul(x, w) {body} loss = ReduceSum<keepdims = 0>(y) }}"""
    )
    assert_gradients(model, ["w"], random_feeds(model, N=3))


def test_constant_statistics_are_refused():
    """The kernel writes the new ones into the memory of the old, even of a constant."""
    model = graph(
        """g (float[4,2] x, float[2] s, float[2] b) => (float loss, float[2] z)
        <float[2] m = {0, 0}, float[2] v = {1, 1}> {
          y, n, u = BatchNormalization<training_mode = 1>(x, s, b, m, v) q = Mul(y, y) z = Mul(n, b)
          loss = ReduceSum<keepdims = 0>(q) }"""
    )
    with pytest.raises(ModelError, match="running statistics are constants"):
        differentiate(model, "loss", ["s"], "native")
    differentiate(model, "loss", ["s"], "portable")


def test_constants_of_the_optimizer_are_not_those_that_the_runtime_adds():
    """Both fuse Gather nodes to a Split, here of ``h`` and of ``q``, with constants of one name."""
    model = graph("""g (float[5,2] x, float[2] w) => (float loss) {
        zero = Constant<value_float=0.0>() i = Constant<value_int=0>() j = Constant<value_int=1>()
        h = Mul(x, w) a = Gather<axis=1>(h, i) b = Gather<axis=1>(h, j) p = Mul(a, b)
        q = Exp(h) c = Gather<axis=1>(q, i) d = Gather<axis=1>(q, j) k = Greater(c, zero)
        y = Where(k, d, zero) z = Mul(y, p) loss = ReduceMean<keepdims=0>(z) }""")
    assert_gradients(model, ["w"], random_feeds(model))


@pytest.mark.parametrize("width", ["4", "K"])
def test_several_normalizations_without_bias(width):
    """The builder writes the gradients of their biases, which its optimizer may have merged."""
    model = graph(f"""g (float[5,{width}] x, float[{width}] s, float[{width}] t, float[{width}] u)
        => (float loss) {{ a = LayerNormalization(x, s) h = Tanh(a) b = LayerNormalization(h, t)
        c = Exp(b) d = LayerNormalization(c, u) z = Mul(d, c)
        loss = ReduceMean<keepdims=0>(z) }}""")
    assert_gradients(model, ["s", "t", "u"], random_feeds(model))
