"""Kill trainings with each boost and optimizer at random; they must resume to the same bits.

    python -m tools.kill_boosts --times 5              # five kills each
    python -m tools.kill_boosts --only thor,windows

Each round trains a small network with dropout and batch normalization once undisturbed, and once
killed (SIGKILL) at a random moment, twice in a row, and resumed. State, best checkpoint and logged
losses must be the same. A checkpoint is written every three steps, so that many kills come while
one is. ``tools/kill_ranks.py`` does this with several processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ortboost import api
from ortboost.cli import main as ortboost
from ortboost.graph.io import save_model
from ortboost.training import Callback
from tests.support import text_model, weights
from tools.fuzz.forks import preload

__all__ = ["JOBS", "difference", "main", "outcome"]

_MODEL = """<ir_version: 10, opset_import: ["" : 18]>
net (float[batch,1,6,6] x, float[4,1,3,3] c1, float[4] s1, float[4] t1, float[4] m1, float[4] v1,
     float[4,4,3,3] c2, float[4] s2, float[4] t2, float[4] m2, float[4] v2,
     float[6,4] w1, float[6] b1, float[3,6] w2, float[3] b2, float ratio)
 => (float[batch,3] logits) {
  [conv1] a = Conv<pads = [1, 1, 1, 1]>(x, c1)
  [norm1] b = BatchNormalization(a, s1, t1, m1, v1)
  [relu1] c = Relu(b)
  [conv2] d = Conv<pads = [1, 1, 1, 1]>(c, c2)
  [norm2] e = BatchNormalization(d, s2, t2, m2, v2)
  [relu2] f = Relu(e)
  [sum] g = Add(f, c)
  [pool] h = GlobalAveragePool(g)
  [flat] i = Flatten(h)
  [fc1] j = Gemm<transB = 1>(i, w1, b1)
  [relu3] k = Relu(j)
  [drop] l = Dropout(k, ratio)
  [fc2] logits = Gemm<transB = 1>(l, w2, b2)
}"""
_SCALE = "--loss-scale dynamic:init=1024,window=4"
JOBS = {
    "sgd": "--optimizer sgd --lr cosine:0.1",
    "momentum": f"--optimizer momentum {_SCALE}",
    "adam": "--optimizer adam --clip global-norm:1",
    "adamw": "--optimizer adamw --weight-decay 0.01",
    "lars": "--optimizer lars --lr step:0.1,every=10",
    "thor": "--optimizer thor:frequency=3",
    "thor-average": "--optimizer thor:frequency=2,factor-decay=0.5,pi=true",
    "dim-reduce": "--boost dim-reduce:pca-mat-path=BASIS",
    "windows": "--accumulate 3",
    "windows-thor": "--accumulate 2 --optimizer thor:frequency=2",
    "grad-freeze": "--boost grad-freeze:p=0.5,groups=3",
    "freeze-windows": "--boost grad-freeze:p=0.5,groups=2,by=cost --accumulate 2 --optimizer adam",
    "less-bn": "--boost less-bn",
    "full-norm-head": "--boost full-norm-head",
    "centralization": "--boost grad-centralization",
    "grouped-scale": "--loss-scale grouped:4096,groups=2",
    "fp16": f"--precision fp16 {_SCALE}",
    "bf16": "--precision bf16",
    "recompute": "--boost recompute --optimizer adam",
    "adasum": "--boost adasum",
    "sync-bn": "--boost sync-bn",
    "native": f"--engine native {_SCALE}",
}
"""Name to the options of ``convert``."""
_SETTINGS: dict[str, Any] = {
    "epochs": 4,
    "batch_size": 8,
    "checkpoint_every": 3,
    "resume": True,
    "device": "cpu",
    "threads": 1,
    "progress": None,
}
_LENGTH = 60
_STEPS = _SETTINGS["epochs"] * -(-_LENGTH // _SETTINGS["batch_size"])


class _Kill(Callback):
    """Die a moment after a step."""

    def __init__(self, at: int, seconds: float) -> None:
        self._left, self._seconds = at, seconds

    def on_step_end(self, run: Any, result: Any) -> None:
        self._left -= 1
        if self._left == 0:
            threading.Timer(self._seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def _in_fork(work: Callable[[], object]) -> int:
    """The wait status of a fork that does some work."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1]


def _train(folder: Path, data: dict[str, Any], *callbacks: Callback) -> None:
    api.train(folder, data, data, callbacks=[*callbacks], **_SETTINGS)


