from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts.full_norm_head import full_norm
from ortboost.deploy.fold_full_norm import fold_full_norm
from ortboost.deploy.pipeline import optimize
from tests.support import run, small_mlp, text_model, weights

HEADS = {
    "gemm": ("[fc] y = Gemm(x, w)", (4, 3)),
    "gemm_transposed": ("[fc] y = Gemm<transB = 1>(x, w)", (3, 4)),
    "matmul": ("[fc] y = MatMul(x, w)", (4, 3)),
    "turned": ("t = Transpose<perm = [1, 0]>(w) [fc] y = MatMul(x, t)", (3, 4)),
}
X = weights(5, 4, seed=3)
X[1] *= 1e-3
X[2] = 0


def head(kind: str, body: str = "", dtype: str = "float") -> ir.Model:
    """A trained head: the weight has a row below the clamp, the multiplier is 7.5."""
    text, shape = HEADS[kind]
    w = weights(*shape)
    (w if shape == (3, 4) else w.T)[1] *= 1e-3
    model = text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net ({dtype}[batch,4] x, {dtype}[4,4] w) => '
        f"({dtype}[batch,3] y) {{ {text} {body} }}",
        w=w if dtype == "float" else w.astype(np.double),
    )
    full_norm(model)
    value = model.graph.initializers["w.multiplier"]
    value.const_value = ir.tensor(np.array(7.5, w.dtype if dtype == "float" else np.double))
    return model


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("kind", HEADS)
def test_folded(kind, dtype):
    model = head(kind, dtype=dtype)
    x = X.astype(np.float32 if dtype == "float" else np.double)
    before = run(model, {"x": x})["y"]
    report = fold_full_norm(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, {"x": x})["y"]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert after.dtype == before.dtype
    assert list(report.changed.values()) == ["into 'w'"]
    product = "Gemm" if kind.startswith("gemm") else "MatMul"
    assert ops(model) == ["Mul", "ReduceSum", "Max", "Sqrt", "Div", product]
    assert model.graph.outputs[0].name == "y"
    assert "w.multiplier" not in model.graph.initializers
    w = model.graph.initializers["w"].const_value.numpy()
    rows = np.linalg.norm(w, axis=1 if kind == "gemm_transposed" else 0)
    np.testing.assert_allclose(rows[[0, 2]], 7.5, rtol=1e-6)
    assert rows[1] < 1  # the row below the clamp is not of full length


@pytest.mark.parametrize("kind", HEADS)
def test_a_second_time_changes_nothing(kind):
    model = head(kind)
    fold_full_norm(model)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    report = fold_full_norm(model)
    assert not report.modified
    assert not report.kept
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_weight_that_serves_another_node_keeps_its_value():
    model = head("gemm_transposed", "t2 = Transpose<perm = [1, 0]>(w) o = MatMul(x, t2)")
    graph = model.graph
    other = next(v for n in graph for v in n.outputs if v.name == "o")
    other.type, other.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch", 3])
    graph.outputs.append(other)
    before = run(model, {"x": X})
    old = graph.initializers["w"].const_value.numpy().copy()
    assert list(fold_full_norm(model).changed.values()) == ["into 'w/folded'"]
    after = run(model, {"x": X})
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(graph.initializers["w"].const_value.numpy(), old)


@pytest.mark.parametrize("case", ["computed", "overridable", "read", "output"])
def test_kept_with_the_reason(case):
    model = head("gemm_transposed")
    graph = model.graph
    product = next(node for node in graph if node.op_type == "Gemm").outputs[0]
    if case == "computed":
        value = graph.initializers.pop("w.multiplier")
        value.const_value = None
        graph.inputs.append(value)
    elif case == "overridable":  # an input with a default, for which the caller may feed another
        graph.inputs.append(graph.initializers["w.multiplier"])
    elif case == "read":
        extra = ir.Node("", "Relu", [product], name="extra")
        extra.outputs[0].name = "r"
        extra.outputs[0].type, extra.outputs[0].shape = product.type, product.shape
        graph.append(extra)
        graph.outputs.append(extra.outputs[0])
    else:
        graph.outputs.append(product)
    report = fold_full_norm(model)
    assert not report.changed
    (reason,) = report.kept.values()
    assert ("elsewhere" if case in ("read", "output") else "not stored") in reason
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_other_graphs_are_left_alone():
    """A scaled product is not such a head, nor is another normalization."""
    plain = text_model(
        """<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4] x, float[3,4] w, float m)
        => (float[batch,3] y) { h = Gemm<transB = 1>(x, w) y = Mul(h, m) }""",
        w=weights(3, 4),
        m=np.float32(2),
    )
    assert fold_full_norm(plain).to_dict() == {
        "rewrite": "fold_full_norm",
        "changed": {},
        "kept": {},
        "notes": [],
        "table": {},
    }
    assert not fold_full_norm(small_mlp()).modified


def test_the_export_calls_it():
    model = head("turned")
    before = run(model, {"x": X})["y"]
    reports = {report.rewrite: report for report in optimize(model)[0]}
    assert reports["fold_full_norm"].modified
    np.testing.assert_allclose(run(model, {"x": X})["y"], before, rtol=1e-5, atol=1e-6)
    assert sum(op in ("Gemm", "MatMul") for op in ops(model)) == 1
    assert ops(model).count("Sqrt") == 1
