"""Intermediate tensors of a graph: values on a batch, ranges over data, differences of two graphs.

The runtime reads the graph from a file, so that there is no limit on its size.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.deploy.tolerance import Tolerance
from ortboost.deploy.verify import Difference, compare
from ortboost.graph.io import save_model
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.runtime.model_evaluator import ModelEvaluator

__all__ = [
    "AT_A_TIME",
    "IntermediateDifference",
    "first_difference",
    "intermediate_evaluator",
    "intermediate_floats",
    "measure_ranges",
    "run_intermediates",
]

AT_A_TIME: Final = 64
"""Number of intermediate tensors that are outputs of one session: each takes memory."""

_READABLE = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)  # as numpy arrays


def intermediate_floats(model: ir.Model) -> Iterator[ir.Value]:
    """The float outputs of the nodes of the main graph, in topological order."""
    for node in model.graph:
        for value in node.outputs:
            if value.name and value.dtype in _READABLE:
                yield value


@contextlib.contextmanager
def intermediate_evaluator(
    model: ir.Model, names: Sequence[str], *, device: str = "cpu"
) -> Iterator[ModelEvaluator]:
    """Open an evaluator of these intermediate tensors of a graph, as a context."""
    changed = model.clone()
    values = {value.name: value for node in changed.graph for value in node.outputs}
    changed.graph.outputs[:] = [values[name] for name in names]
    with tempfile.TemporaryDirectory(prefix="ortboost-") as folder:
        path = Path(folder) / "model.onnx"
        save_model(changed, path)
        yield ModelEvaluator(path, device=device)


def run_intermediates(
    model: ir.Model, names: Sequence[str], feeds: Mapping[str, NDArray[Any]], *, device: str = "cpu"
) -> dict[str, NDArray[np.float64]]:
    """Compute intermediate tensors on one batch, as float64; see :func:`intermediate_evaluator`."""
    with intermediate_evaluator(model, names, device=device) as evaluator:
        found = evaluator.evaluate(feeds)
    return {name: np.asarray(array, np.float64) for name, array in found.items()}


def measure_ranges(
    model: ir.Model, feeds: Iterable[Mapping[str, NDArray[Any]]], *, device: str = "cpu"
) -> dict[str, float]:
    """Measure the largest magnitude of every intermediate float tensor over all batches."""
    batches = list(feeds)
    names = [value.name or "" for value in intermediate_floats(model)]
    ranges: dict[str, float] = {}
    for start in range(0, len(names), AT_A_TIME):
        part = names[start : start + AT_A_TIME]
        with intermediate_evaluator(model, part, device=device) as evaluator:
            for batch in batches:
                for name, array in evaluator.evaluate(batch).items():
                    largest = float(np.abs(array).max(initial=0.0))
                    ranges[name] = max(ranges.get(name, 0.0), largest)
    return ranges


@dataclass(frozen=True)
class IntermediateDifference:
    """The first intermediate tensor that differs between two graphs.

    ``node`` of the second graph computes it; ``compared`` is the number of tensors compared.
    """

    difference: Difference
    node: str
    op_type: str
    inputs: tuple[str, ...]
    compared: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "tensor": self.difference.output,
            "max_abs": self.difference.max_abs,
            "max_rel": self.difference.max_rel,
            "node": self.node,
            "op_type": self.op_type,
            "inputs": list(self.inputs),
            "compared": self.compared,
        }


def first_difference(
    one: ir.Model,
    other: ir.Model,
    feeds: Mapping[str, NDArray[Any]],
    tolerance: Tolerance,
    *,
    device: str = "cpu",
) -> IntermediateDifference | None:
    """Compare the intermediate float tensors that two graphs share by name, on one batch of inputs.

    Returns:
        The first tensor beyond the tolerance in the order of the second graph, or ``None``.
    """
    one, other = one.clone(), other.clone()
    for model in (one, other):
        infer_shapes(model)  # files do not always have the types of intermediate tensors
    known = {value.name for value in intermediate_floats(one)}
    shared = [value for value in intermediate_floats(other) if value.name in known]
    for start in range(0, len(shared), AT_A_TIME):
        part = [value.name or "" for value in shared[start : start + AT_A_TIME]]
        want, have = (
            run_intermediates(model, part, feeds, device=device) for model in (one, other)
        )
        for offset, name in enumerate(part):
            found = compare([want], [have], [name], tolerance=tolerance).differences[0]
            if found.within:
                continue
            node = shared[start + offset].producer()
            assert node is not None
            return IntermediateDifference(
                found,
                node.name or "",
                node.op_type,
                tuple(value.name or "" for value in node.inputs if value is not None),
                start + offset + 1,
            )
    return None
