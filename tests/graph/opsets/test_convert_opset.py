from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ortboost.core.errors import ModelError
from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.graph.opsets.convert_opset import convert_opset
from ortboost.graph.opsets.older_forms import means_the_same
from tests.support import assert_three_lines, run, small_mlp, text_model, weights

OPSETS, IR_VERSION = range(18, 22), 10


def normalized(source) -> ir.Model:
    model = load_model(source)
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    return model


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 24, reason="needs opset 24")
def test_an_operator_that_no_older_opset_has_is_refused():
    model = text_model(
        '<ir_version: 12, opset_import: ["" : 24]> net (float[2,4,3] x, float[2,1,3] s) =>'
        " (float[2,4,3] y) { h = TensorScatter(x, s)  y = Relu(h) }"
    )
    with pytest.raises(ModelError) as info:
        convert_opset(model, OPSETS)
    assert_three_lines(info.value)
    assert "24" in info.value.what
    assert "added later: TensorScatter" in info.value.where


def test_an_operator_that_the_own_opset_lacks_is_named():
    model = text_model(
        '<ir_version: 8, opset_import: ["" : 13]> net (float[2,4] x) => (float[2,4] y)'
        " { y = HardSwish(x) }"
    )
    with pytest.raises(ModelError, match="from opset 13 to 18") as info:
        convert_opset(model, OPSETS)
    assert "added later: HardSwish" in info.value.where


@pytest.mark.parametrize(
    ("node", "where"),
    [
        ('Einsum<equation = "ij->ji">(r)', "added later: Einsum"),
        ("Unsqueeze(x, a)", "changed since opset 11: Unsqueeze"),  # it says: no initializer found
        ("RoiAlign(r, m, a)", "for RoiAlign"),  # what the converter of onnx says
        ("Reshape<allowzero = 1>(x, a)", "for Reshape"),
        ("Reshape<allowzero = 1>(o, z)", "for Reshape"),
        ('ScatterElements<reduction = "max">(x, a, x)', "ScatterElements"),
        ('Pad<mode = "wrap">(x, a)', "'mode' of Pad"),
        ("Resize(r, , x)", "for Resize"),  # opset 11 needs the omitted input
        ("AveragePool<kernel_shape = [2, 2], dilations = [2, 2]>(r)", "'dilations' of AveragePool"),
        ("ReduceSum<noop_with_empty_axes = 1>(x)", "'noop_with_empty_axes' of ReduceSum"),
        ("Softmax<axis = 1>(u)", "the rank of 'u' is unknown"),
        ("Pow(x, a)", "for Pow"),  # opset 11 has no exponents of integers
        ("BatchNormalization(h, x, x, x, x)", "BatchNormalization"),  # of one type
        (
            "If(c) <then_branch = e () => (p) { p = ReduceL2(x, n) },"
            " else_branch = f () => (q) { q = Neg(x) }>",
            "changed since opset 11: If, Neg, ReduceL2",
        ),
        ("Equal(t, t)", "changed since opset 11: Equal"),
    ],
)
def test_what_an_older_opset_cannot_have_is_named(node, where):
    model = text_model(
        '<ir_version: 8, opset_import: ["" : 19]> net (float[4] x, int64[1] a, '
        f"float[1,1,4,4] r, float u, string[4] t, float[1,4] m, bool c, float16[4,4] h, "
        f"float[0,4] o) => (y) <int64[1] n = {{0}}, int64[2] z = {{0, 2}}> {{ y = {node} }}"
    )
    model.graph.inputs[3].shape = None
    with pytest.raises(ModelError, match="from opset 19 to 11") as info:
        convert_opset(model, range(11, 12))
    assert where in info.value.where


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("mode", 'Pad<mode = "wrap">(x, a)'),
        (
            "coordinate_transformation_mode",
            'Resize<coordinate_transformation_mode = "half_pixel_symmetric">(x, , s)',
        ),
    ],
)
def test_a_newer_value_of_an_older_attribute_is_not_left_in(name, node):
    """The converter of onnx would keep it, though opset 18 does not know it."""
    text = '<ir_version: 10, opset_import: ["" : 21]> net (float[4] x, int64[2] a, float[1] s) => '
    model = text_model(f"{text} (y) {{ y = {node} }}")
    convert_opset(model.clone(), range(19, 20))
    with pytest.raises(ModelError, match="from opset 21 to 18") as info:
        convert_opset(model, range(18, 19))
    assert f"'{name}' of" in info.value.where


