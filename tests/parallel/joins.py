"""AdaSum between real processes against a float64 simulation; started by torchrun."""

from __future__ import annotations

import json
import sys

import numpy as np

from ortboost.boosts import AdaSum, Clip, Thor
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import DynamicScaleConfig
from ortboost.optimizers import Adam, Momentum
from ortboost.program.build import build_program
from ortboost.runtime.adasum import SharedAdaSum
from ortboost.runtime.process_group import ProcessGroup
from ortboost.runtime.stepper import Stepper
from tests.parallel.steps import batch_of, mlp, part_of, program, spoiled

RATES = {"learning_rate": 0.05}


def combined(deltas: list[np.ndarray]) -> np.ndarray:
    """The formula, pair by pair, in float64."""
    if len(deltas) == 1:
        return deltas[0]
    a, b = combined(deltas[: len(deltas) // 2]), combined(deltas[len(deltas) // 2 :])
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b


def simulated(
    group: ProcessGroup, size: int, config, steps: int, change, every: int = 1
) -> dict[str, float]:
    """How far real servers are from servers that are steppers of one process."""
    built = build_program(mlp(), config)
    boosts = tuple(boost for boost in config.boosts if not isinstance(boost, AdaSum))
    alone = build_program(mlp(), program(optimizer=config.optimizer, boosts=boosts))
    servers = [Stepper(alone, threads=1) for _ in range(group.size // size)]
    many = Stepper(built, threads=1, group=group, check_sync=2)
    weights = [entry.name for entry in built.catalogue.entries("parameter")]
    apart, applied = 0.0, 0
    before = {name: servers[0].get(name).astype(np.float64) for name in weights}
    for step in range(steps):
        batch = change(step, batch_of(built.catalogue.batch, step))
        overflow = not np.isfinite(batch["x"]).all() or np.abs(batch["x"]).max() > 1e30
        found = many.step(part_of(batch, group), RATES)
        assert found.overflow == overflow
        if overflow:  # in all servers, though the gradients of the others were finite
            continue
        length = len(batch["labels"])
        ends = [length * rank // group.size for rank in range(group.size + 1)]
        for number, server in enumerate(servers):
            rows = slice(ends[number * size], ends[(number + 1) * size])
            server.step({name: array[rows] for name, array in batch.items()}, RATES)
        own = servers[group.rank // size]
        if (applied := applied + 1) % every and step < steps - 1:  # each server by itself
            apart = max(apart, *(float(np.abs(own.get(n) - many.get(n)).max()) for n in weights))
            continue
        if step == steps - 1:  # whatever the window holds is joined when the state is read
            many.state()
        for name in weights:
            deltas = [before[name] - server.get(name) for server in servers]
            new = before[name] - combined(deltas)
            for server in servers:
                server.set(name, new)
            apart = max(apart, float(np.abs(new - many.get(name)).max()))
            before[name] = servers[0].get(name).astype(np.float64)
    state = many.state()
    moved = max(float(np.abs(state[n] - built.initial[n]).max()) for n in weights)
    return {"apart": apart, "moved": moved}


def factors(group: ProcessGroup) -> dict[str, float]:
    """THOR with servers: the inverses are those of the batch of all, so the same in all."""
    boosts = (Thor(damping=0.3, frequency=2), AdaSum(2))
    built = build_program(mlp(), program(boosts=boosts))
    alone = build_program(mlp(), program(boosts=boosts[:1]))
    one, many = Stepper(alone, threads=1), Stepper(built, threads=1, group=group)
    batch = batch_of(built.catalogue.batch, 0)
    one.step(batch, RATES)
    many.step(part_of(batch, group), RATES)
    names = [n for n in built.initial if n.startswith("ortboost/thor/inverse")]
    apart = max(float(np.abs(one.get(n) - many.get(n)).max()) for n in names)
    moved = min(float(np.abs(built.initial[n] - many.get(n)).max()) for n in names)
    state = many.state()
    kept = max(float(np.abs(state[n] - one.get(n)).max()) for n in names)
    return {"apart": max(group.gather(max(apart, kept))), "moved": moved}


def closed_forms(group: ProcessGroup) -> dict[str, float]:
    """Equal updates stay what they are, orthogonal ones add up, one of nothing changes nothing."""
    joined = SharedAdaSum(AdaSum(1), group)
    same = np.random.default_rng(3).standard_normal((5, 7)).astype(np.float32)
    axes = np.zeros((group.size, 3), np.float32)
    axes[group.rank] = group.rank + 1
    alone = same[:1] if group.rank == 0 else np.zeros_like(same[:1])
    found = joined.join({"same": same, "axes": axes, "alone": alone, "one": same[0, 0]})
    total = np.repeat(np.arange(1, group.size + 1, dtype=np.float32)[:, None], 3, axis=1)
    wanted = {"same": same, "axes": total, "alone": same[:1], "one": same[0, 0]}
    return {name: float(np.abs(found[name] - wanted[name]).max()) for name in wanted}


def refused(group: ProcessGroup) -> str:
    try:
        SharedAdaSum(AdaSum(group.size), group)
    except ConfigError as error:
        return str(error)
    return ""


def same(step, batch):
    return batch


if __name__ == "__main__":
    with ProcessGroup(timeout=100) as shared:
        small = DynamicScaleConfig(init_scale=2.0**15, scale_window=3)
        found: dict[str, object] = {
            "closed": closed_forms(shared),
            "refused": refused(shared),
            "factors": factors(shared),
            "momentum": simulated(
                shared, 1, program(optimizer=Momentum(), boosts=(AdaSum(1),)), 6, same
            ),
            "adam": simulated(
                shared, 2, program(optimizer=Adam(), boosts=(AdaSum(2), Clip("norm", 1.0))), 6, same
            ),
            "every": simulated(
                shared, 2, program(optimizer=Momentum(), boosts=(AdaSum(2, every=3),)), 8, same, 3
            ),
            "overflow": simulated(
                shared, 2, program(boosts=(AdaSum(2),), loss_scale=small), 8, spoiled
            ),
        }
        if shared.rank == 0:
            with open(sys.argv[1], "w") as file:
                json.dump(found, file)
