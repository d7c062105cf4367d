"""The inner tensors of a graph: their values on a batch, and the range that they have on data.

A graph is saved and read by the runtime from the file, so that its size does not matter.
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

__all__ = ["AT_A_TIME", "inner_evaluator", "inner_floats", "measure_ranges", "run_inner"]

AT_A_TIME: Final = 64
"""Inner tensors that are made outputs of one session: their memory adds up."""

_READABLE = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)  # as numpy arrays


def inner_floats(model: ir.Model) -> Iterator[ir.Value]:
    """The float tensors that the nodes of the main graph make, in the order of computation."""
    for node in model.graph:
        for value in node.outputs:
            if value.name and value.dtype in _READABLE:
                yield value


@contextlib.contextmanager
def inner_evaluator(
    model: ir.Model, names: Sequence[str], *, device: str = "cpu"
) -> Iterator[ModelEvaluator]:
    """Run a graph for its inner tensors, while the context lasts.

    Args:
        model: The graph; it is not changed.
        names: Inner tensors, see :func:`inner_floats`.
        device: Where to run.
    """
    changed = model.clone()
    values = {value.name: value for node in changed.graph for value in node.outputs}
    changed.graph.outputs[:] = [values[name] for name in names]
    with tempfile.TemporaryDirectory(prefix="ortboost-") as folder:
        path = Path(folder) / "model.onnx"
        save_model(changed, path)
        yield ModelEvaluator(path, device=device)


def run_inner(
    model: ir.Model,
    names: Sequence[str],
    feeds: Mapping[str, NDArray[Any]],
    *,
    device: str = "cpu",
) -> dict[str, NDArray[np.float64]]:
    """Values of inner tensors on one batch, as float64; see :func:`inner_evaluator`."""
    with inner_evaluator(model, names, device=device) as evaluator:
        found = evaluator.evaluate(feeds)
    return {name: np.asarray(array, np.float64) for name, array in found.items()}


def measure_ranges(
    model: ir.Model, feeds: Iterable[Mapping[str, NDArray[Any]]], *, device: str = "cpu"
) -> dict[str, float]:
    """The largest magnitude of every inner float tensor over all batches.

    Args:
        model: The graph; it is not changed.
        feeds: Calibration data.
        device: Where to run.
    """
    batches = list(feeds)
    names = [value.name or "" for value in inner_floats(model)]
    ranges: dict[str, float] = {}
    for start in range(0, len(names), AT_A_TIME):
        with inner_evaluator(model, names[start : start + AT_A_TIME], device=device) as evaluator:
            for batch in batches:
                for name, array in evaluator.evaluate(batch).items():
                    largest = float(np.abs(array).max(initial=0.0))
                    ranges[name] = max(ranges.get(name, 0.0), largest)
    return ranges
