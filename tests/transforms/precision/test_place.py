"""Placement of casts: structure, values, and where none may be added."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.core.errors import ConfigError, UsageError
from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.transforms.precision import PrecisionConfig, place_precision
from ortboost.transforms.precision.plan import largest
from tests.support import NAMES, assert_three_lines, model_path, run, text_model, weights

FP16, BF16 = PrecisionConfig("fp16"), PrecisionConfig("bf16")


def checked(model: ir.Model) -> None:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def casts(model: ir.Model) -> int:
    return ops(model).count("Cast")


def structure(model: ir.Model) -> list[tuple[str, ...]]:
    return [(n.op_type, *(str(v.dtype) for v in (*n.inputs, *n.outputs) if v)) for n in model.graph]


def network() -> ir.Model:
    """Two products with an activation in between, then a softmax."""
    return text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,6] w1, float[6] b1, float[6,3] w2) => (float[N,3] y) {
          [fc1] h = MatMul(x, w1)
          [bias] a = Add(h, b1)
          [act] r = Relu(a)
          [fc2] s = MatMul(r, w2)
          [soft] y = Softmax(s)
        }""",
        w1=weights(4, 6),
        b1=weights(6, seed=1),
        w2=weights(6, 3, seed=2),
    )


def test_a_chain_of_low_nodes_has_casts_at_its_ends_and_for_its_weights():
    model = network()
    x = weights(5, 4, seed=3)
    expected = run(model, {"x": x})["y"]
    report = place_precision(model, FP16)
    checked(model)
    assert report.changed == {
        "fc1": "fp16: sums of products",
        "bias": "fp16: to minimize the number of casts",
        "act": "fp16: to minimize the number of casts",
        "fc2": "fp16: sums of products",
    }
    assert report.kept == {"soft": "fp32: exponentials and their sum"}
    assert casts(model) == 5  # x, three weights, and back before the softmax
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT
    assert all(v.dtype == ir.DataType.FLOAT for v in model.graph.initializers.values())
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=5e-3)


@pytest.mark.parametrize("config", [FP16, BF16, PrecisionConfig("fp16", policy="all")])
@pytest.mark.parametrize("kind", ["master", "stored"])
@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_changes_nothing(name, kind, config):
    model = load_model(model_path(name))
    normalize(model, opsets=range(18, 19), ir_version=10)
    first = place_precision(model, config, weights=kind)
    checked(model)
    before = structure(model)
    assert not place_precision(model, config, weights=kind).changed
    assert structure(model) == before
    assert first.changed


@pytest.mark.parametrize("name", NAMES)
def test_no_casts_back_to_back_and_none_twice(name):
    model = load_model(model_path(name))
    normalize(model, opsets=range(18, 19), ir_version=10)
    place_precision(model, FP16)
    found = [node for node in model.graph if node.op_type == "Cast"]
    assert found
    for node in found:
        before = node.inputs[0].producer()
        assert before is None or before.op_type != "Cast"
        assert node.outputs[0].uses() or node.outputs[0].is_graph_output()
    assert max(Counter((id(n.inputs[0]), n.attributes["to"].as_int()) for n in found).values()) == 1


def test_weights_are_stored_for_deployment():
    model = network()
    report = place_precision(model, FP16, weights="stored")
    checked(model)
    assert casts(model) == 2
    assert {v.name: v.dtype for v in model.graph.initializers.values()} == dict.fromkeys(
        ("w1", "b1", "w2"), ir.DataType.FLOAT16
    )
    assert report.notes[0] == "2 casts to fp16 and back: 1 of inputs, 1 of other values"


