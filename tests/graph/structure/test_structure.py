"""Each fault is rejected with its name on loading; models that runtimes accept are accepted."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import ortboost as ob
from ortboost.core.errors import ConfigError, FileError
from ortboost.core.limits import LIMITS_VARIABLE, Limits
from ortboost.graph.io import load_model
from ortboost.graph.structure import check_structure
from tests.support import run

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
W = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
LAST = helper.make_node("MatMul", ["t", "w"], ["y"], name="last")
node = helper.make_node


def model(*nodes, inputs=(X,), outputs=(Y,), stored=(W,), functions=()):
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(stored))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


def function(name, *nodes):
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["a"], ["c"], list(nodes), opsets)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def nested(depth):
    leaf = helper.make_tensor_value_info(f"o{depth}", TensorProto.FLOAT, None)
    other = helper.make_tensor_value_info(f"e{depth}", TensorProto.FLOAT, None)
    inner = (
        node("Identity", ["x"], [f"o{depth}"])
        if depth == 0
        else node(
            "If",
            ["c"],
            [f"o{depth}"],
            then_branch=nested(depth - 1),
            else_branch=helper.make_graph(
                [node("Identity", ["x"], [f"e{depth}"])], "e", [], [other]
            ),
        )
    )
    return helper.make_graph([inner], f"g{depth}", [], [leaf])


def refused(proto, *words):
    with pytest.raises(FileError) as caught:
        check_structure(proto, "net.onnx")
    text = str(caught.value)
    assert all(word in text for word in ("net.onnx", *words)), text
    with pytest.raises(FileError):
        load_model(proto)


def test_a_whole_model_passes():
    assert check_structure(model(node("Relu", ["x"], ["t"]), LAST), "net.onnx")


def test_nodes_in_another_order_are_sorted():
    proto = model(LAST, node("Relu", ["x"], ["t"]))
    assert not check_structure(proto, "net.onnx")
    assert [n.op_type for n in load_model(proto).graph] == ["Relu", "MatMul"]


def test_nodes_of_a_branch_in_another_order_are_sorted():
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    branch = helper.make_graph(
        [node("Exp", ["s"], ["b"]), node("Neg", ["x"], ["s"])], "b", [], [out]
    )
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    both = node("If", ["c"], ["t"], then_branch=branch, else_branch=nested(0))
    loaded = load_model(model(both, LAST, inputs=(X, condition)))
    graph = loaded.graph[0].attributes["then_branch"].as_graph()
    assert [n.op_type for n in graph] == ["Neg", "Exp"]


def test_a_cycle():
    proto = model(node("Add", ["x", "t"], ["a"]), node("Relu", ["a"], ["t"]), LAST)
    with pytest.raises(FileError, match="has a cycle"):
        load_model(proto)


def test_a_name_that_nothing_makes():
    refused(model(LAST), "'t'", "node 'last'")
    refused(model(node("Relu", ["x"], ["t"]), outputs=(Y,)), "output 'y'")


def test_a_name_that_is_made_twice():
    refused(
        model(node("Relu", ["x"], ["t"]), node("Neg", ["x"], ["t"]), LAST), "'t' is defined twice"
    )
    refused(
        model(node("Relu", ["x"], ["w"]), LAST),
        "'w' is defined twice",
        "Rename the parameter 'w' of the module",
    )


@pytest.mark.parametrize("name", ["strides", "dilations", "kernel_shape"])
def test_an_attribute_that_must_be_positive(name):
    pool = node("MaxPool", ["x"], ["t"], **{"kernel_shape": [2], name: [0]})
    refused(model(pool, LAST), f"'{name}' of MaxPool is [0]", "positive")


@pytest.mark.parametrize("number", [-1, -(2**31)])
def test_batch_dimensions_below_zero(number):
    """onnxruntime 1.19.2 reads outside of its memory."""
    gather = node("GatherND", ["x", "z"], ["t"], batch_dims=number)
    refused(model(gather, LAST, stored=(W, ints("z", 0))), f"'batch_dims' of GatherND is {number}")


def test_groups_of_a_convolution():
    refused(model(node("Conv", ["x", "w"], ["t"], group=0), LAST), "'group' of Conv is 0")


@pytest.mark.parametrize("op", ["Split", "BatchNormalization"])
def test_outputs_without_a_name_on_which_runtimes_crash(op):
    split = node("Split", ["x", "z"], ["t", ""], axis=1)
    norm = node("BatchNormalization", ["x", *"wwww"], ["t", "", ""], training_mode=1)
    nodes, stored = ((split, norm)[op != "Split"], LAST), (W, ints("z", 4, 0))
    refused(model(*nodes, stored=stored), f"{op} has an output without a name")


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_an_integer_divided_by_zero(op):
    whole = helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 4])
    nodes = (node(op, ["x", "z"], ["i"]), node("Cast", ["i"], ["t"], to=TensorProto.FLOAT), LAST)
    refused(model(*nodes, inputs=(whole,), stored=(W, ints("z", 3, 0, 1, 1))), "constant 0")
    load_model(model(*nodes, inputs=(whole,), stored=(W, ints("z", 3, 1, 1, 1))))
    constant = node("Constant", [], ["z"], value_int=0)
    refused(model(constant, *nodes, inputs=(whole,)), "constant 0")


@pytest.mark.parametrize("settings", [{}, {"ignore_index": -1}])
def test_stored_labels_below_zero(settings):
    """onnxruntime 1.19.2 uses them as indices."""
    loss = node("SoftmaxCrossEntropyLoss", ["x", "z"], ["t"], **settings)
    labels = ints("z", -(2**31), -1)
    refused(model(loss, LAST, stored=(W, labels)), "constant label -2147483648 is negative")
    load_model(model(loss, LAST, stored=(W, ints("z", 0, -1 if settings else 1))))


def test_data_that_does_not_fit_its_shape():
    short = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    short.raw_data = short.raw_data[:-4]
    refused(model(node("Relu", ["x"], ["t"]), LAST, stored=(short,)), "60 bytes, not 64", "'w'")
    typed = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], np.ones(16))
    del typed.float_data[3:]
    refused(model(node("Relu", ["x"], ["t"]), LAST, stored=(typed,)), "3 values, not 16")
    negative = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    negative.dims[0] = -4
    refused(model(node("Relu", ["x"], ["t"]), LAST, stored=(negative,)), "[-4, 4]")


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "INT4", "UINT4", "COMPLEX64", "BOOL"])
@pytest.mark.parametrize("raw", [True, False])
def test_data_of_every_size_fits(kind, raw):
    kind = TensorProto.DataType.Value(kind)
    array = np.zeros(5, helper.tensor_dtype_to_np_dtype(kind))
    if raw:
        tensor = numpy_helper.from_array(array, "k")
        tensor.data_type = kind
    else:
        tensor = helper.make_tensor("k", kind, [5], array)
    assert check_structure(model(node("Relu", ["x"], ["t"]), LAST, stored=(W, tensor)), "net.onnx")


def test_a_function_that_calls_itself():
    again = function("R", node("R", ["a"], ["c"], domain="f"))
    refused(model(node("R", ["x"], ["t"], domain="f"), LAST, functions=[again]), "'R'", "R -> R")


def test_functions_that_double():
    def twice(k):
        if k == 40:
            return function("F40", node("Relu", ["a"], ["c"]))
        inner = f"F{k + 1}"
        return function(
            f"F{k}", node(inner, ["a"], ["b"], domain="f"), node(inner, ["b"], ["c"], domain="f")
        )

    functions = [twice(k) for k in range(41)]
    proto = model(node("F0", ["x"], ["t"], domain="f"), LAST, functions=functions)
    refused(proto, "1,000,000 nodes", LIMITS_VARIABLE)


def test_subgraphs_in_subgraphs(monkeypatch):
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    both = node("If", ["c"], ["t"], then_branch=nested(20), else_branch=nested(0))
    refused(model(both, LAST, inputs=(X, condition)), "16 deep", f"{LIMITS_VARIABLE}=depth=32")
    monkeypatch.setenv(LIMITS_VARIABLE, "depth=32")
    assert check_structure(model(both, LAST, inputs=(X, condition)), "net.onnx")


def test_tensors_that_are_only_stated():
    fill = node("ConstantOfShape", ["s"], ["t"])
    refused(model(fill, LAST, stored=(W, ints("s", 1 << 31))), "8,589,934,592 bytes")
    big = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2**63 - 1, 4])
    refused(model(node("Relu", ["x"], ["t"]), LAST, inputs=(big,)), "input 'x'")
    moved = node("Reshape", ["x", "s"], ["t"])
    refused(model(moved, LAST, stored=(W, ints("s", 1 << 31))), "8,589,934,592 bytes")
    assert load_model(model(moved, LAST, stored=(W, ints("s", 0, -1))))
    large = Limits(tensor_bytes=1 << 40)
    assert check_structure(model(fill, LAST, stored=(W, ints("s", 1 << 31))), "net", limits=large)


@pytest.mark.parametrize(
    ("op", "inputs", "sizes"),
    [
        ("Tile", ["x", "a"], {"a": (1, 1 << 31)}),
        ("Pad", ["x", "a"], {"a": (0, 0, 0, 1 << 31)}),
        ("OneHot", ["b", "a", "c"], {"a": 1 << 31, "b": 0, "c": (0, 1)}),
        ("HannWindow", ["a"], {"a": 1 << 31}),
        ("Range", ["a", "b", "c"], {"a": 1, "b": 1 + (1 << 31), "c": 1}),
        ("Range", ["a", "b", "c"], {"a": 1 << 32, "b": 0, "c": -2}),
        ("Range", ["a", "b", "c"], {"a": 0.0, "b": float(1 << 31), "c": 1.0}),
    ],
)
def test_lengths_that_constants_give(op, inputs, sizes):
    """Inference of onnx went over the elements of a Range, and the runtime allocated them."""
    for small in (False, True):
        stored = [W]
        for name, size in sizes.items():
            array = np.array(size, np.float32 if isinstance(size, float) else np.int64)
            array = np.minimum(array, 8).astype(array.dtype) if small else array
            stored.append(numpy_helper.from_array(array, name))
        proto = model(node(op, inputs, ["t"]), LAST, stored=stored)
        if small:
            check_structure(proto, "net.onnx")
        else:
            refused(proto, "8,589,934,592 bytes", op)


@pytest.mark.parametrize(
    ("turns", "around", "condition", "words"),
    [
        (10**12, 1, "Identity", "1,000,000,000,000 times"),
        (10**5, 10**5, "Identity", "10,000,000,000 times"),
        (10**5, 1, "Identity", None),
        (2**63 - 1, 1, "Not", None),  # a while loop: the body ends it
    ],
)
def test_turns_of_loops(turns, around, condition, words):
    proto = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n,4] x) => (float[n,4] y)
        <int64 m = {{{around}}}, int64 n = {{{turns}}}, bool go = {{1}}> {{
          y = Loop<body = outer (int64 i, bool k, float[n,4] a) => (bool ko, float[n,4] ao) {{
            ko = Identity(k)
            ao = Loop<body = inner (int64 j, bool l, float[n,4] b) => (bool lo, float[n,4] bo) {{
              lo = {condition}(l) bo = Relu(b) }}>(n, go, a) }}>(m, go, x) }}"""
    )
    if words is None:
        check_structure(proto, "net.onnx")
        return
    refused(proto, words, f"{LIMITS_VARIABLE}=turns=")
    check_structure(proto, "net.onnx", limits=Limits(turns=10**12))


