"""A switch for those who write rewrites: look at the graph after each one.

With ``ORTBOOST_CHECK_REWRITES=1`` in the environment, ``onnx.checker`` looks at the whole graph after every rewrite
and boost of a conversion, and after every step of the pipeline of an export: names that nobody makes,
nodes before what they read, attributes and operators that do not exist. The first rewrite that leaves such a
graph is named, where without it a runtime refuses the result a hundred rewrites later. It takes
several times as long.
"""

from __future__ import annotations

import os

import onnx
import onnx_ir as ir

from ortboost.core.errors import OrtBoostError

__all__ = ["VARIABLE", "check_rewritten"]

VARIABLE = "ORTBOOST_CHECK_REWRITES"
_TRAINING = "onnxruntime.training"
_LONGEST = 1 << 31  # bytes of a protobuf message


def check_rewritten(model: ir.Model, rewrite: str) -> None:
    """Refuse a graph that a rewrite has broken; without the switch, do nothing.

    Operators of domains that ``onnx`` does not know are taken as they are.

    Args:
        model: The graph as the rewrite left it.
        rewrite: Its name, for the error.

    Raises:
        OrtBoostError: The graph is no valid ONNX.

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
                node.domain = _TRAINING  # MaxPoolGrad and its kind: of onnxruntime-training only
        if proto.ByteSize() < _LONGEST:
            onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError, TypeError) as error:
        raise OrtBoostError(
            f"The rewrite '{rewrite}' leaves a graph that is no valid ONNX.",
            where=" ".join(str(error).split())[:400],
            fix="That is a bug of the rewrite, not of the model: please report it, unless it is your own.",
        ) from error
