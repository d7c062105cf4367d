"""Evaluate a node with known inputs, and store an array as an initializer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

__all__ = ["add_initializer", "evaluate_node", "is_inexact"]

_INEXACT: Final = frozenset(
    "AveragePool BatchNormalization ConvTranspose GRU GlobalMaxPool GridSample LRN LSTM "
    "LpNormalization LpPool MaxPool MaxUnpool RNN Resize".split()
)
"""Operators for which the reference implementation is known to differ from the runtimes.

Some of their forms have other values (a norm of ``sum(x)`` instead of ``sum(|x|)``, activations and
directions that are ignored, other pixel positions), some other shapes.
"""
_EXACT_NORM: Final = 14  # before, the reference normalizes by the statistics of the batch


def is_inexact(node: ir.Node, opset: int) -> bool:
    """Whether the reference implementation is known to differ from the runtimes for a node."""
    if node.op_type == "BatchNormalization" and opset >= _EXACT_NORM:
        return node.attributes.get_int("training_mode", 0) == 1
    return node.domain in ("", "ai.onnx") and node.op_type in _INEXACT


def evaluate_node(
    node: ir.Node, feeds: Mapping[str, NDArray[Any]], opset: int
) -> list[NDArray[Any]] | None:
    """Compute the outputs of a standard node of an opset with the reference implementation of ONNX.

    ``None`` if it cannot compute them, or not exactly (other checks report invalid nodes).
    """
    if is_inexact(node, opset):
        return None
    empty = onnx.helper.make_empty_tensor_value_info
    outputs = [empty(value.name or "") for value in node.outputs]
    graph = onnx.helper.make_graph(
        [ir.to_proto(node)], "node", [empty(name) for name in feeds], outputs
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        with np.errstate(all="ignore"):  # the logarithm of 0 is -inf, as in a runtime
            found = cast("list[Any]", ReferenceEvaluator(proto).run(None, dict(feeds)))
    except Exception:
        return None
    return [np.asarray(array) for array in found]


def add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Add an array to a graph as an initializer and return it; the name must be free."""
    tensor = ir.tensor(np.array(array, order="C"), name=name)  # keeps 0 dimensions
    value = ir.val(name, const_value=tensor)
    graph.register_initializer(value)
    return value
