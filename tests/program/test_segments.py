"""Segments of a gradient graph match the whole bit for bit; no sent gradient is read later."""

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.boosts import MixedPrecision
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.segments import (
    cut_segments,
    order_exchanges,
    order_gradients,
    place_gradients,
)
from ortboost.program.split import split_program
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.session import set_seed
from tests.support import batch_for, model_path, run, small_convnet

CASES = {
    "convnet": (small_convnet, ()),
    "lenet5": (lambda: str(model_path("lenet5")), ()),
    "half": (lambda: str(model_path("lenet5")), (MixedPrecision("fp16"),)),
    "transformer": (lambda: str(model_path("transformer_tiny")), ()),
}


def run_segments(segments, feeds, spoil=frozenset()) -> dict[str, np.ndarray]:
    """All outputs; what is in ``spoil`` is overwritten as soon as it is there, as a sum would."""
    have, found = dict(feeds), {}
    for segment in segments:
        read = {value.name for value in segment.model.graph.inputs}
        made = run(segment.model, {name: have[name] for name in read})
        found |= {name: value for name, value in made.items() if name not in segment.passed_on}
        have |= {n: np.full_like(v, np.nan) if n in spoil else v for n, v in made.items()}
    return found


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_as_the_whole(name, number):
    model, boosts = CASES[name]
    program = build_program(model(), ProgramConfig(engine="portable", boosts=boosts))
    split = split_program(program)["step"]
    form = for_device(split.gradients, "cpu", threads=1)
    before = [node.name for node in form.graph]
    sizes = {s.name: int(np.prod(s.shape)) * 4 for s in split.summed}
    groups = order_gradients(form, sizes, number)
    segments = cut_segments(form, groups)
    assert len(segments) == len(groups) > 1
    assert sorted(n for group in groups for n in group) == sorted(sizes)
    read = {value.name for value in form.graph.inputs}
    feeds = {n: v for n, v in {**batch_for(program), **program.initial}.items() if n in read}
    set_seed(1)
    whole = run(form, feeds)
    set_seed(1)
    parts = run_segments(segments, feeds, spoil=sizes.keys())
    assert whole.keys() == parts.keys()
    assert [n for n in whole if not np.array_equal(whole[n], parts[n])] == []
    assert [node.name for node in form.graph] == before  # not changed
    work = [
        n.name for s in segments for n in s.model.graph if n.op_type not in ("Constant", "Shape")
    ]
    assert len(work) == len(set(work))  # nothing is computed twice
    for group, segment in zip(groups, segments, strict=True):
        assert {*group} <= {value.name for value in segment.model.graph.outputs}


def graph(
    body: str, inputs: str = "float[4] x", outputs: str = "float[4] a, float[4] b"
) -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )


def test_what_reads_a_gradient_reads_a_copy():
    model = graph("a = Neg(x)  b = Exp(a)")
    segments = cut_segments(model, [["a"], ["b"]])
    assert "a" not in segments[1].passed_in
    x = np.arange(4, dtype=np.float32)
    found = run_segments(segments, {"x": x}, spoil={"a"})
    np.testing.assert_array_equal(found["a"], -x)
    np.testing.assert_allclose(found["b"], np.exp(-x), rtol=1e-6)


def test_gradients_in_the_order_in_which_they_can_be_there():
    model = graph("h = Neg(x)  i = Exp(h)  b = Exp(i)  a = Abs(h)")
    assert order_gradients(model, {"b": 16, "a": 16}, 2) == [["a"], ["b"]]


@pytest.mark.parametrize("sizes", [(4, 4, 100), (4, 3, 5)])
def test_a_gradient_is_in_the_group_of_its_middle(sizes):
    """A large one after small ones goes by itself."""
    outputs = "float[4] a, float[4] b, float[4] c"
    model = graph("a = Neg(x)  b = Exp(a)  c = Exp(b)", outputs=outputs)
    found = order_gradients(model, dict(zip("abc", sizes, strict=True)), 2)
    assert found == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    "found",
    [
        *("NonZero(x)", "Unique(x)", "Compress(x, x)", "NonMaxSuppression(x, x)"),
        "If<then_branch = t () => (float[N] o) { o = Neg(x) }, "
        "else_branch = e () => (float[N] q) { q = Exp(x) }>(x)",
        "Loop<body = l (int64 k, bool p) => (bool r, float s) { r = Not(p) s = Cast(k) }>(x, x)",
    ],
)
def test_sizes_that_only_a_run_knows_do_not_pass(found):
    model = graph(f"i = {found}  f = Cast<to = 1>(i)  b = ReduceSum<keepdims = 0>(f)  a = Neg(x)")
    assert order_gradients(model, {"b": 4, "a": 16}, 2) == [["b", "a"]]


