from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.deploy.made_up import input_ranges, made_up_feeds
from ortboost.program.catalogue import TensorSpec

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
net (int64[n,s] ids, int32[n] kind, int64[n,s] mask, float[30,4] words, float[9,4] few, float[5,4] kinds)
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
    feeds = made_up_feeds(specs, ranges={"ids": 9, "small": 100_000}, seed=3, batch=6)
    assert feeds["ids"].shape == (6, 6)
    assert set(np.unique(feeds["ids"])) <= set(range(9))
    assert len(np.unique(feeds["ids"])) > 4
    assert set(np.unique(feeds["mask"])) == {0, 1}
    assert feeds["small"].max() > 200
    assert feeds["image"].shape == (6, 3, 64, 64)
    assert feeds["row"].shape == (6, 7)
    again = made_up_feeds(specs, ranges={"ids": 9, "small": 100_000}, seed=3, batch=6)
    assert all((feeds[name] == again[name]).all() for name in feeds)
