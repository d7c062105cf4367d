"""The exported file against its neighbours: nodes, size, load time, latency, error, in one run.

Every model in ``models/`` (converted, its evaluation graph with the weights inside) and every file
of a folder that ``python -m tools.bench.networks`` made is optimized in five ways:

``raw``
    not at all: the graph as the exporter of PyTorch, or the training program, has it;
``onnxscript``, ``onnxslim``, ``onnxsim``
    by those packages with their defaults. The last two are run by an interpreter of an environment
    of their own (``--other-python``); without one they are left out;
``ours``
    by ``ortboost export`` for the target ``onnxruntime``, its comparison included.

All files of a model are then run in turns, one thread, processor time, in an order that changes
from round to round, and all sessions are opened anew several times, because where the weights come
to lie in memory makes a difference of a few percent. A ratio is the median of the ratios of the
rounds, quartiles in brackets. The error is the largest difference from ``raw``, over the largest
value of the output.

Examples:
    The shipped models only::

        python -m tools.bench.deploy --other-python ENV/bin/python

    And four networks of usual size::

        python -m tools.bench.networks --out NETWORKS
        python -m tools.bench.deploy --other-python ENV/bin/python --networks NETWORKS --work WORK
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import optimizer

from ortboost import api
from ortboost.deploy.bench_results import Ratio
from ortboost.deploy.strip import inference_model
from ortboost.deploy.synthetic_inputs import input_ranges
from ortboost.graph.io import load_model, save_model
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.session import open_session
from tools.bench.report import ROOT, environment, heading, parser_of, table, write_json

__all__ = ["WAYS", "Result", "main", "measure"]

WAYS = ("raw", "onnxscript", "onnxslim", "onnxsim", "ours")
_MODELS = ROOT / "models"
_ELSEWHERE = """
import sys, onnx
way, source, target = sys.argv[1:]
if way == "onnxslim":
    import onnxslim
    model = onnxslim.slim(source)
else:
    import onnxsim
    model, same = onnxsim.simplify(source)
    assert same, "its own check failed"
