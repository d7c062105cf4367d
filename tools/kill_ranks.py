"""Kill processes of a distributed run at random moments, and check the result bit for bit.

Usage: python tools/kill_ranks.py [--times 20] [--processes 2]

Each round trains the same small network twice with torchrun: once undisturbed, and once with a
process killed (SIGKILL) at a random moment after the first checkpoint; torchrun restarts the
others. Requires torch.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ortboost as ob
from ortboost.api.run_folder import load_run
from tests.parallel.launch import environment
from tests.support import ROOT, small_mlp

SETTINGS = {"epochs": 40, "checkpoint_every": 7, "timeout": 60, "length": 400, "keep": 3}


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
    given, rng = arguments.parse_args(), random.Random(0)
    config = ob.ProgramConfig(engine="portable", learning_rate="0.05")
    program, bad = ob.build_program(small_mlp(10, 16), config), 0
    with tempfile.TemporaryDirectory() as root:
        whole = program.save(Path(root) / "whole")
        assert start(whole, given.processes, 0).wait() == 0
        expected = load_run(whole, "last")[1]
        for number in range(given.times):
            folder = program.save(Path(root) / f"run{number}")
            run = start(folder, given.processes, 1)
            while not list(folder.glob("checkpoints/step-*.json")) and run.poll() is None:
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 1.0))
            alive = workers(run.pid)
            hit = rng.choice(alive) if alive and run.poll() is None else None
            if hit is not None:
                os.kill(hit, signal.SIGKILL)
            status = run.wait()
            found = load_run(folder, "last")[1]
            same = status == 0 and all(np.array_equal(found[n], expected[n]) for n in expected)
            log = (folder / "log.jsonl").read_text().splitlines()
            resumed = [json.loads(line).get("resumed") for line in log if '"start"' in line][-1:]
            print(
                f"{number}: killed {hit}, status {status}, same bits {same}, {resumed}", flush=True
            )
            if not same:
                print((folder / "said.txt").read_text()[-4000:], flush=True)
            bad += not same
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