def test_a_stored_weight_with_readers_of_both_kinds_is_there_twice():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w) => (float[N,4] y) {
          h = MatMul(x, w)  e = Exp(w)  y = MatMul(h, e)
        }""",
        w=weights(4, 4),
    )
    place_precision(model, FP16, weights="stored")
    checked(model)
    kinds = {name: v.dtype for name, v in model.graph.initializers.items()}
    assert kinds == {"w": ir.DataType.FLOAT, "w/fp16": ir.DataType.FLOAT16}


def test_inputs_and_outputs_may_be_short_too():
    model = network()
    place_precision(model, PrecisionConfig("fp16", keep_io_types=False), weights="stored")
    checked(model)
    assert model.graph.inputs[0].dtype == ir.DataType.FLOAT16
    x = weights(5, 4, seed=3)
    assert run(model, {"x": x.astype(np.float16)})["y"].shape == (5, 3)


def test_an_output_that_is_short_keeps_its_name_in_float32():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w) => (float[N,4] h, float[N,4] y) {
          h = MatMul(x, w)  y = Relu(h)
        }""",
        w=weights(4, 4),
    )
    x = weights(3, 4, seed=5)
    expected = run(model, {"x": x})
    place_precision(model, FP16)
    checked(model)
    found = run(model, {"x": x})
    for name, value in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], value, rtol=5e-3, atol=1e-3)


def residual() -> ir.Model:
    return text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w, float[4,4] v) => (float[N,4] y) {
          [one] a = MatMul(x, w)
          [norm] n = Softmax(a)
          [sum] s = Add(n, x)
          [act] r = Relu(s)
          [two] b = MatMul(r, v)
          [last] y = Add(b, s)
        }""",
        w=weights(4, 4),
        v=weights(4, 4, seed=1),
    )


def test_residual_sums_stay_wide_where_that_costs_no_cast():
    model = residual()
    report = place_precision(model, FP16)
    checked(model)
    assert set(report.kept) == {"norm", "sum", "last"}
    assert set(report.changed) == {"one", "act", "two"}


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("one", {"one"}),
        ("re:(one|two)", {"one", "two"}),
        ("MatMul", {"one", "two"}),
        ("w", {"one"}),
        ("[ab]", {"one", "two"}),
    ],
)
def test_nodes_are_kept_by_name_output_weight_or_operator(pattern, kept):
    model = residual()
    report = place_precision(model, PrecisionConfig("fp16", keep_fp32=(pattern,)))
    checked(model)
    assert {name for name, why in report.kept.items() if "requested" in why} == kept


def test_nodes_are_forced_low():
    model = residual()
    report = place_precision(model, PrecisionConfig("fp16", force_low=("norm", "re:s.m")))
    checked(model)
    assert report.changed["norm"] == "fp16: as requested"
    assert report.changed["sum"] == "fp16: as requested"


@pytest.mark.parametrize("field", ["keep_fp32", "force_low"])
def test_patterns_that_match_nothing(field):
    with pytest.raises(UsageError, match=r"head\.\*") as raised:
        place_precision(residual(), PrecisionConfig("fp16", **{field: ("head.*",)}))
    assert_three_lines(raised.value)
    assert raised.value.where.startswith(f"--{field.replace('_', '-')}, ")  # the option's name
    with pytest.raises(ConfigError, match="regular expression") as second:
        place_precision(residual(), PrecisionConfig("fp16", **{field: ("re:(",)}))
    assert_three_lines(second.value)


def test_what_has_no_such_type_stays_and_cannot_be_forced():
    model = load_model(model_path("lenet5"))
    normalize(model, opsets=range(18, 19), ir_version=10)
    report = place_precision(model.clone(), BF16)
    convolutions = [node.name for node in model.graph if node.op_type == "Conv"]
    assert {report.kept[name] for name in convolutions} == {
        "fp32: Conv has no bfloat16 at opset 18; opset 22 has it"
    }
    with pytest.raises(UsageError, match="opset 18") as raised:
        place_precision(model, PrecisionConfig("bf16", force_low=("Conv",)))
    assert_three_lines(raised.value)


def scaled(number: float) -> ir.Model:
    return text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w, float c) => (float[N,4] y) {
          h = MatMul(x, w)  [scale] s = Mul(h, c)  y = MatMul(s, w)
        }""",
        w=weights(4, 4),
        c=np.float32(number),
    )


