"""One process against several, case by case; started by torchrun, rank 0 writes JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortboost.boosts import (
    Clip,
    DimReduce,
    Ema,
    GradAccumulation,
    GradCentralization,
    GradFreeze,
    GroupLossScale,
    Lora,
    MixedPrecision,
    Thor,
)
from ortboost.core.errors import ModelError, OrtBoostError, UsageError
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig, GroupedScaleConfig
from ortboost.optimizers import Adam, AdamW, Lars, Momentum, Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.process_group import Handle, ProcessGroup
from ortboost.runtime.stepper import Stepper
from ortboost.training.data.batches import part_rows
from ortboost.transforms.loss_config import LossConfig
from tests.support import Arrays, model_path, small_convnet, small_mlp


@dataclass(frozen=True)
class Case:
    """A program, and what it is fed; ``change`` spoils a batch of 12 samples.

    With ``together`` each step starts from the same state, and the differences are those of one
    step.
    """

    model: Callable[[], object]
    config: ProgramConfig
    change: Callable[[int, Arrays], Arrays] = lambda _, batch: batch
    steps: int = 10
    rate: float = 0.05
    flush: bool = False
    together: bool = False


def mlp() -> ir.Model:
    return small_mlp(features=10, hidden=16)


def smooth(name: str) -> ir.Model:
    """A shipped model with Tanh: sums in another order may turn a Relu on or off.

    In one process, too, the weights of ResNet-20 differ by 1e-2 after two steps with another order
    of the batch.
    """
    model = ir.load(model_path(name))
    for node in model.graph:
        if node.op_type == "Relu":
            node.op_type = "Tanh"
    return model


def deep() -> ir.Model:
    return smooth("lenet5")


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except OrtBoostError as error:
        return str(error)
    return ""


def program(**settings) -> ProgramConfig:
    return ProgramConfig(engine="portable", **settings)


def short(step: int, batch: Arrays) -> Arrays:
    """Batches of 12, 7, 5 and 1 samples: parts differ, and some processes have none."""
    length = (12, 7, 5, 1)[step % 4]
    return {name: array[:length] for name, array in batch.items()}


def spoiled(step: int, batch: Arrays) -> Arrays:
    """At steps 2, 3 and 6 one sample makes an infinite gradient, in one process only."""
    if step in (2, 3, 6):
        batch["x"][-1] = np.inf if step == 3 else 1e38
    return batch


def large(step: int, batch: Arrays) -> Arrays:
    """At steps 2, 3 and 6 a gradient in one process is finite and has no finite square."""
    if step in (2, 3, 6):
        batch["x"][-1] = 1e25
    return batch


def uncounted(step: int, batch: Arrays) -> Arrays:
    """Ignore the first samples, so that parts weigh differently; at step 4 a whole part."""
    batch["labels"][: 6 if step == 4 else 3] = -1
    return batch


def basis() -> str:
    """Eight components of the weights of :func:`mlp`, the same in all processes."""
    rows = np.random.default_rng(1).standard_normal((8, 10 * 16 + 16 + 3 * 16 + 3))
    path = Path(tempfile.mkdtemp()) / "basis.npy"
    np.save(path, np.linalg.qr(rows.T)[0].T.astype(np.float32))
    return str(path)


LOW = DynamicScaleConfig(init_scale=2.0**8)
SMALL = DynamicScaleConfig(init_scale=2.0**15, scale_window=3)
CASES = {
    **{
        f"optimizer {rule.name}": Case(mlp, program(optimizer=rule, weight_decay=1e-3))
        for rule in (Sgd(momentum=0.9), Momentum(nesterov=True), Adam(), AdamW(), Lars())
    },
    "convolutions": Case(deep, program()),
    "uneven": Case(mlp, program(), short),
    "uneven sum": Case(mlp, program(loss=LossConfig(reduction="sum")), short, rate=0.005),
    "uneven none": Case(mlp, program(loss=LossConfig(reduction="none")), short, rate=0.005),
    "uncounted labels": Case(mlp, program(loss=LossConfig(ignore_index=-1)), uncounted),
    "weighted classes": Case(
        mlp,
        program(loss=LossConfig(ignore_index=-1, weight=[0.25, 1.0, 3.0]), metrics=("accuracy",)),
        uncounted,
    ),
    "overflow": Case(mlp, program(loss_scale=SMALL), spoiled),
    "large gradients": Case(mlp, program(optimizer=Adam(), loss_scale=LOW), large),
    "large gradients, accumulated": Case(
        mlp,
        program(optimizer=Adam(), boosts=(GradAccumulation(2),), loss_scale=LOW),
        large,
        flush=True,
    ),
    "clip": Case(mlp, program(boosts=(Clip("global-norm", 0.3),))),
    "averaged": Case(mlp, program(boosts=(Ema(0.5), GradAccumulation(2))), spoiled),
    "adapters": Case(mlp, program(boosts=(Lora(rank=2),), optimizer=Adam())),
    "centralized": Case(deep, program(boosts=(GradCentralization(),))),
    "accumulated": Case(mlp, program(boosts=(GradAccumulation(3),)), short, flush=True),
    "accumulated, no check": Case(
        mlp,
        program(boosts=(GradAccumulation(3),), loss_scale=NO_SCALE, check_finite=False),
        short,
        flush=True,
    ),
    "accumulated overflow": Case(
        mlp, program(boosts=(GradAccumulation(2),), loss_scale=SMALL), spoiled
    ),
    "frozen": Case(deep, program(boosts=(GradFreeze(groups=3, steps=10, p=0.6),))),
    "frozen, accumulated": Case(
        deep, program(boosts=(GradFreeze(groups=3, steps=6, p=0.6), GradAccumulation(2)))
    ),
    "grouped": Case(
        deep,
        program(boosts=(GroupLossScale(GroupedScaleConfig(init_scale=256.0, groups=2)),)),
        spoiled,
    ),
    # The mean over a part is larger than over all: it overflows earlier. What is rounded otherwise
    # turns a ReLU sooner or later, and then weights part as far as those of float32 are from both.
    "mixed precision": Case(
        deep, program(boosts=(MixedPrecision("fp16"),), loss_scale=LOW), rate=0.002, together=True
    ),
    "thor": Case(deep, program(boosts=(Thor(frequency=3, damping=0.3, kl_clip=1e-3),)), rate=0.005),
    "thor, uncounted labels": Case(
        mlp,
        program(loss=LossConfig(ignore_index=-1), boosts=(Thor(frequency=2),)),
        uncounted,
        rate=0.02,
    ),
    "thor, sum": Case(
        mlp,
        program(loss=LossConfig(reduction="sum"), boosts=(Thor(frequency=2),)),
        short,
        rate=0.002,
    ),
    "thor, overflow": Case(
        mlp,
        program(boosts=(Thor(frequency=2, factor_decay=0.5, pi=True),), loss_scale=SMALL),
        spoiled,
    ),
    "thor, accumulated": Case(
        mlp, program(boosts=(Thor(frequency=2), GradAccumulation(2))), short, flush=True
    ),
    "reduced": Case(mlp, program(boosts=(DimReduce(basis()),)), short),
    "in the subspace alone": Case(mlp, program(boosts=(DimReduce(basis(), alpha=0.0),)), spoiled),
    "metrics": Case(mlp, program(metrics=("accuracy",)), short),
}
SEGMENTED = ("uneven", "grouped", "thor, overflow")


def batch_of(inputs, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    found = {}
    for spec in inputs:
        shape = tuple(d if isinstance(d, int) else 12 for d in spec.shape)
        labels = spec.dtype == np.int64
        values = rng.integers(0, 3, shape) if labels else rng.standard_normal(shape)
        found[spec.name] = values.astype(spec.dtype)
    return found


def part_of(batch: Arrays, group: ProcessGroup) -> Arrays:
    rows = part_rows(len(batch["labels"]), group.rank, group.size)
    return {name: array[rows] for name, array in batch.items()}


def compared(case: Case, group: ProcessGroup) -> dict[str, object]:
    built = build_program(case.model(), case.config)
    one, many = Stepper(built, threads=1), Stepper(built, threads=1, group=group, check_sync=3)
    results = []
    for step in range(case.steps):
        batch = case.change(step, batch_of(built.catalogue.batch, step))
        rates = {"learning_rate": case.rate}
        if case.together:
            many.load_state(one.state())
        results.append((one.step(batch, rates), many.step(part_of(batch, group), rates)))
    if case.flush:
        rates = {"learning_rate": case.rate}
        assert one.flush(rates) == many.flush(rates)
    first, second = one.state(), many.state()
    if group.rank:
        return {}
    apart = {}  # relative where numbers are above 1
    for name, value in first.items():
        difference = np.abs(value.astype(np.float64) - second[name]).max(initial=0.0)
        apart[name] = float(difference / np.abs(value).max(initial=1.0))
    losses = [(a.loss, b.loss) for a, b in results if np.isfinite(a.loss) or np.isfinite(b.loss)]
    told = [
        [dataclasses.replace(r, loss=0.0, losses=None, metrics={}) for r in pair]
        for pair in results
    ]
    return {
        "apart": apart,
        "moved": max(
            float(np.abs(first[e.name] - built.initial[e.name]).max())
            for e in built.catalogue.entries("parameter")
        ),
        "loss": max((abs(a - b) / max(1.0, abs(a)) for a, b in losses), default=0.0),
        "metrics": max(
            (abs(a.metrics[n] - b.metrics[n]) for a, b in results for n in a.metrics), default=0.0
        ),
        "told": [str(pair) for pair in told if pair[0] != pair[1]],
        "skips": results[-1][0].total_skips,
        "updates": results[-1][0].applied_steps,
    }


def segmented(group: ProcessGroup) -> dict[str, float]:
    """Difference of states after steps in one segment and in three, or as many as possible."""
    apart = {}
    for name in SEGMENTED:
        case = CASES[name]
        built = build_program(case.model(), case.config)
        one, cut = (Stepper(built, threads=1, group=group, segments=n) for n in (1, 3))
        for step in range(4):
            batch = part_of(case.change(step, batch_of(built.catalogue.batch, step)), group)
            first, second = (s.step(batch, {"learning_rate": case.rate}) for s in (one, cut))
            same = np.array_equal(first.loss, second.loss, equal_nan=True)
            assert first.overflow == second.overflow
            assert same or group.size > 2
        assert len(cut.shared.open(cut.next_graph).gradients) > 1
        a, b = one.state(), cut.state()
        apart[name] = max(float(np.abs(a[n] - b[n]).max(initial=0.0)) for n in a)
    return apart


def messages(group: ProcessGroup) -> dict[str, int]:
    """How many messages a step takes."""
    number, start_sum = 0, ProcessGroup.start_sum

    def counting(self: ProcessGroup, tensor: object) -> Handle:
        nonlocal number
        number += 1
        return start_sum(self, tensor)

    built, found = build_program(mlp(), program(metrics=("accuracy",))), {}
    for kind, segments in {"at once": None, "in turn": 1}.items():
        stepper = Stepper(built, threads=1, group=group, segments=segments)
        batch = part_of(batch_of(built.catalogue.batch, 0), group)
        stepper.step(batch, {"learning_rate": 0.05})
        ProcessGroup.start_sum, number = counting, 0
        stepper.step(batch, {"learning_rate": 0.05})
        ProcessGroup.start_sum, found[kind] = start_sum, number
    return found


def statistics(group: ProcessGroup) -> float:
    """How far the running statistics are from the mean of those that each process finds alone."""
    built = build_program(small_convnet(), program(optimizer=Sgd(), learning_rate="0.0"))
    alone, many = Stepper(built, threads=1), Stepper(built, threads=1, group=group)
    for step in range(3):  # the weights stand still, so that only the statistics move
        part = part_of(batch_of(built.catalogue.batch, step), group)
        alone.step(part, {"learning_rate": 0.0})
        many.step(part, {"learning_rate": 0.0})
    found = many.state()
    apart = 0.0
    for name in ("mean", "var"):
        expected = np.mean(group.gather(alone.get(name)), axis=0)
        assert not np.array_equal(alone.get(name), found[name])
        apart = max(apart, float(np.abs(expected - found[name]).max()))
    return apart


def narrow(group: ProcessGroup) -> dict[str, float]:
    """Difference of weights if gradients travel in fewer bits; all processes have the same."""
    built = build_program(mlp(), program())
    found = {}
    for wire in ("float16", "bfloat16"):
        one = Stepper(built, threads=1)
        many = Stepper(built, threads=1, group=group, wire=wire, check_sync=1)
        for step in range(5):
            batch = batch_of(built.catalogue.batch, step)
            one.step(batch, {"learning_rate": 0.05})
            many.step(part_of(batch, group), {"learning_rate": 0.05})
        found[wire] = float(np.abs(one.get("w1") - many.get("w1")).max())
    return found


def window(group: ProcessGroup) -> bool:
    """A state that is read within a window goes on to the same bits."""
    built = build_program(mlp(), program(boosts=(GradAccumulation(3),)))
    batches = [part_of(batch_of(built.catalogue.batch, i), group) for i in range(5)]
    rates = {"learning_rate": 0.1}
    first, second = (Stepper(built, threads=1, group=group) for _ in range(2))
    for batch in batches[:2]:
        first.step(batch, rates)
    second.load_state(group.gather(first.state())[0])  # of rank 0, as from a checkpoint
    for batch in batches[2:]:
        first.step(batch, rates)
        second.step(batch, rates)
    one, other = first.state(), second.state()
    return all(np.array_equal(one[name], other[name]) for name in one)


def summed_window(group: ProcessGroup) -> str:
    """What is said where each process has sums that pass the check, and all together do not."""
    config = program(loss=LossConfig(reduction="sum"), boosts=(GradAccumulation(3),))
    stepper = Stepper(build_program(mlp(), config), threads=1, group=group)
    stepper.step(part_of(batch_of(stepper.inputs, 0), group), {"learning_rate": 0.1})
    name = "ortboost/accumulated/w1"
    shape = stepper.get(name).shape
    stepper.set(name, np.full(shape, 2.0**61.5 / np.prod(shape) ** 0.5, np.float32))
    try:
        stepper.flush({"learning_rate": 0.1})
    except ModelError as error:
        return str(error)
    return ""


def no_samples(group: ProcessGroup) -> list[object]:
    """What is said where no process has a sample, and whether a state is another then."""
    stepper = Stepper(build_program(mlp(), program()), threads=1, group=group)
    before = {name: np.array(value) for name, value in stepper.state().items()}
    batch = {name: a[:0] for name, a in batch_of(stepper.inputs, 0).items()}
    try:
        stepper.step(batch, {"learning_rate": 0.1})
    except UsageError as error:
        after = stepper.state()
        return [error.what, all(np.array_equal(before[name], after[name]) for name in before)]
    return []


def drifted(group: ProcessGroup) -> str:
    """What is said where a tensor of one process is another."""
    built = build_program(mlp(), program())
    stepper = Stepper(built, threads=1, group=group, check_sync=2)
    if group.rank == group.size - 1:
        stepper.set("w2", stepper.get("w2") + np.float32(1e-7))
    batch = part_of(batch_of(built.catalogue.batch, 0), group)
    stepper.step(batch, {"learning_rate": 0.1})
    try:
        stepper.step(batch, {"learning_rate": 0.1})
    except ModelError as error:
        return str(error)
    return ""


def other_program(group: ProcessGroup) -> str:
    """What is said where a process has another program."""
    rule = Adam() if group.rank else Sgd()
    try:
        Stepper(build_program(mlp(), program(optimizer=rule)), group=group)
    except UsageError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    with ProcessGroup(timeout=60) as shared:
        found: dict[str, object] = {name: compared(case, shared) for name, case in CASES.items()}
        checks = (
            segmented,
            messages,
            statistics,
            narrow,
            window,
            summed_window,
            no_samples,
            drifted,
        )
        checks = (*checks, other_program)
        found |= {check.__name__: check(shared) for check in checks}
        if shared.rank == 0:
            with open(sys.argv[1], "w") as file:
                json.dump(found, file)
