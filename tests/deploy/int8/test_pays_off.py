from __future__ import annotations

import numpy as np

from ortboost.deploy.int8.pays_off import not_faster
from ortboost.graph.io import save_model
from tests.support import text_model, weights


def products(count):
    body = " ".join(f"y{i + 1} = MatMul(y{i}, w)" for i in range(count))
    return text_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n,64] y0, float[64,64] w) => (float[n,64] y{count}) {{ {body} }}""",
        w=weights(64, 64),
    )


def test_only_what_takes_longer_has_a_note(tmp_path):
    feed = {"y0": np.ones((32, 64), np.float32), "labels": np.zeros(32)}
    save_model(products(30), tmp_path / "long.onnx")
    save_model(products(1), tmp_path / "short.onnx")
    assert "not faster here" in (not_faster(products(1), tmp_path / "long.onnx", feed) or "")
    assert not_faster(products(30), tmp_path / "short.onnx", feed) is None