def test_attributes_that_libraries_narrow_to_32_bits():
    for name, value in (("axis", 1 << 62), ("axis", -(1 << 40))):
        softmax = node("Softmax", ["x"], ["t"], **{name: value})
        refused(model(softmax, LAST), "'axis' of Softmax", "32 bits")
    pool = node("MaxPool", ["x"], ["t"], kernel_shape=[1 << 40, 1])
    refused(model(pool, LAST), "'kernel_shape' of MaxPool", "32 bits")


def test_sizes_that_nodes_compute():
    square = node("Mul", ["a", "a"], ["b"])
    wide = node("Cast", ["b"], ["c"], to=TensorProto.INT64)
    less = node("Sub", ["c", "a"], ["d"])
    count = node("Range", ["zero", "d", "one"], ["r"])
    fill = node("Relu", ["x"], ["t"])
    for size, fits in ((10**6, False), (10, True)):
        scalars, names = [np.array(n) for n in (0, 1, size)], ("zero", "one", "a")
        stored = [numpy_helper.from_array(v, n) for v, n in zip(scalars, names, strict=True)]
        proto = model(square, wide, less, count, fill, LAST, stored=[W, *stored])
        if fits:
            assert check_structure(proto, "net.onnx")
        else:
            refused(proto, "3,999,996,000,000 bytes", "Range")
    odd = node("Add", ["a", "b"], ["s"])  # the checker says what is wrong
    check_structure(model(odd, fill, LAST, stored=(W, ints("a", 1, 2), ints("b", 1, 2, 3))), "net")


