"""Oracles for gradients: central differences, and the bare builder with its errors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.numeric import evaluate, numeric_gradients
from tests.support import run

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from probe_cases import Case, cases
from probe_gradients import false_shapes, probe, raw_gradients

__all__ = ["Case", "assert_gradients", "cases", "graph", "probe", "random_feeds", "raw_gradients"]

HEAD = '<ir_version: 10, opset_import: ["" : {opset}]>\n'


def graph(text: str, opset: int = 18) -> ir.Model:
    """A model from ONNX text without its header, every node named, shapes inferred."""
    from ortboost.graph.shapes.shape_inference import infer_shapes

    model = ir.from_onnx_text(HEAD.format(opset=opset) + text)
    for node in model.graph:
        node.name = node.name or f"{node.outputs[0].name}/{node.op_type}"
    infer_shapes(model)
    return model


def random_feeds(model: ir.Model, seed: int = 0, **symbols: int) -> dict[str, np.ndarray]:
    """Random float inputs; symbolic dimensions by name, 3 if not given."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.inputs:
        shape = [d if isinstance(d, int) else symbols.get(str(d.value), 3) for d in value.shape]
        feeds[value.name] = rng.uniform(-1.5, 1.5, size=shape).astype(np.float32)
    return feeds


def assert_gradients(
    model: ir.Model,
    wrt: list[str],
    feeds: dict[str, np.ndarray],
    loss: str = "loss",
    tolerance: float = 1e-3,
    engine: str = "native",
) -> ir.Model:
    """Check that ortboost's gradient graph computes the same loss and correct gradients."""
    expected = numeric_gradients(model, loss, wrt, feeds)
    (value,) = evaluate(model, feeds, [loss])
    work = model.clone()
    decompose(work, wrt=wrt, loss=loss, engine=get_engine(engine))
    result = differentiate(work, loss, wrt, engine)
    onnx.checker.check_model(ir.to_proto(work), full_check=True)
    if engine == "portable":
        assert not false_shapes(result, feeds)
    found = run(result, feeds)
    np.testing.assert_allclose(found[loss], value, rtol=1e-4, atol=1e-4)
    for name in wrt:
        gradient = found[f"{name}_grad"]
        assert gradient.shape == expected[name].shape
        np.testing.assert_allclose(gradient, expected[name], rtol=tolerance, atol=tolerance)
    return result
