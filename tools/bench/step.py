r"""Time of a training step, as ratios within one run.

For every model in ``models/`` four things are timed, in turns, on the same batch, the same weights
and the same number of threads:

``ours``
    the step as ``ortboost convert`` makes it: forward, backward, dynamic loss scale, finite check,
    and one gate for the update by SGD with momentum;
``plain``
    the same without scale, check and gate: every step is applied;
``bare``
    only the loss, the gradients and the running statistics, with no update at all;
``torch``
    PyTorch eager: ``zero_grad``, forward, ``backward``, ``SGD(momentum=0.9).step()``, reading the
    loss.

Each of them makes some steps in every round, in an order that changes from round to round. A ratio
is the median of the ratios of the rounds, so that other load of the machine affects both sides;
the numbers in brackets are its quartiles. Without PyTorch only the last two columns can be shown.

Examples:
    All models at batch 32 with two threads::

        python -m tools.bench.step

    Two models with one thread, more rounds, numbers as JSON::

        python -m tools.bench.step --model resnet20 --model lenet5 --threads 1 --rounds 40 \
            --json step.json

    Networks of usual size, without PyTorch (``tools.bench.engines --large`` compares with it)::

        python -m tools.bench.networks --exporter torchscript --batch 4 --out NETWORKS
        python -m tools.bench.step --networks NETWORKS --threads 1 --clock cpu --rounds 5
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from ortboost.autodiff.engine import gradient_name
from ortboost.core.loss_scale import NO_SCALE
from ortboost.deploy.bench import take_turns
from ortboost.deploy.bench_results import Ratio
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.session import open_session, runtime
from ortboost.runtime.stepper import Stepper
from tools.bench.report import (
    CLOCKS,
    MODELS,
    PAUSE,
    ROOT,
    check_timing,
    publish,
    say,
    timing_parser_of,
)

__all__ = [
    "bare_step",
    "compare",
    "main",
    "measure",
    "percent",
    "random_batch",
    "require_same_loss",
    "torch_step",
]

_FOLDER = ROOT / "models"
_RATE = 1e-3
_CLASSES, _VOCABULARY = 10, 256
_WARM_STEPS = 5

Step = Callable[[], float]
"""Makes one step and returns the loss before it."""


def percent(ratio: Ratio) -> str:
    """A ratio as what it costs more."""
    low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
    return f"{100 * (ratio.median - 1):+.1f} % ({low:+.1f} to {high:+.1f})"


def random_batch(program: Program, batch: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """A batch of random inputs and labels that fits a program.

    Args:
        program: The program; the first dimension of its inputs is the batch.
        batch: Number of samples.
        seed: Seed.
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, NDArray[Any]] = {}
    for spec in program.catalogue.batch:
        shape = (batch, *(int(length) for length in spec.shape[1:] if length is not None))
        if spec.dtype.kind == "f":
            feeds[spec.name] = rng.standard_normal(shape).astype(spec.dtype)
        else:
            high = _CLASSES if spec.name == program.labels else _VOCABULARY
            feeds[spec.name] = rng.integers(0, high, shape).astype(spec.dtype)
    return feeds


def our_step(program: Program, feeds: Mapping[str, NDArray[Any]], threads: int) -> Step:
    """The step of a program, through the same class that training uses."""
    stepper = Stepper(program, device="cpu", threads=threads)
    hyper = dict.fromkeys(stepper.groups, _RATE)
    return lambda: stepper.step(feeds, hyper).loss


