"""What low precision changes of a node, and types that follow from its operator."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.transforms.precision.operators import Form, complete_types, form_of
from tests.support import text_model

FLOAT, HALF, BFLOAT, INT64, BOOL = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
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


TYPES = {
    "y": ir.TensorType(FLOAT),
    "s": ir.TensorType(INT64),
    "q": ir.SequenceType(ir.TensorType(FLOAT)),
    "z": None,
}


def form(node: str, low: ir.DataType = HALF, opset: int = 18, untyped: str = "") -> Form:
    """The form of the last node, which reads x and k, float, and i, int64."""
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1, "other" : 1]>
        net (float[2,4] x, float[4] k, int64[4] i, bool b) => (float[2,4] y) {{ {node} }}"""
    )
    last = model.graph[-1]
    last.outputs[0].type = TYPES[last.outputs[0].name]
    for value in last.inputs:
        if value is not None and value.name == untyped:
            value.type = None
    return form_of(last, low, model.opset_imports)


@pytest.mark.parametrize(
    ("node", "low", "opset", "expected"),
    [
        ("y = Add(x, k)", HALF, 18, Form((0, 1), (0,), ())),
        ("y = Clip(x, , k)", HALF, 18, Form((0, 2), (0,), ())),
        ("s = Shape(x)", HALF, 18, Form((0,), (), ())),  # reads any type
        ("y = ai.onnx.Relu(x)", HALF, 18, Form((0,), (0,), ())),
        # Scales of a Resize are a setting with a type of their own.
        ("y = Resize(x, , k)", HALF, 18, Form((0,), (0,), (2,))),
        ("y = com.microsoft.FastGelu(x, k)", HALF, 18, Form((0, 1), (0,), ())),
        (
            "y = com.microsoft.FastGelu(x, k)",
            BFLOAT,
            18,
            Form((), (), (0, 1), "its types are unknown"),
        ),
        ("y = other.Unknown(x)", HALF, 18, Form((), (), (0,), "its types are unknown")),
        ("y = Cast<to = 1>(i)", HALF, 18, Form((), (), (), "an attribute sets its type")),
        # Without a dtype, a type of its own in the schema, but that of the input all the same.
        ("y = RandomUniformLike(x)", HALF, 18, Form((), (), (0,), "an attribute sets its type")),
        ("y = Bernoulli(x)", HALF, 18, Form((), (), (0,), "an attribute sets its type")),
        ("y = ScatterND(x, i, k)", HALF, 18, Form((0, 2), (0,), ())),
        (
            'y = ScatterND<reduction = "add">(x, i, k)',
            HALF,
            18,
            Form((), (), (0, 2), "the runtime supports 16-bit scatters only without a reduction"),
        ),
        ("q = SequenceConstruct(x, k)", HALF, 18, Form((), (), (0, 1), "a sequence of tensors")),
        (
            "y = If(b) <then_branch = t () => (float[2,4] a) { a = Identity(x) }, "
            "else_branch = e () => (float[2,4] c) { c = Neg(x) }>",
            HALF,
            18,
            Form((), (), (), "control flow"),
        ),
        (
            "y = Relu(x)",
            BFLOAT,
            12,
            Form((), (), (0,), "Relu has no bfloat16 at opset 12; opset 13 has it"),
        ),
    ],
)
def test_what_low_precision_changes(node, low, opset, expected):
    assert form(node, low, opset) == expected


def test_an_unknown_type_is_left_alone():
    unknown = "the type of '{}' is unknown"
    assert form("y = Add(x, k)", untyped="x") == Form((), (), (1,), unknown.format("x"))
    assert form("z = Add(x, k)") == Form((), (), (0, 1), unknown.format("z"))
