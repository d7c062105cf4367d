"""Inputs for a comparison where no data are given, drawn from what the graph itself says of their range.

Integers that pick rows of a stored table (token ids) are drawn from all its rows; other integers are zeros
and ones (masks); floats are normal. Open lengths are four, and 64 for the height and width of an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.deploy.verify import seeded_batch
from ortboost.program.catalogue import TensorSpec

__all__ = ["input_ranges", "made_up_feeds"]

_IMAGE = 64
_SAME_NUMBER = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")


def input_ranges(model: ir.Model) -> dict[str, int]:
    """Integer input to the number of rows of the smallest table that it picks from.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["" : 18]> net (int64[n] ids, float[7,2] table)
        ...     => (float[n,2] y) { y = Gather(table, ids) }'''
        >>> input_ranges(ir.from_onnx_text(text))
        {'ids': 7}
    """
    ranges: dict[str, int] = {}
    for value in model.graph.inputs:
        pending, seen = [value], set[int]()
        while pending:
            current = pending.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            for usage in current.uses():
                node = usage.node
                if node.op_type == "Gather" and usage.idx == 1:
                    data, axis = node.inputs[0], node.attributes.get_int("axis", 0)
                    rows = None if data is None or data.shape is None else data.shape[axis]
                    if isinstance(rows, int) and rows > 0:
                        name = value.name or ""
                        ranges[name] = min(rows, ranges.get(name, rows))
                elif node.op_type in _SAME_NUMBER and usage.idx == 0:
                    pending.extend(node.outputs)
    return ranges


def made_up_feeds(
    inputs: Sequence[TensorSpec],
    *,
    ranges: Mapping[str, int] | None = None,
    seed: int = 0,
    batch: int = 4,
) -> dict[str, NDArray[Any]]:
    """One batch of made-up inputs.

    Args:
        inputs: What the graph takes.
        ranges: See :func:`input_ranges`.
        seed: Seed.
        batch: Length of open dimensions.
    """
    images = {
        dim
        for spec in inputs
        if spec.dtype.kind == "f" and len(spec.shape) == 4
        for dim in spec.shape[2:]
        if isinstance(dim, str)
    }
    settled = [
        TensorSpec(
            spec.name,
            spec.dtype,
            tuple(
                _IMAGE
                if dim in images
                or (dim is None and axis > 1 and len(spec.shape) == 4 and spec.dtype.kind == "f")
                else dim
                for axis, dim in enumerate(spec.shape)
            ),
        )
        for spec in inputs
    ]
    made = seeded_batch(settled, seed=seed, batch=batch)
    generator = np.random.default_rng(seed + 1)
    for spec in settled:
        rows = (ranges or {}).get(spec.name)
        if rows is not None and spec.dtype.kind in "iu":
            top = min(rows, int(np.iinfo(spec.dtype).max))
            made[spec.name] = generator.integers(0, top, made[spec.name].shape).astype(spec.dtype)
    return made