@pytest.mark.parametrize(("inner", "groups"), [("Exp", 2), ("NonZero", 1)])
def test_a_scan_has_the_sizes_of_its_body(inner, groups):
    """The CPU forms put chains of operators into Scans."""
    body = "e = Exp(r) f = Neg(e)" if inner == "Exp" else "e = NonZero(r) f = Cast<to = 1>(e)"
    model = graph(
        f"""s = Scan<num_scan_inputs = 1, body = body (float r) => (float f) {{ {body} }}>(x)
        b = Reshape(s, n) a = Neg(x) n = Shape(x)"""
    )
    assert len(order_gradients(model, {"b": 16, "a": 16}, 2)) == groups


def test_a_draw_without_inputs_is_made_once():
    """A second copy would draw other numbers: the gradient would not be that of the loss."""
    draw = "RandomNormal<shape = [4]>()"
    model = graph(f"d = {draw}  a = Mul(x, d)  c = Neg(a)  b = Mul(c, d)")
    segments = cut_segments(model, [["a"], ["b"]])
    drawn = [node for s in segments for node in s.model.graph if node.op_type == "RandomNormal"]
    assert len(drawn) == 1
    assert "d" in segments[1].passed_in


def test_all_draws_are_in_the_first_segment():
    model = graph("a = Neg(x)  d = RandomNormalLike(x)  b = Add(d, a)")
    first, second = cut_segments(model, [["a"], ["b"]])
    assert "RandomNormalLike" in [node.op_type for node in first.model.graph]
    assert "d" in second.passed_in


def exchanging() -> ir.Model:
    """The points p and q depend on x alone, r on both; the gradient a on p, b on r, c on none."""
    return ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[4] x, float[4] p, float[4] q, float[4] r)
            => (float[4] a, float[4] b, float[4] c, float[4] "r/cut", float[4] "p/cut",
                float[4] "q/cut") {
          "r/cut" = Add(p, q)
          "p/cut" = Neg(x)
          "q/cut" = Abs(x)
          a = Exp(p)
          b = Mul(r, q)
          c = Sqrt(x)
          }"""
    )


def test_points_that_do_not_depend_on_each_other_are_one_level():
    levels = order_exchanges(exchanging(), ["r", "p", "q"])
    assert levels == [["p", "q"], ["r"]]
    assert order_exchanges(exchanging(), []) == []


def test_gradients_go_after_the_segment_that_completes_their_group():
    model, levels = exchanging(), [["p", "q"], ["r"]]
    assert place_gradients(model, levels, [["a"], ["b"], ["c"]]) == [[["c"]], [["a"]], [["b"]]]
    assert place_gradients(model, levels, [["a", "c"], ["b"]]) == [[], [["a", "c"]], [["b"]]]


def test_segments_between_exchanges_read_only_sums_that_are_there():
    groups = [["p/cut", "q/cut"], ["a", "r/cut"], ["b"]]
    first, second, third = cut_segments(exchanging(), groups)
    read = [{value.name for value in s.model.graph.inputs} for s in (first, second, third)]
    assert read == [{"x"}, {"p", "q"}, {"q", "r", "x"}]  # what no point needs comes last


def test_random_numbers_may_be_drawn_where_they_are_used():
    model = graph("a = Neg(x)  d = RandomNormalLike(x)  b = Add(d, a)")
    first, second = cut_segments(model, [["a"], ["b"]], draws_first=False)
    assert "RandomNormalLike" not in [node.op_type for node in first.model.graph]
    assert "RandomNormalLike" in [node.op_type for node in second.model.graph]
