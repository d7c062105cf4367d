r"""What the boosts give and cost: time and accuracy of whole trainings, as ratios within one run.

ResNet-20 and the bottleneck ResNet are trained on the digits (enlarged to 3x32x32) to the end, with
each setting and each seed. The trainings of one seed take turns, epoch by epoch, so that what else
runs on the machine hits all of them; a time is processor time, with one thread, of the steps alone.

Printed for each setting:

``step``, ``epoch``
    how many times faster than O0: median of the steps (what a user sees most of the time), and
    whole epochs (what a user waits for). They differ where steps differ, as with gradient freeze;
``opening``
    seconds, once a run, for the further graphs of gradient freeze; not in the times above;
``accuracy``
    on the test digits at the end: mean over the seeds, and the least and the greatest.

Examples:
    The table of the documentation::

        python -m tools.bench.boost --epochs 15 --seeds 3

    One model, some settings, numbers as JSON::

        python -m tools.bench.boost --model resnet_bottleneck --setting O0 --setting O1
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortboost.boosts.freeze_schedule import COST, INTERVAL, FreezeConfig
from ortboost.boosts.grad_centralization import CentralizeConfig
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from ortboost.training import parse_schedule
from ortboost.training.run_state import step_seed
from tools.bench.digits import Arrays, accuracy, digits, start_anew
from tools.bench.report import ROOT, parser_of, publish, say

__all__ = ["SETTINGS", "main", "train_in_turns"]

MODELS = ("resnet20", "resnet_bottleneck")
_MINDSPORE = FreezeConfig(freeze_type=INTERVAL, freeze_p=0.7)
_HALF = FreezeConfig(freeze_type=COST, freeze_p=0.4)
_MORE = FreezeConfig(freeze_type=COST, freeze_p=0.2)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "O0": {},
    "less-bn": {"less_bn": True},
    "grad-centralization": {"centralize": CentralizeConfig(multiple_of=1)},
    "grad-freeze": {"grad_freeze": _MINDSPORE},
    "O1": {
        "less_bn": True,
        "full_norm_head": True,
        "centralize": CentralizeConfig(),
        "grad_freeze": _MINDSPORE,
    },
    "less-bn, freeze by cost 0.4": {"less_bn": True, "grad_freeze": _HALF},
    "the same, one state": {
        "less_bn": True,
        "grad_freeze": dataclasses.replace(_HALF, separate_state=False),
    },
    "less-bn, freeze by cost 0.2": {"less_bn": True, "grad_freeze": _MORE},
    "the same with one state": {
        "less_bn": True,
        "grad_freeze": dataclasses.replace(_MORE, separate_state=False),
    },
}
"""Name of a setting to the fields of its :class:`ProgramConfig`."""


class _Training:
    """One training: a stepper, its data order, its times."""

    def __init__(self, name: str, fields: Mapping[str, Any], seed: int, options: Any) -> None:
        config = ProgramConfig(
            optimizer=Momentum(),
            learning_rate=options.lr,
            weight_decay=5e-4,
            engine=options.engine,
        )
        freeze = fields.get("grad_freeze")
        if freeze is not None:
            fields = {**fields, "grad_freeze": dataclasses.replace(freeze, seed=seed)}
        self.program = build_program(
            ROOT / "models" / f"{name}.onnx", dataclasses.replace(config, **fields)
        )
        self.stepper = Stepper(self.program, device="cpu", threads=1)
        start = time.process_time()
        self.stepper.open()
        self.opening = time.process_time() - start
        start_anew(self.stepper, np.random.default_rng(seed))
        self.seed, self.options = seed, options
        self.times: list[float] = []
        self.losses: list[float] = []
        self.skips = 0

    def epoch(self, number: int, data: Arrays) -> None:
        """Train one epoch; the order of the samples depends on seed and epoch only."""
        size, count = self.options.batch, len(data["y_train"])
        steps = count // size
        rate = parse_schedule(self.options.lr, total_steps=steps * self.options.epochs)
        order = np.random.default_rng([self.seed, number]).permutation(count)
        for index in range(steps):
            chosen = order[index * size : (index + 1) * size]
            feeds = {"x": data["x_train"][chosen], "labels": data["y_train"][chosen]}
            hyper = {"learning_rate": rate(number * steps + index)}
            start = time.process_time()
            result = self.stepper.step(feeds, hyper, seed=step_seed(self.seed, index))
            self.times.append(time.process_time() - start)
            self.losses.append(result.loss)
            self.skips += result.overflow


def train_in_turns(
    name: str, settings: Mapping[str, Mapping[str, Any]], seed: int, options: Any
) -> dict[str, dict[str, Any]]:
    """Train a model with every setting, epoch by epoch in turns.

    Args:
        name: A model of ``models/``.
        settings: Name to the fields of its configuration.
        seed: Seed of weights, order and schedule.
        options: Parsed arguments.

    Returns:
        Setting to its times, accuracy and last loss.
    """
    data = digits((None, 3, 32, 32))
    trainings = {key: _Training(name, fields, seed, options) for key, fields in settings.items()}
    for number in range(options.epochs):
        turn = list(trainings.values())
        for training in turn[number % len(turn) :] + turn[: number % len(turn)]:
            training.epoch(number, data)
        losses = (f"{key} {np.mean(t.losses[-40:]):.3f}" for key, t in trainings.items())
        say(f"{name} seed {seed} epoch {number + 1}:", *losses)
    return {
        key: {
            "step": statistics.median(training.times),
            "total": sum(training.times),
            "opening": training.opening,
            "accuracy": accuracy(training.stepper, "x", "labels", data),
            "loss": float(np.mean(training.losses[-40:])),
            "skips": training.skips,
        }
        for key, training in trainings.items()
    }


def _rows(name: str, runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[list[str]]:
    rows = []
    for key in runs[0]:
        steps = [run["O0"]["step"] / run[key]["step"] for run in runs]
        totals = [run["O0"]["total"] / run[key]["total"] for run in runs]
        right = [100 * run[key]["accuracy"] for run in runs]
        rows.append(
            [
                name,
                key,
                f"{statistics.median(steps):.2f}",
                f"{statistics.median(totals):.2f} ({min(totals):.2f} to {max(totals):.2f})",
                f"{statistics.mean(right):.2f} ({min(right):.2f} to {max(right):.2f})",
                f"{statistics.mean(run[key]['loss'] for run in runs):.4f}",
                f"{statistics.median(run[key]['opening'] for run in runs):.2f}",
            ]
        )
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Train, compare, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="repeatable")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="repeatable")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", default="cosine:0.05,warmup=40")
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args(words)
    chosen = list(dict.fromkeys(["O0", *(options.setting or SETTINGS)]))
    settings = {key: SETTINGS[key] for key in chosen}
    found = {
        name: [train_in_turns(name, settings, seed, options) for seed in range(options.seeds)]
        for name in options.model or MODELS
    }
    note = (
        f"digits, batch {options.batch}, {options.epochs} epochs, {options.seeds} seeds, 1 thread"
    )
    rows = [row for name, runs in found.items() for row in _rows(name, runs)]
    heads = ("model", "setting", "step", "epoch", "accuracy %", "last loss", "opening")
    publish(heads, rows, note, options.json, runs=found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
