r"""What a loss scale gives and costs: trainings with float16 rounding, and times of steps.

``accuracy`` trains LeNet-5 on the digits with every tensor that mixed precision would hold in
float16 rounded to it (:mod:`ortboost.transforms.precision`), once with each loss scale. A fixed
scale below 1 stands for a task with small gradients: it makes them smaller by just that factor.
Printed for each: the accuracy on the test digits at the end (mean, least and greatest over the
seeds), skipped steps, and the scales at the end.

``cost`` times steps: median processor time of a step, as a ratio to a step with a dynamic scale.
All settings take turns within one run, with one thread.

Examples:
    The tables of the card::

        python -m tools.bench.loss_scale accuracy
        python -m tools.bench.loss_scale cost --model lenet5 --model resnet20
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
    ScaleConfig,
)
from ortboost.optimizers import Momentum
from ortboost.program import names
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.precision import PrecisionConfig
from tools.bench.digits import accuracy as digits_accuracy
from tools.bench.digits import digits, epochs, start_anew
from tools.bench.report import ROOT, parser_of, publish, say
from tools.bench.step import random_batch

__all__ = ["ACCURACY", "COST", "main"]

_FP16 = PrecisionConfig("fp16", emulate=True)

ACCURACY: Mapping[str, ScaleConfig] = {
    **{f"fixed 2^{k}": FixedScaleConfig(2.0**k) for k in (-20, -18, -16, -12, 0, 8, 16, 20)},
    "dynamic from 2^16": DynamicScaleConfig(2.0**16),
    "dynamic from 2^24": DynamicScaleConfig(2.0**24),
    "dynamic from 2^24, hysteresis 2": DynamicScaleConfig(2.0**24, hysteresis=2),
    "grouped from 2^12, 3 groups": GroupedScaleConfig(2.0**12, 3),
    "grouped from 2^24, 3 groups": GroupedScaleConfig(2.0**24, 3),
}
COST: Mapping[str, ScaleConfig] = {
    "dynamic": DynamicScaleConfig(2.0**10),
    "dynamic, hysteresis 2": DynamicScaleConfig(2.0**10, hysteresis=2),
    "fixed": FixedScaleConfig(2.0**10),
    "off": NO_SCALE,
    "grouped, 2 groups": GroupedScaleConfig(2.0**10, 2),
    "grouped, 4 groups": GroupedScaleConfig(2.0**10, 4),
}


def _train(scale: ScaleConfig, precision: PrecisionConfig, seed: int, options: Any) -> list[Any]:
    """One training: accuracy, skipped steps, scales at the end."""
    data = digits((None, 1, 8, 8))
    config = ProgramConfig(
        optimizer=Momentum(), loss_scale=scale, precision=precision, engine=options.engine
    )
    program = build_program(ROOT / "models" / "lenet5.onnx", config)
    stepper = Stepper(program, device="cpu", threads=1)
    rng = np.random.default_rng(seed)
    start_anew(stepper, rng)
    count, size, skips = len(data["y_train"]), 32, 0
    for chosen, hyper in epochs(
        count, size, options.epochs, "cosine:0.05", lambda _: rng.permutation(count)
    ):
        feeds = {"x": data["x_train"][chosen], "labels": data["y_train"][chosen]}
        skips += stepper.step(feeds, hyper).overflow
    right = digits_accuracy(stepper, "x", "labels", data)
    known = [entry.name for entry in stepper.catalogue.entries("scale")]
    last = stepper.get(names.SCALE) if known else np.ones(())
    return [right, skips / (count // size * options.epochs), np.log2(last)]


def accuracy(options: Any) -> list[list[str]]:
    """A row for each setting."""
    rows = []
    settings = [("float32", "off", NO_SCALE, PrecisionConfig())]
    settings += [("float16", name, scale, _FP16) for name, scale in ACCURACY.items()]
    for kind, name, scale, precision in settings:
        runs = [_train(scale, precision, seed, options) for seed in range(options.seeds)]
        rights = [100 * run[0] for run in runs]
        last = np.atleast_1d(runs[0][2])
        rows.append(
            [
                f"{kind}, {name}",
                f"{statistics.mean(rights):.2f} ({min(rights):.2f} to {max(rights):.2f})",
                f"{100 * statistics.mean(run[1] for run in runs):.1f}",
                ", ".join(f"2^{exponent:.1f}" for exponent in last),
            ]
        )
        say(*rows[-1])
    return rows


def cost(options: Any) -> list[list[str]]:
    """A row for each setting, a column for each model."""
    columns: list[list[str]] = [[name] for name in COST]
    for model in options.model:
        steppers = []
        for scale in COST.values():
            config = ProgramConfig(optimizer=Momentum(), loss_scale=scale, engine=options.engine)
            program = build_program(ROOT / "models" / f"{model}.onnx", config)
            steppers.append(Stepper(program, device="cpu", threads=1))
        feeds = random_batch(steppers[0].program, options.batch)
        times: list[list[float]] = [[] for _ in steppers]
        for turn in range(options.steps):
            for place in range(len(steppers)):
                index = (turn + place) % len(steppers)
                start = time.process_time()
                steppers[index].step(feeds, {"learning_rate": 0.0})
                times[index].append(time.process_time() - start)
        medians = [statistics.median(found) for found in times]
        for column, median in zip(columns, medians, strict=True):
            column.append(f"{median / medians[0]:.3f}")
        say(model, f"{1000 * medians[0]:.2f} ms")
    return columns


def main(argv: list[str] | None = None) -> int:
    """Print one table."""
    parser = parser_of(__doc__)
    parser.add_argument("part", choices=("accuracy", "cost"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="timed steps of each setting")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", action="append", help="repeatable")
    parser.add_argument("--engine", default="portable")
    options = parser.parse_args(argv)
    options.model = options.model or ["lenet5", "resnet20", "transformer_tiny"]
    if options.part == "accuracy":
        publish(
            ("setting", "accuracy %", "skipped %", "scales at the end"),
            accuracy(options),
            path=options.json,
        )
    else:
        publish(["time of a step", *options.model], cost(options), path=options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
