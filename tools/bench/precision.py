r"""What mixed precision does to accuracy: whole trainings on the digits, emulated, against float32.

The models are trained with each precision and each seed. Emulation rounds every tensor that would be
fp16 or bf16, so that the accuracy is that of the format on any device; its time says nothing about a GPU
and is not shown. The evaluation is in float32, as everywhere.

Also the task that needs a loss scale: the mean binary cross entropy of ``mlp``, weighted with 1e-6 (as a small
term of a sum of losses would be), whose gradients are below the smallest float16.

Examples:
    The table of the card::

        python -m tools.bench.precision --epochs 8 --seeds 3

    One model::

        python -m tools.bench.precision --model lenet5 --json precision.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from ortboost.training import parse_schedule
from ortboost.transforms.attach_loss import LossConfig
from ortboost.transforms.precision import PrecisionConfig
from tools.bench.report import environment, heading, table, write_json

__all__ = ["PRECISIONS", "main"]

_ROOT = Path(__file__).resolve().parents[2]
MODELS = (
    "mlp",
    "lenet5",
    "resnet20",
    "resnet_bottleneck",
    "mobilenet_like",
    "transformer_tiny",
)
PRECISIONS: Mapping[str, PrecisionConfig] = {
    "fp32": PrecisionConfig(),
    "fp16": PrecisionConfig("fp16", emulate=True),
    "fp16, policy all": PrecisionConfig("fp16", policy="all", keep_batchnorm=False, emulate=True),
    "bf16": PrecisionConfig("bf16", emulate=True),
}
"""Name of a setting to its precision."""
_SMALL = 1e-6

Arrays = dict[str, NDArray[Any]]


def digits(shape: Sequence[Any]) -> Arrays:
    """The digits in the form that an input wants: flat, 1x8x8, enlarged to 3x32x32, or 16 tokens.

    A token is a square of 2x2 pixels, each of 4 levels of grey.
    """
    with np.load(_ROOT / "models" / "digits.npz") as file:
        found = {name: file[name] for name in file.files}
    for name in ("x_train", "x_test"):
        images = found[name]
        if tuple(shape[1:]) == (3, 32, 32):
            large = np.repeat(np.repeat(images, 4, axis=2), 4, axis=3)
            images = np.repeat((large - 0.3) / 0.35, 3, axis=1)
        if tuple(shape[1:]) == (16,):
            levels = np.minimum(images.reshape(-1, 4, 2, 4, 2) * 4, 3).astype(np.int64)
            squares = levels.transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)
            found[name] = squares @ np.array([64, 16, 4, 1])
            continue
        found[name] = images.reshape(len(images), *shape[1:]).astype(np.float32)
    return found


def train(name: str, config: ProgramConfig, seed: int, options: Any) -> dict[str, Any]:
    """Train to the end.

    Returns:
        Accuracy on the test digits, and how many steps were skipped.
    """
    program = build_program(_ROOT / "models" / f"{name}.onnx", config)
    stepper = Stepper(program, device="cpu", threads=1)
    start_anew(stepper, seed)
    images, labels = program.catalogue.batch
    data = digits(images.shape)
    targets = (
        data["y_train"]
        if labels.dtype == np.int64
        else np.eye(10, dtype=np.float32)[data["y_train"]]
    )
    count, size = len(targets), options.batch
    steps = count // size
    rate = parse_schedule(config.learning_rate, total_steps=steps * options.epochs)
    skips = 0
    for epoch in range(options.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(count)
        for index in range(steps):
            chosen = order[index * size : (index + 1) * size]
            feeds = {images.name: data["x_train"][chosen], labels.name: targets[chosen]}
            result = stepper.step(feeds, {"learning_rate": rate(epoch * steps + index)})
            skips += result.overflow
    return {"accuracy": accuracy(stepper, images.name, labels.name, data), "skips": skips}


def start_anew(stepper: Stepper, seed: int) -> None:
    """Weights of another seed: the shipped ones with their signs drawn anew."""
    rng = np.random.default_rng(seed)
    for entry in stepper.catalogue.entries("parameter"):
        if entry.role == "weight":
            value = stepper.get(entry.name)
            signs = rng.integers(0, 2, value.shape) * 2 - 1
            stepper.set(entry.name, value * signs.astype(value.dtype))


def accuracy(stepper: Stepper, images: str, labels: str, data: Arrays) -> float:
    """Share of the test digits that are right."""
    evaluator, right = stepper.evaluator(), 0
    dense = any(s.name == labels and s.dtype == np.float32 for s in stepper.catalogue.batch)
    for start in range(0, len(data["y_test"]), 60):
        truth = data["y_test"][start : start + 60]
        shown = np.eye(10, dtype=np.float32)[truth] if dense else truth
        feeds = {images: data["x_test"][start : start + 60], labels: shown}
        scores = evaluator.evaluate(feeds)[stepper.program.prediction]
        right += int((scores.argmax(axis=1) == truth).sum())
    return right / len(data["y_test"])


def _formats(options: Any) -> list[dict[str, Any]]:
    rows = []
    for name in options.model or MODELS:
        for key, precision in PRECISIONS.items():
            found = []
            for seed in range(options.seeds):
                config = ProgramConfig(
                    optimizer=Momentum(),
                    learning_rate=options.lr,
                    weight_decay=5e-4,
                    engine=options.engine,
                    precision=precision,
                )
                found.append(train(name, config, seed, options))
                print(f"{name} {key} seed {seed}: {found[-1]}", file=sys.stderr, flush=True)
            rows.append({"model": name, "precision": key, "runs": found})
    return rows


def _underflow(options: Any) -> list[dict[str, Any]]:
    half = PRECISIONS["fp16"]
    settings = {
        "fp32, no scale": (PrecisionConfig(), NO_SCALE),
        "fp16, no scale": (half, NO_SCALE),
        "fp16, dynamic scale": (half, DynamicScaleConfig(init=2.0**16, max_scale=2.0**32)),
    }
    rows = []
    for key, (precision, scale) in settings.items():
        found = []
        for seed in range(options.seeds):
            config = ProgramConfig(
                loss=LossConfig("bce-with-logits", weight=np.float32(_SMALL)),
                optimizer=Momentum(),
                # the small gradients and this rate together are those of the usual task
                learning_rate=str(0.5 / _SMALL),
                loss_scale=scale,
                engine=options.engine,
                precision=precision,
            )
            found.append(train("mlp", config, seed, options))
        rows.append({"model": "mlp, loss x 1e-6", "precision": key, "runs": found})
    return rows


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    found = [run["accuracy"] for run in row["runs"]]
    skips = sum(run["skips"] for run in row["runs"])
    return (
        f"{row['model']}, {row['precision']}",
        f"{np.mean(found):.1%}",
        f"{min(found):.1%} to {max(found):.1%}",
        str(skips),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.precision",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", default="cosine:0.05,warmup=20")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    about = environment()
    rows = [*_formats(options), *_underflow(options)]
    print(heading(about))
    print()
    print(table(("training", "accuracy", "range", "skipped steps"), [_row(row) for row in rows]))
    if options.json:
        write_json(options.json, {"environment": about, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
