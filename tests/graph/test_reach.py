from __future__ import annotations

import pytest

from ortboost.graph import reach as reach_module
from ortboost.graph.reach import ancestors, descendants, find_value, reach, uses_inside
from ortboost.graph.weights.weight_uses import weight_uses
from tests.autodiff.oracle import graph

BRANCHED = """g (float[N,3] x, float[3] w, float[3] u, float[3] unused)
    => (float loss, int64[N] k) {
    h = Mul(x, w)
    k = ArgMax<axis=1, keepdims=0>(h)
    side = Exp(h)
    big = Greater(h, u)
    m = Cast<to=1>(big)
    y = Mul(h, m)
    loss = ReduceMean<keepdims=0>(y)
}"""


def test_only_the_path_between_parameter_and_loss():
    found = reach(graph(BRANCHED), ["w"], "loss")
    assert [node.outputs[0].name for node in found.nodes] == ["h", "y", "loss"]
    assert found.active == {"w", "h", "y", "loss"}
    assert found.unreachable == ()


def test_comparisons_and_unused_tensors_stop_the_gradient():
    assert reach(graph(BRANCHED), ["w", "u", "unused"], "loss").unreachable == ("u", "unused")


def test_what_a_body_reads_leads_to_what_its_node_computes():
    model = graph("""g (float[3] x, float[3] w, bool c) => (float[3] y, float[3] z) {
        h = Neg(x)
        s = If(c) <then_branch = a () => (float[3] p) { p = Relu(h) },
                   else_branch = b () => (float[3] q) { q = Abs(w) }>
        y = Exp(s)
        z = Exp(w) }""")
    found = descendants(model.graph, [model.graph.inputs[0]])
    assert {node.outputs[0].name for node in found} == {"h", "p", "s", "y"}


def test_several_targets():
    found = reach(graph(BRANCHED), ["w"], ["loss", "side"])
    assert "side" in found.active
    assert reach(graph(BRANCHED), ["w"], ["k"]).unreachable == ("w",)


@pytest.mark.parametrize("training", [0, 1])
def test_statistics_matter_only_in_inference_mode(training):
    outputs = "y, rm, rv" if training else "y"
    model = graph(f"""g (float[4,3] x, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float loss) {{
        {outputs} = BatchNormalization<training_mode = {training}>(x, s, b, m, v)
        loss = ReduceMean<keepdims=0>(y) }}""")
    assert reach(model, ["m", "v", "s"], "loss").unreachable == (("m", "v") if training else ())


def test_values_captured_by_a_branch_count():
    model = graph("""g (float[3] x, float[3] w, bool c) => (float loss) {
        y = If (c) <then_branch = a () => (float[3] p) { p = Mul(x, w) },
                    else_branch = b () => (float[3] q) { q = Identity(x) }>
        loss = ReduceMean<keepdims=0>(y) }""")
    (node, _) = model.graph
    assert {value.name for value in uses_inside(node)} >= {"x", "w"}
    assert [n.op_type for n in reach(model, ["w"], "loss").nodes] == ["If", "ReduceMean"]


def test_find_value():
    model = graph(BRANCHED)
    assert find_value(model.graph, "h").name == "h"
    assert find_value(model.graph, "w").is_graph_input()
    assert find_value(model.graph, "nothing") is None


def test_ancestors_come_through_operators_and_branches():
    model = graph("""g (float[3] x, bool c) => (float[3] z) {
        a = Exp(x) b = Abs(x) n = Neg(x)
        y = If (c) <then_branch = t () => (float[3] p) { p = Mul(a, x) },
                    else_branch = e () => (float[3] q) { q = Identity(x) }>
        z = Clip(y, , b) }""")
    (z,) = model.graph.outputs
    found = sorted(node.op_type for node in ancestors([z, None]))
    assert found == ["Abs", "Clip", "Exp", "Identity", "If", "Mul"]
    assert ancestors([model.graph.inputs[0]]) == set()


def test_the_uses_of_a_bias_do_not_search_the_layers_before(monkeypatch):
    layers = 100
    lines = [f"m{i} = MatMul(x{i}, w) x{i + 1} = Add(m{i}, b)" for i in range(layers)]
    model = graph(
        f"g (float[N,3] x0, float[3,3] w, float[3] b) => (float[N,3] x{layers}) {{"
        + "\n".join(lines)
        + "}"
    )
    read, visits = reach_module.values_read, []
    monkeypatch.setattr(reach_module, "values_read", lambda n: visits.append(n) or read(n))
    (use, *_) = weight_uses(model.graph.inputs[2])
    assert not use.raw_affine
    assert len(visits) <= layers
