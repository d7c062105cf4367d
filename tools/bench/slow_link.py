"""What travels and how long a step takes where the link between two processes is slow.

Two network namespaces are joined by a pair of virtual devices whose rate is limited (``tc ...
tbf``); the script makes them and removes them. It needs root and iproute2, and says so where they
are missing.

Examples:
    All ways of exchanging over 100 Mbit/s, in one run::

        python -m tools.bench.slow_link --model lenet5 --rate 100mbit
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.report import ROOT

KINDS = (
    "alone",
    "transfer",
    "1 segment",
    "2 segments",
    "4 segments",
    "float16",
    "adasum",
    "adasum every 4",
    "adasum every 16",
    "dim-reduce",
)
SPACES, ADDRESSES = ("ortboost-a", "ortboost-b"), ("10.91.7.1", "10.91.7.2")
DEVICES, PORT = ("obveth0", "obveth1"), "29407"  # in a namespace of its own every port is free


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def link(rate: str) -> Iterator[None]:
    """Two namespaces and what joins them."""
    try:
        for space in SPACES:
            call("ip", "netns", "add", space)
        call("ip", "link", "add", DEVICES[0], "type", "veth", "peer", "name", DEVICES[1])
        for space, device, address in zip(SPACES, DEVICES, ADDRESSES, strict=True):
            inside = ("ip", "netns", "exec", space)
            call("ip", "link", "set", device, "netns", space)
            call(*inside, "ip", "address", "add", f"{address}/24", "dev", device)
            call(*inside, "ip", "link", "set", device, "up")
            call(*inside, "ip", "link", "set", "lo", "up")
            burst = (
                "256kb" if rate.endswith("gbit") else "32kb"
            )  # timers wake up too seldom for less
            limits = ("rate", rate, "burst", burst, "latency", "50ms")
            call(*inside, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limits)
        yield
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def missing_tools() -> str:
    """Why there can be no namespaces here; empty if there can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        missing.append("root")
    return f"skipped: needs root and iproute2, {', '.join(missing)} is missing" if missing else ""


def run_both(module: str, arguments: Sequence[str], rate: str) -> Any:
    """Run a module as two ranks joined by a link of this rate; return what rank 0 writes."""
    with tempfile.TemporaryDirectory() as folder, link(rate):
        out = Path(folder) / "found.json"
        started = []
        for rank, (space, device) in enumerate(zip(SPACES, DEVICES, strict=True)):
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RANK": str(rank),
                "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": device,
            }  # fmt: skip
            command = ["ip", "netns", "exec", space, sys.executable, "-m", module, *arguments]
            started.append(subprocess.Popen([*command, "--worker", str(out)], env=environment))
        statuses = [process.wait() for process in started]  # waits for both
        if any(statuses):
            sys.exit(1)
        return json.loads(out.read_text())


def launch(given: argparse.Namespace) -> int:
    if reason := missing_tools():
        print(reason)
        return 0
    found = run_both("tools.bench.slow_link", sys.argv[1:], given.rate)
    print(f"{given.model}, batch {given.batch} a process, {given.rate}; medians of {given.rounds}")
    for kind, (sent, times) in found.items():
        print(
            f"{kind:16} {sent:12,d} bytes sent a step   {statistics.median(times) * 1e3:9.2f} ms a "
            "step"
        )
    return 0


def worker(given: argparse.Namespace) -> None:
    import ortboost as ob
    from ortboost.boosts import AdaSum
    from ortboost.runtime.process_group import ProcessGroup
    from ortboost.runtime.stepper import Stepper
    from tools.bench.step import random_batch

    path = str(ROOT / "models" / f"{given.model}.onnx")
    found: dict[str, tuple[int, list[float]]] = {}
    with ProcessGroup(timeout=600) as group, tempfile.TemporaryDirectory() as folder:
        plain = ob.build_program(path, ob.ProgramConfig(loss_scale=ob.NO_SCALE))
        length = sum(int(np.prod(e.shape)) for e in plain.catalogue.entries("parameter"))
        gathered = np.zeros(length, np.float32)

        def joined(every: int) -> Stepper:
            config = ob.ProgramConfig(boosts=(AdaSum(1, every),), loss_scale=ob.NO_SCALE)
            return Stepper(ob.build_program(path, config), threads=1, group=group)

        def reduced() -> Stepper:
            rows = np.random.default_rng(0).standard_normal((given.components, length))
            np.save(Path(folder) / "p.npy", (rows / np.sqrt(length)).astype(np.float32))
            boost = ob.DimReduce(str(Path(folder) / "p.npy"), alpha=0.0)
            config = ob.ProgramConfig(boosts=(boost,), loss_scale=ob.NO_SCALE)
            return Stepper(ob.build_program(path, config), threads=1, group=group)

        makers = {
            "alone": lambda: Stepper(plain, threads=1),
            "1 segment": lambda: Stepper(plain, threads=1, group=group, segments=1),
            "2 segments": lambda: Stepper(plain, threads=1, group=group, segments=2),
            "4 segments": lambda: Stepper(plain, threads=1, group=group, segments=4),
            "float16": lambda: Stepper(plain, threads=1, group=group, wire="float16"),
            "adasum": lambda: joined(1),
            "adasum every 4": lambda: joined(4),
            "adasum every 16": lambda: joined(16),
            "dim-reduce": reduced,
        }
        steppers = {kind: makers[kind]() for kind in given.kinds if kind in makers}
        feeds = random_batch(plain, given.batch, group.rank)
        found = {kind: (0, []) for kind in given.kinds}
        for number in range(given.rounds + 1):
            for kind in given.kinds:
                group.gather(0)
                before, start = sent_bytes(group.rank), time.perf_counter()
                for _ in range(given.steps):
                    if kind == "transfer":  # of the gradients, and nothing else
                        group.sum(gathered)
                    else:
                        steppers[kind].step(feeds, {"learning_rate": 0.01})
                seconds = (time.perf_counter() - start) / given.steps
                if number:  # the first round warms up
                    traffic = (sent_bytes(group.rank) - before) // given.steps
                    found[kind] = (traffic, [*found[kind][1], seconds])
        if group.rank == 0:
            Path(given.worker).write_text(json.dumps(found))


def sent_bytes(rank: int) -> int:
    return int(Path(f"/sys/class/net/{DEVICES[rank]}/statistics/tx_bytes").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--components", type=int, default=32)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is None:
        return launch(given)
    worker(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
