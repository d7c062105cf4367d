"""A training in a process of torchrun, with a fault if asked for: ``run FOLDER JSON``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np

import ortboost as ob
from ortboost.training import Callback

RANK, FIRST = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


class Fault(Callback):
    """Rank ``rank`` is killed, or sleeps, before a step; only in the first life of the run."""

    name = "fault"

    def __init__(self, rank: int = -1, step: int = 0, seconds: float = 0.0) -> None:
        self.rank, self.step, self.seconds = rank, step, seconds

    def on_step_begin(self, view) -> None:
        if FIRST and self.rank == RANK and view.step == self.step:
            time.sleep(self.seconds)
            if not self.seconds:
                os.kill(os.getpid(), signal.SIGKILL)


def data(length: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((length, 10)).astype(np.float32)
    return {"x": x, "labels": (np.abs(x[:, :3])).argmax(axis=1)}


if __name__ == "__main__":
    folder, given = sys.argv[1], json.loads(sys.argv[2])
    length = given.pop("length", 50)
    if RANK and "other_length" in given:
        length = given["other_length"]
    given.pop("other_length", None)
    fault = Fault(**given.pop("fault", {}))
    settings = {"epochs": 2, "batch_size": 12, "threads": 1, "timeout": 60, **given}
    try:
        held = None if "val_split" in settings else data(20, 1)
        ob.train(folder, data(length), held, callbacks=[fault], **settings)
    except ob.OrtBoostError as error:
        print(f"[rank {RANK}] {error}", flush=True)
        sys.exit(error.exit_status)
