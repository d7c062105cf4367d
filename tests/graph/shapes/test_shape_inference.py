"""Shapes and types: as onnx_ir's own pass finds them, and no more often than needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

from ortboost.core.errors import ModelError
from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from ortboost.graph.shapes import shape_inference
from ortboost.graph.shapes.inference_model import describe_model
from ortboost.graph.shapes.shape_inference import (
    check_lengths,
    check_slices,
    dimension_names,
    infer_missing,
    infer_shapes,
    node_fault,
)
from tests.support import run, text_model

MODELS = sorted((Path(__file__).parents[3] / "models").glob("*.onnx"))

BRANCHES = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N,4] x, bool c, int64[2] sizes) => (y, z) {
  shape = Constant<value = int64[2] {-1, 2}>()
  h = Reshape(x, shape)
  y = If(c)<
    then_branch = a () => (float[M,K] t) { inner = Relu(h) t = Transpose(inner) },
    else_branch = b () => (float[P,Q] e) { other = Neg(h) e = Transpose(other) }>
  open = Reshape(x, sizes)
  z = Cast<to = 10>(open)
}"""


def described(model: ir.Model) -> dict[str, tuple[object, object]]:
    """Name to type and shape of every value, those of subgraphs included."""
    nodes = list(model.graph.all_nodes())
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [output for node in nodes for output in node.outputs]
    return {v.name or "": (v.dtype, None if v.shape is None else str(v.shape)) for v in values}


def without_shapes(model: ir.Model) -> ir.Model:
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if not output.is_graph_output():
                output.shape = output.type = None
    return model


def as_onnx_ir_finds_them(model: ir.Model) -> dict[str, tuple[object, object]]:
    common.ShapeInferencePass(check_type=True, strict_mode=False, data_prop=True)(model)
    return described(model)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_what_is_found_is_what_the_pass_of_onnx_ir_finds(path):
    model = without_shapes(ir.load(path))
    expected = as_onnx_ir_finds_them(model.clone())
    infer_shapes(model)
    assert described(model) == expected
    unknown = [name for name, (dtype, shape) in expected.items() if dtype is None or shape is None]
    assert len(unknown) < len(expected) / 20  # the transformer computes one that it cannot know


def test_values_of_branches_and_computed_sizes_are_found_too():
    model = ir.from_onnx_text(BRANCHES)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    expected = as_onnx_ir_finds_them(model.clone())
    infer_shapes(model)
    found = described(model)
    assert found == expected
    assert found["inner"] == found["h"]
    assert str(found["inner"][1]).endswith("2]")
    assert found["z"][0] == ir.DataType.FLOAT16


def test_weights_stay_weights_and_large_ones_are_not_copied(monkeypatch):
    model = ir.load(MODELS[0])
    held = {name: value.const_value for name, value in model.graph.initializers.items()}
    inputs = list(model.graph.inputs)
    seen: list[int] = []
    real = onnx.shape_inference.infer_shapes

    def watched(proto, **options):
        seen.append(max(tensor.ByteSize() for tensor in proto.graph.initializer))
        return real(proto, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", watched)
    infer_shapes(model)
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == held
    assert list(model.graph.inputs) == inputs
    assert max(tensor.nbytes for tensor in held.values()) > 1500 > seen[0]


def test_inference_goes_on_after_operators_of_classic_ml():
    scaler = "ai.onnx.ml.Scaler<offset = [1.0], scale = [2.0]>"
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
        net (float[n,4] x) => (y) {{ a = {scaler}(x) b = Transpose(a) c = {scaler}(b)
            d = Transpose(c) y = Relu(d) }}"""
    )
    infer_shapes(model)
    assert known_shape(model.graph.outputs[0]) == ("n", 4)


def test_a_sequence_is_taken_for_no_tensor():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[4,6] x) => (float[2,6] y) {
          zero = Constant<value = int64 {0}>() two = Constant<value = int64 {2}>()
          parts = SplitToSequence<axis = 0>(x, two)
          passed = Identity(parts)
          y = SequenceAt(passed, zero) }""")
    infer_shapes(model)
    for node in model.graph:
        if node.op_type in ("SplitToSequence", "Identity"):
            assert node.outputs[0].type is None
            assert node.outputs[0].shape is None


