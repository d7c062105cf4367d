"""Chains of elementwise operators; `test_chunks.py` runs what becomes of them."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.runtime.cpu.chains import elementwise_chains
from tests.autodiff.oracle import graph


def test_an_output_gets_its_shape_and_type_together():
    """onnxruntime's gradient builder types few inner values; a shape alone cannot be serialized."""
    model = graph(
        """g (float[n,64] x, float[n,64] g) => (float[n,64] y)
        { a = Mul(x, g) b = Neg(a) y = Exp(b) }"""
    )
    for value in (out for node in model.graph for out in node.outputs):
        value.type = value.shape = None
    (chain,) = elementwise_chains(model.graph)
    assert len(chain.nodes) == 3
    assert {value.dtype for value in chain.computed} == {ir.DataType.FLOAT}
    assert {tuple(value.shape) for value in chain.computed} == {("n", 64)}
