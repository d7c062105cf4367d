"""DimReduce with its components divided among the processes; started by torchrun."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from ortboost.boosts import DimReduce
from ortboost.core.loss_scale import NO_SCALE
from ortboost.core.tensor_file import TensorFile, write_tensors
from ortboost.program.build import build_program
from ortboost.program.program import Program
from ortboost.runtime.process_group import ProcessGroup
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.loss_config import LossConfig
from tests.parallel.steps import (
    SMALL,
    Case,
    basis,
    batch_of,
    compared,
    mlp,
    part_of,
    program,
    short,
    spoiled,
    told,
    uncounted,
)

BASIS, OWN = "ortboost/dim_reduce/basis", "ortboost/dim_reduce/"
PATH = basis()


def sharded(alpha: float = 0.001, k: int = 5, **settings):
    return program(boosts=(DimReduce(PATH, k, alpha=alpha, shard=True),), **settings)


CASES = {
    "residual": Case(mlp, sharded(), short),
    "subspace": Case(mlp, sharded(0.0), short),
    "as many rows as processes": Case(mlp, sharded(k=4), short),
    "overflow": Case(mlp, sharded(0.0, k=0, loss_scale=SMALL), spoiled),
    "no check": Case(mlp, sharded(loss_scale=NO_SCALE, check_finite=False), short),
    "uncounted labels": Case(mlp, sharded(loss=LossConfig(ignore_index=-1)), uncounted),
}
RATES = {"learning_rate": 0.1}


def held(group: ProcessGroup) -> dict[str, object]:
    """Rows that the processes hold; the state as a whole goes on with any number of processes."""
    built = build_program(mlp(), sharded())
    folder = Path(group.gather(tempfile.mkdtemp())[0])
    if group.rank == 0:
        built.save(folder)
    group.gather(None)
    loaded = Program.load(folder)
    one, many = Stepper(loaded, threads=1), Stepper(loaded, threads=1, group=group)
    batches = [batch_of(built.catalogue.batch, i) for i in range(6)]
    for batch in batches[:3]:
        one.step(batch, RATES)
        many.step(part_of(batch, group), RATES)
    state = many.state()
    if group.rank == 0:
        write_tensors(folder / "state", state)
    group.gather(None)
    stored = TensorFile(folder / "state")
    again, alone = Stepper(loaded, threads=1, group=group), Stepper(loaded, threads=1)
    again.load_state(stored)
    alone.load_state(stored)
    for batch in batches[3:]:
        for stepper in (many, again):
            stepper.step(part_of(batch, group), RATES)
        for stepper in (one, alone):
            stepper.step(batch, RATES)
    weights = [entry.name for entry in built.catalogue.entries("parameter")]
    changed = {**stored, BASIS: np.flip(stored[BASIS], 0)}
    return {
        "rows": group.gather(len(many._state.current(BASIS).numpy())),
        "whole": bool(np.array_equal(stored[BASIS], built.initial[BASIS])),
        "read": bool(np.array_equal(many.get(BASIS), built.initial[BASIS])),
        "resumed": all(np.array_equal(many.get(n), again.get(n)) for n in weights),
        "resharded": max(float(np.abs(many.get(n) - alone.get(n)).max()) for n in weights),
        "moved": max(float(np.abs(many.get(n) - stored[n]).max()) for n in weights),
        "other basis": told(lambda: again.load_state(changed)),
        "set": told(lambda: again.set(BASIS, changed[BASIS])),
    }


def few(group: ProcessGroup) -> str:
    """What is said where there are more processes than rows."""
    built = build_program(mlp(), sharded(k=group.size - 1))
    return told(lambda: Stepper(built, group=group))


def diagnosed(group: ProcessGroup) -> list[list[list[str]]]:
    """What each process finds in its part of a batch that overflows, and what one alone finds."""
    built = build_program(mlp(), sharded(loss_scale=SMALL))
    alone, many = Stepper(built, threads=1), Stepper(built, threads=1, group=group)
    batch = batch_of(built.catalogue.batch, 0)
    batch["x"][:] = 1e38
    part = part_of(batch, group)
    assert many.step(part, RATES).overflow
    many.diagnose(part, RATES)
    many.load_state(alone.state())  # with the same scale
    return group.gather([many.nonfinite(part, RATES), alone.nonfinite(part, RATES)])


if __name__ == "__main__":
    with ProcessGroup(timeout=60) as shared:
        found: dict[str, object] = {name: compared(case, shared) for name, case in CASES.items()}
        found |= {check.__name__: check(shared) for check in (held, few, diagnosed)}
        if shared.rank == 0:
            with open(sys.argv[1], "w") as file:
                json.dump(found, file)
