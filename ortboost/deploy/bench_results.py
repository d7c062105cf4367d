"""The configuration and the results of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np

from ortboost.core.arguments import Configuration
from ortboost.core.field_types import Range, check_kinds
from ortboost.core.shown import Shown
from ortboost.graph.shapes.input_config import InputConfig

__all__ = ["BenchConfig", "Latency", "Measurement", "Ratio"]


_Positive: TypeAlias = Annotated[int, Range(1)]


@dataclass(frozen=True)
class BenchConfig(Configuration):
    """What to measure, and for how long.

    Args:
        batch_sizes: Samples per run, each measured separately; if empty, the size that the model
            fixes, else 1.
        threads: Intra-op threads, each measured separately; None is the runtime's choice.
        warmup: Runs before timing starts.
        iters: Timed runs of each file; None to go by ``seconds``.
        seconds: Approximate time for each file; at least one run in each of three rounds.
        rounds: Number of rounds; each file runs in every round.
        loads: Number of processes in which each file is opened to measure its load time.
        device: ``auto``, ``cpu`` or ``cuda``.
        seed: Seed of synthetic inputs.
        inputs: Lengths of dimensions, values of inputs that are constant over all runs, and batch
            axes.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> BenchConfig(batch_sizes=(1, 32), threads=(1,), seconds=0.5).rounds
        10
    """

    batch_sizes: Sequence[_Positive] = ()
    threads: Sequence[_Positive | None] = (None,)
    warmup: Annotated[int, Range(0)] = 10
    iters: _Positive | None = None
    seconds: Annotated[float, Range(above=0, below=1e9)] = 2.0
    rounds: _Positive = 10
    loads: _Positive = 3
    device: str = "auto"
    seed: int = 0
    inputs: InputConfig = field(default_factory=InputConfig)

    def __post_init__(self) -> None:
        check_kinds(self, "")


@dataclass(frozen=True)
class Latency:
    """Seconds of one run.

    Percentiles are interpolated linearly between the samples (numpy's default): with ``n`` sorted
    samples ``x``, the p-quantile is at the position ``(n - 1) p``.

    Args:
        p50: Median.
        p90: 90th percentile.
        p99: 99th percentile.
        mean: Mean.
        least: Minimum.
        runs: Number of samples.

    Example:
        >>> Latency.of([1.0, 2.0, 3.0, 4.0, 5.0]).p90
        4.6
    """

    p50: float
    p90: float
    p99: float
    mean: float
    least: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """Summarize the durations of one or more runs."""
        p50, p90, p99 = (float(q) for q in np.percentile(seconds, (50, 90, 99)))
        return cls(p50, p90, p99, float(np.mean(seconds)), float(np.min(seconds)), len(seconds))


@dataclass(frozen=True)
class Ratio:
    """The latency of a file over that of the first file.

    Args:
        median: Median over the rounds; the ratio of a round is that of its median latencies.
        low: Lower quartile.
        high: Upper quartile.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> Ratio:
        """Compute it from the samples of two files, round by round."""
        ratios = [np.median(a) / np.median(b) for a, b in zip(above, below, strict=True)]
        low, median, high = (float(q) for q in np.percentile(ratios, (25, 50, 75)))
        return cls(median, low, high)

    @classmethod
    def of_rounds(cls, above: Sequence[float], below: Sequence[float]) -> Ratio:
        """Compute it from one time per round of each of two contestants."""
        return cls.of([[spent] for spent in above], [[spent] for spent in below])

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, repr=False)
class Measurement(Shown):
    """One file at one batch size and number of threads.

    Args:
        file: The file.
        batch: Samples per run.
        threads: Intra-op threads; None is the runtime's choice.
        device: Where it ran.
        latency: Seconds per run.
        throughput: Samples per second: ``batch / latency.mean``.
        load_seconds: Seconds to open the session, median of ``loads`` processes.
        bytes: Size of the file with its external data.
        peak_memory: Peak resident memory of the process in bytes, interpreter included.
        model_memory: Peak memory minus the peak before the model was opened, in bytes.
        ratio: Latency over that of the first file; None for the first file itself.

    Example:
        >>> import ortboost as ob
        >>> config = ob.BenchConfig(iters=3, rounds=1, loads=1, warmup=1, threads=(1,))
        >>> found = ob.bench("models/mlp.onnx", config)[0]  # doctest: +SKIP
        >>> found.throughput, found.latency.p50  # doctest: +SKIP
        (215000.0, 4.6e-06)
    """

    file: str
    batch: int
    threads: int | None
    device: str
    latency: Latency
    throughput: float
    load_seconds: float
    bytes: int
    peak_memory: int
    model_memory: int
    ratio: Ratio | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    def _facts(self) -> dict[str, object]:
        return {
            "file": self.file,
            "batch": self.batch,
            "threads": self.threads,
            "milliseconds": f"{1000 * self.latency.p50:.3g}",
            "samples per second": f"{self.throughput:,.0f}",
            "load seconds": f"{self.load_seconds:.3g}",
            "bytes": f"{self.bytes:,}",
            "memory": f"{self.model_memory:,}",
            "over the first": self.ratio,
        }

    def over(self, first: Measurement) -> dict[str, float | None]:
        """Ratios of the other figures to those of the first file; None where the divisor is 0."""
        # Without throughput, a mean over different times: the ratio of the latencies is better.
        names = ("load_seconds", "bytes", "peak_memory", "model_memory")
        pairs = {name: (getattr(self, name), getattr(first, name)) for name in names}
        return {name: above / below if below else None for name, (above, below) in pairs.items()}