def test_a_failure_of_it_is_no_failure_of_the_conversion(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no")

    model = without_shapes(ir.load(MODELS[0]))
    before = described(model)
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fails)
    infer_shapes(model)
    assert described(model) == before


def test_where_all_is_known_nothing_is_inferred(monkeypatch):
    model = without_shapes(ir.load(MODELS[0]))
    infer_missing(model)
    known = described(model)
    calls: list[ir.Model] = []
    monkeypatch.setattr(shape_inference, "infer_shapes", calls.append)
    infer_missing(model)
    assert not calls
    last = list(model.graph)[-2].outputs[0]
    for shape, dtype in ((None, last.type), (ir.Shape([None]), last.type), (last.shape, None)):
        former = last.shape, last.type
        last.shape, last.type = shape, dtype
        infer_missing(model)
        last.shape, last.type = former
    assert len(calls) == 3
    assert described(model) == known


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("y = Relu(x)", ("batch", None, "height", "width")),
        ("y = Transpose<perm = [0, 3, 1, 2]>(x)", ("batch", "width", None, "height")),
        (
            "y = MaxPool<kernel_shape = [1, 2], strides = [1, 2]>(x)",
            ("batch", None, "height", None),
        ),
        ('s = Shape(x) z = Resize<mode = "nearest">(x, , , s) y = Relu(z)', "as x"),
        (
            "h = MaxPool<kernel_shape = [4, 4], strides = [4, 4]>(x) f = Constant<value_floats = "
            "[1.0, 1.0, 4.0, 4.0]>() y = Resize(h, , f)",
            ("batch", None, None, None),
        ),
        ("y = Flatten<axis = 2>(x)", (None, None)),
    ],
)
def test_names_of_dimensions_are_those_of_inputs_that_are_always_equal(nodes, names):
    """Rounded to multiples of four a length may be the same, and is not always."""
    rank = 2 if "Flatten" in nodes else 4
    out = ",".join(f"out{i}" for i in range(rank))
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        m (float[batch, 3, height, width] x) => (float[{out}] y) {{ {nodes} }}"""
    )
    expected = ("batch", None, "height", "width") if names == "as x" else names
    assert dimension_names(model, model.graph.outputs[0]) == expected
    assert model.graph.outputs[0].shape[0] == "out0"


TOO_SHORT = {
    "Conv": ("(float[1,1,2] x, float[1,1,5] w)", "c = Conv(x, w)"),
    "MaxPool": ("(float[1,1,2] x)", "c = MaxPool<kernel_shape = [7]>(x)"),
    "Pad": ("(float[1,1,2] x)", "p = Constant<value_ints = [0, 0, 0, 0, 0, -5]>()  c = Pad(x, p)"),
    "Expand": (
        "(float[n,1] x)",
        "one = Constant<value_ints = [-1]>()  s = Shape<start = 0, end = 1>(x)"
        "  t = Concat<axis = 0>(s, s, one)  c = Expand(x, t)",
    ),
    # Only once the first Slice is inferred, the second layer is known to be too short.
    "AveragePool": (
        "(float[1,1,20] x)",
        "h = Slice(x, a, b, axis)  c = AveragePool<kernel_shape = [7]>(h)",
    ),
}


def with_slice(inputs: str, nodes: str, opset: int = 18) -> ir.Model:
    """A model whose Slice would abort the process."""
    return ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g {inputs} => (float[k,l,m] y)
        <int64[1] a = {{0}}, int64[1] b = {{2}}, int64[1] axis = {{2}}> {{
          {nodes}  y = Slice(c, a, b, axis) }}""")


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("op_type", TOO_SHORT)
def test_a_negative_length_that_a_slice_reads_is_rejected(op_type, opset):
    if opset < 15 and "Shape<" in TOO_SHORT[op_type][1]:
        pytest.skip("Shape has no start before opset 15")
    model = with_slice(*TOO_SHORT[op_type], opset=opset)
    with pytest.raises(ModelError, match=rf"The output of {op_type} has the shape .*-\d") as caught:
        load_model(model)
    assert caught.value.where == "'c'"
    infer_shapes(model)
    with pytest.raises(ModelError, match=op_type):
        check_lengths(model)


