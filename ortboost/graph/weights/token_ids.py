"""Inputs whose values are the numbers of rows of an embedding table, or of classes.

A negative one selects a row, or a class, from the end, in ONNX and onnxruntime. ``nn.Embedding``
and ``gather`` of torch, with which losses pick the score of a label, refuse it. Usually it is an
ignored label or marks a missing value, fed to the wrong input.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import FLOAT_TYPES, constant, is_standard, known_shape
from ortboost.graph.weights.origins import made_by_torch

__all__ = ["token_inputs"]

_MOVING = (
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
)
_SHAPES = ("Shape", "Size")


def token_inputs(model: ir.Model) -> dict[str, int]:
    """Input to the number of rows of the smallest table that its values select.

    An input with another use is left out, except for a comparison with a padding token: its
    negative values may have a meaning.
    """
    if not made_by_torch(model):
        return {}
    found = {value.name or "": _rows(value) for value in model.graph.inputs}
    return {name: rows for name, rows in found.items() if rows}


def _rows(ids: ir.Value) -> int:
    """The number of rows; 0 if the values are, or may be, something else."""
    rows: list[int] = []
    waiting = [ids]
    while waiting:
        for node, index in waiting.pop().uses():
            table = node.inputs[0]
            if is_standard(node, "Gather") and index == 1 and table is not None:
                shape = known_shape(table)
                named = f".{table.name}".endswith(".weight")  # not `class_weight[ids]` in the code
                weight = table.is_initializer() and table.dtype in FLOAT_TYPES and named
                first = node.attributes.get_int("axis", 0) == 0
                if not weight or not first or shape is None or not isinstance(shape[0], int):
                    return 0
                rows.append(shape[0])
            elif is_standard(node, "GatherElements") and index == 1:
                shape = known_shape(table)
                length = shape and shape[node.attributes.get_int("axis", 0)]
                if not isinstance(length, int):
                    return 0
                rows.append(length)
            elif is_standard(node, "Equal"):  # with the padding token, for a mask
                number = constant(node.inputs[1 - index])
                if number is None or (number < 0).any():
                    return 0
            elif is_standard(node, *_MOVING) and index == 0:
                waiting += node.outputs
            elif not is_standard(node, *_SHAPES):
                return 0
    return min(rows, default=0)
