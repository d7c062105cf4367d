"""onnxslim as an optional step of the pipeline, verified like all others."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.errors import DependencyError, ModelError
from ortboost.core.report import Report
from ortboost.deploy.pipeline import Step
from ortboost.graph.io import EXTERNAL_DATA_THRESHOLD
from ortboost.graph.query import all_tensors, count_operators
from ortboost.graph.shapes.shape_inference import infer_shapes

__all__ = ["slim_step"]


def slim_step() -> Step:
    """The onnxslim step.

    Raises:
        DependencyError: onnxslim is not installed.
    """
    try:
        import onnxslim  # noqa: F401
    except ImportError as error:
        raise DependencyError(
            "onnxslim is not installed.",
            where="--slim",
            fix="pip install onnxslim, or export without --slim: the rewrites of ortboost reach "
            "as few nodes on all models tried.",
        ) from error
    return Step("onnxslim", _slim)


def _slim(model: ir.Model) -> Report:
    """Run onnxslim on the model, in place.

    Raises:
        ModelError: The model is too large: onnxslim needs a single protobuf.
    """
    import onnxslim

    report = Report("onnxslim")
    if sum(tensor.nbytes for _, tensor in all_tensors(model)) >= EXTERNAL_DATA_THRESHOLD:
        raise ModelError(
            "The model is too large for onnxslim, which needs a single protobuf.",
            where="--slim",
            fix="Export without --slim.",
        )
    before = count_operators(model)
    slimmed = ir.from_proto(onnxslim.slim(ir.to_proto(model)))
    model.graph = slimmed.graph  # the caller keeps its model, with metadata and opset
    infer_shapes(model)
    after = count_operators(model)
    for op in sorted(before.keys() | after.keys()):
        if before.get(op, 0) != after.get(op, 0):
            report.changed[op] = f"{before.get(op, 0)} -> {after.get(op, 0)}"
    return report
