"""LSTM, GRU and RNN as a Scan."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.core.errors import ModelError
from tests.autodiff.oracle import graph, random_feeds
from tests.support import run

T, B, N, H = 3, 2, 2, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(
    op, direction, *, bias=True, state=True, length=str(T), more="", tail=None
) -> ir.Model:
    d, gates = (2 if direction == "bidirectional" else 1), GATES[op] * H
    inputs = [f"float[{length},B,{N}] x", f"float[{d},{gates},{N}] w", f"float[{d},{gates},{H}] u"]
    inputs += [f"float[{d},{2 * gates}] b"] if bias else []
    inputs += [f"float[{d},B,{H}] h"] if state else []
    cell = op == "LSTM" and state
    inputs += [f"float[{d},B,{H}] c"] if cell else []
    # the text format writes an omitted input in the middle as an empty name
    given = f"x, w, u, {'b' if bias else ''}, , {'h' if state else ''}"
    given += ", c" if cell else ""
    given = given.rstrip(", ") if not state else given
    outputs = "y, last, cell" if op == "LSTM" else "y, last"
    tail = tail or (
        "p = Mul(y, y) q = ReduceSum<keepdims = 0>(p) e = Exp(last) f = ReduceSum<keepdims = 0>(e)"
        + (" k = Sin(cell) l = ReduceSum<keepdims = 0>(k) m = Add(f, l)" if op == "LSTM" else "")
        + f" loss = Add(q, {'m' if op == 'LSTM' else 'f'})"
    )
    return graph(
        f"""g ({", ".join(inputs)}) => (float loss) {{
        {outputs} = {op}<hidden_size = {H}, direction = "{direction}"{more}>({given}) {tail} }}"""
    )


def differences(model: ir.Model, wrt: list[str], feeds) -> dict[str, np.ndarray]:
    """Central differences of the runtime itself: the reference supports only one direction."""
    from tests.support import session

    opened = session(model)
    found = {}
    for name in wrt:
        gradient = np.zeros(feeds[name].shape)
        for index in np.ndindex(*feeds[name].shape):
            values = []
            for sign in (1, -1):
                moved = feeds[name].copy()
                moved[index] += sign * 5e-3
                values.append(float(opened.run(["loss"], {**feeds, name: moved})[0]))
            gradient[index] = (values[0] - values[1]) / 1e-2
        found[name] = gradient
    return found


def checked_gradients(model, wrt, feeds, tolerance=1e-3):
    result = differentiate(model, "loss", wrt, "portable")
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    found = run(result, feeds)
    np.testing.assert_allclose(found["loss"], run(model, feeds)["loss"], rtol=1e-5)
    for name, expected in differences(model, wrt, feeds).items():
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=tolerance, atol=tolerance)
    return found


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("full", "length"), [(True, "3"), (False, "steps")])
def test_recurrent(op, direction, full, length):
    model = recurrent(op, direction, bias=full, state=full, length=length)
    wrt = [value.name for value in model.graph.inputs]
    feeds = random_feeds(model, B=B, steps=T)
    checked_gradients(model, wrt, feeds)


FORMS = [
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"linear_before_reset": 1, "clip": 0.7}),
    (
        "GRU",
        {
            "clip": 0.7,
            "activations": ["Softplus", "Affine"] * 2,
            "activation_alpha": [0.7] * 2,
            "activation_beta": [0.2, 0.3],
        },
    ),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"clip": 0.6}),
    (
        "LSTM",
        {
            "activations": ["HardSigmoid", "Elu", "LeakyRelu"] * 2,
            "activation_alpha": [0.3, 0.5, 0.1, 0.2],
            "activation_beta": [0.4],
        },
    ),
    (
        "RNN",
        {
            "activations": ["Affine", "ScaledTanh"],
            "activation_alpha": [0.6, 0.7],
            "activation_beta": [0.1, 0.9],
        },
    ),
    ("RNN", {"activations": ["Elu", "ThresholdedRelu"], "activation_alpha": [0.9, 0.05]}),
    ("RNN", {"activations": ["Relu", "Softsign"]}),
]


@pytest.mark.parametrize(("op", "form"), FORMS)
def test_forms(op, form):
    model = recurrent(op, "bidirectional")
    (node,) = [node for node in model.graph if node.op_type == op]
    for name, value in form.items():
        node.attributes[name] = ir.convenience.convert_attribute(name, value)
    if op == "LSTM":
        add_input(model, op, 7, ir.val("peepholes", ir.DataType.FLOAT, [2, 3 * H]))
    wrt = [value.name for value in model.graph.inputs]
    feeds = {name: array / 2 for name, array in random_feeds(model, B=B).items()}
    # At the bounds of a clip, differences have a value between the slopes on both sides.
    checked_gradients(model, wrt, feeds, tolerance=2e-2 if "clip" in form else 1e-3)


@pytest.mark.parametrize(
    ("names", "alpha"),
    [
        (["Elu", "Elu"], []),  # 0 in onnxruntime 1.19
        (["Elu", "Elu"], [0.5]),
        (["Relu", "Elu"], [0.5, 0.5]),  # of the second: the first number, or the second
        (["Relu", "Tanh"], [0.5]),
    ],
)
def test_numbers_that_an_rnn_may_read_otherwise_are_refused(names, alpha):
    """onnxruntime 1.19 ends the process if there are fewer than directions."""
    model = recurrent("RNN", "bidirectional")
    (node,) = [node for node in model.graph if node.op_type == "RNN"]
    node.attributes["activations"] = ir.AttrStrings("activations", names)
    if alpha:
        node.attributes["activation_alpha"] = ir.AttrFloat32s("activation_alpha", alpha)
    with pytest.raises(ModelError, match="by direction"):
        differentiate(model, "loss", ["w"], "portable")


def add_input(model: ir.Model, op: str, index: int, value: ir.Value) -> None:
    (node,) = [node for node in model.graph if node.op_type == op]
    model.graph.inputs.append(value)
    node.resize_inputs(max(index + 1, len(node.inputs)))
    node.replace_input_with(index, value)


def test_projections_are_refused():
    """torch's dynamo exporter writes an LSTM with ``proj_size`` so; onnxruntime does not run it."""
    model = recurrent("LSTM", "forward")
    (cell,) = [value for value in model.graph.inputs if value.name == "c"]
    cell.shape = ir.Shape([1, "B", H + 2])
    (node,) = [node for node in model.graph if node.op_type == "LSTM"]
    assert "proj_size" in (get_engine("portable").gradient_support(node) or "")


@pytest.mark.parametrize("name", ["HardMax", "Affine", "ThresholdedRelu"])
def test_other_activations_are_refused(name):
    model = recurrent("RNN", "forward", more=f', activations = ["{name}"]')
    node = next(node for node in model.graph if node.op_type in GATES)
    assert "activations" in (get_engine("portable").gradient_support(node) or "")
    with pytest.raises(ModelError, match="activations"):
        differentiate(model, "loss", ["w"], "portable")


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequence_lengths(op, direction):
    """Behind its end, a sequence keeps its state, has outputs of 0 and gives no gradient."""
    model = recurrent(op, direction, length="steps", state=False)
    add_input(model, op, 4, ir.val("lengths", ir.DataType.INT32, ["B"]))
    wrt = ["x", "w", "u", "b"]
    feeds = {**random_feeds_without(model, "lengths"), "lengths": np.array([1, 3], np.int32)}
    found = checked_gradients(model, wrt, feeds)
    assert not found["x_grad"][1:, 0].any()
    assert found["x_grad"][1:, 1].any()


def random_feeds_without(model: ir.Model, name: str) -> dict[str, np.ndarray]:
    return {k: v for k, v in random_feeds(model, B=B, steps=T).items() if k != name}
