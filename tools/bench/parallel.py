"""Two processes against one, and against PyTorch's DistributedDataParallel, on this machine.

All are measured in one run, in turns: rank 0 alone, both processes, both with torch; with
``--sync-bn`` also with synchronized BatchNormalization, rank 0 alone and both. Each process has one
thread and the same batch; what is reported are ratios of medians, because a machine is never quite
idle.

Examples:
    Needs torch, and two cores that nobody else uses::

        python -m tools.bench.parallel --models resnet20 transformer_tiny --batch 32
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tools.bench.report import ROOT, torchrun


def launch(given: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        torchrun("tools.bench.parallel", 2, *sys.argv[1:], "--worker", str(out))
        found = json.loads(out.read_text())
    print(
        f"batch {given.batch} a process, one thread each, wire {given.wire}; medians of "
        f"{given.rounds}"
    )
    for name, times in found.items():
        one, two, torch = (statistics.median(times[kind]) for kind in ("one", "two", "ddp"))
        print(
            f"{name:18} one {one * 1e3:7.2f} ms  two {two * 1e3:7.2f} ms  ddp {torch * 1e3:7.2f} "
            f"ms  samples a second, two against one: {2 * one / two:.2f}  step, against DDP: "
            f"{two / torch:.2f}"
        )
        if "synced" in times:
            alone, synced = (statistics.median(times[kind]) for kind in ("alone", "synced"))
            print(
                f"{'with sync-bn':18} one {alone * 1e3:7.2f} ms  two {synced * 1e3:7.2f} ms  step, "
                f"against without, one: {alone / one:.2f}, two: {synced / two:.2f}"
            )
    return 0


def worker(given: argparse.Namespace) -> None:
    import torch

    import ortboost as ob
    from ortboost.runtime.process_group import ProcessGroup
    from ortboost.runtime.stepper import Stepper
    from tools.bench.step import random_batch
    from tools.export_torch import NETWORKS, build

    torch.set_num_threads(1)
    found = {}
    with ProcessGroup(timeout=600) as group:
        for name in given.models:
            config = ob.ProgramConfig(
                engine=given.engine, optimizer=ob.Momentum(), loss_scale=ob.NO_SCALE
            )
            program = ob.build_program(str(ROOT / "models" / f"{name}.onnx"), config)
            feeds = random_batch(program, given.batch, group.rank)
            alone = Stepper(program, threads=1)
            shared = Stepper(program, threads=1, group=group, wire=given.wire)
            network = build(NETWORKS[name])
            ddp = torch.nn.parallel.DistributedDataParallel(network)
            rule = torch.optim.SGD(ddp.parameters(), 0.01, momentum=0.9)
            *inputs, labels = (torch.from_numpy(feeds[s.name]) for s in program.catalogue.batch)
            rates = {"learning_rate": 0.01}

            def torch_step(ddp=ddp, rule=rule, inputs=inputs, labels=labels) -> None:
                rule.zero_grad()
                torch.nn.functional.cross_entropy(ddp(*inputs), labels).backward()
                rule.step()

            kinds: dict[str, Callable[[], object]] = {
                "one": lambda a=alone, f=feeds, r=rates: a.step(f, r),
                "two": lambda s=shared, f=feeds, r=rates: s.step(f, r),
                "ddp": torch_step,
            }
            if given.sync_bn:
                boosted = config.with_boosts(ob.SyncBatchNorm())
                program = ob.build_program(str(ROOT / "models" / f"{name}.onnx"), boosted)
                first, both = Stepper(program, threads=1), Stepper(program, threads=1, group=group)
                kinds["alone"] = lambda a=first, f=feeds, r=rates: a.step(f, r)
                kinds["synced"] = lambda s=both, f=feeds, r=rates: s.step(f, r)
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            for _ in range(given.rounds):
                for kind, step in kinds.items():
                    group.gather(0)  # the others wait here while rank 0 is alone
                    if kind in ("one", "alone") and group.rank:
                        continue
                    times[kind].append(timed(step, given.steps))
            found[name] = times
        if group.rank == 0:
            Path(given.worker).write_text(json.dumps(found))


def timed(step: Callable[[], object], number: int) -> float:
    """Seconds a step, after two that are not counted."""
    for _ in range(2):
        step()
    start = time.perf_counter()
    for _ in range(number):
        step()
    return (time.perf_counter() - start) / number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["resnet20", "transformer_tiny"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--wire", default="float32")
    parser.add_argument("--sync-bn", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is None:
        return launch(given)
    worker(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
