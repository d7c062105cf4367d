from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

from ortboost.graph.normal_form.unpack_sequences import unpack_sequences
from ortboost.graph.normalize import normalize
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.support import run, text_model, weights


def net(split: str, place: int, sizes: object = None, inputs: str = "float[N,6,5] x"):
    stored = {} if sizes is None else {"k": np.array(sizes)}
    given = (
        "" if sizes is None else f", int64[{np.size(sizes)}] k" if np.ndim(sizes) else ", int64 k"
    )
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net ({inputs}, int64 i{given}) => (float[a,b,c] y) {{
          [split] s = {split} [part] p = SequenceAt(s, i) y = Neg(p) }}""",
        i=np.array(place),
        **stored,
    )
    infer_shapes(model)
    return model


CASES = [
    ("SplitToSequence<axis = 1>(x, k)", 1, 2),
    ("SplitToSequence<axis = 1>(x, k)", 1, 4),  # the last part is smaller
    ("SplitToSequence<axis = 1>(x, k)", -1, 4),
    ("SplitToSequence<axis = -1>(x, k)", 0, [2, 3]),
    ("SplitToSequence<axis = -1>(x, k)", -1, [2, 3]),
    ("SplitToSequence<axis = 1>(x)", 3, None),
    ("SplitToSequence<axis = 1>(x)", -2, None),
]


@pytest.mark.parametrize(("split", "place", "sizes"), CASES)
def test_a_part_is_a_slice(split, place, sizes):
    model = net(split, place, sizes)
    x = weights(3, 6, 5)
    before = run(model, {"x": x})["y"]
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert [node.op_type for node in model.graph] == ["Slice", "Neg"]
    np.testing.assert_array_equal(run(model, {"x": x})["y"], before)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert not unpack_sequences(model).modified


def test_a_part_without_its_axis():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,6,5] x, int64 i) => (float[a,b] y) {
          s = SplitToSequence<axis = 1, keepdims = 0>(x) p = SequenceAt(s, i) y = Neg(p) }""",
        i=np.array(4),
    )
    x = weights(3, 6, 5)
    before = run(model, {"x": x})["y"]
    assert unpack_sequences(model).modified
    np.testing.assert_array_equal(run(model, {"x": x})["y"], before)


@pytest.mark.parametrize(
    ("split", "place", "sizes", "inputs"),
    [
        ("SplitToSequence<axis = 1>(x, k)", 5, [2, 4], "float[N,6,5] x"),  # out of range
        ("SplitToSequence<axis = 0>(x, k)", -1, 2, "float[N,6,5] x"),  # an unknown number
        ("SequenceConstruct(x, x)", 2, 2, "float[N,6,5] x"),
    ],
)
def test_other_forms_are_left_alone(split, place, sizes, inputs):
    assert not unpack_sequences(net(split, place, sizes, inputs)).modified


def test_parts_of_unequal_length_share_no_name_of_it():
    """Inference gives all elements of a sequence one shape; runtimes reuse memory by names."""
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,W] x, int64[2] k, int64 i, int64 j) => (float[N,a] y, float[N,b] z) {
          s = SplitToSequence<axis = 1>(x, k)
          p = SequenceAt(s, i)  q = SequenceAt(s, j)
          r = Neg(p)  t = Neg(q)  y = Abs(r)  z = Abs(t) }""",
        k=np.array([2, 3]),
        i=np.array(0),
        j=np.array(1),
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    lengths = {node.outputs[0].name: node.outputs[0].shape for node in model.graph}
    assert lengths["p"] != lengths["q"]
    assert lengths["r"] == lengths["p"]
    assert lengths["t"] == lengths["q"]


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_parts_of_the_size_of_the_batch(kind):
    """``torch.split(torch.cat(features), batch)`` of a symbolic batch; the last part is shorter."""
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,3] x, int64 i, int64 j, int64[1] e, int64[1] f)
          => (float[a,3] y, float[b,3] z) {
          n = Shape<end = 1>(x)  o = Squeeze(n)  k = Cast<to = TYPE>(o)  c = Concat<axis = 0>(x, x)
          h = Slice(c, e, f)  s = SplitToSequence<axis = 0>(h, k)
          p = SequenceAt(s, i)  q = SequenceAt(s, j)  y = Neg(p)  z = Abs(q) }""".replace(
            "TYPE", "6" if kind == "int32" else "7"
        ),
        i=np.array(0),
        j=np.array(1),
        e=np.array([0]),
        f=np.array([-1]),
    )
    x = weights(4, 3)
    before = run(model, {"x": x})
    assert [before[name].shape for name in ("y", "z")] == [(4, 3), (3, 3)]
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert not {"SplitToSequence", "SequenceAt"} & {node.op_type for node in model.graph}
    after = run(model, {"x": x})
    for name in ("y", "z"):
        np.testing.assert_array_equal(after[name], before[name])
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