@pytest.mark.parametrize(
    ("number", "fits16", "fits_bf16"),
    [(2.0, True, True), (1e-12, False, True), (1e9, False, True), (-3.3e38, False, True)],
)
def test_a_constant_that_does_not_fit_keeps_its_node_in_float32(number, fits16, fits_bf16):
    for config, fits in ((FP16, fits16), (BF16, fits_bf16)):
        model = scaled(number)
        report = place_precision(model, config)
        checked(model)
        assert ("scale" in report.changed) == fits
        assert ("does not fit" in report.kept.get("scale", "it fits")) == (not fits)


@pytest.mark.parametrize(
    ("number", "between", "kept"),
    [
        (1e-15, "e = Expand(d, to)", True),
        (1e-15, "f = Sqrt(d) e = Transpose<perm = [1, 0]>(f)", True),
        (1e-15, "f = Unsqueeze(d, to) g = Squeeze(f, to) e = Reshape(g, flat)", True),
        (1e-15, "e = Exp(d)", False),  # no value of it is near 0
        (0.5, "e = Expand(d, to)", False),
    ],
)
def test_a_division_by_what_a_small_constant_keeps_from_zero_stays_in_float32(
    number, between, kept
):
    """In float16, `relu(h) + 1e-15` is 0 where `relu(h)` is (linear attention)."""
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[4,4] x, float[4,4] w, float[] c, int64[2] to, int64[2] flat)
        => (float[4,4] y) {{
          h = MatMul(x, w)  r = Relu(h)  d = Add(r, c)  {between}
          [divide] q = Div(h, e)  y = MatMul(q, w)
        }}""",
        w=weights(4, 4),
        c=np.float32(number),
        to=np.array([0, 1]) if "Squeeze" in between else np.array([1, 1]),
        flat=np.array([4, 4]),
    )
    report = place_precision(model, FP16)
    checked(model)
    assert ("keeps its divisor from 0" in report.kept.get("divide", "")) == kept


def test_measured_ranges_keep_nodes_in_float32():
    model = network()
    report = place_precision(model, FP16, ranges={"a": 1e5, "h": 10.0, "s": 65504.0})
    checked(model)
    assert report.kept["bias"] == "fp32: 'a' was measured up to 1e+05"
    assert report.kept["act"] == "fp32: 'a' was measured up to 1e+05"
    assert "fc2" in report.changed
    assert place_precision(network(), BF16, ranges={"a": 1e5}).kept.keys() == {"soft"}


def test_what_else_has_to_stay():
    report = place_precision(
        network(), FP16, fixed={"fc1": "a reason"}, unsupported={"Relu": "another"}
    )
    assert report.kept["fc1"] == "fp32: a reason"
    assert report.kept["act"] == "fp32: another"
    with pytest.raises(UsageError, match="another"):
        place_precision(
            network(), PrecisionConfig("fp16", force_low=("act",)), unsupported={"Relu": "another"}
        )


def test_branches_read_float32():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[2,4] x, bool c, float[4,4] w) => (float[2,4] y) {
          h = MatMul(x, w)
          [choice] y = If (c) <then_branch = t () => (float[2,4] a) { a = Exp(h) },
                              else_branch = e () => (float[2,4] b) { b = Neg(h) }>
        }""",
        w=weights(4, 4),
    )
    x = weights(2, 4, seed=4)
    feeds = {"x": x, "c": np.array(True)}
    expected = run(model, feeds)["y"]
    report = place_precision(model, FP16)
    checked(model)
    assert report.kept["choice"] == "fp32: control flow"
    np.testing.assert_allclose(run(model, feeds)["y"], expected, rtol=5e-3)


def test_integers_positions_and_doubles_are_left_alone():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (int64[N] i, double[4] d, float[5,4] table, float[4,4] w)
            => (float[N,4] y, double[4] e) {
          [look] r = Gather(table, i)
          y = MatMul(r, w)
          e = Add(d, d)
        }""",
        table=weights(5, 4),
        w=weights(4, 4),
    )
    report = place_precision(model, FP16)
    checked(model)
    assert "look" in report.kept  # its rows are cast, not the table
    assert casts(model) == 3
    assert run(model, {"i": np.array([1, 4]), "d": np.ones(4)})["e"].dtype == np.float64


def test_casts_of_the_model_are_joined():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w, float16[4,4] v) => (float[N,4] y) {
          h = MatMul(x, w)
          c = Cast<to = 10>(h)
          m = MatMul(c, v)
          y = Cast<to = 1>(m)
        }""",
        w=weights(4, 4),
        v=weights(4, 4, seed=1).astype(np.float16),
    )
    place_precision(model, FP16)
    checked(model)
    assert ops(model) == ["Cast", "Cast", "MatMul", "MatMul", "Cast"]