def bare_step(program: Program, feeds: Mapping[str, NDArray[Any]], threads: int) -> Step:
    """Loss, gradients and running statistics of an ungated program, without the update."""
    model = program.step.clone()
    gradients = {gradient_name(e.name) for e in program.catalogue.state if e.kind == "parameter"}
    buffers = {e.next for e in program.catalogue.state if e.kind == "buffer"}
    kept = [value for value in model.graph.outputs if value.name in buffers]
    kept += [out for node in model.graph for out in node.outputs if out.name in gradients]
    loss = next(value for value in model.graph.outputs if value.name == "loss")
    model.graph.outputs[:] = [loss, *dict.fromkeys(kept)]
    common.RemoveUnusedNodesPass()(model)
    session = open_session(for_device(model, "cpu", threads=threads), device="cpu", threads=threads)
    binding = session.io_binding()
    wanted = {value.name for value in session.get_inputs()}
    held = {  # the binding does not keep the arrays alive, the step below does
        name: runtime().OrtValue.ortvalue_from_numpy(np.array(array), "cpu")
        for name, array in program.initial.items()
        if name in wanted
    }
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("loss", "cpu")
    for output in model.graph.outputs[1:]:
        shape = [int(length) for length in output.shape or ()]
        dtype = (output.dtype or ir.DataType.FLOAT).numpy()
        place = runtime().OrtValue.ortvalue_from_shape_and_type(shape, dtype, "cpu")
        binding.bind_ortvalue_output(output.name, place)
        held[output.name or ""] = place

    def step(_held: Mapping[str, Any] = held) -> float:
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        session.run_with_iobinding(binding)
        return float(binding.get_outputs()[0].numpy())

    return step


