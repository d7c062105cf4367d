"""Intermediate tensors of a graph: their values on a batch, and their ranges over a data set.

The runtime reads the graph from a file, so that there is no limit on its size.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.io import save_model
from ortboost.runtime.model_evaluator import ModelEvaluator

__all__ = [
    "AT_A_TIME",
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
    """Open an evaluator of intermediate tensors of a graph, for the duration of the context.

    Args:
        model: The graph; it is not modified.
        names: Intermediate tensors; see :func:`intermediate_floats`.
        device: Where to run.
    """
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
    """Measure the largest magnitude of every intermediate float tensor over all batches.

    Args:
        model: The graph; it is not modified.
        feeds: Calibration data.
        device: Where to run.
    """
    batches = list(feeds)
    names = [value.name or "" for value in intermediate_floats(model)]
    ranges: dict[str, float] = {}
    for start in range(0, len(names), AT_A_TIME):
        with intermediate_evaluator(
            model, names[start : start + AT_A_TIME], device=device
        ) as evaluator:
            for batch in batches:
                for name, array in evaluator.evaluate(batch).items():
                    largest = float(np.abs(array).max(initial=0.0))
                    ranges[name] = max(ranges.get(name, 0.0), largest)
    return ranges
