"""Formulas: the nodes that operators create, and the element types of numbers in them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.build import Builder
from ortboost.graph.formulas import Term
from tests.support import run, text_model


def built(formula, kind: str = "float"):
    """The value of a formula of x = [-2, 0.5]."""
    model = text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net ({kind}[2] x) => () {{ u = Neg(x) }}'
    )
    b = Builder(model.graph, "formula")
    term = formula(Term(b, model.graph.inputs[0]))
    b.flush()
    model.graph.outputs.append(term.value)
    (found,) = run(
        model, {"x": np.array([-2, 0.5], "float64" if kind == "double" else "float32")}
    ).values()
    return found


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(
    "formula",
    [
        lambda x: (x + 1) * 2 - x / 4,
        lambda x: 1 - -x,
        lambda x: x * x,
    ],
)
def test_a_formula_is_computed_as_numpy_does(formula, kind):
    dtype = np.float64 if kind == "double" else np.float32
    expected = formula(np.array([-2, 0.5], dtype))
    found = built(formula, kind)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(
    "formula",
    [
        lambda x: (x > 0).where(1, x * 3),
        lambda x: (x > 0).where(1, -6),
        lambda x: (x < 1).call("And", x > 0).where(1, x * 3),
        lambda x: Term(x.b, (x > 0).value).where(1, x * 3),
    ],
)
def test_a_branch_has_the_type_of_the_other_or_of_what_is_compared(formula, kind):
    found = built(formula, kind)
    assert found.dtype == (np.float64 if kind == "double" else np.float32)
    np.testing.assert_array_equal(found, [-6, 1])


def test_products_of_matrices_and_casts():
    found = built(lambda x: (x @ x).cast(ir.DataType.DOUBLE))
    assert (found.dtype, found) == (np.float64, 4.25)


def test_a_fraction_beside_an_integer_is_not_cut():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (int64[2] x) => () { u = Neg(x) }'
    )
    term = Term(Builder(model.graph, "formula"), model.graph.inputs[0])
    assert (term * 2).value.dtype == ir.DataType.INT64
    with pytest.raises(TypeError, match=r"0.5 beside a term of INT64"):
        term * 0.5
