from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.core.errors import UsageError
from ortboost.deploy.synthetic_inputs import (
    accepted_feeds,
    input_ranges,
    sized_by_layers,
    synthetic_feeds,
)
from ortboost.graph.shapes.batch_axes import UNKNOWN
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.model_evaluator import ModelEvaluator
from tests.support import assert_three_lines, text_model

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
net (int64[n,s] ids, int32[n] kind, int64[n,s] mask, float[30,4] words, float[9,4] few,
    float[5,4] kinds)
=> (float[n,s,4] y, float[n,s,4] z, float[n,4] k, float[n,s] m) {
  y = Gather(words, ids)  i = Identity(ids)  z = Gather(few, i)
  c = Cast<to = 7>(kind)  k = Gather(kinds, c)  m = Cast<to = 1>(mask)
}"""


def test_rows_of_tables():
    assert input_ranges(ir.from_onnx_text(TEXT)) == {"ids": 9, "kind": 5}


def test_feeds_are_drawn_from_the_range():
    specs = [
        TensorSpec("ids", np.dtype(np.int64), ("n", "s")),
        TensorSpec("mask", np.dtype(np.int64), ("n", "s")),
        TensorSpec("small", np.dtype(np.uint8), (500,)),
        TensorSpec("image", np.dtype(np.float32), ("n", 3, "h", None)),
        TensorSpec("row", np.dtype(np.float32), (None, 7)),
    ]
    feeds = synthetic_feeds(specs, ranges={"ids": 9, "small": 100_000}, seed=3, batch=6)
    assert feeds["ids"].shape == (6, 7)
    assert set(np.unique(feeds["ids"])) <= set(range(9))
    assert len(np.unique(feeds["ids"])) > 4
    assert set(np.unique(feeds["mask"])) == {0, 1}
    assert feeds["small"].max() > 200
    assert feeds["image"].shape == (6, 3, 64, 64)
    assert feeds["row"].shape == (6, 7)
    again = synthetic_feeds(specs, ranges={"ids": 9, "small": 100_000}, seed=3, batch=6)
    assert all((feeds[name] == again[name]).all() for name in feeds)


def spec(name, *shape, batch_axis=0) -> TensorSpec:
    return TensorSpec(name, np.dtype(np.float32), shape, batch_axis=batch_axis)


def test_a_name_has_one_length_and_the_batch_is_where_its_axis_is():
    specs = [
        spec("x", "batch", "time"),
        spec("state", 2, "batch", 8, batch_axis=1),
        spec("open", 2, None, 8, batch_axis=UNKNOWN),
        spec("table", "time", batch_axis=None),
        spec("rate", batch_axis=None),
    ]
    shapes = {
        name: array.shape for name, array in synthetic_feeds(specs, batch=4, length=7).items()
    }
    assert shapes == {
        "x": (4, 7),
        "state": (2, 4, 8),
        "open": (2, 4, 8),
        "table": (7,),
        "rate": (),
    }


WIDE = """<ir_version: 10, opset_import: ["" : 18]>
net (float[n,1,t] x, float[1,1,41] w) => (float[n,1,u] y) { y = Conv(x, w) }"""


def test_lengths_are_tried_until_the_model_runs():
    run = ModelEvaluator(text_model(WIDE, w=np.ones((1, 1, 41), np.float32)), device="cpu")
    feeds, answer = accepted_feeds(run.inputs, run.evaluate)
    assert feeds["x"].shape == (4, 1, 64)  # the kernel is longer than what was tried before
    assert answer["y"].shape == (4, 1, 24)


def test_the_lengths_behind_a_fixed_batch_size_are_tried():
    net = text_model(WIDE.replace("float[n,1,t] x", "float[1,1,t] x"), w=np.ones((1, 1, 41), "f"))
    run = ModelEvaluator(net, device="cpu")
    specs = [dataclasses.replace(found, batch_axis=UNKNOWN) for found in run.inputs]
    assert accepted_feeds(specs, run.evaluate)[0]["x"].shape == (1, 1, 64)


def test_no_size_fills_the_memory():
    sizes = []

    def run(feeds):
        sizes.append(feeds["x"].size)
        raise UsageError("no", where="here", fix="none")

    with pytest.raises(UsageError):
        accepted_feeds([spec("x", "n", None, None, None, None)], run)
    assert len(sizes) > 1
    assert max(sizes) <= 1 << 26


def test_no_length_of_a_text_fills_the_memory():
    lengths: list[int] = []

    def run(feeds):
        lengths.append(feeds["mask"].shape[1])
        raise UsageError("the mask does not cover the cache")

    specs = [
        TensorSpec("ids", np.dtype(np.int64), ("n", "s"), batch_axis=0),
        TensorSpec("mask", np.dtype(np.int64), ("n", "total"), batch_axis=0),
        spec("cache", "n", 2, "past", 8),
        spec("image", "n", 3, "h", "w"),
    ]
    with pytest.raises(UsageError, match="18 sets of sizes were tried"):
        accepted_feeds(specs, run, ranges={"ids": 30})
    assert max(lengths) == 1024


def test_an_answer_without_numbers_is_no_answer_if_another_size_has_one():
    def run(feeds):
        wide = feeds["x"].shape[1] >= 64
        return {"y": feeds["x"] if wide else np.full((1,), np.nan), "z": np.zeros(1)}

    specs = [spec("x", "n", "t")]
    assert accepted_feeds(specs, run)[0]["x"].shape == (4, 64)
    nothing = accepted_feeds(specs, lambda feeds: {"y": np.full(1, np.nan)})
    assert nothing[0]["x"].shape == (4, 7)


def test_a_model_that_runs_on_nothing_made_up_says_what_to_give():
    def run(feeds):
        raise UsageError("It cannot.", where="node 'pad': wants 3", fix="")

    with pytest.raises(UsageError, match="18 sets of sizes were tried") as info:
        accepted_feeds([spec("x", "n", "t")], run)
    assert_three_lines(info.value)
    assert "node 'pad'" in info.value.where
    assert "--dim" in info.value.fix
    assert "--input" in info.value.fix
    with pytest.raises(UsageError, match=r"synthetic inputs\.\n"):
        accepted_feeds([spec("x", 2, 3)], run)


def test_the_stored_keys_of_a_decoder_fit_its_mask():
    """Hugging Face names the dimensions so; the keys were taken for an image 64 pixels high."""
    past, now = "past_sequence_length", "sequence_length"
    specs = [
        spec("ids", "batch", now),
        spec("mask", "batch", f"{past} + {now}"),
        spec("older_mask", "batch", f"{past} + 1"),
        spec("keys", "batch", 2, past, 8),
        spec("image", "batch", 3, "height", "width"),
    ]
    feeds = synthetic_feeds(specs, batch=4, length=7)
    assert {name: array.shape[1:] for name, array in feeds.items()} == {
        "ids": (7,),
        "mask": (14,),
        "older_mask": (8,),
        "keys": (2, 7, 8),
        "image": (3, 64, 64),
    }


@pytest.mark.parametrize(
    ("layer", "weight", "shape"),
    [
        ("Conv<group = 2>(x, w)", (4, 3, 1, 1), ("a", 6, "c", "d")),
        ("MatMul(x, w)", (5, 2), ("a", "b", "c", 5)),
        ("Gemm<transB = 1>(x, w)", (2, 5), ("a", 5)),
        ("Gemm<transA = 1>(x, w)", (2, 5), ("a", "b")),
        ("MatMul(w, x)", (5, 2), ("a", "b")),
    ],
)
def test_a_layer_fixes_a_length_of_what_it_reads(layer, weight, shape):
    """Exports of optimum leave the number of channels open."""
    dims = ("a", "b", "c", "d")[: len(shape)]
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[{",".join(dims)}] x, float w) => (y, s) {{ y = {layer} s = Shape(x) }}""",
        w=np.zeros(weight, np.float32),
    )
    spec = TensorSpec("x", np.dtype(np.float32), dims)
    assert sized_by_layers([spec], model)[0].shape == shape