@pytest.mark.parametrize(
    ("mode", "former"), [("linear", "bilinear"), ("cubic", "bicubic"), ("nearest", "nearest")]
)
def test_modes_of_a_grid_get_their_former_names(mode, former):
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 20]>
        net (float[1,1,4,4] x, float[1,2,2,2] g) => (y) {{
          y = GridSample<mode = "{mode}">(x, g) }}"""
    )
    convert_opset(model, range(16, 17))
    assert model.graph[0].attributes.get_string("mode") == former


def test_a_default_that_changed_is_not_taken_for_the_former_one():
    text = '<ir_version: 8, opset_import: ["" : 20]> net (float[2,3,8,2] x, float[1,1,2,2,3] g)'
    model = text_model(f"{text} => (y) {{ y = DFT(x) }}")
    convert_opset(model, range(18, 19))
    assert model.graph[0].attributes.get_int("axis") == -2  # the former default is 1
    model = text_model(f"{text} => (float[1,1,2,2,3] y) {{ y = GridSample(g, g) }}")
    assert not means_the_same(model.graph[0], 20)
    with pytest.raises(ModelError, match="from opset 20 to 16") as info:
        convert_opset(model, range(16, 17))
    assert "two spatial axes" in info.value.where


def test_before_opset_11_axes_are_not_negative():
    model = text_model(
        '<ir_version: 8, opset_import: ["" : 12]> net (float[2,3] x) => (y) { y = Size(x) }'
    )
    assert not means_the_same(model.graph[0], 11)


@pytest.mark.parametrize(
    "node",
    [
        "Equal(x, x)",  # of types that opset 11 has, as most of these
        "HardSwish(x)",
        "Pow(x, x)",
        "Shape<start = 1, end = -1>(x)",
        "Shape<start = 0>(x)",
        "Reshape<allowzero = 1>(x, flat)",
        "Unsqueeze(flat, axes)",
        "ReduceMean<keepdims = 0, noop_with_empty_axes = 0>(x, axes)",
        "BatchNormalization<training_mode = 0>(x, g, g, g, g)",
        "Softmax(x)",
        "Softmax<axis = 1>(x)",
        "LogSoftmax<axis = -2>(x)",
        "Hardmax<axis = 0>(x)",
        "Dropout(x)",
        "Gelu(x)",  # its definition has CastLike and numbers in attributes of Constant
        "LayerNormalization<axis = 2>(x, h)",
        "Cast<to = 7, saturate = 1>(x)",
        "ScatterND(x, places, rows)",
        "If(c) <then_branch = a () => (int64[1] p) { p = Shape<start = 2>(x) },"
        " else_branch = b () => (int64[1] q) { q = Shape<start = 1, end = 2>(x) }>",
    ],
)
def test_what_an_older_opset_has_in_the_same_or_another_form_is_converted(node):
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 20]>
        net (float[n,3,4] x, float[3] g, float[4] h, int64[2] flat, int64[1] axes,
             int64[1,1] places, float[1,3,4] rows, bool c) => (y) {{ y = {node} }}""",
        g=1 + np.arange(3, dtype=np.float32),
        h=weights(4),
        flat=np.array([-1, 6]),
        axes=np.array([-1]),
        places=np.array([[1]]),
        rows=weights(1, 3, 4),
        c=np.array(False),
    )
    feeds = {"x": weights(2, 3, 4)}
    before = run(model, feeds)["y"]
    convert_opset(model, range(11, 12))
    onnx.checker.check_model(ir.to_proto(model))
    np.testing.assert_allclose(run(model, feeds)["y"], before, rtol=1e-5, atol=1e-6)


def test_a_number_of_parts_becomes_their_lengths():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 20]>
        net (float[n,5] x) => (y) {
          p, q = Split<axis = -1, num_outputs = 2>(x)  y = Concat<axis = 1>(q, p) }"""
    )
    feeds = {"x": weights(2, 5)}
    before = run(model, feeds)["y"]
    convert_opset(model, range(13, 14))
    np.testing.assert_array_equal(run(model, feeds)["y"], before)


def test_an_operator_of_a_runtime_in_the_standard_domain_is_refused_as_such():
    """As onnxruntime's optimizer writes it; a newer opset would not help."""
    model = text_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[2,4] x, float[4] s) =>'
        " (float[2,4] y) { h = MemcpyToHost(x)  y = Relu(h) }"
    )
    with pytest.raises(ModelError) as info:
        convert_opset(model, OPSETS)
    assert_three_lines(info.value)
    assert "that ONNX does not have: MemcpyToHost" in info.value.what
    assert "the exporter did not know" in info.value.fix


def test_an_opset_that_onnx_does_not_know_is_refused():
    model = small_mlp()
    model.opset_imports[""] = onnx.defs.onnx_opset_version() + 1
    with pytest.raises(ModelError, match="newer than the installed onnx") as info:
        convert_opset(model, OPSETS)
    assert "opset 18 to 21" in info.value.fix


