from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes, rewrites


def net(shape: str) -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float{shape} x) => (float{shape} y) {{ y = Softmax(x) }}"""
    )


def written_out(site: Site) -> list[ir.Value | None]:
    axes, exponential = site.ints(site.axis()), site.op("Exp", site.input(0))
    return [site.op("Div", exponential, site.op("ReduceSum", exponential, axes, keepdims=1))]


def test_a_replaced_node_keeps_the_name_of_its_output():
    model = net("[2,3]")
    report = rewrite_nodes(model, "softmax", {"Softmax": written_out}, "written out")
    assert report.changed == {"y": "Softmax: written out"}
    assert [node.op_type for node in model.graph] == ["Exp", "ReduceSum", "Div"]
    assert [output.name for output in model.graph.outputs] == ["y"]
    assert not rewrite_nodes(model, "softmax", {"Softmax": written_out}).modified


@pytest.mark.parametrize(("shape", "axis"), [("[2,3]", 1), ("[n]", 0)])
def test_axes_are_counted_from_the_front(shape, axis):
    found = []
    rewrite_nodes(net(shape), "look", {"Softmax": lambda site: found.append(site.axis())})
    assert found == [axis]


def test_a_scalar_has_no_axis():
    model = net("")
    report = rewrite_nodes(model, "softmax", {"Softmax": written_out})
    assert report.kept == {"y": "its input of rank 0 has no axis -1"}
    assert [node.op_type for node in model.graph] == ["Softmax"]


@pytest.mark.parametrize("refused", [True, False])
def test_a_rule_that_gives_up_leaves_no_nodes_behind(refused):
    def rule(site: Site) -> list[ir.Value | None] | None:
        site.op("Exp", site.input(0))
        if refused:
            raise Refusal("of a kind")
        return None

    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[2,3] x) => (float[2,3] y) { h = Softmax(x) y = Abs(h) }"""
    )
    rules = {"Softmax": rule, "Abs": lambda site: [site.op("Neg", site.input(0))]}
    kept = {"h": "of a kind"} if refused else {}
    assert rewrite_nodes(model, "softmax", rules).kept == kept
    assert [node.op_type for node in model.graph] == ["Softmax", "Neg"]


def test_a_decorated_rule_is_a_rewrite_of_its_name():
    softmax = rewrites("Softmax", what="written out")(written_out)
    report = softmax(net("[2,3]"))
    assert (report.rewrite, report.changed) == ("written_out", {"y": "Softmax: written out"})
    assert rewrites("Softmax", name="other")(written_out)(net("[2,3]")).rewrite == "other"
    assert not rewrites("Relu")(written_out)(net("[2,3]")).modified


def test_each_operator_has_its_description():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[2] x) => (float[2] y) { [a] h = Softmax(x)  [b] y = Neg(h) }"""
    )
    rules = {"Softmax": (written_out, "sum"), "Neg": lambda site: [site.op("Abs", site.input(0))]}
    report = rewrite_nodes(model, "two", rules, "any")
    assert report.changed == {"a": "Softmax: sum", "b": "Neg: any"}
