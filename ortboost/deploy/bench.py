"""Benchmarks of inference files: latency, throughput, load time, size and memory, side by side.

Files are compared within one benchmark and take turns: in each round every file makes several runs,
in an order that rotates from round to round. Disturbances (clock rates, other processes) then
affect all files alike, and the ratio of two files is the median of their per-round ratios. Absolute
times from different benchmarks are not comparable; ratios are.

Latency is the time of one ``session.run`` with inputs and outputs in host memory.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import FileError, UsageError
from ortboost.core.printable import count_of
from ortboost.deploy.bench_results import BenchConfig, Latency, Measurement, Ratio
from ortboost.deploy.bench_worker import Worker
from ortboost.deploy.session_inputs import (
    Bind,
    batch_index,
    fix_specs,
    has_open_batch,
    make_feeds,
    settle_shapes,
    with_batch_axes,
)
from ortboost.graph.io import check_model_file, load_model
from ortboost.graph.query import all_tensors
from ortboost.program.catalogue import TensorSpec

__all__ = ["bench_files", "model_bytes", "plan_turns", "take_turns"]

_ROUGH = 3  # runs for a first estimate of the latency
_LEAST_ROUNDS = 3  # quartiles of fewer ratios are meaningless


def take_turns(
    contestants: Sequence[Callable[[int], list[float]]],
    counts: Sequence[int],
    rounds: int,
    pause: Callable[[], None] = lambda: time.sleep(0.02),
) -> list[list[list[float]]]:
    """Run all contestants in every round, rotating who goes first.

    Args:
        contestants: Functions from a number of runs to the duration of each run in seconds.
        counts: Runs per round of each contestant.
        rounds: Number of rounds.
        pause: Called before each turn, so that the idle threads of the previous contestant stop
            spinning.

    Returns:
        Seconds, indexed by contestant, round and run.

    Example:
        >>> take_turns([lambda n: [1.0] * n, lambda n: [2.0] * n], [2, 1], 2, pause=lambda: None)
        [[[1.0, 1.0], [1.0, 1.0]], [[2.0], [2.0]]]
    """
    found: list[list[list[float]]] = [[] for _ in contestants]
    for turn in range(rounds):
        for place in range(len(contestants)):
            index = (place + turn) % len(contestants)
            pause()
            found[index].append(contestants[index](counts[index]))
    return found


def plan_turns(config: BenchConfig, latencies: Sequence[float]) -> tuple[list[int], int]:
    """Choose the runs per round of each file, from its approximate latency, and the rounds.

    Example:
        >>> plan_turns(BenchConfig(seconds=2.0, rounds=10), [0.01, 0.1])
        ([20, 2], 10)
        >>> plan_turns(BenchConfig(iters=25, rounds=10), [0.01])  # 30 runs: rounds are equal
        ([3], 10)
    """
    if config.iters is not None:
        rounds = min(config.rounds, config.iters)
        return [math.ceil(config.iters / rounds)] * len(latencies), rounds
    fitting = int(config.seconds / max(latencies))  # runs of the slowest
    rounds = min(config.rounds, max(fitting, _LEAST_ROUNDS))
    return [max(int(config.seconds / rounds / spent), 1) for spent in latencies], rounds


def model_bytes(path: Path) -> int:
    """Size of a model file with its files of external data, each counted once."""
    size = path.stat().st_size
    try:
        model = load_model(path, weights=False)
    except FileError:  # runtime formats other than ONNX have no external data
        return size
    beside = {
        tensor.location for _, tensor in all_tensors(model) if isinstance(tensor, ir.ExternalTensor)
    }
    for location in beside:
        with contextlib.suppress(OSError):
            size += (path.parent / location).stat().st_size
    return size


def bench_files(
    files: Sequence[str | os.PathLike[str]],
    config: BenchConfig | None = None,
    *,
    bind: Bind | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Measurement]:
    """Benchmark several files together.

    Args:
        files: ONNX files. Ratios are relative to the first; listing a file twice shows the noise.
        config: What to measure, and for how long; the defaults if not given.
        bind: Provides the inputs; synthetic inputs if not given.
        tell: Called with a line of progress text.

    Returns:
        Measurements ordered by batch size, then threads, then file.

    Raises:
        FileError: A file is missing or is not a model.
        ModelError: The runtime rejects a file, or crashed on it.
        UsageError: Shapes or data do not fit, or a model does not accept the batch size.
        DependencyError: The device is not available.
    """
    config = config or BenchConfig()
    paths = [Path(file) for file in files]
    if not paths:
        raise UsageError("Nothing to measure.", where="files", fix="Give an ONNX file.")
    for path in paths:
        if path.is_dir():
            raise FileError(
                "A folder was given where an ONNX file is needed.",
                where=str(path),
                fix="Give an inference file; 'ortboost export RUN -o model.onnx' makes one.",
            )
        check_model_file(path)
    sizes = [model_bytes(path) for path in paths]
    found = []
    for threads in config.threads:
        loads = _load_times(paths, config, threads)
        for batch in config.batch_sizes or (None,):
            shown = "all threads" if threads is None else count_of(threads, "thread")
            tell(f"batch {batch or 'of the model'}, {shown} ...")
            found.append(_cell(paths, sizes, loads, config, batch, threads, bind))
    # By batch size first, which keeps comparable rows together.
    cells = sorted(found, key=lambda cell: cell[0].batch)
    return [measurement for cell in cells for measurement in cell]


def _load_times(
    paths: Sequence[Path], config: BenchConfig, threads: int | None
) -> list[list[float]]:
    """Measure load times in fresh processes; the last load is the one of the measurement itself."""
    seconds: list[list[float]] = [[] for _ in paths]
    # In turns, as for latencies: disturbances affect all files alike.
    for turn in range(config.loads - 1):
        for place in range(len(paths)):
            index = (place + turn) % len(paths)
            with Worker(paths[index], device=config.device, threads=threads) as worker:
                seconds[index].append(worker.load_seconds)
    return seconds


def _cell(
    paths: Sequence[Path],
    sizes: Sequence[int],
    loads: Sequence[Sequence[float]],
    config: BenchConfig,
    size: int | None,
    threads: int | None,
    bind: Bind | None,
) -> list[Measurement]:
    """All files at one batch size and number of threads."""
    # One process for each file; all stay open, so that the files can take turns.
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(path, device=config.device, threads=threads))
            for path in paths
        ]
        fixed = [
            fix_specs(with_batch_axes(worker.inputs, config.inputs), config.inputs)
            for worker in workers
        ]
        batch = _batches(
            [(str(w.model), inputs) for w, (inputs, _) in zip(workers, fixed, strict=True)], size
        )
        for worker, (inputs, constants) in zip(workers, fixed, strict=True):
            feeds = make_feeds(inputs, batch, bind=bind, seed=config.seed, where=str(worker.model))
            worker.feed({**feeds, **constants})
        # The runs after the warm-up give a rough latency, to plan the measurement with.
        rough = [
            float(np.median(worker.run(config.warmup + _ROUGH)[-_ROUGH:])) for worker in workers
        ]
        counts, rounds = plan_turns(config, rough)
        samples = take_turns([worker.run for worker in workers], counts, rounds)
        peaks = [worker.peak() for worker in workers]
    latencies = [Latency.of([spent for turn in turns for spent in turn]) for turns in samples]
    return [
        Measurement(
            file=str(worker.model),
            batch=batch,
            threads=threads,
            device=worker.device,
            latency=latencies[index],
            throughput=batch / latencies[index].mean,
            load_seconds=float(np.median([*loads[index], worker.load_seconds])),
            bytes=sizes[index],
            peak_memory=peaks[index],
            model_memory=max(peaks[index] - worker.baseline, 0),
            ratio=Ratio.of(samples[index], samples[0]) if index else None,
        )
        for index, worker in enumerate(workers)
    ]


def _batches(models: Sequence[tuple[str, Sequence[TensorSpec]]], size: int | None) -> int:
    """Samples per run; it must be the same for all files to make their times comparable."""
    fixed = {}
    for file, inputs in models:
        if not has_open_batch(inputs):
            settled = settle_shapes(inputs, 1, where=file)  # names other open dimensions first
            places = ((spec, batch_index(spec)) for spec in settled)
            lengths = (spec.shape[axis] for spec, axis in places if axis is not None)
            fixed[file] = next((int(length or 1) for length in lengths), 1)
    wanted = size or next(iter(fixed.values()), 1)  # else that of a file that fixes it
    for file, length in fixed.items():
        if length != wanted:
            raise UsageError(
                f"The batch size is fixed at {length}, and {wanted} "
                f"{'was requested' if size else 'is that of another file'}.",
                where=file,
                fix="Measure it by itself, or leave the batch dimension open: in the file, and in "
                "--dim.",
            )
    return wanted