LISTS = [
    "s = SequenceConstruct(a, b) y = ConcatFromSequence<axis = 1>(s)",
    "s = SequenceConstruct(a, b) y = SequenceAt(s, last)",
    """e = SequenceEmpty() s = SequenceInsert(e, a) t = SequenceInsert(s, b)
       u = SequenceInsert(t, b, first) y = ConcatFromSequence<axis = -1, new_axis = 1>(u)""",
]


@pytest.mark.parametrize("body", LISTS)
def test_a_list_that_is_built_one_by_one(body):
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, int64 last, int64 first) => (y) {{ a = Relu(x) b = Neg(x) {body} }}""",
        last=np.array(-1),
        first=np.array(0),
    )
    before = run(model, {"x": weights(2, 4)})["y"]
    assert unpack_sequences(model).modified
    common.RemoveUnusedNodesPass()(model)
    assert not any("Sequence" in node.op_type for node in model.graph)
    np.testing.assert_array_equal(run(model, {"x": weights(2, 4)})["y"], before)
    assert not unpack_sequences(model).modified


MAPPED = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[N] x, float[N] c, float[N] o) => (float[N,2] y) <int64 i = {0}, int64 j = {1}> {
        s = SequenceConstruct(x, c)
        [map] m = SequenceMap<body = each (float[N] e, float[N] t) => (r) {
            k = Shape(e) n = Size(k) b = Equal(n, j)
            r = If(b) <then_branch = yes () => (p) { q = Mul(e, t) p = Add(q, o) },
                       else_branch = no () => (p) { p = Neg(e) }> }>(s, o)
        a = SequenceAt(m, i) d = SequenceAt(m, j) u = SequenceConstruct(a, d)
        y = ConcatFromSequence<axis = 1, new_axis = 1>(u) }"""


def test_what_is_done_with_each_tensor_of_a_list():
    """As in ``torch.column_stack``; the body reads a tensor for all, and one from outside."""
    model = text_model(MAPPED)
    infer_shapes(model)
    assert unpack_sequences(model).modified
    names = [output.name for node in model.graph.all_nodes() for output in node.outputs]
    assert len(names) == len(set(names))
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert not {"If", "SequenceMap", "SequenceConstruct"} & {n.op_type for n in model.graph}
    feeds = {name: weights(3, seed=seed) for seed, name in enumerate("xco")}
    expected = np.stack([feeds[name] * feeds["o"] + feeds["o"] for name in "xc"], 1)
    np.testing.assert_allclose(run(model, feeds)["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("sequence", ["s = SplitToSequence(x, n)", "s = Identity(l)"])
def test_an_unknown_list_of_which_each_tensor_is_changed_is_left_alone(sequence):
    model = text_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N] x, int64 n, seq(float[2]) l, int64 i) => (float[M] y) {{
            {sequence}
            m = SequenceMap<body = each (float[K] e) => (r) {{ r = Neg(e) }}>(s)
            y = SequenceAt(m, i) }}""")
    infer_shapes(model)
    assert not unpack_sequences(model).modified


def test_a_list_of_unknown_length_is_left_alone():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, int64 place) => (y) {
          s = SequenceConstruct(x) t = SequenceInsert(s, x, place)
          y = ConcatFromSequence<axis = 1>(t) }"""
    )
    assert not unpack_sequences(model).modified


def test_parts_in_a_body():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,6] x, bool b, int64 k, int64 i) => (float[N,2] y) {
          y = If (b) <
            then_branch = yes () => (float[N,2] p) {
              s = SplitToSequence<axis = 1>(x, k) p = SequenceAt(s, i) },
            else_branch = no () => (float[N,2] q) {
              t = SplitToSequence<axis = 1>(x, k) u = SequenceAt(t, i) q = Neg(u) }> }""",
        k=np.array(2),
        i=np.array(1),
    )
    feeds = [{"x": weights(3, 6), "b": np.array(b)} for b in (True, False)]
    before = [run(model, given)["y"] for given in feeds]
    normalize(model, opsets=range(18, 22), ir_version=10)
    inner = [node.op_type for graph in model.graph.subgraphs() for node in graph]
    assert inner == ["Slice", "Slice", "Neg"]
    for given, expected in zip(feeds, before, strict=True):
        np.testing.assert_array_equal(run(model, given)["y"], expected)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
