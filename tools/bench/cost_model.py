r"""A cost model of several processes: fitted to a slow link, with its error, for many workers.

A ring sums `b` bytes over `N` processes in::

    T(b, N) = 2 (N - 1) a + 2 (N - 1) / N  b / B     a the latency of a message, B the bandwidth

`a` and `B` are fitted to sums of some sizes between two processes, by least squares of relative
errors, and held to sums of other sizes. A step of `s` segments whose gradients `b_i` are there
after the share `f_i` of the computing time `C` takes::

    end_i = max(end_(i-1), f_i C) + T(b_i, N)
    step  = end_s + 2 T(32, N)                       counts, and loss with metrics

What a boost sends besides or instead is in :func:`exchange`. Not modelled are stragglers,
shared switches, further rings and the time of the host: its numbers for many workers are an
extrapolation.

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations
(2009), for the ring; gloo's default.

Examples:
    Measure between two network namespaces (root, iproute2), fit, and print the tables::

        python -m tools.bench.cost_model --rates 100mbit 1gbit
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.bench.slow_link import missing_tools, run_both

__all__ = ["Link", "Network", "exchange", "fit_link", "step_time"]

FITTED = (2**12, 2**17, 2**21)
HELD_OUT = (2**16, 2**18, 2**20, 2**22)
WORKERS = (8, 64, 512, 4096)
SMALL = 32  # bytes: counts and requests, or loss and metrics
_SECONDS = 0.3  # of each measurement


@dataclass(frozen=True)
class Link:
    """A link.

    Args:
        latency: Seconds of a message.
        bandwidth: Bytes a second, each way.
    """

    latency: float
    bandwidth: float

    def sum(self, size: float, workers: int) -> float:
        """Seconds of a sum of so many bytes."""
        rest = workers - 1
        return 2 * rest * self.latency + 2 * rest / workers * size / self.bandwidth

    def swap(self, size: float) -> float:
        """Seconds in which two exchange so many bytes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Network:
    """A network in training.

    Args:
        weights: Their number.
        tensors: Tensors that they are.
        compute: Seconds of forward and backward pass and update.
        forward: Share of it that is the forward pass.
        factors: Bytes of the factors of THOR.
    """

    weights: int
    tensors: int
    compute: float
    forward: float = 1 / 3
    factors: int = 0


