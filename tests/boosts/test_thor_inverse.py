"""Inverses from products alone, against float64 numpy."""

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.boosts.thor_inverse import ACCURACY, damped_inverses, inverse_cost
from ortboost.graph.build import Builder
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.support import run


def chain(size):
    """``x`` and ``d`` to the inverses and whether they are accurate."""
    double = ir.TensorType(ir.DataType.DOUBLE)
    x = ir.Value(name="x", type=double, shape=ir.Shape(["n", size, size]))
    d = ir.Value(name="d", type=double, shape=ir.Shape(["n", 1, 1]))
    graph = ir.Graph([x, d], [], nodes=[], opset_imports={"": 18}, name="chain")
    b = Builder(graph, "chain")
    found = damped_inverses(b, x, size, d)
    for value, name in zip(found, ("inverse", "accurate"), strict=True):
        value.name = name
        graph.outputs.append(value)
    b.flush()
    return ir.Model(graph, ir_version=10)


def semidefinite(size, condition, seed=0, rank=None):
    """Eigenvalues from 1 to `1/condition`; all but ``rank`` of them 0."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.standard_normal((size, size)))
    values = np.geomspace(1, 1 / condition, size)
    values[rank:] = 0 if rank is not None else values[rank:]
    found = (q * values) @ q.T
    return (found + found.T) / 2


@pytest.mark.parametrize("size", [32, 64, 96, 128, 256])
def test_inverses_are_accurate_to_a_condition_of_1e6(size):
    conditions = 10.0 ** np.arange(7)
    matrices = [semidefinite(size, c, seed) for seed, c in enumerate(conditions)]
    matrices += [semidefinite(size, 1.0, 50 + i, rank=5) for i in range(7)]  # as of a small batch
    dampings = np.concatenate([1 / conditions, 1 / conditions])
    x, d = np.stack(matrices), dampings[:, None, None]
    found = run(chain(size), {"x": x, "d": d})
    expected = np.linalg.inv(x + d * np.eye(size))
    assert found["accurate"].all()
    error = np.linalg.norm(found["inverse"] - expected, axis=(1, 2))
    assert (error / np.linalg.norm(expected, axis=(1, 2)) < 1e-9).all()


@pytest.mark.parametrize("size", [32, 128])
def test_what_is_called_accurate_is(size):
    conditions = 10.0 ** np.arange(5, 16, 0.5)
    x = np.stack([semidefinite(size, c, seed) for seed, c in enumerate(conditions)])
    d = 1 / conditions[:, None, None]
    found = run(chain(size), {"x": x, "d": d})
    accurate = found["accurate"].ravel()
    assert accurate[0]
    assert not accurate[-1]
    exact = np.linalg.inv(x[accurate] + d[accurate] * np.eye(size))
    error = np.linalg.norm(found["inverse"][accurate] - exact, axis=(1, 2))
    assert (error / np.linalg.norm(exact, axis=(1, 2)) < ACCURACY).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_accurate_and_harms_no_other(bad):
    x = np.stack([semidefinite(64, 10.0), semidefinite(64, 10.0)])
    x[0, 3, 5] = x[0, 5, 3] = bad
    found = run(chain(64), {"x": x, "d": np.full((2, 1, 1), 0.1)})
    assert found["accurate"].ravel().tolist() == [False, True]


def test_no_operator_but_products_and_elementwise_ones():
    allowed = {"Abs", "Add", "Concat", "Div", "LessOrEqual", "MatMul", "Max", "Mul", "Neg", "Sub"}
    allowed |= {"ReduceMax", "ReduceSum", "ReduceSumSquare", "Split", "Transpose"}
    assert {node.op_type for node in chain(96).graph} <= allowed


def test_the_cost_is_that_of_the_products():
    model = chain(96)  # 64 and 32 rows
    infer_shapes(model)
    products = [node for node in model.graph if node.op_type == "MatMul"]
    leaves, merges = 3, 2
    assert len(products) == leaves * 36 + merges * 11 + 1
    assert inverse_cost(32) == 32**3 + 36 * 32**3
    multiplied = 0
    for node in products:
        (*_, rows, inner), (*_, columns) = (tuple(value.shape) for value in node.inputs)
        multiplied += rows * inner * columns
    assert inverse_cost(96) == multiplied
