r"""Time and memory of a training step with each engine and with PyTorch, as ratios within one run.

For every model in ``models/``, or with ``--large`` for networks of usual size
(:mod:`tools.bench.networks`), these are timed in turns, on the same batch, weights and number of
threads, each in a process of its own:

``native``
    the step with the gradients of onnxruntime-training;
``portable``
    the step with our own gradient rules, in the same runtime;
``stock``
    the same file in the current onnxruntime, that of the Python given with ``--stock-python``;
``torch``
    PyTorch eager, the same network, loss and optimizer;
``compile``
    the same through ``torch.compile``, with ``--large``;
each ``--boost``
    the portable step with this boost.

A step is forward, backward, loss scale, finite check and the update by SGD with momentum. In each
round each of them makes some steps while the others sleep, in an order that changes from round to
round. A ratio is the median of the ratios of the rounds; in brackets are its quartiles. Memory is
the peak of the process less what it had before the network or the program was loaded.

Examples:
    All models at batch 32, also in the runtime of another environment::

        python -m tools.bench.engines --stock-python ~/stock/bin/python

    Two models with one thread by processor time, numbers as JSON::

        python -m tools.bench.engines --model resnet20 --model lenet5 --threads 1 --clock cpu \
            --json engines.json

    Networks of realistic size, one thread, batch 4::

        python -m tools.bench.engines --large --threads 1 --batch 4 --rounds 5 --seconds 1

    What a boost changes::

        python -m tools.bench.engines --large --model bert_base --batch 4 --boost lora:rank=8
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.report import (
    CLOCKS,
    MODELS,
    PAUSE,
    ROOT,
    check_timing,
    environment,
    heading,
    say,
    table,
    timing_parser_of,
    write_json,
)

__all__ = ["Contestant", "large_files", "main", "measure"]

_LARGE = ("resnet50", "bert_base", "vit_b16", "unet", "decoder_100m")
_RATE = 1e-3
_WARM_STEPS = 5


class Contestant:
    """A child process that makes steps on request.

    Args:
        python: The interpreter.
        who: ``native``, ``portable`` or ``torch``.
        settings: Model, folder of the program, batch, threads, clock.
    """

    def __init__(self, python: str, who: str, settings: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "tools.bench.engines", "--child", json.dumps({**settings, "who": who})],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about = self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit(f"A contestant ended: {self._process.args!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def request(self, line: str) -> dict[str, Any]:
        """Send a line, wait for the answer."""
        if self._process.stdin is None:
            raise SystemExit("A contestant has no standard input.")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def seconds(self, count: int) -> list[float]:
        """The mean time of a step, of so many in a row."""
        return [self.request(str(count))["seconds"]]

    def end(self) -> dict[str, Any]:
        """Let the process end; what memory it took."""
        answer = self.request("end")
        self._process.wait(timeout=60)
        return answer


def _peak(*, afresh: bool = False) -> float:
    """Peak memory of this process in MiB; on Linux it can be counted afresh from here on."""
    try:
        if afresh:
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _child(settings: Mapping[str, Any]) -> None:
    """The main loop of a contestant: for each line of stdin, make so many steps and time them."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers

    def say(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    is_torch = settings["who"] in ("torch", "compile")
    if is_torch:
        import torch

        import tools.bench.networks

        del tools.bench.networks  # imported before memory is measured
        version = f"torch {torch.__version__}"
    else:
        import onnxruntime

        import ortboost.runtime.stepper

        del ortboost.runtime.stepper
        version = f"onnxruntime {onnxruntime.__version__}"
    before = _peak(afresh=True)
    step = _large_torch(settings) if is_torch and settings["large"] else _step(settings)
    loss = step()
    for _ in range(1 if settings["large"] else _WARM_STEPS):
        step()
    start = time.perf_counter()
    step()
    say(loss=loss, seconds=time.perf_counter() - start, version=version)
    clock = CLOCKS[settings["clock"]]
    for line in sys.stdin:
        if line.strip() == "end":
            say(peak=_peak(), rise=_peak() - before)
            return
        count = int(line)
        step()  # warms up the caches, which another contestant used before
        start = clock()
        for _ in range(count):
            step()
        say(seconds=(clock() - start) / count)


def _step(settings: Mapping[str, Any]) -> Callable[[], float]:
    """A step of a program, or of PyTorch on the weights of a small one."""
    from ortboost.program.program import Program
    from tools.bench.step import our_step, random_batch, torch_step

    program = Program.load(settings["folder"])
    if settings["large"]:
        with np.load(settings["feeds"]) as stored:
            feeds = dict(stored)
    else:
        feeds = random_batch(program, settings["batch"])
    if settings["who"] != "torch":
        return our_step(program, feeds, settings["threads"])
    step = torch_step(settings["model"], program, feeds, settings["threads"])
    if step is None:
        raise SystemExit("PyTorch is not installed.")
    return step


def _large_torch(settings: Mapping[str, Any]) -> Callable[[], float]:
    """A step of PyTorch, eager or compiled, on a network of usual size."""
    import torch

    from tools.bench.networks import build, spec_of

    torch.set_num_threads(settings["threads"])
    spec = spec_of(settings["model"])
    module = build(spec, dropout=False).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=_RATE, momentum=0.9)
    with np.load(settings["feeds"]) as stored:
        feeds = {name: torch.from_numpy(array) for name, array in stored.items()}
    labels = feeds.pop("labels")
    called = torch.compile(module) if settings["who"] == "compile" else module

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        logits = called(*feeds.values()).movedim(spec.class_axis, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def large_files(name: str, batch: int, folder: Path) -> tuple[Path, Path]:
    """Model and batch of a network of usual size, made in a process whose memory ends with it."""
    command = ["-m", "tools.bench.networks", "--model", name, "--exporter", "torchscript"]
    subprocess.run(
        [sys.executable, *command, "--batch", str(batch), "--out", str(folder)],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    return folder / f"{name}_torchscript.onnx", folder / f"{name}.npz"


def measure(
    name: str, pythons: Mapping[str, str], options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Time all contestants on one model.

    Args:
        name: The model.
        pythons: Contestant to interpreter.
        options: Options of the command line.
        folder: Where the programs are put.
    """
    from ortboost.cli.parse import parse_boost
    from ortboost.deploy.bench import take_turns
    from ortboost.program.build import build_program
    from ortboost.program.config import ProgramConfig
    from tools.bench.step import require_same_loss

    random = False
    programs = {}
    model, feeds = ROOT / "models" / f"{name}.onnx", None
    if options.large:
        model, feeds = large_files(name, options.batch, folder)
    for who in ("native", "portable", *options.boost):
        if who == "native" and "native" not in pythons:
            continue
        engine, boosts = ("portable", (parse_boost(who),)) if who in options.boost else (who, ())
        program = build_program(model, ProgramConfig(engine=engine, boosts=boosts))
        random = random or bool(program.catalogue.randomness)
        programs[who] = program.save(folder / f"{name}-{len(programs)}")
    contestants = {}
    for who, python in pythons.items():
        settings = {
            "model": name,
            "large": options.large,
            "feeds": str(feeds),
            "folder": str(programs.get(who, programs["portable"])),
            "batch": options.batch,
            "threads": options.threads,
            "clock": options.clock,
        }
        role = "portable" if who == "stock" or who in options.boost else who
        contestants[who] = Contestant(python, role, settings)
    if not random:  # with dropout, each has another loss
        require_same_loss(name, {who: c.about["loss"] for who, c in contestants.items()})
    counts = {
        who: max(int(options.seconds / c.about["seconds"]), 1 if options.large else 2)
        for who, c in contestants.items()
    }
    runs = [contestant.seconds for contestant in contestants.values()]
    found = take_turns(runs, list(counts.values()), options.rounds, pause=lambda: time.sleep(PAUSE))
    times = {
        who: [one for turn in turns for one in turn]
        for who, turns in zip(contestants, found, strict=True)
    }
    memory = {who: contestant.end() for who, contestant in contestants.items()}
    return {
        "model": name,
        "milliseconds": {who: 1000 * statistics.median(spent) for who, spent in times.items()},
        "times": times,
        "memory": memory,
        "versions": {who: c.about["version"] for who, c in contestants.items()},
    }


def _ratio(result: Mapping[str, Any], above: str, below: str) -> str:
    times = result["times"]
    if above not in times or below not in times:
        return "-"
    from ortboost.deploy.bench_results import Ratio

    return str(Ratio.of_rounds(times[above], times[below]))


def _show(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    pairs = [(a, b) for a in ("portable", "stock") for b in ("native", "torch", "compile")]
    pairs += [("native", "torch"), ("native", "compile")]
    usual = ("native", "portable", "stock", "torch", "compile")
    pairs += [(who, "portable") for who in names if who not in usual]
    pairs = [(a, b) for a, b in pairs if {a, b} <= set(names)]
    heads = ["model", *(f"{who} ms" for who in names), *(f"{a} / {b}" for a, b in pairs)]
    rows = [
        [
            result["model"],
            *(f"{result['milliseconds'][who]:.2f}" for who in names),
            *(_ratio(result, a, b) for a, b in pairs),
        ]
        for result in results
    ]
    print(table(heads, rows))
    print("\nPeak memory in MiB above that before loading:\n")
    rows = [[r["model"], *(f"{r['memory'][who]['rise']:.0f}" for who in names)] for r in results]
    print(table(["model", *names], rows))


def _pythons(stock: str | None, *, large: bool) -> dict[str, str]:
    from ortboost.autodiff.engine import get_engine
    from ortboost.core.errors import OrtBoostError

    found = {}
    try:
        get_engine("native")
        found["native"] = sys.executable
    except OrtBoostError:
        say("The native engine cannot run here: nothing is compared with it.")
    found["portable"] = sys.executable
    if stock is not None:
        found["stock"] = stock
    try:
        import torch

        del torch
        found["torch"] = sys.executable
        if large:
            found["compile"] = sys.executable
    except ImportError:
        say("PyTorch is not installed: nothing is compared with it.")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = timing_parser_of(__doc__, rounds=15)
    parser.add_argument(
        "--model",
        action="append",
        choices=(*MODELS, *_LARGE),
        help="which model (default: all of models/, or with --large all others)",
    )
    parser.add_argument(
        "--large", action="store_true", help="networks of usual size, see tools.bench.networks"
    )
    parser.add_argument(
        "--stock-python", metavar="PATH", help="Python of an environment with stock onnxruntime"
    )
    parser.add_argument(
        "--boost",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="the portable step with this boost, too; may be given several times",
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        _child(json.loads(options.child))
        return 0
    check_timing(parser, options)
    names = _LARGE if options.large else MODELS
    if not set(options.model or ()) <= set(names):
        parser.error(f"{'with' if options.large else 'without'} --large: {', '.join(names)}")
    pythons = _pythons(options.stock_python, large=options.large)
    pythons |= dict.fromkeys(options.boost, sys.executable)
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.model or names:
            say(f"{name} ...")
            results.append(measure(name, pythons, options, Path(scratch)))
    about = environment()
    print(heading(about))
    versions = results[0]["versions"]
    print(
        f"Batch {options.batch}, {options.threads} thread(s), {options.rounds} rounds, "
        f"{options.clock} clock; " + ", ".join(f"{who}: {v}" for who, v in versions.items()) + ".\n"
    )
    _show(results, list(pythons))
    if options.json:
        settings = {key: getattr(options, key) for key in ("batch", "threads", "rounds", "clock")}
        write_json(options.json, {"environment": about, "options": settings, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