def _convert(base: Path, folder: Path, options: str) -> int:
    words = options.replace("BASIS", str(base / "basis.npy")).split()
    status: int = ortboost(["convert", str(base / "net.onnx"), "-o", str(folder), "-q", *words])
    return status


def outcome(folder: Path) -> dict[str, Any]:
    """What a training left: last and best state, and the logged losses."""
    found: dict[str, Any] = {}
    for which in ("last", "best"):
        _, state, checkpoint = api.load_run(folder, which)
        found[which] = {name: np.array(state[name]) for name in state}
        found[f"step of {which}"] = checkpoint.step if checkpoint is not None else None
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    found["losses"] = [(e["step"], e["loss"]) for e in lines if e["event"] == "step"]
    return found


def difference(found: dict[str, Any], whole: dict[str, Any]) -> str | None:
    """The first thing in which two outcomes differ, bit by bit."""
    for name, value in whole.items():
        if isinstance(value, dict):
            for key, array in value.items():
                if found[name][key].tobytes() != array.tobytes():
                    return f"{name}: {key}"
        elif found[name] != value:
            return name
    return None


def _make(base: Path, rng: np.random.Generator) -> dict[str, Any]:
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    model = text_model(
        _MODEL,
        c1=weights(4, 1, 3, 3),
        c2=weights(4, 4, 3, 3, seed=1),
        w1=weights(6, 4, seed=2),
        w2=weights(3, 6, seed=3),
        b1=np.zeros(6, np.float32),
        b2=np.zeros(3, np.float32),
        ratio=np.float32(0.3),
        **{f"{kind}{number}": ones for kind in "sv" for number in (1, 2)},
        **{f"{kind}{number}": zeros for kind in "tm" for number in (1, 2)},
    )
    save_model(model, base / "net.onnx")
    x = rng.standard_normal((_LENGTH, 1, 6, 6)).astype(np.float32)
    return {"x": x, "labels": np.arange(_LENGTH) % 3}


def _basis(folder: Path, path: Path, rng: np.random.Generator) -> None:
    entries = api.load_run(folder, "initial")[0].catalogue.entries("parameter")
    length = sum(int(np.prod(entry.shape)) for entry in entries if entry.next is not None)
    np.save(path, np.linalg.qr(rng.standard_normal((length, 4)))[0].T.astype(np.float32))


def main(arguments: list[str] | None = None) -> int:
    """Run the rounds and print how they ended; 1 if any was not resumed to the same bits."""
    parser = argparse.ArgumentParser(prog="python -m tools.kill_boosts", description=__doc__)
    parser.add_argument("--times", type=int, default=1, help="rounds of two kills for each boost")
    parser.add_argument("--only", help="names of JOBS, with commas between them")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    sys.modules["matplotlib.figure"] = None  # type: ignore[assignment] - no curves, which take long
    names = options.only.split(",") if options.only else list(JOBS)
    rng = np.random.default_rng(options.seed)
    kills = bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        data = _make(base, rng)

        def warm() -> None:
            _convert(base, base / "warm", "")
            _basis(base / "warm", base / "basis.npy", np.random.default_rng(0))
            _train(base / "warm", data)

        preload(warm)
        for name in names:
            made, whole = base / name, base / f"{name}-whole"
            _in_fork(partial(_convert, base, made, JOBS[name]))
            if not (made / "program.json").exists():
                print(f"{name}: not converted", flush=True)
                bad += name != "native"  # which needs onnxruntime-training
                continue
            shutil.copytree(made, whole)
            assert _in_fork(partial(_train, whole, data)) == 0, name
            expected = outcome(whole)
            for number in range(options.times):
                folder = base / f"{name}-{number}"
                shutil.copytree(made, folder)
                hit = 0
                for _ in range(2):
                    at, seconds = int(rng.integers(1, _STEPS // 2)), float(rng.uniform(0, 0.02))
                    status = _in_fork(partial(_train, folder, data, _Kill(at, seconds)))
                    hit += os.WIFSIGNALED(status)
                ended = _in_fork(partial(_train, folder, data))
                differs = "does not end" if ended else difference(outcome(folder), expected)
                kills += hit
                bad += differs is not None
                if differs is not None:
                    print(f"{name}, round {number}: {differs}", flush=True)
                shutil.rmtree(folder)
            print(f"{name}: {options.times} rounds", flush=True)
    print(f"{kills} kills, {bad} not resumed to the same bits")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
