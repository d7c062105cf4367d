"""Operands that repeat a constant become that constant, where the shape does not need them."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.deploy.rewrites.dead_code import dead_code
from ortboost.deploy.rewrites.drop_noops import drop_noops
from ortboost.deploy.rewrites.fold_broadcast import fold_broadcast
from ortboost.graph.shapes.symbolic_shapes import name_lengths
from tests.deploy.rewrites.support import check, model_of, ops
from tests.support import weights

SCORES = "float[batch,2,n,n] x"
SIZES = "float[batch,2,n,n] y"
BATCHES = ({"x": weights(3, 2, 4, 4)}, {"x": weights(1, 2, 7, 7)})
MASK = """
    sizes = Shape(x)  n = Gather<axis = 0>(sizes, two)
    positions = Range(zero, n, one)  some = GreaterOrEqual(positions, zero)
    all = Expand(some, sizes)"""
STORED = {
    "zero": np.array(0, np.int64),
    "one": np.array(1, np.int64),
    "two": np.array(2, np.int64),
    "nothing": np.array(0, np.float32),
    "low": np.array(-np.inf, np.float32),
}
INPUTS = f"{SCORES}, int64 zero, int64 one, int64 two, float nothing, float low"


def rewritten(body, outputs=SIZES):
    model = model_of(MASK + body, INPUTS, outputs, **STORED)
    name_lengths(model)
    report = check(fold_broadcast, model, *BATCHES)
    check(drop_noops, model, *BATCHES)
    return model, report


@pytest.mark.parametrize(
    "body",
    [
        "mask = Where(all, nothing, low)  s = Add(x, mask)  y = Relu(s)",
        "mask = Where(all, nothing, low)  s = Sub(x, mask)  y = Relu(s)",
        "m = Cast<to = 1>(all)  s = Mul(m, x)  y = Relu(s)",
        "s = Where(all, x, low)  y = Relu(s)",
        "none = Not(all)  s = Where(none, low, x)  y = Relu(s)",
        "p = IsNaN(x)  q = And(p, all)  s = Where(q, nothing, x)  y = Relu(s)",
        "p = IsNaN(x)  none = Not(all)  q = Or(p, none)  s = Where(q, nothing, x)  y = Relu(s)",
    ],
)
def test_a_mask_that_masks_nothing_is_dropped(body):
    model, report = rewritten(body)
    assert report.changed
    dead_code(model)
    assert set(ops(model)) <= {"Relu", "IsNaN", "Where"}


def test_the_row_of_a_table_that_is_always_read():
    model = model_of(
        """sizes = Shape(x)  types = ConstantOfShape<value = int64[1] {1}>(sizes)
        words = Gather(w, x)  kinds = Gather(t, types)  y = Add(words, kinds)""",
        "int64[batch,n] x, float[5,3] w, float[2,3] t",
        "float[batch,n,3] y",
        w=weights(5, 3),
        t=weights(2, 3),
    )
    name_lengths(model)
    x = np.array([[1, 2, 4], [0, 3, 3]])
    assert check(fold_broadcast, model, {"x": x}, {"x": x[:1, :2]}).changed
    (add,) = (node for node in model.graph if node.op_type == "Add")
    np.testing.assert_array_equal(add.inputs[1].const_value.numpy(), weights(2, 3)[1])


def test_an_operand_that_gives_the_shape_is_kept():
    model = model_of(
        "sizes = Shape(x)  zeros = ConstantOfShape(sizes)  y = Add(zeros, one)",
        "float[batch,n] x, float one",
        "float[batch,n] y",
        one=np.array(1, np.float32),
    )
    assert not check(fold_broadcast, model, {"x": weights(2, 3)}).changed


def test_an_operand_that_broadcasts_the_other_is_kept():
    """The last axis of x may have length 1."""
    model = model_of(
        "sizes = Shape(z)  zeros = ConstantOfShape(sizes)  y = Add(zeros, x)",
        "float[batch,m] x, float[batch,n] z",
        "float[batch,k] y",
    )
    feeds = {"x": weights(2, 1), "z": weights(2, 3)}
    assert not check(fold_broadcast, model, feeds).changed


def test_columns_of_a_table_are_not_its_rows():
    model = model_of(
        """sizes = Shape(x)  zeros = ConstantOfShape<value = int64[1] {0}>(sizes)
        columns = Gather<axis = 1>(t, zeros)  y = Add(columns, z)""",
        "int64[n] x, float[3,3] t, float[3,n] z",
        "float[3,n] y",
        t=weights(3, 3),
    )
    feeds = {"x": np.zeros(3, np.int64), "z": weights(3, 3)}
    assert not check(fold_broadcast, model, feeds).changed


def test_a_branch_that_the_other_broadcasts_is_kept():
    model = model_of(
        "s = Where(yes, x, z)  y = Relu(s)",
        "float[batch,m] x, float[batch,n] z, bool yes",
        "float[batch,k] y",
        yes=np.array(True),
    )
    feeds = {"x": weights(2, 1), "z": weights(2, 3)}
    assert not check(drop_noops, model, feeds).changed