def test_a_negative_length_is_rejected_without_a_slice():
    model = text_model("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[n,1,2] x) => (float[n,1,m] y) { y = MaxPool<kernel_shape = [7]>(x) }""")
    check_slices(model)  # no process is in danger
    with pytest.raises(ModelError, match=r"MaxPool has the shape \['n', 1, -4\]"):
        normalize(model, opsets=range(18, 22), ir_version=10)


def test_a_branch_may_not_be_one_for_these_lengths():
    model = text_model("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[n,1,2] x) => (float[n,1,m] y)
        <int64[1] a = {0}, int64[1] b = {1}, int64[1] axis = {2}, bool long = {0}> {
          c = If(long) <then_branch = t () => (p) { p = MaxPool<kernel_shape = [7]>(x) },
                        else_branch = e () => (q) { q = Identity(x) }>
          y = Slice(c, a, b, axis) }""")
    check_slices(model)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert described(model)["y"] == (ir.DataType.FLOAT, "[n,1,1]")


@pytest.mark.parametrize("branches", ["then else", "else then"])
def test_both_branches_may_use_a_name(branches):
    """The check does not take the `h` of one branch for that of the other."""
    long, short = (
        f"""{branch}_branch = {branch} () => (r) {{
          a = Constant<value_ints = [0]>()  b = Constant<value_ints = [1]>()
          axis = Constant<value_ints = [2]>()  h = {op}  r = Slice(h, a, b, axis) }}"""
        for branch, op in zip(
            branches.split(), ["Relu(x)", "MaxPool<kernel_shape = [7]>(x)"], strict=True
        )
    )
    first, second = (long, short) if branches == "then else" else (short, long)
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[n,1,2] x, bool c) => (float[n,1,m] y) {{ y = If(c) <{first}, {second}> }}""")
    infer_shapes(model)
    with pytest.raises(ModelError, match="The output of MaxPool"):
        check_lengths(model)
    with pytest.raises(ModelError, match="The output of MaxPool"):
        load_model(model)


def test_slices_one_after_the_other_are_all_inferred():
    chain = "".join(f"  s{i + 1} = Slice(s{i}, a, b, axis)" for i in range(20))
    model = with_slice("(float[n,4,9] x)", f"s0 = Relu(x){chain}  c = Relu(s20)")
    expected = as_onnx_ir_finds_them(model.clone())
    infer_shapes(model)
    assert described(model) == expected
    assert str(expected["s20"][1]) == "[n,4,2]"


def test_a_slice_in_a_function_is_not_inferred_where_a_length_is_negative():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        g (float[1,1,2] x) => (float[k,l,m] y) { y = own.first(x) }
        <domain: "own", opset_import: ["" : 18]>
        first (x) => (y) {
          c = MaxPool<kernel_shape = [7]>(x)
          a = Constant<value_ints = [0]>()  b = Constant<value_ints = [1]>()
          axis = Constant<value_ints = [2]>()
          y = Slice(c, a, b, axis) }""")
    infer_shapes(model)
    with pytest.raises(ModelError, match="MaxPool"):
        normalize(model, opsets=range(18, 22), ir_version=10)


def test_a_slice_in_a_function_is_inferred_if_no_length_is_negative():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        g (float[n,1,9] x) => (float[k,l,m] y) { c = own.first(x)  y = Identity(c) }
        <domain: "own", opset_import: ["" : 18]>
        first (x) => (y) {
          c = MaxPool<kernel_shape = [7]>(x)
          a = Constant<value_ints = [0]>()  b = Constant<value_ints = [2]>()
          axis = Constant<value_ints = [2]>()
          y = Slice(c, a, b, axis) }""")
    infer_shapes(model)
    assert described(model)["c"] == (ir.DataType.FLOAT, "[n,1,2]")


