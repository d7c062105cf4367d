"""Inputs that are token IDs are found, and negative ones are refused."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost
from ortboost import api
from ortboost.core.errors import UsageError
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.weights.token_ids import token_inputs
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import assert_three_lines, stepper, text_model, weights


def net(before="t = Cast<to = 6>(ids)", table="emb.weight"):
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18], producer_name: "pytorch">
        net (int64[B,T] ids, float[7,3] "{table}", int64[1] one, int64 pad) => (float[B,3] y) {{
          {before} e = Gather("{table}", t) y = ReduceMean<keepdims = 0>(e, one) }}""",
        **{table: weights(7, 3), "one": np.array([1]), "pad": np.array(0)},
    )


@pytest.mark.parametrize(
    ("before", "rows"),
    [
        ("t = Cast<to = 6>(ids)", 7),
        ("t = Slice(ids, one, one, one)", 7),
        ("m = Equal(ids, pad) t = Identity(ids)", 7),
        ("m = Equal(pad, ids) t = Identity(ids)", 7),
        ("minus = Constant<value_int = -1>() m = Equal(ids, minus) t = Identity(ids)", None),
        ("m = Less(ids, pad) t = Identity(ids)", None),
        ("t = Add(ids, one)", None),
        ("k = Gather(one, ids) t = Add(k, ids)", None),
    ],
)
def test_token_inputs(before, rows):
    found = token_inputs(net(before))
    assert found == ({} if rows is None else {"ids": rows})


@pytest.mark.parametrize(
    ("before", "rows"),
    [
        ("l = Unsqueeze(y, one)", 5),
        ("z = Clip(y, zero) l = Unsqueeze(z, one)", None),
        ("m = Less(y, zero) l = Unsqueeze(y, one)", None),
    ],
)
def test_labels_of_a_loss_in_the_model(before, rows):
    """A focal loss; a label that is masked has another use."""
    model = text_model(f"""<ir_version: 10, opset_import: ["" : 18], producer_name: "pytorch">
        net (float[B,5] x, int64[B] y) => (float loss) <int64[1] one = {{1}}, int64 zero = {{0}}> {{
          {before} p = LogSoftmax(x) e = GatherElements<axis = 1>(p, l)
          loss = ReduceMean<keepdims = 0>(e) }}""")
    infer_shapes(model)
    assert token_inputs(model) == ({} if rows is None else {"y": rows})


@pytest.mark.parametrize(("table", "found"), [("weight", True), ("class_weight", False)])
def test_the_table_is_that_of_a_module(table, found):
    """A tensor of another name is indexed in the code, where torch counts from the end, too."""
    assert bool(token_inputs(net(table=table))) == found


def test_other_tables_are_indexed_from_the_end():
    model = net()
    model.producer_name = "tf2onnx"
    assert not token_inputs(model)


def test_negative_ids_are_refused():
    """-1 would be the last row, without an error; torch refuses it."""
    program = build_program(net(), ProgramConfig())
    step = stepper(program)
    feeds = {"ids": np.array([[1, 2], [0, 6]]), "labels": np.array([0, 2])}
    step.step(feeds, {"learning_rate": 0.1})
    feeds["ids"][1, 0] = -1
    for run in (
        lambda: step.step(feeds, {"learning_rate": 0.1}),
        lambda: step.evaluator().evaluate(feeds),
        lambda: api.evaluate(net(), feeds, device="cpu"),
        lambda: api.compare(net(), net(), data={"ids": feeds["ids"]}, device="cpu"),
        lambda: ortboost.load(net(), device="cpu")(feeds["ids"]),
    ):
        with pytest.raises(UsageError, match="The token ID or class -1 is negative") as caught:
            run()
        assert_three_lines(caught.value)
