"""``ortboost bench`` as a function."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ortboost.api.stored_batches import Data, refuse_unread
from ortboost.core.arguments import checked
from ortboost.core.cores import available_cores
from ortboost.core.errors import UsageError
from ortboost.deploy.bench import bench_files
from ortboost.deploy.bench_results import BenchConfig, Measurement
from ortboost.deploy.session_inputs import Bind
from ortboost.graph.shapes.batch_axes import find_batch_axes
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.session import runtime
from ortboost.training.data import ArraySource, bind_arrays, load_arrays
from ortboost.training.data.given import given_arrays, holds_arrays

__all__ = ["bench", "bench_to_dict"]


@checked
def bench(
    files: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    config: BenchConfig | None = None,
    *,
    data: Data | None = None,
    mapping: Mapping[str, str] | None = None,
    split: str = "test",
    tell: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """Benchmark ONNX files against each other.

    Args:
        files: One or more files; ratios are relative to the first.
        config: What to measure, and for how long.
        data: A data file, or arrays by name or in order; synthetic inputs if not given.
        mapping: Input name to the key of its array.
        split: The split of a data file that has several.
        tell: Called with a line of progress text.

    Raises:
        UsageError: The data are neither a file nor arrays; or a mapping or a split is given without
            data.
        OrtBoostError: See :func:`ortboost.deploy.bench.bench_files`.

    Example:
        >>> fast, slow = bench(["fast.onnx", "slow.onnx"])  # doctest: +SKIP
        >>> slow.ratio.median  # doctest: +SKIP
        1.7
    """
    refuse_unread(mapping, split, data)
    settled = config or BenchConfig()
    bind: Bind | None = None
    if data is not None:
        path = str(data) if isinstance(data, str | os.PathLike) else None
        loaded = None if path is None else load_arrays(path, split=split)
        if loaded is None and not holds_arrays(data):
            raise UsageError(
                "A benchmark needs a data file or whole arrays.",
                where=f"bench, data: {type(data).__name__}",
                fix="Give a path, {'INPUT': array}, or the arrays in the order of the inputs.",
            )

        def bind(inputs: Sequence[TensorSpec], samples: int) -> dict[str, NDArray[Any]]:
            shapes = {spec.name: spec.shape for spec in inputs}
            given = {k: v for k, v in settled.inputs.batch_axes.items() if k in shapes}
            axes = find_batch_axes(shapes, None, given)
            inputs = [dataclasses.replace(s, batch_axis=axes[s.name]) for s in inputs]
            arrays = given_arrays(data, inputs, mapping) if loaded is None else loaded
            bound = bind_arrays(arrays or {}, inputs, split=split, mapping=mapping, path=path)
            source = ArraySource(bound, samples, inputs=inputs)
            return next(source.epoch(0))

    files = [files] if isinstance(files, str | os.PathLike) else files
    return bench_files(files, settled, bind=bind, tell=tell)


def bench_to_dict(found: Sequence[Measurement], config: BenchConfig) -> dict[str, Any]:
    """Convert measurements to JSON data, including the machine and the options."""
    results = []
    for measurement in found:
        if measurement.ratio is None:  # the first file of a batch size and number of threads
            first = measurement
        ratios = None if measurement is first else measurement.over(first)
        results.append({**measurement.to_dict(), "over_first": ratios})
    options = {
        "warmup": config.warmup,
        "iters": config.iters,
        "seconds": None if config.iters else config.seconds,
        "rounds": config.rounds,
        "loads": config.loads,
        "seed": config.seed,
        "dims": dict(config.inputs.dims),
    }
    machine = {
        "onnxruntime": runtime().__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": available_cores(),
    }
    return {"machine": machine, "options": options, "results": results}