onnx.save(model, target)
"""


@dataclass
class Result:
    """What was measured of one file.

    Args:
        way: How it was made.
        nodes: Number of nodes.
        contrib: Number of nodes that are no standard operators.
        size: Bytes.
        error: Largest difference from ``raw``, relative.
        load: Seconds to open a session, the fastest.
        times: Seconds of each round.
        failed: Why there is no file.
    """

    way: str
    nodes: int = 0
    contrib: int = 0
    size: int = 0
    error: float = 0.0
    load: float = float("inf")
    times: list[float] = field(default_factory=list)
    failed: str = ""


def make(way: str, raw: Path, target: Path, other: Path | None) -> str:
    """Optimize a file in one way; returns why it failed, or nothing."""
    if target.is_file():
        return ""
    try:
        if way == "onnxscript":
            model = ir.load(raw)
            optimizer.optimize_ir(model)
            ir.save(model, target)
        elif way == "ours":
            api.export(raw, target, device="cpu")
        elif other is None:
            return "no --other-python"
        else:
            words = [str(other), "-c", _ELSEWHERE, way, str(raw), str(target)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                return done.stderr.strip().splitlines()[-1][:100]
    except Exception as error:  # a neighbour that fails is a result, too
        return f"{type(error).__name__}: {error}"[:100]
    return ""


def feeds_for(raw: Path, batch: int, length: int) -> dict[str, NDArray[Any]]:
    """Made-up inputs of one batch."""
    model = load_model(raw)
    ranges = input_ranges(model)
    generator = np.random.default_rng(0)
    feeds: dict[str, NDArray[Any]] = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        assert value.dtype is not None
        name = value.name or ""
        shape = [
            d if isinstance(d, int) else (batch if axis == 0 else length)
            for axis, d in enumerate(value.shape)
        ]
        dtype = value.dtype.numpy()
        if dtype.kind == "f":
            feeds[name] = generator.standard_normal(shape).astype(dtype)
        else:
            top = ranges.get(name)
            feeds[name] = (
                np.ones(shape, dtype)
                if top is None
                else generator.integers(0, top, shape).astype(dtype)
            )
    return feeds


def measure(
    files: Mapping[str, Path], feeds: Mapping[str, NDArray[Any]], rounds: int, openings: int
) -> dict[str, Result]:
    """Open and run all files in turns.

    Args:
        files: Way to file; ``raw`` first.
        feeds: One batch.
        rounds: Rounds for each opening.
        openings: How often all sessions are opened.
    """
    results = {way: Result(way) for way in files}
    for way, path in files.items():
        graph = onnx.load(path, load_external_data=False).graph
        results[way].nodes = len(graph.node)
        results[way].contrib = sum(node.domain not in ("", "ai.onnx") for node in graph.node)
        results[way].size = path.stat().st_size
    ways = list(files)
    for opening in range(openings):
        sessions = {}
        for place in np.random.default_rng(opening).permutation(len(ways)):
            way = ways[place]
            begin = time.perf_counter()
            sessions[way] = open_session(files[way], device="cpu", threads=1)
            results[way].load = min(results[way].load, time.perf_counter() - begin)
        expected = sessions["raw"].run(None, dict(feeds))
        for way, session in sessions.items():
            for want, have in zip(expected, session.run(None, dict(feeds)), strict=True):
                if not np.isfinite(want).all():
                    raise SystemExit(f"raw answers {want}")
                off = np.abs(want.astype(np.float64) - have).max() / np.abs(want).max()
                results[way].error = max(results[way].error, float(off))
        one = _timed(sessions["raw"], feeds, 1)
        repeats = max(1, min(200, int(0.02 / max(one, 1e-6))))
        for number in range(rounds):
            for place in np.random.default_rng([opening, number]).permutation(len(ways)):
                way = ways[place]
                results[way].times.append(_timed(sessions[way], feeds, repeats))
    return results


def _timed(session: Any, feeds: Mapping[str, NDArray[Any]], repeats: int) -> float:
    begin = time.process_time()
    for _ in range(repeats):
        session.run(None, feeds)
    return (time.process_time() - begin) / repeats


def _raw_files(folder: Path, networks: Path | None, names: Sequence[str]) -> dict[str, Path]:
    found = {}
    for path in sorted(_MODELS.glob("*.onnx")):
        if names and path.stem not in names:
            continue
        program = build_program(path, ProgramConfig())
        model, _ = inference_model(program, program.initial)
        found[path.stem] = folder / f"{path.stem}.raw.onnx"
        save_model(model, found[path.stem])
    if networks is not None:
        for path in sorted(networks.glob("*.onnx")):
            if not names or path.stem in names:
                found[path.stem] = path
    return found


def _row(name: str, results: Mapping[str, Result]) -> list[str]:
    ours = results["ours"]
    others = [r for way, r in results.items() if way not in ("ours", "raw") and r.times]
    rows = [name]
    for way in WAYS:
        result = results.get(way)
        shown = "-" if result is None or not result.times else str(result.nodes)
        rows.append(shown + ("*" if result is not None and result.contrib else ""))
    rivals = [Ratio.of_rounds(ours.times, r.times) for r in others]
    best = max(rivals, key=lambda r: r.median)
    rival = others[rivals.index(best)].way
    rows += [
        f"{1e3 * float(np.median(ours.times)):.2f}",
        str(Ratio.of_rounds(ours.times, results["raw"].times)),
        f"{best} {rival}",
        f"{ours.load / results['raw'].load:.2f}",
        f"{ours.size / results['raw'].size:.3f}",
        f"{ours.error:.0e}",
    ]
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--other-python", type=Path, help="interpreter with onnxslim and onnxsim")
    parser.add_argument("--networks", type=Path, help="folder of tools.bench.networks")
    parser.add_argument("--model", action="append", default=[], help="only these")
    parser.add_argument("--work", type=Path, help="where to keep the files; a temporary folder")
    parser.add_argument("--rounds", type=int, default=12, help="for each opening")
    parser.add_argument("--openings", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128, help="of a text")
    arguments = parser.parse_args(argv)
    about = environment()
    print(heading(about), f"\nbatch {arguments.batch}, 1 thread, processor time\n")
    rows, collected = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for name, raw in _raw_files(work, arguments.networks, arguments.model).items():
            files, failed = {"raw": raw}, {}
            for way in WAYS[1:]:
                target = work / f"{name}.{way}.onnx"
                reason = make(way, raw, target, arguments.other_python)
                if reason:
                    failed[way] = reason
                else:
                    files[way] = target
            feeds = feeds_for(raw, arguments.batch, arguments.length)
            results = measure(files, feeds, arguments.rounds, arguments.openings)
            for way, reason in failed.items():
                print(f"{name}: {way}: {reason}", file=sys.stderr)
            rows.append(_row(name, results))
            print(" | ".join(rows[-1]), file=sys.stderr)
            collected[name] = {
                way: {**vars(r), "times": [round(t, 7) for t in r.times]}
                for way, r in results.items()
            } | {way: {"failed": reason} for way, reason in failed.items()}
    heads = [
        "model", *WAYS, "ms", "ours / raw", "ours / fastest rival", "load", "size", "error",
    ]  # fmt: skip
    print(table(heads, rows))
    print("\nThe five counts are nodes; * with operators that only ONNX Runtime has.")
    if arguments.json:
        write_json(arguments.json, {"environment": about, "models": collected})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
