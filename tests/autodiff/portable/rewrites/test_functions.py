"""Operators expanded as the standard defines them; the results use opset 18 and run everywhere."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate
from tests.autodiff.numeric import numeric_gradients
from tests.autodiff.oracle import graph, random_feeds
from tests.support import run

pytestmark = pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="needs opset 23")


def check(model: ir.Model, wrt: list[str]) -> None:
    feeds = random_feeds(model)
    result = differentiate(model, "loss", wrt, "portable")
    assert not {"Attention", "RotaryEmbedding"} & {node.op_type for node in result.graph}
    result.opset_imports[""] = 18
    found = run(result, feeds)
    for name, expected in numeric_gradients(model, "loss", wrt, feeds).items():
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("heads", [2, 4])
def test_attention(causal, heads):
    """Grouped queries too."""
    model = graph(
        f"""g (float[2,4,3,5] q, float[2,{heads},3,5] k, float[2,{heads},3,5] v) => (float loss) {{
        y = Attention<is_causal = {causal}>(q, k, v) p = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(p) }}""",
        opset=23,
    )
    check(model, ["q", "k", "v"])


ROTARY = {
    "whole": ("float[8,2] c, float[8,2] s", ""),
    "part": ("float[8,1] c, float[8,1] s", "rotary_embedding_dim = 2"),
    "interleaved": ("float[8,2] c, float[8,2] s", "interleaved = 1"),
}


@pytest.mark.parametrize(("tables", "attributes"), ROTARY.values(), ids=ROTARY)
def test_rotary_embedding(tables, attributes):
    """Its definition computes the lengths of its parts, which must be known."""
    options = f"<{attributes}>" if attributes else ""
    model = graph(
        f"""g (float[2,3,4,4] x, {tables}) => (float loss) {{
        p = Constant<value = int64[2,4] {{0, 1, 2, 3, 4, 5, 6, 7}}>()
        y = RotaryEmbedding{options}(x, c, s, p) q = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(q) }}""",
        opset=23,
    )
    check(model, ["x", "c", "s"])