def fit_link(sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """The link that fits sums between two processes best, in relative errors."""
    weights = 1 / np.asarray(seconds)
    columns = np.stack([np.full(len(sizes), 2.0), np.asarray(sizes, float)], axis=1)
    (latency, inverse), *_ = np.linalg.lstsq(columns * weights[:, None], np.ones(len(sizes)))
    return Link(max(latency, 0.0), 1 / inverse)


def step_time(
    link: Link, workers: int, compute: float, parts: Sequence[tuple[float, float]]
) -> float:
    """Seconds of a step; ``parts`` are segments: share of computing done at its end, and bytes."""
    end = 0.0
    for share, size in parts:
        end = max(end, share * compute) + link.sum(size, workers)
    return max(end, compute) + 2 * link.sum(SMALL, workers)


def exchange(boost: str, link: Link, workers: int, net: Network) -> float:
    """Seconds of a step with a boost; those of computing alone are ``net.compute``."""
    size = 4.0 * net.weights
    quarters = [(net.forward + (1 - net.forward) * (i + 1) / 4, size / 4) for i in range(4)]
    if boost == "plain":
        return step_time(link, workers, net.compute, [(1.0, size)])
    if boost == "4 segments":
        return step_time(link, workers, net.compute, quarters)
    if boost == "float16":
        return step_time(link, workers, net.compute, [(1.0, size / 2)])
    if boost == "thor":  # frequency 100
        plain = step_time(link, workers, net.compute, [(1.0, size)])
        return plain + link.sum(net.factors, workers) / 100
    if boost == "dim-reduce":  # 32 numbers, alpha = 0, one trial: a forward pass, and its loss
        compute = net.compute * (1 + net.forward)
        return step_time(link, workers, compute, [(1.0, 4 * 32)]) + link.sum(16, workers)
    every = 16 if boost.endswith("every 16") else 1  # adasum, every process a server
    rounds = int(math.log2(workers))
    joining = sum(2 * link.swap(size / 2 ** (r + 1)) for r in range(rounds))
    joining += sum(link.sum(24 * net.tensors, 2 ** (r + 1)) for r in range(rounds))  # products
    return net.compute + 3 * link.sum(SMALL, workers) + joining / every  # the check is of all


# ---- measuring ----------------------------------------------------------------------------------


def worker(given: argparse.Namespace) -> None:
    """Time sums of all sizes; the least of the rounds, for the machine is never quite idle."""
    from ortboost.runtime.process_group import ProcessGroup

    found = {}
    with ProcessGroup(timeout=600) as group:
        for size in (*FITTED, *HELD_OUT):
            array, best = np.zeros(size // 4, np.float32), math.inf
            for _ in range(given.rounds):
                start = time.perf_counter()
                group.sum(array)
                once = max(group.gather(time.perf_counter() - start))
                # Long enough that what the limiter lets through at once hardly counts.
                number = max(1, round(_SECONDS / once))
                start = time.perf_counter()
                for _ in range(number):
                    group.sum(array)
                best = min(best, (time.perf_counter() - start) / number)
            found[size] = best
        if group.rank == 0:
            Path(given.worker).write_text(json.dumps(found))


def show_fit(rate: str, seconds: Mapping[int, float]) -> Link:
    """Fit a link, and print how well."""
    link = fit_link(FITTED, [seconds[size] for size in FITTED])
    print(f"\n{rate}: latency {link.latency * 1e6:.0f} us, {link.bandwidth * 8 / 1e6:.0f} Mbit/s")
    for size in (*FITTED, *HELD_OUT):
        predicted, real = link.sum(size, 2), seconds[size]
        kind = "fitted" if size in FITTED else "held out"
        print(
            f"{size:10,d} bytes  {real * 1e3:9.2f} ms, model {predicted * 1e3:9.2f} ms  "
            f"{100 * (predicted / real - 1):+6.1f} %  {kind}"
        )
    return link


def show_table(rate: str, link: Link, net: Network) -> None:
    """Print the predicted seconds per step of each boost, for each number of workers."""
    boosts = (
        "plain", "4 segments", "float16", "adasum", "adasum every 16", "dim-reduce", "thor"
    )  # fmt: skip
    print(
        f"\n{rate}, {net.weights:,} weights, {net.compute:g} s of computing: seconds a step, a "
        "model"
    )
    print("| workers | " + " | ".join(boosts) + " |\n|---:|" + "---:|" * len(boosts))
    for workers in WORKERS:
        cells = [f"{exchange(boost, link, workers, net):.2f}" for boost in boosts]
        print(f"| {workers:,} | " + " | ".join(cells) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", nargs="+", default=["20mbit", "100mbit", "1gbit"])
    parser.add_argument("--rounds", type=int, default=15)
    # ResNet-50; its factors in blocks of 128
    parser.add_argument("--weights", type=int, default=25_557_032)
    parser.add_argument("--tensors", type=int, default=161)
    parser.add_argument("--compute", type=float, default=1.0, help="seconds a step")
    parser.add_argument("--factors", type=int, default=42_205_184, help="bytes, of THOR")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        worker(given)
        return 0
    if reason := missing_tools():
        print(reason)
        return 0
    net = Network(given.weights, given.tensors, given.compute, factors=given.factors)
    links = {}
    for rate in given.rates:
        found = run_both("tools.bench.cost_model", sys.argv[1:], rate)
        links[rate] = show_fit(rate, {int(size): seconds for size, seconds in found.items()})
    for rate, link in links.items():
        show_table(rate, link, net)
    return 0


if __name__ == "__main__":
    sys.exit(main())