def test_sizes_that_nodes_assemble():
    flat = node("Reshape", ["big", "any"], ["flat"])
    joined = node("Concat", ["any", "flat"], ["s"], axis=0)
    fill = node("Expand", ["x", "s"], ["t"])
    for big, fits in ((1 << 31, False), (1 << 10, True)):
        stored = (W, ints("big", big), ints("any", 1))
        proto = model(flat, joined, fill, LAST, stored=stored)
        if fits:
            assert check_structure(proto, "net.onnx")
        else:
            refused(proto, "8,589,934,592 bytes", "Expand")


def test_an_output_without_a_shape_is_taken():
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    loaded = load_model(model(node("Relu", ["x"], ["t"]), LAST, outputs=(y,)))
    assert loaded.graph.outputs[0].shape is None


@pytest.mark.parametrize("fault", ["type", "name", "domain"])
def test_what_runtimes_do_without_is_taken(fault, tmp_path):
    proto = model(node("Relu", ["x"], ["t"]), LAST)
    if fault == "type":  # as those do who add an intermediate value to the outputs
        proto.graph.output.append(onnx.ValueInfoProto(name="t"))
    elif fault == "name":
        proto.graph.ClearField("name")
    else:
        proto.graph.node[0].CopyFrom(node("Gelu", ["x"], ["t"], domain="com.microsoft"))
    x = np.float32([[1, -2, 3, -4]])
    ob.export(proto, tmp_path / "out.onnx")
    raw = run(proto, {"x": x})
    for name, value in run(tmp_path / "out.onnx", {"x": x}).items():
        np.testing.assert_allclose(value, raw[name], rtol=1e-5)
    onnx.checker.check_model(tmp_path / "out.onnx")