def test_the_activations_of_com_microsoft_keep_a_shape():
    """As in a file that onnxruntime has optimized; ONNX has no inference for them."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[N,4] x, float[4] b) => (y) {
          a = com.microsoft.BiasGelu (x, b)  c = com.microsoft.FastGelu (a)
          d = com.microsoft.QuickGelu <alpha = 1.7> (c)  e = com.microsoft.Gelu (d)
          y = Transpose(e) }"""
    )
    infer_shapes(model)
    assert described(model)["y"] == (ir.DataType.FLOAT, "[4,N]")


def test_a_weight_has_the_shape_of_its_values_whatever_the_file_notes():
    """onnxruntime.transformers transposes weights; torch's exporter has noted their shapes."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[N,4] x, float[4,3] w) => (y) { y = MatMul(x, w) }""",
        w=np.ones((4, 3), np.float32),
    )
    model.graph.initializers["w"].shape = ir.Shape((3, 4))
    infer_shapes(model)
    assert described(model)["y"] == (ir.DataType.FLOAT, "[N,3]")


def test_the_value_of_a_long_vector_is_not_propagated_through_a_cast():
    """From its length alone, onnx would propagate a placeholder for each of the elements."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float16[8,64,56,56] x, int64[n] i) => (float[a] y, float16[b] z, int32[c] k, int64[d] m) {
      flat = Constant<value = int64[1] {-1}>()
      h = Reshape(x, flat)  y = Cast<to = 1>(h)  z = Cast<to = 10>(y)  k = Cast<to = 6>(i)
      m = Cast<to = 7>(y)
    }"""
    model = ir.from_onnx_text(text)
    infer_shapes(model)
    kinds = [node.op_type for node in describe_model(model).graph.node]
    assert kinds == ["Constant", "Reshape", "CastLike", "CastLike", "Cast", "Cast"]
    y, z, k, m = model.graph.outputs
    assert m.dtype == ir.DataType.INT64  # sizes may be computed in float32: their values are used
    assert (y.dtype, z.dtype, k.dtype) == (
        ir.DataType.FLOAT,
        ir.DataType.FLOAT16,
        ir.DataType.INT32,
    )
    assert known_shape(y) == known_shape(z) == (8 * 64 * 56 * 56,)
    assert [node.op_type for node in model.graph][2:] == ["Cast"] * 4  # the model is as it was
    infer_shapes(model)
    assert known_shape(z) == (8 * 64 * 56 * 56,)


def test_casts_before_castlike_was_defined_are_inferred():
    model = ir.from_onnx_text(
        '<ir_version: 7, opset_import: ["" : 13]> g (float[2,3] x) => (y) { y = Cast<to = 10>(x) }'
    )
    infer_shapes(model)
    assert known_shape(model.graph.outputs[0]) == (2, 3)
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT16


def test_a_type_that_does_not_exist_is_no_business_of_inference():
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (y) { y = Cast<to = 255>(x) }'
    )
    infer_shapes(model)
    assert known_shape(model.graph.outputs[0]) in (None, (2,))


def test_the_inference_of_one_node_keeps_the_names_of_dimensions():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[n,4] x) => (float[rows,4] y) { y = Relu(x) }"""
    )
    assert node_fault(model.graph[0], 18) is None
    assert known_shape(model.graph.outputs[0]) == ("rows", 4)


RESIZED = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,1,{n},4] x, float[4] scales) => (y, length) {{
  h = Resize<mode = "linear">(x, , scales)
  again = Resize<mode = "nearest">(h, , scales)
  y = AveragePool<kernel_shape = [2, 1]>(again)
  shape = Shape<start = 2, end = 3>(again)
  length = Cast<to = 1>(shape)
}}"""


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize(("n", "scale"), [(5, 1.8), (10, 0.7), (7, 1.3), (25, 2.2), (9, 1.5)])
def test_a_resize_gets_the_length_that_onnxruntime_computes(n, scale, opset):
    """onnx multiplies in float64: 5 * 1.79999995 is less than 9; onnxruntime in float32."""
    model = text_model(RESIZED.format(n=n), scales=np.float32([1, 1, scale, 1]))
    if opset == 17:  # converted: the converter infers lengths, too
        text = RESIZED.format(n=n).replace("18", "17").replace("<start = 2, end = 3>", "")
        model = text_model(text, scales=np.float32([1, 1, scale, 1]))
    feeds = {"x": np.zeros([2, 1, n, 4], np.float32)}
    expected = run(model, feeds)
    normalize(model, opsets=range(18, 19), ir_version=10)
    shape = known_shape(model.graph.outputs[0])
    assert shape is not None
    assert shape[1:] == expected["y"].shape[1:]
    np.testing.assert_array_equal(run(model, feeds)["length"], expected["length"])


