"""What the benchmarks share: the machine and the versions they ran on, tables, JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "CLOCKS",
    "MODELS",
    "PAUSE",
    "ROOT",
    "check_timing",
    "environment",
    "heading",
    "parser_of",
    "publish",
    "say",
    "table",
    "timing_parser_of",
    "torchrun",
    "write_json",
]

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("mlp", "lenet5", "resnet20", "resnet_bottleneck", "mobilenet_like", "transformer_tiny")
"""The networks of ``models/``."""
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
PAUSE = 0.05
"""Seconds in which the idle threads of the candidate before stop spinning."""

_PACKAGES = (
    "onnxruntime-training-cpu",
    "onnxruntime-training",
    "onnx",
    "onnx-ir",
    "numpy",
    "torch",
)


def environment() -> dict[str, Any]:
    """Processor, number of cores it may use, versions, commit."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(),
    }


def heading(about: dict[str, Any]) -> str:
    """One line on :func:`environment`."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['cpu']}, {about['cores']} cores; Python {about['python']}, {versions}; "
        f"commit {about['commit']}"
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are aligned to the right.

    Example:
        >>> print(table(("a", "b"), [("x", "1")]))
        | a | b |
        |:--|--:|
        | x | 1 |
    """
    widths = [max(len(str(row[i])) for row in (heads, *rows)) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            str(cell).ljust(width) if index == 0 else str(cell).rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = [":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])]
    return "\n".join([line(heads), "|" + "|".join(rule) + "|", *(line(row) for row in rows)])


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a script: its docstring is the help, and it can write its numbers as JSON."""
    spec = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(
        prog=f"python -m {spec.name}" if spec else None,
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    return parser


def timing_parser_of(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """The parser of a script that times steps in turns; see :func:`check_timing`."""
    parser = parser_of(doc)
    parser.add_argument("--batch", type=int, default=32, help="samples in a step (default: 32)")
    parser.add_argument("--threads", type=int, default=2, help="default: 2")
    text = f"rounds, in each of which every candidate runs once (default: {rounds})"
    parser.add_argument("--rounds", type=int, default=rounds, help=text)
    text = "time for each candidate in a round (default: 0.2)"
    parser.add_argument("--seconds", type=float, default=0.2, help=text)
    text = "cpu: processor time, steadier on a busy machine; for one thread (default: wall)"
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help=text)
    return parser


def check_timing(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the script if its figures would mean nothing."""
    if options.rounds < 2:
        parser.error("quartiles need at least 2 rounds")
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu counts the waiting of further threads: use it with --threads 1")


def publish(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    /,
    note: str = "",
    path: Path | None = None,
    **numbers: Any,
) -> None:
    """Print the machine, a note and a table; write the numbers as JSON if there is a path."""
    about = environment()
    print(heading(about))
    print(note and f"{note}\n")
    print(table(heads, rows))
    if path is not None:
        write_json(path, {"environment": about, **(numbers or {"heads": heads, "rows": rows})})


def torchrun(module: str, processes: int, *arguments: str) -> None:
    """Run a module as processes of one thread each on this machine, and wait for their end."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "-m", module, *arguments]
    subprocess.run(command, env=variables, check=True)


def say(*texts: object) -> None:
    """Print the progress of a benchmark."""
    print(*texts, file=sys.stderr, flush=True)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write the numbers for other programs."""
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown processor"
    fields = dict(
        (part.strip() for part in line.split(":", 1))
        for line in text.partition("\n\n")[0].splitlines()
        if ":" in line
    )
    family = f"family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    return f"{fields.get('model name', 'unknown processor')} ({family})"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"