def test_an_allowed_opset_is_left_alone():
    model = small_mlp()
    model.opset_imports[""] = 20
    assert not convert_opset(model, OPSETS).modified
    assert model.opset_imports[""] == 20


def test_scan_of_opset_8_is_refused():
    """It had a batch axis; the converter treats it like the later version."""
    body = onnx.parser.parse_graph(
        "body (float[2] a, float[2] b) => (float[2] c, float[2] d) { c = Add(a, b) d = Identity(c) "
        "}"
    )
    node = helper.make_node(
        "Scan", ["", "s", "x"], ["y", "z"], "scan", num_scan_inputs=1, body=body
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [value("s", 1, [1, 2]), value("x", 1, [1, 3, 2])],
        [value("y", 1, [1, 2]), value("z", 1, [1, 3, 2])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    with pytest.raises(ModelError) as caught:
        normalized(proto)
    assert_three_lines(caught.value)
    assert "'scan'" in caught.value.where


@pytest.mark.parametrize(
    ("opset", "node", "what"),
    [
        (11, "y = Hardmax<axis = 1>(x)", "joins all axes"),
        (8, "y = BatchNormalization<spatial = 0>(x, s, s, s, s)", "each position"),
    ],
)
def test_operators_that_the_converter_changes_are_refused(opset, node, what):
    text = f"""<ir_version: 4, opset_import: ["" : {opset}]>
        g (float[2,3,4] x, float[3,4] s) => (float[2,3,4] y) {{ {node} }}"""
    with pytest.raises(ModelError, match=what) as caught:
        normalized(onnx.parser.parse_model(text))
    assert_three_lines(caught.value)


@pytest.mark.parametrize("shape", [[2, 3], [2, 3, 4]])
def test_hardmax_of_the_last_axis_is_converted(shape):
    axis = len(shape) - 1
    model = normalized(
        onnx.parser.parse_model(f"""<ir_version: 4, opset_import: ["" : 11]>
        g (float{shape} x) => (float{shape} y) {{ y = Hardmax<axis = {axis}>(x) }}""")
    )
    x = np.random.default_rng(0).random(shape, np.float32)
    found = run(model, {"x": x})["y"]
    np.testing.assert_array_equal(found, x == x.max(-1, keepdims=True))


def resize(opset: int, mode: str, scales: list[float]) -> ir.Model:
    if opset < 9:
        node = f'y = Upsample<mode = "{mode}", scales = {scales}>(h)'
    else:
        node = f'y = {"Upsample" if opset == 9 else "Resize"}<mode = "{mode}">(h, s)'
    stored = {} if opset < 9 else {"s": np.float32(scales)}
    declared = "".join(f", float[{array.size}] {name}" for name, array in stored.items())
    return text_model(
        f"""<ir_version: 4, opset_import: ["" : {opset}]>
        net (float[N,2,5,6] x{declared}) => (float[N,2,H,W] y) {{ h = Relu(x) {node} }}""",
        **stored,
    )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("opset", "scales"),
    [
        (7, [1.0, 1.0, 2.0, 2.0]),
        (9, [1.0, 1.0, 1.5, 2.5]),
        (10, [1.0, 1.0, 1.5, 2.5]),
        (10, [1.0, 1.0, 0.5, 3.0]),
        (10, [1.0, 1.0, 0.6, 0.4]),
    ],
)
def test_a_converted_node_takes_the_same_positions(opset, mode, scales):
    before = resize(opset, mode, scales)
    x = weights(2, 2, 5, 6)
    expected = run(before.clone(), {"x": x})["y"]
    normalize(before, opsets=range(18, 22), ir_version=10)
    np.testing.assert_allclose(run(before, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [8, 9, 10])
def test_so_does_a_node_between_others(opset):  # the converter names its output anew
    before = resize(opset, "linear", [1.0, 1.0, 2.0, 2.0])
    last = before.graph[-1]
    last.outputs[0].name = "inner"
    after = ir.node("Sqrt", [last.outputs[0]])
    after.outputs[0].name, after.outputs[0].type = "y", last.outputs[0].type
    after.outputs[0].shape = last.outputs[0].shape
    before.graph.append(after)
    before.graph.outputs[0] = after.outputs[0]
    x = weights(2, 2, 5, 6)
    expected = run(before.clone(), {"x": x})["y"]
    normalize(before, opsets=range(18, 22), ir_version=10)
    np.testing.assert_allclose(run(before, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_nearest_samples_on_both_sides_are_refused():
    with pytest.raises(ModelError, match="shrinks one axis"):
        normalize(resize(10, "nearest", [1.0, 1.0, 0.4, 1.5]), opsets=range(18, 22), ir_version=10)
