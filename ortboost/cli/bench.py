"""``ortboost bench``: measure models side by side; the tables of the result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal as decimal_size

from ortboost.cli.command import Options, option, verb
from ortboost.cli.console import Output
from ortboost.cli.options import Device, InputOptions, Map, Shape, Split

__all__ = ["bench"]

_REST = ("load", "size", "memory", "the model's part")
_REST_KEYS = ("load_seconds", "bytes", "peak_memory", "model_memory")


@dataclass(frozen=True)
class BenchOptions(Options):
    """Fields of a :class:`~ortboost.deploy.bench_results.BenchConfig`."""

    batch_sizes: list[int] | None = option("Samples per run (repeatable).", "--batch-size", min=1)
    threads: list[int] | None = option(
        "Intra-op threads (repeatable); default: the runtime's choice.", min=1
    )
    warmup: int = option("Warm-up runs, which are not measured.", default=10, min=0)
    iters: int | None = option("Measured runs of each file; overrides --seconds.", min=1)
    seconds: float = option("Approximate measuring time for each file.", default=2.0)
    rounds: int = option("Number of rounds; each file runs in every round.", default=10, min=1)
    loads: int = option(
        "Number of processes that load each file, for the load time.", default=3, min=1
    )
    seed: int = option("Seed of synthetic inputs.", default=0, min=0)
    device: Device = "auto"


@verb(
    "bench",
    "Measure latency, memory and size of models side by side.",
    examples="""\b
Examples:
  ortboost bench model.opt.onnx
  ortboost bench raw.onnx opt.onnx --batch-size 1 --batch-size 32 --threads 1
  ortboost bench bert.onnx --dim sequence=128 --batch-size 8 --json
  ortboost bench raw.onnx opt.onnx --data val.npz --iters 200
\b
The files take turns, each in its own process. Compare ratios, not figures of different runs.""",
)
def bench(
    files: Annotated[
        list[Path], typer.Argument(help="ONNX files; ratios are relative to the first.")
    ],
    data: Path | None = option("Data to run on; synthetic inputs if not given."),
    *,
    options: BenchOptions,
    mapping: Map = None,
    inputs: InputOptions,
    shape: Shape = None,
    split: Split = "test",
    printer: Output,
) -> None:
    """Measure latency, throughput, load time, size and memory of models, side by side."""
    from ortboost.api import bench as measure
    from ortboost.api.bench_models import bench_to_dict
    from ortboost.cli.parse import parse_mapping, parse_shapes
    from ortboost.deploy.bench_results import BenchConfig

    shapes = [*(inputs.dim or ()), *parse_shapes(shape)]
    config = BenchConfig(**options.given(), inputs=dataclasses.replace(inputs, dim=shapes).config())
    found = measure(
        files,
        config,
        data=data,
        mapping=parse_mapping(mapping or []),
        split=split,
        tell=(lambda text: None) if printer.quiet else lambda text: typer.echo(text, err=True),
    )
    result = bench_to_dict(found, config)
    printer.result(result)
    names = _short([str(path) for path in files])
    # Results are in groups of all files, one group for each batch size and number of threads.
    rows = [(row, names[index % len(names)]) for index, row in enumerate(result["results"])]
    where = result["machine"]
    printer.line(
        f"onnxruntime {where['onnxruntime']}, Python {where['python']}, {where['processor']}, "
        f"{where['cores']} cores, device {found[0].device}, "
        f"{'data' if data else 'synthetic inputs'}\n"
    )
    printer.table(
        ["file", "batch", "threads", "p50 ms", "p90 ms", "p99 ms", "runs", "samples/s", *_REST],
        [_figures(row, name) for row, name in rows],
    )
    if len(files) > 1:
        printer.line("\nAs ratios to the first file; below 1 is less:")
        printer.table(
            ["file", "batch", "threads", "latency (quartiles)", *_REST],
            [_ratios(row, name) for row, name in rows if row["over_first"]],
        )


def _figures(row: dict[str, Any], name: str) -> list[Any]:
    latency = row["latency"]
    return [
        name,
        row["batch"],
        row["threads"] or "all",
        *(f"{1000 * latency[key]:.3g}" for key in ("p50", "p90", "p99")),
        latency["runs"],
        f"{row['throughput']:,.0f}" if row["throughput"] >= 10 else f"{row['throughput']:.2g}",
        f"{1000 * row['load_seconds']:.3g} ms",
        *(decimal_size(row[key]) for key in _REST_KEYS[1:]),
    ]


def _ratios(row: dict[str, Any], name: str) -> list[Any]:
    ratio, over = row["ratio"], row["over_first"]
    return [
        name,
        row["batch"],
        row["threads"] or "all",
        f"{ratio['median']:.3g} ({ratio['low']:.3g}-{ratio['high']:.3g})",
        *("?" if over[key] is None else f"{over[key]:.3g}" for key in _REST_KEYS),
    ]


def _short(paths: list[str]) -> list[str]:
    """File names, or full paths if the names are not unique."""
    names = [Path(path).name for path in paths]
    return names if len(set(names)) == len(set(paths)) else paths
