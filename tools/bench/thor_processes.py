"""What THOR's inversions cost each of several processes, divided among them or not.

Dense layers of one size, a small batch, every second update of second order. Reported is the
processor time by which a step of second order exceeds one of first order (factors, inverses, and
with ``distribute_inverses`` the exchange), and that of the part before the exchange, which is the
inversions. It does not depend on how many cores the machine has.

Examples:
    Needs torch::

        python -m tools.bench.thor_processes --processes 1 2 4 --block 128
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

from tools.bench.report import torchrun


def launch(given: argparse.Namespace) -> int:
    print("ms of processor time, of the process with the most")
    print("processes  block  every process inverts all  divided  of this inversions")
    for number in given.processes:
        torchrun("tools.bench.thor_processes", number, *sys.argv[1:], "--worker")
    return 0


def worker(given: argparse.Namespace) -> None:
    from ortboost.boosts import Thor
    from ortboost.program.build import build_program
    from ortboost.program.config import ProgramConfig
    from ortboost.runtime.process_group import ProcessGroup
    from ortboost.runtime.stepper import Stepper
    from tests.support import text_model, weights

    names, size = [f"w{i}" for i in range(given.layers)], given.size
    inputs = ", ".join(f"float[{size},{size}] {name}" for name in names)
    values = ["x", *(f"r{i}" for i in range(given.layers - 1))]
    lines = "".join(
        f"h{i} = MatMul({values[i]}, w{i})\n r{i} = Relu(h{i})\n" for i in range(given.layers - 1)
    )
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,{size}] x, {inputs}) => (float[batch,{size}] y) {{
          {lines} y = MatMul({values[-1]}, {names[-1]})
        }}""",
        **{name: weights(size, size, seed=i, scale=0.05) for i, name in enumerate(names)},
    )
    with ProcessGroup(timeout=300) as group:
        rng, steppers = np.random.default_rng(group.rank), []
        for divided in (False, True):
            thor = Thor(frequency=2, block=given.block, distribute_inverses=divided)
            program = build_program(model, ProgramConfig(engine="portable", boosts=(thor,)))
            steppers.append(Stepper(program, threads=1, group=group))
        graph = steppers[1].shared.open("step").update._graph
        run, inversions = graph.run, list[float]()

        def noted(number, feeds):
            start = time.process_time()
            values = run(number, feeds)
            inversions.extend([time.process_time() - start] if number == 0 else [])
            return values

        graph.run = noted
        times: list[list[float]] = [[], []]
        for _ in range(given.rounds):
            for stepper, found in zip(steppers, times, strict=True):
                batch = {
                    "x": rng.standard_normal((8, size)).astype(np.float32),
                    "labels": rng.integers(0, size, 8),
                }
                second, first = (timed(stepper, batch) for _ in range(2))
                found.append(second - first)
        own = [1e3 * statistics.median(found[1:]) for found in (*times, inversions)]
        most = np.max(group.gather(own), axis=0)
        if group.rank == 0:
            every, divided, inverted = (f"{number:.1f}" for number in most)
            line = f"{group.size:9}  {given.block:5}  {every:>25}  {divided:>7}  {inverted:>18}"
            print(line, flush=True)


def timed(stepper, batch) -> float:
    start = time.process_time()
    stepper.step(batch, {"learning_rate": 1e-3})
    return time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.worker:
        return launch(given)
    worker(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
