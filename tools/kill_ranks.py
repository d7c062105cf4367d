"""Kill processes of a distributed run at random moments, and check the result bit for bit.

Usage: python tools/kill_ranks.py [--times 20] [--processes 2] [--job plain] [--seed 0]

Each round trains the same small network twice with torchrun: once undisturbed, and once with a
process killed (SIGKILL) at a random moment, from its start on; torchrun restarts the others. Last
and best state and the logged losses must be the same. Requires torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ortboost as ob
from tests.parallel.launch import environment
from tests.support import ROOT, text_model, weights
from tools.kill_boosts import difference, outcome

SETTINGS = {"epochs": 40, "checkpoint_every": 7, "timeout": 60, "length": 400, "keep": 3}
_MODEL = """<ir_version: 10, opset_import: ["" : 18]>
net (float[batch,10] x, float[16,10] w1, float[16] s, float[16] t, float[16] m, float[16] v,
     float[3,16] w2, float[3] b2) => (float[batch,3] logits) {
  [fc1] a = Gemm<transB = 1>(x, w1)
  [norm] b = BatchNormalization(a, s, t, m, v)
  [relu] c = Relu(b)
  [fc2] logits = Gemm<transB = 1>(c, w2, b2)
}"""


def network() -> ir.Model:
    ones = np.ones(16, np.float32)
    norm = {"s": ones, "t": 0 * ones, "m": 0 * ones, "v": ones}
    matrices = {"w1": weights(16, 10), "w2": weights(3, 16, seed=1), "b2": weights(3, seed=2)}
    return text_model(_MODEL, **matrices, **norm)


def boosts(job: str, folder: Path) -> tuple[ob.boosts.Boost, ...]:
    if job == "sync-bn":
        return (ob.SyncBatchNorm(),)
    if job == "dim-reduce":  # with its components divided among the processes
        length = 16 * 10 + 2 * 16 + 3 * 16 + 3
        rows = np.linalg.qr(np.random.default_rng(0).standard_normal((length, 5)))[0].T
        np.save(folder / "basis.npy", rows.astype(np.float32))
        return (ob.DimReduce(str(folder / "basis.npy"), first=0.1, shard=True),)
    if job == "thor":  # with its inversions divided among the processes
        return (ob.Thor(frequency=2, kl_clip=1e-3, distribute_inverses=True),)
    return ()


def start(folder: Path, processes: int, restarts: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    command += ["-m", "tests.parallel.run", str(folder), json.dumps(SETTINGS)]
    with open(folder / "said.txt", "w") as said:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment(), text=True, stdout=said, stderr=said
        )


def workers(parent: int) -> list[int]:
    found = subprocess.run(
        ["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--times", type=int, default=20)
    arguments.add_argument("--processes", type=int, default=2)
    jobs = ("plain", "sync-bn", "dim-reduce", "thor")
    arguments.add_argument("--job", choices=jobs, default="plain")
    arguments.add_argument("--seed", type=int, default=0)
    given, bad = arguments.parse_args(), 0
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as root:
        config = ob.ProgramConfig(
            engine="portable", learning_rate="0.05", boosts=boosts(given.job, Path(root))
        )
        program = ob.build_program(network(), config)
        whole = program.save(Path(root) / "whole")
        assert start(whole, given.processes, 0).wait() == 0
        expected = outcome(whole)
        for number in range(given.times):
            folder = program.save(Path(root) / f"run{number}")
            run = start(folder, given.processes, 1)
            first = "checkpoints/step-*.json" if rng.random() < 0.8 else "said.txt"
            while not list(folder.glob(first)) and run.poll() is None:
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 1.0 if "step" in first else 4.0))
            alive = workers(run.pid)
            hit = rng.choice(alive) if alive and run.poll() is None else None
            if hit is not None:
                os.kill(hit, signal.SIGKILL)
            status = run.wait()
            good = status == 0 and difference(outcome(folder), expected) is None
            log = (folder / "log.jsonl").read_text().splitlines()
            resumed = [json.loads(line).get("resumed") for line in log if '"start"' in line][-1:]
            print(
                f"{number}: killed {hit}, status {status}, same bits {good}, {resumed}", flush=True
            )
            if not good:
                print((folder / "said.txt").read_text()[-4000:], flush=True)
            bad += not good
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
