"""Types that follow from the definition of an operator."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.transforms.precision.operators import complete_types
from tests.support import text_model

FLOAT, HALF, INT64, BOOL = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.INT64,
    ir.DataType.BOOL,
)


def completed(node: str, *outputs: str) -> list[ir.DataType | None]:
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1, "other" : 1]>
        net (float16[N,4] x, int64[N,4] i) => (float16[N,4] y) {{ {node} y = Identity(x) }}"""
    )
    values = {v.name: v for n in model.graph for v in n.outputs}
    for name in outputs:
        values[name].type = None
    complete_types(model)
    return [values[name].dtype for name in outputs]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("a = Cast<to = 7>(x)", [INT64]),
        ("a = Cast<to = 1>(i)", [FLOAT]),
        ("a = Relu(x)", [HALF]),
        ("a = Gather<axis = 0>(i, i)", [INT64]),  # the type of the data, not of the indices
        ("a = Less(x, x)", [BOOL]),
        ("a = Shape(x)", [INT64]),
        ("a = com.microsoft.QuickGeluGrad(i, x)", [HALF]),  # no schema: the first float
        ("a = other.Unknown(x)", [None]),
    ],
)
def test_an_open_type_follows_from_what_is_read(node, expected):
    assert completed(node, "a") == expected


def test_only_the_first_output_of_a_kernel_without_schema_is_known():
    assert completed("a, b = com.microsoft.SomeGrad(x)", "a", "b") == [HALF, None]


def test_a_type_that_is_given_stays():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N] x) => (float[N] y) { a = Relu(x) y = Identity(a) }"""
    )
    value = model.graph.node(0).outputs[0]
    value.type = ir.TensorType(HALF)
    complete_types(model)
    assert value.dtype == HALF
