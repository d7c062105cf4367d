"""How time and memory of a step grow with a network: ours against PyTorch eager.

A Transformer encoder is varied in one dimension at a time: layers, width, tokens, samples. Both
make steps in turns, each in its own process, on the same weights and batch; *growth* is the figure
of a row divided by that of the first row of its group. Ours may grow at most as PyTorch does.

Examples:
    Processor time of one thread, with an interpreter that has PyTorch and onnxruntime::

        python -m tools.bench.growth
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortboost.deploy.bench import take_turns
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tools.bench.engines import Contestant, large_files
from tools.bench.report import parser_of, publish, say
from tools.bench.step import require_same_loss

__all__ = ["main"]

_BASE = {"layers": 4, "width": 256, "tokens": 128, "samples": 8}
_VARIED = {
    "layers": (2, 4, 8, 16),
    "width": (128, 256, 512),
    "tokens": (64, 128, 256, 512),
    "samples": (1, 8, 32),
}


def _measure(point: dict[str, int], rounds: int, folder: Path) -> dict[str, Any]:
    """Milliseconds and MiB of one size, for both."""
    name = f"encoder-{point['layers']}x{point['width']}x{point['tokens']}"
    model, feeds = large_files(name, point["samples"], folder)
    program = build_program(model, ProgramConfig(engine="portable"))
    saved = program.save(folder / f"{name}-{point['samples']}")
    settings = {
        "model": name,
        "large": True,
        "feeds": str(feeds),
        "folder": str(saved),
        "batch": point["samples"],
        "threads": 1,
        "clock": "cpu",
    }
    contestants = {who: Contestant(sys.executable, who, settings) for who in ("portable", "torch")}
    require_same_loss(name, {who: c.about["loss"] for who, c in contestants.items()})
    counts = [max(int(0.3 / c.about["seconds"]), 1) for c in contestants.values()]
    turns = take_turns([c.seconds for c in contestants.values()], counts, rounds)
    found: dict[str, Any] = {}
    for (who, contestant), spent in zip(contestants.items(), turns, strict=True):
        seconds = statistics.median(one for turn in spent for one in turn)
        found[who] = {"ms": 1000 * seconds, "MiB": contestant.end()["rise"]}
    return found


def _rows(axis: str, results: Sequence[tuple[int, dict[str, Any]]]) -> list[list[str]]:
    first = results[0][1]
    rows = []
    for length, found in results:
        row = [f"{axis} {length}"]
        for unit in ("ms", "MiB"):
            ours, torch = found["portable"][unit], found["torch"][unit]
            growth = ours / first["portable"][unit], torch / first["torch"][unit]
            row += [f"{ours:.0f}", f"{torch:.0f}", f"{ours / torch:.2f}"]
            row.append(f"{growth[0]:.1f}, {growth[1]:.1f}")
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of both (default: 5)")
    parser.add_argument("--axis", action="append", choices=tuple(_VARIED), help="default: all")
    options = parser.parse_args(argv)
    rows, everything = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        for axis in options.axis or _VARIED:
            results = []
            for length in _VARIED[axis]:
                say(f"{axis} {length} ...")
                point = {**_BASE, axis: length}
                results.append((length, _measure(point, options.rounds, Path(scratch))))
            rows += _rows(axis, results)
            everything[axis] = results
    base = ", ".join(f"{length} {axis}" for axis, length in _BASE.items())
    note = f"Otherwise {base}; one thread, processor time, {options.rounds} rounds."
    heads = ["", "ms", "torch ms", "ratio", "growth: ours, torch"]
    heads += ["MiB", "torch MiB", "ratio", "growth: ours, torch"]
    publish(heads, rows, note, options.json, results=everything)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
