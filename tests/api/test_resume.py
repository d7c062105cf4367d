"""Runs that are killed, again and again, end in the same bits as one that is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from ortboost import api
from ortboost.graph.io import save_model
from ortboost.optimizers import Adam
from ortboost.program.config import ProgramConfig
from tests.support import MODELS, ROOT, assert_same_bits, text_model, weights

# Each line that it reads is a folder and a plan for a fork, which has no session to inherit: it
# trains or goes on, and dies by its own SIGKILL: just before or after the n-th rename (each
# checkpoint has two or three), or a moment after the n-th step of the session, wherever it is then.
SERVER = """
import json, os, signal, sys, threading, traceback
import onnxruntime
from ortboost import api
from ortboost.training import Callback

api.train  # imported here, once
sys.modules["matplotlib.figure"] = None  # no curves: they take longer than the training

def die():
    os.kill(os.getpid(), signal.SIGKILL)

real, count = os.replace, 0
def replace(*args, **kwargs):
    global count
    count += 1
    if plan["kind"] == "before" and count == plan["at"]:
        die()
    real(*args, **kwargs)
    if plan["kind"] == "after" and count == plan["at"]:
        die()
os.replace = replace

class Timer(Callback):
    steps = 0
    def on_step_end(self, run, result):
        self.steps += 1
        if plan["kind"] == "moment" and self.steps == plan["at"]:
            threading.Timer(plan["delay"], die).start()

for line in sys.stdin:
    folder, data, plan = json.loads(line)
    child = os.fork()
    if not child:
        status = 1
        try:
            api.train(
                folder, data, data, epochs=5, batch_size=64, checkpoint_every=7, resume=True,
                device="cpu", threads=1, callbacks=[Timer()],
            )
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
DATA = MODELS / "digits.npz"


def network():
    """With dropout: its masks have to come back too. With batch normalization: state as well."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,64] x, float[32,64] w1, float[32] b1, float[32] s, float[32] t,
             float[32] mean, float[32] var, float[10,32] w2, float[10] b2, float ratio) =>
            (float[batch,10] logits) {
          h = Gemm<transB = 1>(x, w1, b1)
          n = BatchNormalization(h, s, t, mean, var)
          r = Relu(n)
          d = Dropout(r, ratio)
          logits = Gemm<transB = 1>(d, w2, b2)
        }""",
        w1=weights(32, 64, scale=0.1),
        b1=np.zeros(32, np.float32),
        s=np.ones(32, np.float32),
        t=np.zeros(32, np.float32),
        mean=np.zeros(32, np.float32),
        var=np.ones(32, np.float32),
        w2=weights(10, 32, scale=0.1),
        b2=np.zeros(10, np.float32),
        ratio=np.float32(0.3),
    )


@pytest.fixture(scope="module")
def start():
    """A function that trains in a process of its own, and returns the status it ended with."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "error", "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=environment, **pipes) as server:

        def start(folder, plan) -> int:
            print(json.dumps([str(folder), str(DATA), plan]), file=server.stdin, flush=True)
            status = int(server.stdout.readline())
            assert status in (0, -signal.SIGKILL)
            return status

        yield start
        server.stdin.close()


def outcome(folder):
    _, state, checkpoint = api.load_run(folder, "last")
    _, best, best_checkpoint = api.load_run(folder, "best")
    logged = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    losses = [(e["step"], e["loss"]) for e in logged if e["event"] == "step"]
    return state, checkpoint.step, best, best_checkpoint.step, losses


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, start):
    """A factory of equal program folders, and what an uninterrupted run makes of one."""
    base = tmp_path_factory.mktemp("resume")
    save_model(network(), base / "net.onnx")
    config = ProgramConfig(optimizer=Adam(), learning_rate="cosine:0.01")

    def make(name):
        api.convert(base / "net.onnx", base / name, config)
        return base / name

    assert start(make("whole"), {"kind": "never"}) == 0
    return make, outcome(base / "whole")


BOUNDARIES = [
    ("before", 1),
    ("after", 1),
    ("before", 2),
    ("after", 2),
    ("before", 3),
    ("after", 4),
    ("before", 7),
]
RANDOM_OPERATORS = np.random.default_rng(5)
MOMENTS = [
    (int(RANDOM_OPERATORS.integers(1, 21)), float(RANDOM_OPERATORS.uniform(0, 0.003)))
    for _ in range(6)
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["boundaries", "moments"])
def test_killed_at_every_boundary_and_at_random_moments(jobs, start, kind):
    make, (state, step, best, best_step, losses) = jobs
    assert step == 5 * 23
    folder = make(kind)
    if kind == "boundaries":
        plans = [{"kind": where, "at": count} for where, count in BOUNDARIES]
    else:
        plans = [{"kind": "moment", "at": at, "delay": delay} for at, delay in MOMENTS]
    killed = [start(folder, plan) for plan in plans].count(-signal.SIGKILL)
    assert killed == len(plans) if kind == "boundaries" else killed > 0
    assert start(folder, {"kind": "never"}) == 0
    found = outcome(folder)
    assert_same_bits(found[0], state)
    assert found[1] == step
    assert_same_bits(found[2], best)
    assert found[3] == best_step
    assert found[4] == losses