def torch_step(
    name: str, program: Program, feeds: Mapping[str, NDArray[Any]], threads: int
) -> Step | None:
    """PyTorch eager on the network and weights of a model; ``None`` without PyTorch."""
    try:
        import torch
        from torch.nn import functional

        from tools.export_torch import NETWORKS, build
    except ImportError:
        return None
    torch.set_num_threads(threads)
    module = build(NETWORKS[name])
    weights = {
        entry.name: torch.from_numpy(np.array(program.initial[entry.name]))
        for entry in program.catalogue.state
        if entry.kind in ("parameter", "buffer")
    }
    missing, unexpected = module.load_state_dict(weights, strict=False)
    lost = [key for key in missing if not key.endswith("num_batches_tracked")]
    if lost or unexpected:
        raise SystemExit(f"{name}: PyTorch has other weights: {[*lost, *unexpected]}")
    optimizer = torch.optim.SGD(module.parameters(), lr=_RATE, momentum=0.9)
    x = torch.from_numpy(feeds[NETWORKS[name].input_name])
    labels = torch.from_numpy(feeds[program.labels or "labels"])

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def compare(
    contestants: Mapping[str, Step],
    rounds: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds for one step of each contestant, for each round.

    Args:
        contestants: Name to step.
        rounds: Number of rounds.
        seconds: Time for each contestant in a round, about; at least two steps.
        clock: Returns the time in seconds.
    """
    counts = {}
    for name, step in contestants.items():
        for _ in range(_WARM_STEPS):
            step()
        start = time.perf_counter()
        step()
        counts[name] = max(int(seconds / (time.perf_counter() - start)), 2)

    def turn(step: Step) -> Callable[[int], list[float]]:
        def run(count: int) -> list[float]:
            step()  # warms up the caches, which another contestant used before
            start = clock()
            for _ in range(count):
                step()
            return [(clock() - start) / count]

        return run

    found = take_turns(
        [turn(step) for step in contestants.values()],
        list(counts.values()),
        rounds,
        pause=lambda: time.sleep(PAUSE),
    )
    spent = (float(one) for turns in found for (one,) in turns)
    return {name: [next(spent) for _ in range(rounds)] for name in contestants}


def measure(
    name: str,
    batch: int,
    threads: int,
    rounds: int,
    seconds: float,
    clock: str,
    networks: Path | None = None,
) -> dict[str, Any]:
    """Time all contestants on one model.

    Args:
        name: The model.
        batch: Samples in a step; ``networks`` has batches of its own.
        threads: Threads of each contestant.
        rounds: Turns of each.
        seconds: Time for each in a round.
        clock: ``wall`` or ``cpu``.
        networks: Folder with ``NAME_torchscript.onnx`` and its batch ``NAME.npz``, instead of the
            models of this repository; PyTorch does not take part.
    """
    path = networks / f"{name}_torchscript.onnx" if networks else _FOLDER / f"{name}.onnx"
    program = build_program(path, ProgramConfig())
    plain = build_program(path, ProgramConfig(loss_scale=NO_SCALE, check_finite=False))
    if networks:
        with np.load(networks / f"{name}.npz") as stored:
            feeds = dict(stored)
    else:
        feeds = random_batch(program, batch)
    contestants = {
        "ours": our_step(program, feeds, threads),
        "plain": our_step(plain, feeds, threads),
        "bare": bare_step(plain, feeds, threads),
    }
    torch = None if networks else torch_step(name, program, feeds, threads)
    if torch is not None:
        contestants["torch"] = torch
    if not program.catalogue.randomness:  # else dropout makes every loss its own
        require_same_loss(name, {who: step() for who, step in contestants.items()})
    times = compare(contestants, rounds, seconds, CLOCKS[clock])
    ratios = {
        "gate": Ratio.of_rounds(times["ours"], times["plain"]),
        "update": Ratio.of_rounds(times["ours"], times["bare"]),
    }
    if torch is not None:
        ratios["torch"] = Ratio.of_rounds(times["ours"], times["torch"])
    return {
        "model": name,
        "milliseconds": {who: 1000 * statistics.median(spent) for who, spent in times.items()},
        "ratios": ratios,
    }


def require_same_loss(name: str, losses: Mapping[str, float]) -> None:
    """End the benchmark if a loss differs from that of the first."""
    (first, reference), *_ = losses.items()
    for who, loss in losses.items():
        if not abs(loss - reference) <= 1e-4 * abs(reference):
            raise SystemExit(f"{name}: '{who}' has the loss {loss}, '{first}' has {reference}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = timing_parser_of(__doc__, rounds=20)
    parser.add_argument("--model", action="append", help="which model (default: all)")
    parser.add_argument(
        "--networks", type=Path, metavar="DIR", help="models and batches of tools.bench.networks"
    )
    arguments = parser.parse_args(argv)
    check_timing(parser, arguments)
    known = MODELS
    if arguments.networks:
        known = tuple(
            path.name.removesuffix("_torchscript.onnx")
            for path in sorted(arguments.networks.glob("*_torchscript.onnx"))
        )
    if unknown := set(arguments.model or known) - set(known):
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    keys = ("batch", "threads", "rounds", "seconds", "clock", "networks")
    settings = {key: getattr(arguments, key) for key in keys}
    results = []
    for name in arguments.model or known:
        say(f"{name} ...")
        results.append(measure(name, **settings))
    batch = "as stored" if arguments.networks else arguments.batch
    note = (
        f"Batch {batch}, {arguments.threads} thread(s), {arguments.rounds} rounds, "
        f"{arguments.clock} clock. Medians; quartiles in brackets."
    )
    plain = [{**r, "ratios": {k: vars(v) for k, v in r["ratios"].items()}} for r in results]
    options = {**settings, "networks": str(arguments.networks or "")}
    publish(*_table(results), note, arguments.json, options=options, results=plain)
    if "torch" not in results[0]["ratios"]:
        print("\nPyTorch is not installed: there is no comparison with it.")
    return 0


def _table(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows."""
    compared = all("torch" in result["ratios"] for result in results)
    heads = ["model", "ours ms"]
    heads += ["torch ms", "ours / torch"] if compared else []
    heads += ["scale, check, gate", "the same and the update"]
    rows = []
    for result in results:
        ratios, spent = result["ratios"], result["milliseconds"]
        row = [result["model"], f"{spent['ours']:.2f}"]
        row += [f"{spent['torch']:.2f}", str(ratios["torch"])] if compared else []
        rows.append([*row, percent(ratios["gate"]), percent(ratios["update"])])
    return heads, rows


if __name__ == "__main__":
    raise SystemExit(main())
