r"""What mixed precision does to accuracy: whole trainings on the digits, emulated, against float32.

The models are trained with each precision and each seed. Emulation rounds every tensor that would
be fp16 or bf16, so that the accuracy is that of the format on any device; its time says nothing
about a GPU and is not shown. The evaluation is in float32, as everywhere.

Also the task that needs a loss scale: the mean binary cross entropy of ``mlp``, weighted with 1e-6
(as a small term of a sum of losses would be), whose gradients are below the smallest float16.

Examples:
    The table of the card::

        python -m tools.bench.precision --epochs 8 --seeds 3

    One model::

        python -m tools.bench.precision --model lenet5 --json precision.json
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.attach_loss import LossConfig
from ortboost.transforms.precision import PrecisionConfig
from tools.bench.digits import accuracy, digits, epochs, start_anew
from tools.bench.report import MODELS, ROOT, parser_of, publish, say

__all__ = ["PRECISIONS", "main"]

PRECISIONS: Mapping[str, PrecisionConfig] = {
    "fp32": PrecisionConfig(),
    "fp16": PrecisionConfig("fp16", emulate=True),
    "fp16, policy all": PrecisionConfig("fp16", policy="all", keep_batchnorm=False, emulate=True),
    "bf16": PrecisionConfig("bf16", emulate=True),
}
"""Name of a setting to its precision."""
_SMALL = 1e-6


def train(name: str, config: ProgramConfig, seed: int, options: Any) -> dict[str, Any]:
    """Train to the end.

    Returns:
        Accuracy on the test digits, and how many steps were skipped.
    """
    program = build_program(ROOT / "models" / f"{name}.onnx", config)
    stepper = Stepper(program, device="cpu", threads=1)
    start_anew(stepper, np.random.default_rng(seed))
    images, labels = program.catalogue.batch
    data = digits(images.shape)
    targets = (
        data["y_train"]
        if labels.dtype == np.int64
        else np.eye(10, dtype=np.float32)[data["y_train"]]
    )
    count, skips = len(targets), 0
    for chosen, hyper in epochs(
        count, options.batch, options.epochs, config.learning_rate,
        lambda epoch: np.random.default_rng([seed, epoch]).permutation(count),
    ):  # fmt: skip
        feeds = {images.name: data["x_train"][chosen], labels.name: targets[chosen]}
        skips += stepper.step(feeds, hyper).overflow
    return {"accuracy": accuracy(stepper, images.name, labels.name, data), "skips": skips}


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
                say(f"{name} {key} seed {seed}: {found[-1]}")
            rows.append({"model": name, "precision": key, "runs": found})
    return rows


def _underflow(options: Any) -> list[dict[str, Any]]:
    half = PRECISIONS["fp16"]
    settings = {
        "fp32, no scale": (PrecisionConfig(), NO_SCALE),
        "fp16, no scale": (half, NO_SCALE),
        "fp16, dynamic scale": (half, DynamicScaleConfig(init_scale=2.0**16, max_scale=2.0**32)),
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
    parser = parser_of(__doc__)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", default="cosine:0.05,warmup=20")
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args(arguments)
    rows = [*_formats(options), *_underflow(options)]
    heads = ("training", "accuracy", "range", "skipped steps")
    publish(heads, [_row(row) for row in rows], path=options.json, rows=rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