def test_a_file_of_other_operators_needs_no_standard_opset(tmp_path):
    """As scikit-learn's converter and ML.NET write it."""
    scaled = node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", scale=[2.0], offset=[0.0])
    proto = model(scaled, stored=())
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    ob.export(proto, tmp_path / "out.onnx")
    x = np.float32([[1, -2, 3, -4]])
    np.testing.assert_array_equal(run(tmp_path / "out.onnx", {"x": x})["y"], 2 * x)
    proto.graph.node.append(node("Relu", ["y"], ["z"]))  # of which opset?
    with pytest.raises(FileError, match="No opset import"):
        load_model(proto)


def test_an_input_without_a_type_is_refused():
    with pytest.raises(FileError, match="type"):
        load_model(model(LAST, inputs=(X, onnx.ValueInfoProto(name="t"))))


def test_what_only_the_checker_knows():
    wrong = node("Softmax", ["x"], ["t"], axes=1)
    with pytest.raises(FileError, match="not a valid ONNX model") as caught:
        load_model(model(wrong, LAST))
    assert "axes" in caught.value.where


def test_gradient_operators_of_the_training_runtime_are_taken():
    assert load_model(model(node("MaxPoolGrad", ["x", "x"], ["t"]), LAST))


def test_the_group_normalization_of_opset_18_is_taken():
    """ONNX 1.16 replaced it by one with parameters for each channel; runtimes compute both."""
    norm = node("GroupNormalization", ["x", "s", "s"], ["t"], num_groups=2)
    stored = (W, numpy_helper.from_array(np.ones(2, np.float32), "s"))
    assert load_model(model(norm, LAST, stored=stored))


def test_an_attribute_of_the_wrong_type():
    refused(model(node("Softmax", ["x"], ["t"], axis="one"), LAST), "'axis' of Softmax")
    refused(model(node("Constant", [], ["t"]), LAST), "0 values")


def test_a_graph_without_outputs():
    refused(model(node("Relu", ["x"], ["t"]), LAST, outputs=()), "no output")


@pytest.mark.parametrize("word", ["abcdefgh", "qqqqqqqq", "pppppppp", "kkkkkkkk"])
def test_text_that_is_not_utf8(tmp_path, word):
    inputs = (X, helper.make_tensor_value_info("qqqqqqqq", TensorProto.FLOAT, ["pppppppp"]))
    proto = model(node("Relu", ["x"], ["t"], name="abcdefgh"), LAST, inputs=inputs)
    helper.set_model_props(proto, {"kkkkkkkk": "v"})
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString().replace(word.encode(), b"abcd\xff\xfegh"))
    with pytest.raises(FileError, match="not UTF-8"):
        load_model(path)


