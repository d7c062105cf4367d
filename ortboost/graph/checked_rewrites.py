"""A debugging aid for authors of rewrites: check the graph after each rewrite.

With ``ORTBOOST_CHECK_REWRITES=1`` in the environment, ``onnx.checker`` checks the whole graph after
every rewrite and boost of a conversion, and after every step of the export pipeline: undefined
names, nodes in the wrong order, unknown attributes and operators. The error names the first rewrite
that leaves an invalid graph; otherwise a runtime would reject the result a hundred rewrites later.
Conversion takes several times as long.
"""

from __future__ import annotations

import os

import onnx
import onnx_ir as ir

from ortboost.core.errors import OrtBoostError, all_lines

__all__ = ["VARIABLE", "check_rewritten"]

VARIABLE = "ORTBOOST_CHECK_REWRITES"
_TRAINING = "onnxruntime.training"
_LARGEST = 1 << 31  # bytes of a protobuf message


def check_rewritten(model: ir.Model, rewrite: str) -> None:
    """Reject a graph that a rewrite has broken; without the environment variable, do nothing.

    Operators of domains unknown to ``onnx`` are not checked.

    Raises:
        OrtBoostError: The graph is not valid ONNX.

    Example:
        >>> model = ir.Model(ir.Graph([], [], nodes=[], name="g"), ir_version=10)
        >>> check_rewritten(model, "fold_bn")  # the switch is off
    """
    if os.environ.get(VARIABLE, "") in ("", "0"):
        return
    try:
        proto = ir.to_proto(model)
        proto.opset_import.add(domain=_TRAINING, version=1)
        for node in proto.graph.node:
            if node.op_type.endswith("Grad") and node.domain in ("", "ai.onnx"):
                node.domain = _TRAINING  # such as MaxPoolGrad: only in onnxruntime-training
        if proto.ByteSize() < _LARGEST:
            onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError, TypeError) as error:
        raise OrtBoostError(
            f"The rewrite '{rewrite}' leaves an invalid ONNX graph.",
            where=all_lines(error, 400),
            fix="This is a bug in the rewrite, not in the model: please report it, unless it is "
            "your own.",
        ) from error
