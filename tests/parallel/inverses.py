"""THOR with and without inversions divided among the processes; started by torchrun."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ortboost.boosts import AdaSum, GradAccumulation, MixedPrecision, SyncBatchNorm, Thor
from ortboost.boosts.roles import PART
from ortboost.core.loss_scale import NO_SCALE
from ortboost.program.build import build_program
from ortboost.program.program import Program
from ortboost.runtime.process_group import ProcessGroup
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.loss_config import LossConfig
from tests.parallel.steps import LOW, SMALL, batch_of, mlp, part_of, program, short, spoiled, told
from tests.support import Arrays, small_convnet, small_mlp, text_model, weights

RATES = {"learning_rate": 0.01}
KEPT = "ortboost/thor/kept_blocks"


def wide() -> object:
    """Blocks of 40, 20, 20 and 3 rows, padded to 64, 32, 32 and 16."""
    return small_mlp(features=40, hidden=20)


def single() -> object:
    """One layer, so two blocks: fewer than four processes."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,6] x, float[6,3] w) => (float[batch,3] y) { y = MatMul(x, w) }""",
        w=weights(6, 3),
    )


@dataclass(frozen=True)
class Case:
    """Settings of THOR, other boosts, settings of the program and of the stepper."""

    thor: dict[str, object] = field(default_factory=dict)
    boosts: tuple[object, ...] = ()
    settings: dict[str, object] = field(default_factory=dict)
    model: Callable[[], object] = mlp
    change: Callable[[int, Arrays], Arrays] = lambda _, batch: batch
    stepper: dict[str, object] = field(default_factory=dict)
    flush: bool = False

    def build(self, *, distributed: bool) -> Program:
        thor = Thor(
            **{"frequency": 2, "damping": 0.3, **self.thor}, distribute_inverses=distributed
        )
        return build_program(self.model(), program(boosts=(thor, *self.boosts), **self.settings))


CASES = {
    "blocks of several sizes": Case(model=wide),
    "whole factors": Case({"block": 0}, model=wide),
    "fewer blocks than processes": Case(model=single),
    "many small blocks": Case({"block": 3, "kl_clip": 1e-3}),
    "uneven": Case(change=short),
    "sum": Case(settings={"loss": LossConfig(reduction="sum")}, change=short),
    "overflow": Case(
        {"factor_decay": 0.5, "pi": True}, settings={"loss_scale": SMALL}, change=spoiled
    ),
    "no check": Case(
        {"damping": (0.3, 0.2), "damping_decay": 0.9},
        settings={"loss_scale": NO_SCALE, "check_finite": False},
    ),
    "rejected": Case({"damping": 1e-12}, settings={"loss_scale": NO_SCALE}),
    "accumulated": Case({"factor_decay": 0.5}, (GradAccumulation(2),), change=short, flush=True),
    "accumulated overflow": Case(
        boosts=(GradAccumulation(2),), settings={"loss_scale": SMALL}, change=spoiled, flush=True
    ),
    "synchronized": Case(boosts=(SyncBatchNorm(),), model=small_convnet),
    "mixed precision": Case(boosts=(MixedPrecision("fp16"),), settings={"loss_scale": LOW}),
    "float16 on the wire": Case(stepper={"wire": "float16"}),
}
SERVERS = {
    "adasum": Case(boosts=(AdaSum(group_size=1),), change=short),
    "adasum, accumulated": Case(boosts=(AdaSum(group_size=1), GradAccumulation(2)), flush=True),
}
"""Cases for a number of processes that is a power of two."""


def trained(case: Case, group: ProcessGroup, *, distributed: bool) -> tuple[Stepper, Program]:
    built = case.build(distributed=distributed)
    many = Stepper(built, threads=1, group=group, check_sync=1, **case.stepper)
    for step in range(8):
        batch = case.change(step, batch_of(built.catalogue.batch, step))
        many.step(part_of(batch, group), RATES)
    if case.flush:
        many.flush(RATES)
    return many, built


def compared(case: Case, group: ProcessGroup) -> dict[str, object]:
    """The states that differ in any bit, and what moved."""
    (every, built), (divided, _) = (trained(case, group, distributed=d) for d in (False, True))
    expected, found = every.state(), divided.state()
    weights = [entry.name for entry in built.catalogue.entries("parameter")]
    return {
        "differ": [n for n in expected if not np.array_equal(expected[n], found[n])],
        "more": sorted(found.keys() - expected.keys()),
        "moved": max(float(np.abs(found[n] - built.initial[n]).max()) for n in weights),
        "kept": int(found[KEPT]),
        "skips": int(found.get("ortboost/total_skips", 0)),
        "updates": int(found["ortboost/step"]),
    }


def shares(group: ProcessGroup) -> dict[str, object]:
    """The blocks that each process sends, one list of factors for each."""
    case = CASES["blocks of several sizes"]
    built = case.build(distributed=True)
    many = Stepper(built, threads=1, group=group)
    (exchange,) = many.shared.open("step").update.exchanges
    sent: dict[str, np.ndarray] = {}
    run = exchange.run

    def noted(weight: float) -> None:
        own = exchange.buffer
        names = [name for name in own.names if "inverse" in name and name.endswith("/cut")]
        sent.update((name, own.read(name)) for name in names)
        run(weight)

    exchange.run = noted
    many.step(part_of(batch_of(built.catalogue.batch, 0), group), RATES)
    blocks = {
        f"{name}{i}": bool(block.any())
        for name, value in sent.items()
        for i, block in enumerate(value)
    }
    return {
        "all": sorted(blocks),
        "own": group.gather(sorted(name for name, own in blocks.items() if own)),
        "parts": group.gather(many._state.current(PART).numpy().tolist()),
    }


def resumed(group: ProcessGroup) -> dict[str, object]:
    """The state of several processes goes on with one, and back."""
    many, built = trained(CASES["many small blocks"], group, distributed=True)
    state = many.state()
    alone, again = Stepper(built, threads=1), Stepper(built, threads=1, group=group)
    alone.load_state(state)
    again.load_state(state)
    for step in range(8, 12):
        batch = batch_of(built.catalogue.batch, step)
        alone.step(batch, RATES)
        for stepper in (many, again):
            stepper.step(part_of(batch, group), RATES)
    weights = [entry.name for entry in built.catalogue.entries("parameter")]
    return {
        "part": state[PART].tolist(),
        "changed": told(lambda: again.set(PART, np.array([0, 2]))),
        "bits": all(np.array_equal(many.get(n), again.get(n)) for n in weights),
        "apart": max(float(np.abs(many.get(n) - alone.get(n)).max()) for n in weights),
        "moved": max(float(np.abs(many.get(n) - state[n]).max()) for n in weights),
    }


if __name__ == "__main__":
    with ProcessGroup(timeout=60) as shared:
        cases = CASES if shared.size == 3 else {**CASES, **SERVERS}
        results: dict[str, object] = {name: compared(case, shared) for name, case in cases.items()}
        results |= {check.__name__: check(shared) for check in (shares, resumed)}
        if shared.rank == 0:
            with open(sys.argv[1], "w") as file:
                json.dump(results, file)
