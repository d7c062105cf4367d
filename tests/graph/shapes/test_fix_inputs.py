from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortboost.core.errors import UsageError
from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from ortboost.graph.shapes.fix_inputs import fix_inputs
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.graph.weights.parameters import find_parameters
from tests.support import assert_three_lines, run, text_model, weights

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
net (float[n,t] x, float[2,n,3] state, int64 rate) => (float[n,t] y, float[2,n,3] next) {
  r = Cast<to = 1>(rate)
  y = Mul(x, r)
  next = Add(state, r)
}"""


def test_fixed_lengths_go_everywhere():
    model = text_model(TEXT)
    report = fix_inputs(model, InputConfig(dims={"n": 4}))
    assert [known_shape(v) for v in model.graph.inputs] == [(4, "t"), (2, 4, 3), ()]
    assert [known_shape(v) for v in model.graph.outputs] == [(4, "t"), (2, 4, 3)]
    assert report.changed == {"x": "[n, t] -> [4, t]", "state": "[2, n, 3] -> [2, 4, 3]"}
    again = fix_inputs(model, InputConfig(dims={"x:0": 4}))
    assert not again.modified


def test_a_fixed_input_is_a_constant_that_is_not_trained():
    model, values = text_model(TEXT), {"rate": 3, "state": weights(2, 4, 3)}
    expected = run(
        model.clone(), {"x": weights(4, 5), "state": values["state"], "rate": np.array(3)}
    )
    report = fix_inputs(model, InputConfig(values=values))
    assert report.changed["rate"] == "fixed at 3"
    assert [known_shape(v) for v in model.graph.inputs] == [(4, "t")]  # n is that of the state
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert not any(p.trainable for p in find_parameters(model).values())
    found = run(model, {"x": weights(4, 5)})
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (InputConfig(values={"rates": 3}), "no input 'rates'"),
        (InputConfig(values={"rate": 2.5}), "does not fit"),
        (InputConfig(values={"rate": [1, 2]}), "does not fit"),
        (InputConfig(values={"state": np.zeros((3, 4, 3))}), "does not fit"),
        (InputConfig(values={"state": np.zeros((2, 4, 3))}, dims={"n": 5}), "cannot be 4"),
        (InputConfig(dims={"batch": 5}), "no dimension 'batch'"),
    ],
)
def test_what_does_not_fit_is_refused(config, words):
    with pytest.raises(UsageError, match=words) as info:
        fix_inputs(text_model(TEXT), config)
    assert_three_lines(info.value)


def test_lengths_reach_what_is_computed_from_them():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,1,h,w] x) => (float[n,1,a,b] y) {
          k = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
          y = Resize<mode = "nearest">(x, , k)
        }"""
    )
    fix_inputs(model, InputConfig(dims={"h": 8, "x:3": 6}))
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert known_shape(model.graph.outputs[0]) == ("n", 1, 16, 12)


def test_placeholders_of_paddle_tie_nothing_together(tmp_path):
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]>
        net (float[n,3,h,w] x) => (float[n,3,h,w] y) { y = Relu(x) }"""
    )
    for value in (proto.graph.input[0], proto.graph.output[0]):
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_value = -1
        dims[2].dim_param = dims[3].dim_param = "?"
    onnx.save(proto, tmp_path / "paddle.onnx")
    for source in (tmp_path / "paddle.onnx", proto, ir.from_proto(proto)):
        model = load_model(source)
        assert known_shape(model.graph.inputs[0]) == (None, 3, None, None)
        assert known_shape(model.graph.outputs[0]) == (None, 3, None, None)
    assert onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())


def test_a_dimension_named_none_is_not_one_without_a_name():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    net (float[None,4] x, float[n] z) => (float[None,4] y, int64[1,m] k)
    { y = Relu(x) k = NonZero(z) }""")
    found = model.graph[1].outputs[0]
    found.shape = ir.Shape([1, None])
    fix_inputs(model, InputConfig(dims={"None": 7}))
    assert known_shape(model.graph.outputs[0]) == (7, 4)
    assert known_shape(found) == (1, None)


def fixed(kind: str, value: object) -> np.ndarray:
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[n] x, {kind} r) => (float[n] y, {kind} q) {{ y = Relu(x) q = Identity(r) }}"""
    )
    fix_inputs(model, InputConfig(values={"r": value}))
    return model.graph.initializers["r"].const_value.numpy()


@pytest.mark.parametrize(
    ("kind", "value"),
    [("float16", 0.1), ("bfloat16", 0.1), ("float", 2**24 + 1), ("float", np.inf), ("bool", 1)],
)
def test_values_are_rounded_to_the_type_of_the_input(kind, value):
    np.testing.assert_allclose(fixed(kind, value).astype(float), value, rtol=1e-2)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("float16", 1e6), ("float", 1e39), ("int32", np.nan), ("uint8", -1), ("string", 3)],
)
def test_values_outside_the_type_of_the_input_are_refused(kind, value):
    with pytest.raises(UsageError, match="does not fit") as info:
        fixed(kind, value)
    assert_three_lines(info.value)


def test_an_input_of_unknown_rank_takes_any_array():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    net (float[n] x, float r) => (float[n] y) { y = Add(x, r) }""")
    model.graph.inputs[1].shape = None
    fix_inputs(model, InputConfig(values={"r": [1.0, 2.0]}))
    assert known_shape(model.graph.initializers["r"]) == (2,)
