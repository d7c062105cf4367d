"""Reductions in two steps."""

import numpy as np
import pytest

from ortboost.runtime.cuda.reductions import reductions_in_two_steps
from tests.runtime.cuda.support import graph, rewritten, run, types, values


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0, 2, 3], [3, 0], [0, -1, -2], [0, 1, 3]])
def test_a_reduction_takes_the_last_axes_first(op_type, keepdims, axes):
    text = (
        f"(float[n,3,4,5] x, int64[k] a) => (float y) {{ y = {op_type}<keepdims={keepdims}>(x,a) }}"
    )
    model = graph(text.replace("int64[k]", f"int64[{len(axes)}]"), a=np.array(axes))
    changed = rewritten(model, reductions_in_two_steps)
    assert types(changed) == [op_type, op_type]
    x = values(6, 3, 4, 5)
    before, after = run(model, x=x)[0], run(changed, x=x)[0]
    assert before.shape == after.shape
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_a_sum_of_16_bit_values_is_rounded_once():
    text = "(float16[n,2,64,64] x, int64[3] a) => (float16 y) { y = ReduceSum<keepdims=0>(x, a) }"
    changed = rewritten(graph(text, a=np.array([0, 2, 3])), reductions_in_two_steps)
    assert types(changed) == ["Cast", "ReduceSum", "ReduceSum", "Cast"]
    x = np.full((8, 2, 64, 64), 20.0, np.float16)  # 81,920 for each image: no float16
    x[4:] = -20.0
    assert run(changed, x=x)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("axes", [[2, 3], [0], [0, 1], [1], [0, 2], [1, 3], [0, 1, 2, 3]])
def test_other_reductions_stay(axes):
    text = f"(float[n,3,4,5] x, int64[{len(axes)}] a) => (float y) {{ y = ReduceSum(x, a) }}"
    assert not reductions_in_two_steps(graph(text, a=np.array(axes)))


def test_axes_that_are_computed_and_types_that_are_not_float_stay():
    assert not reductions_in_two_steps(
        graph("(float[n,3,4,5] x, int64[3] a) => (float y) { y = ReduceSum(x, a) }")
    )
    text = "(int64[n,3,4] x, int64[2] a) => (int64 y) { y = ReduceSum(x, a) }"
    assert not reductions_in_two_steps(graph(text, a=np.array([0, 2])))
