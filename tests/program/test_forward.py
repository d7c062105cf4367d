"""What the preparation of a forward graph tells the user."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import get_engine
from ortboost.core.errors import ModelError
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.config import ProgramConfig
from ortboost.program.forward import prepare_forward
from ortboost.program.network import read_network
from ortboost.transforms.attach_loss import LossConfig
from tests.support import assert_three_lines, small_mlp, text_model, weights

HEAD = '<ir_version: 10, opset_import: ["" : 18]> net '


def prepared(model, **fields):
    config = ProgramConfig(**fields)
    return prepare_forward(read_network(model, config, get_engine("portable")), config)


def report(forward, rewrite: str):
    (found,) = [found for found in forward.reports if found.rewrite == rewrite]
    return found


TIME_FIRST = (
    HEAD
    + """(float[T,N,4] x, float[1,4] shift, float[4,3] w) => (float[N,3] y)
    <int64[1] first = {0}> { m = ReduceMean<keepdims=0>(x, first) s = Add(m, shift)
    y = MatMul(s, w) }"""
)


@pytest.mark.parametrize(
    ("model", "axes", "changed"),
    [
        (small_mlp, {}, {}),
        (
            lambda: text_model(TIME_FIRST, w=weights(4, 3)),
            {"x": 1, "shift": None},
            {"x": "axis 1", "shift": "the same for all samples"},
        ),
    ],
)
def test_batch_axes_that_are_not_the_first_are_listed(model, axes, changed):
    forward = prepared(model(), inputs=InputConfig(batch_axes=axes))
    assert report(forward, "batch_axes").changed == changed


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("float[e,4] x", "data are fed whole, one step per epoch"),
        ("float[N,4] x, float[N,4] z", "data are fed whole, one step per epoch"),
    ],
)
def test_data_that_batches_would_tear_apart_are_told(rows, words):
    body = "g = Gather(x, source)" + (" r = Add(g, z)" if "z" in rows else " r = Identity(g)")
    text = f"{HEAD} ({rows}, int64[e] source, float[4,3] w) => (float[e,3] y) {{ {body} "
    model = text_model(text + "y = MatMul(r, w) }", w=weights(4, 3))
    (note,) = [n for n in prepared(model, loss=LossConfig("mse")).notes if "selects rows" in n]
    assert note.startswith("'source' selects rows of values computed from other inputs")
    assert words in note


TWO_NORMS = (
    HEAD
    + """(float[N,3] x, float[3] s, float[3] b, float[3] t, float[3] c, float[3] m, float[3] v,
    float[3] n, float[3] u) => (float[N,3] y) {
    [first] h = BatchNormalization(x, s, b, m, v) [last] y = BatchNormalization(h, t, c, n, u) }"""
)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, None),
        ({"freeze": ("s",)}, None),  # its offset is trained
        ({"freeze": ("s", "b")}, "'first';"),
        ({"freeze": ("s", "b", "c"), "trainable": ("t",)}, "'first';"),
        ({"parameters": {"s": True}}, "'last';"),
        ({"freeze": ("s", "b"), "frozen_norm": ("first",)}, None),
    ],
)
def test_norms_with_frozen_weights_that_still_move_are_told(fields, named):
    numbers = {name: weights(3, seed=i) for i, name in enumerate("sbtcmn")}
    numbers |= dict.fromkeys("vu", np.ones(3, np.float32))
    forward = prepared(text_model(TWO_NORMS, **numbers), loss=LossConfig("mse"), **fields)
    notes = [note for note in forward.notes if "frozen weights still" in note]
    assert [named in note for note in notes] == ([] if named is None else [True])
    assert report(forward, "frozen_weights_of_norms").notes == notes


def test_a_constant_that_is_trained_on_request_has_the_role_of_a_weight():
    model = text_model(
        HEAD
        + """(float[N,4] x, float[4,3] weight, float temperature) => (float[N,3] y)
        { a = Mul(x, temperature) y = MatMul(a, weight) }""",
        weight=weights(4, 3),
        temperature=np.float32(0.5),
    )
    forward = prepared(model, trainable=("weight", "temperature"))
    assert {p.name for p in forward.trained} == {"weight", "temperature"}
    assert all(forward.parameters[p.name] is p for p in forward.trained)
    assert forward.parameters["temperature"].role == "weight"


@pytest.mark.parametrize(
    ("shape", "words"),
    [(None, "The rank of the input 'x' is unknown."), ([0, 2], "an axis of length 0: [0, 2].")],
)
def test_an_input_that_no_batch_fits_is_refused_before_the_first_step(shape, words):
    """It was converted; then each batch was "float32[4, 2], but float32[] is needed"."""
    model = text_model(
        HEAD + "(float[N,2] x, float[2,2] w) => (float[N,2] y) { y = MatMul(x, w) }",
        w=weights(2, 2),
    )
    model.graph.inputs[0].shape = None if shape is None else ir.Shape(shape)
    model.graph.outputs[0].shape = ir.Shape(["N", 2])
    with pytest.raises(ModelError, match=re.escape(words)) as caught:
        prepared(model, loss=LossConfig(name="mse"))
    assert_three_lines(caught.value)