@pytest.mark.parametrize("text", ["deep=3", "depth=0", "depth=-1", "depth=x", "depth"])
def test_limits_that_make_no_sense(text):
    with pytest.raises(ConfigError, match=r"limit|positive"):
        Limits.from_environment({LIMITS_VARIABLE: text})


def test_limits_from_the_environment():
    limits = Limits.from_environment({LIMITS_VARIABLE: "depth=64, tensor_bytes=17179869184"})
    assert limits == Limits(depth=64, tensor_bytes=17179869184)


def test_texts_of_standard_operators_are_utf8():
    pad = node("Conv", ["x", "w"], ["t"], auto_pad=b"\xff")
    refused(model(pad, LAST), "'auto_pad' of Conv is not UTF-8")
    foreign = node("Cached", ["x"], ["t"], domain="com.example", blob=b"\xff")
    check_structure(model(foreign, LAST), "m")  # which may hold what they like


def test_the_number_of_inputs_and_outputs_where_the_checker_stops_before():
    """It tells one fault only, and that of the order is none."""
    later = node("Relu", ["later"], ["t"])
    refused(model(later, node("Reshape", [], ["later"]), LAST), "A Reshape has 0 inputs")
    split = node("Relu", ["x"], ["later", "more"])
    refused(model(later, split, LAST), "A Relu has 2 outputs")
    any_number = node("Concat", ["x"] * 300, ["later"], axis=0)
    assert load_model(model(later, any_number, LAST))


@pytest.mark.parametrize("version", [0, -1])
def test_an_opset_that_is_none_is_refused(version):
    """Of its operators nothing is known: a Constant with a value of a wrong type passed."""
    found = model(node("MatMul", ["x", "w"], ["y"]))
    found.opset_import[0].version = version
    with pytest.raises(FileError, match=f"The model imports opset {version}"):
        check_structure(found, "net.onnx")


def test_a_function_is_of_its_own_opset():
    """``Squeeze`` takes its axes as an input from opset 13 on only."""
    inner = [node("Squeeze", ["a", "axes"], ["b"])]
    opsets = [helper.make_opsetid("", 11)]
    old = helper.make_function("own", "F", ["a", "axes"], ["b"], inner, opsets)
    call = node("F", ["x", "i"], ["t"], domain="own")
    refused(model(call, LAST, stored=(W, ints("i", 1)), functions=(old,)), "A Squeeze has 2 inputs")


def sparse(places, values=(2.0,), dims=(4, 4), kind=TensorProto.FLOAT):
    stored = helper.make_tensor("w", kind, [len(values)], values)
    return helper.make_sparse_tensor(stored, places, list(dims))


def with_sparse(tensor):
    listed = model(node("MatMul", ["x", "w"], ["y"]), stored=())
    listed.graph.sparse_initializer.append(tensor)
    return listed


@pytest.mark.parametrize("places", [ints("at", 6), numpy_helper.from_array(np.array([[1, 2]]))])
def test_sparse_tensors_are_stored_densely(places):
    listed = with_sparse(sparse(places))
    constant = node("Constant", [], ["w"], sparse_value=sparse(places))
    (matrix,) = load_model(listed).graph.initializers.values()
    stored = load_model(model(constant, node("MatMul", ["x", "w"], ["y"]), stored=())).graph[0]
    for array in (matrix.const_value.numpy(), stored.attributes["value"].as_tensor().numpy()):
        expected = np.zeros((4, 4), np.float32)
        expected[1, 2] = 2
        np.testing.assert_array_equal(array, expected)
    assert listed.graph.sparse_initializer  # the caller's model stays as it is


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (sparse(ints("at", 16)), "not valid"),
        (sparse(ints("at", 0, 1)), "not valid"),
        (sparse(ints("at", 5, 4), (1.0, 2.0)), r"not valid: .*not in sorted order\.\n"),
        (sparse(ints("at", 0), (b"a",), kind=TensorProto.STRING), "not valid"),
        (sparse(ints("at", 0), dims=(1 << 20, 1 << 20)), "tensor_bytes"),
    ],
)
def test_sparse_tensors_that_cannot_be_stored(tensor, words):
    with pytest.raises(FileError, match=words):
        load_model(with_sparse(tensor))