def test_operators_of_onnxruntime_and_of_others():
    """A value of unknown type stays in float32, and so do its consumers."""
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1, "strange" : 1]>
        net (float[N,4] x, float[4,4] w) => (float[N,4] y) {
          h = MatMul(x, w)
          [gelu] g = com.microsoft.Gelu(h)
          [two] m = MatMul(g, w)
          [odd] o = strange.Thing(m)
          [sum] s = Add(o, m)
          y = Relu(s)
        }""",
        w=weights(4, 4),
    )
    report = place_precision(model, FP16)
    assert report.changed["gelu"] == "fp16: to minimize the number of casts"
    assert report.kept["odd"] == "fp32: the type of 'o' is unknown"
    types = {v.name: v.dtype for node in model.graph for v in node.outputs}
    assert types["g"] == ir.DataType.FLOAT16
    for node in model.graph:
        if node.op_type in ("Add", "Thing", "Gelu"):
            assert len({v.dtype for v in (*node.inputs, *node.outputs)} - {None}) == 1


def test_float32_is_left_alone():
    model = network()
    before = structure(model)
    assert not place_precision(model, PrecisionConfig()).modified
    assert structure(model) == before


def test_largest_numbers():
    assert largest(ir.DataType.FLOAT16) == 65504.0
    assert largest(ir.DataType.BFLOAT16) == pytest.approx(3.3895e38, rel=1e-4)


def test_attention_has_one_type_for_all_that_it_multiplies():
    """Its schema has one type for queries and keys and another for values; both must match."""
    if onnx.defs.onnx_opset_version() < 23:
        pytest.skip("onnx is older")
    shape = "2,3,4,8"
    model = text_model(
        f"""<ir_version: 11, opset_import: ["" : 23]>
        net (float[{shape}] q, float[{shape}] k, float[{shape}] v, float[4,4] mask) =>
            (float[{shape}] y) {{ y = Attention(q, k, v, mask) }}"""
    )
    place_precision(model, FP16)
    (node,) = (node for node in model.graph if node.op_type == "Attention")
    assert {v.dtype for v in (*node.inputs, *node.outputs)} == {ir.DataType.FLOAT16}
    checked(model)


def test_sequences_of_tensors_stay_as_they_are():
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[N,4] x, float[4,4] w) => (seq(float[N,4]) y) {
      h = MatMul(x, w) g = Relu(h) y = SequenceConstruct(g, w) }"""
    model = text_model(text, w=weights(4, 4))
    x = weights(2, 4, seed=1)
    place_precision(model, FP16)
    assert [v.dtype for v in next(n for n in model.graph if n.op_type == "MatMul").inputs] == [
        ir.DataType.FLOAT16,
        ir.DataType.FLOAT16,
    ]
    first, second = run(model, {"x": x})["y"]
    assert first.dtype == second.dtype == np.float32
    np.testing.assert_array_equal(second, weights(4, 4))


def test_the_square_of_a_sum_of_squares_is_fp32():
    """It overflows float16 where the values exceed 256."""
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w) => (float[N,4] y) <int64[1] axis = {1}> {
          [fc] h = MatMul(x, w)
          [square] s = Mul(h, h)
          [sum] t = ReduceSum(s, axis)
          [root] r = Sqrt(t)
          [unit] u = Div(h, r)
          [gate] y = Mul(u, u)
        }""",
        w=weights(4, 4),
    )
    x = 1e3 * weights(5, 4, seed=3)
    expected = run(model, {"x": x})["y"]
    report = place_precision(model, FP16)
    assert report.kept["square"] == "fp32: a sum over many elements"
    assert report.kept["gate"] == "fp32: to minimize the number of casts"  # nothing sums it
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, atol=2e-3)
