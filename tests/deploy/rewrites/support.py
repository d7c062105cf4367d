"""The checks common to all rewrites of inference graphs; each test asserts the structure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.report import Report
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.support import run, text_model

HEAD = '<ir_version: 10, opset_import: ["" : {opset}]>'


def model_of(body: str, inputs: str, outputs: str, *, opset: int = 18, **stored) -> ir.Model:
    """A model with inferred shapes; constants as initializers, as the pipeline sees it."""
    text = f"{HEAD.format(opset=opset)} net ({inputs}) => ({outputs}) {{ {body} }}"
    model = text_model(text, **stored)
    infer_shapes(model)
    return model


def lifted(model: ir.Model) -> ir.Model:
    """Constants as initializers."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model


def ops(model: ir.Model) -> dict[str, int]:
    return dict(Counter(node.op_type for node in model.graph.all_nodes()))


def check(
    rewrite: Callable[[ir.Model], Report],
    model: ir.Model,
    *batches: dict[str, np.ndarray],
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Report:
    """Rewrite; the results are equal, the checker passes, and a second run changes nothing."""
    names = [value.name for value in model.graph.outputs]
    before = [run(model, batch) for batch in batches]
    report = rewrite(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [value.name for value in model.graph.outputs] == names
    for batch, want in zip(batches, before, strict=True):
        have = run(model, batch)
        for name in want:
            assert have[name].dtype == want[name].dtype
            np.testing.assert_allclose(have[name], want[name], rtol=rtol, atol=atol)
    infer_shapes(model)
    once = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not rewrite(model).changed
    assert ir.to_proto(model).SerializeToString(deterministic=True) == once
    return report


def assert_kept(report: Report, node: str, reason: str | None) -> None:
    """The report says why a node was kept; with ``None`` it does not mention the node."""
    if reason is None:
        assert node not in report.kept
    else:
        assert reason in report.kept[node]
