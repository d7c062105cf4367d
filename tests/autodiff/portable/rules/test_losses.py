"""Loss operators: every reduction, ignored labels, class weights, any rank."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.core.errors import ModelError
from tests.autodiff.oracle import assert_gradients, graph
from tests.support import ENGINES, run

LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


def make(
    op_type: str,
    spatial: str = "",
    attributes: str = "",
    *,
    weight: bool = False,
    batch: str = "N",
    classes: str = "4",
    label: str = "int64",
    outputs: str = "l",
    tail: str = "s = Mul(l, l) loss = ReduceSum<keepdims = 0>(s)",
) -> ir.Model:
    given = "x, t, w" if weight else "x, t"
    declared = f"float[{batch},{classes}{spatial}] x, {label}[{batch}{spatial}] t"
    if weight:
        declared += ", float[4] w"
    return graph(f"""g ({declared}) => (float loss) {{
        {outputs} = {op_type}{f"<{attributes}>" if attributes else ""}({given}) {tail} }}""")


def feeds_for(model: ir.Model, shape: tuple[int, ...], labels: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    feeds = {"x": rng.normal(size=shape).astype(np.float32), "t": labels}
    feeds["w"] = np.float32([0.5, 2.0, 1.0, 0.25])
    return {value.name: feeds[value.name] for value in model.graph.inputs}


@pytest.mark.parametrize("op_type", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignore", [None, -2, 2])  # at -1 the reference evaluator is wrong
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("spatial", ["", ",2", ",2,H"])
def test_every_form(op_type, reduction, ignore, weight, spatial):
    attributes = f'reduction = "{reduction}"'
    if ignore is not None:
        attributes += f", ignore_index = {ignore}"
    model = make(op_type, spatial, attributes, weight=weight)
    extra = tuple(2 for _ in spatial.split(",")[1:])
    labels = np.random.default_rng(5).integers(0, 4, (3, *extra))
    if ignore is not None:
        labels.reshape(-1)[1] = ignore
    feeds = feeds_for(model, (3, 4, *extra), labels)
    result = assert_gradients(model, ["x"], feeds, engine="portable")
    assert op_type not in {node.op_type for node in result.graph}


@pytest.mark.parametrize("op_type", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("mark", [-1, 255])
def test_ignored_labels_outside_the_classes(op_type, reduction, mark):
    """As if their rows were absent; the mean is over the others."""
    attributes = f'reduction = "{reduction}", ignore_index = {mark}'
    labels = np.array([1, mark, 3, mark])
    model = make(op_type, attributes=attributes)
    feeds = feeds_for(model, (4, 4), labels)
    found = run(differentiate(model, "loss", ["x"], "portable"), feeds)
    rest = {"x": feeds["x"][[0, 2]], "t": labels[[0, 2]]}
    alone = run(differentiate(model, "loss", ["x"], "portable"), rest)
    np.testing.assert_allclose(found["loss"], alone["loss"], rtol=1e-6)
    np.testing.assert_allclose(found["x_grad"][[0, 2]], alone["x_grad"], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(found["x_grad"][[1, 3]], 0)


@pytest.mark.parametrize("classes", ["4", "C"])
@pytest.mark.parametrize("label", ["int64", "int32"])
def test_symbolic_classes_and_narrow_labels(classes, label):
    model = make(LOSSES[0], classes=classes, label=label, attributes="ignore_index = 1")
    labels = np.array([0, 1, 3], label)
    assert_gradients(model, ["x"], feeds_for(model, (3, 4), labels), engine="portable")


def test_log_probabilities_used_too():
    tail = "p = Mul(q, q) r = ReduceSum<keepdims = 0>(p) loss = Add(l, r)"
    model = make(LOSSES[0], outputs="l, q", tail=tail)
    assert_gradients(model, ["x"], feeds_for(model, (3, 4), np.array([0, 2, 3])), engine="portable")
    only = make(LOSSES[0], outputs="l, q", tail="p = Mul(q, q) loss = ReduceSum<keepdims = 0>(p)")
    assert_gradients(only, ["x"], feeds_for(only, (3, 4), np.array([0, 2, 3])), engine="portable")


@pytest.mark.parametrize("op_type", LOSSES)
def test_no_label_counts(op_type):
    """0 and no gradient, like the cross entropy of onnxruntime-training."""
    model = make(op_type, attributes="ignore_index = -100", tail="loss = Identity(l)")
    feeds = feeds_for(model, (3, 4), np.full(3, -100))
    found = run(differentiate(model, "loss", ["x"], "portable"), feeds)
    assert found["loss"] == 0
    np.testing.assert_array_equal(found["x_grad"], np.zeros((3, 4), np.float32))


def test_far_scores_do_not_overflow():
    model = make(LOSSES[0], tail="loss = Identity(l)")
    feeds = {"x": np.float32([[1e4, -1e4, 0, 0]]), "t": np.array([1])}
    found = run(differentiate(model, "loss", ["x"], "portable"), feeds)
    np.testing.assert_allclose(found["loss"], 2e4)
    np.testing.assert_allclose(found["x_grad"], [[1, -1, 0, 0]])


def test_a_label_outside_the_classes_is_an_error_not_a_number():
    model = make(LOSSES[0], tail="loss = Identity(l)")
    result = differentiate(model, "loss", ["x"], "portable")
    with pytest.raises(Exception, match="bound"):
        run(result, {"x": np.zeros((1, 4), np.float32), "t": np.array([4])})


def test_class_weights_have_no_gradient():
    model = make(LOSSES[0], weight=True)
    with pytest.raises(ModelError, match="class weights"):
        differentiate(model, "loss", ["w"], "portable")


def test_checks_and_keeps_names():
    model = make(LOSSES[0], tail="loss = Identity(l)")
    result = differentiate(model, "loss", ["x"], "portable")
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert [value.name for value in result.graph.outputs] == ["loss", "x_grad"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("op_type", LOSSES)
def test_where_no_label_counts_loss_and_gradient_are_zero(op_type, weight, engine):
    """torch returns NaN and ruins the training; here such a batch has no effect."""
    model = make(op_type, ",2", "ignore_index = -100", weight=weight)
    feeds = feeds_for(model, (3, 4, 2), np.full((3, 2), -100))
    work = model.clone()
    decompose(work, wrt=["x"], loss="loss", engine=get_engine(engine))
    found = run(differentiate(work, "loss", ["x"], engine), feeds)
    assert found["loss"] == 0
    assert not found["x_grad"].any()
    assert found["x_grad"].shape == (3, 4, 2)