@pytest.mark.parametrize(
    ("axes", "scales"), [((2,), (1.8,)), ((-2,), (1.8,)), ((3, 2), (1.4, 1.8)), ((7,), (1.8,))]
)
def test_a_resize_along_some_axes(axes, scales):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,5,5] x, float[{len(axes)}] s) => (y, z) {{
          y = Resize<axes = [{", ".join(map(str, axes))}], mode = "nearest">(x, , s)
          z = Relu(x) }}""",
        s=np.float32(scales),
    )
    infer_shapes(model)
    y, z = (known_shape(value) for value in model.graph.outputs)
    assert z == ("N", 1, 5, 5)
    # onnxruntime 1.19 has no negative axes.
    model.graph.node(0).attributes.add(ir.AttrInt64s("axes", [axis % 4 for axis in axes]))
    if axes != (7,):  # which is refused elsewhere
        assert y[2:] == run(model, {"x": np.zeros([2, 1, 5, 5], np.float32)})["y"].shape[2:]


def test_a_resize_after_one_whose_length_was_corrected():
    """10 * 0.7 is 7, not 6; only 6 * 5.6666665 is rounded in two ways."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,10,4] x, float[4] s, float[4] t) => (y) {
          h = Resize<mode = "nearest">(x, , s) y = Resize<mode = "nearest">(h, , t) }""",
        s=np.float32([1, 1, 0.7, 1]),
        t=np.float32([1, 1, 17 / 3, 1]),
    )
    infer_shapes(model)
    y = known_shape(model.graph.outputs[0])
    assert y[2:] == run(model, {"x": np.zeros([2, 1, 10, 4], np.float32)})["y"].shape[2:]


@pytest.mark.parametrize(
    "body",
    [
        "y = If(c) <then_branch = a () => (r) { %s }, else_branch = b () => (z) { z = Relu(x) }>",
        "y = If(c) <then_branch = a () => (z) { z = Relu(x) }, else_branch = b () => (r) { %s }>",
        """i = Constant<value = float {1.0}>()
        b = Unsqueeze(x, zero)
        u, y = Scan<num_scan_inputs = 1, body = a (float k, float[2,1,5,4] h) => (l, r)
          { l = Identity(k) %s }>(i, b)""",
    ],
)
def test_a_resize_in_a_body(body):
    resize = (
        "s = Constant<value = float[4] {1.0, 1.0, 1.8, 1.0}>() "
        f'r = Resize<mode = "nearest">({"h" if "Scan" in body else "x"}, , s)'
    )
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[2,1,5,4] x, bool c, int64[1] zero) => (y) {{ {body % resize} }}""",
        zero=np.array([0]),
    )
    infer_shapes(model)
    (found,) = (node for node in model.graph.all_nodes() if node.op_type == "Resize")
    assert known_shape(found.outputs[0])[2:] == (9, 4)


def test_a_resize_in_a_file_that_lists_its_weights_as_inputs():
    model = text_model(
        """<ir_version: 3, opset_import: ["" : 9]>
        net (float[N,1,5,4] x, float[4] s) => (y) { y = Upsample<mode = "nearest">(x, s) }""",
        s=np.float32([1, 1, 1.8, 1]),
    )
    model.graph.inputs.append(model.graph.initializers["s"])
    infer_shapes(model)
    assert known_shape(model.graph.outputs[0])[2:] == (9, 4)
