"""What LessBN and the full-normalization head give and cost: times of a step, and accuracy.

``time``
    the step of a model as it is, with ``less_bn``, and with ``less_bn`` and ``full_norm_head``, in
    turns on the same batch, one thread, processor time; a ratio above 1 is a gain. The ratio is the
    median of those of the rounds, its quartiles in brackets.
``accuracy``
    the digits, trained to the end with each of the three from fresh weights (He et al., 2015), for
    some seeds; the images are enlarged to the size that the model is set to.

Examples:
    Times of the ResNets with both engines::

        python -m tools.bench.less_bn time --engine native --engine portable

    Accuracy of one of them::

        python -m tools.bench.less_bn accuracy --model resnet20 --size 16 --epochs 15
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.deploy.bench_results import Ratio
from ortboost.deploy.export import export_model
from ortboost.graph.io import load_model
from ortboost.graph.weights.parameters import find_parameters
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.runtime.stepper import Stepper
from tools.bench.report import ROOT, parser_of, publish
from tools.bench.step import compare, our_step, random_batch

__all__ = ["accuracy", "main", "times"]

_FOLDER = ROOT / "models"
_MODELS = ("resnet20", "resnet_bottleneck", "mobilenet_like")
_VARIANTS: dict[str, dict[str, bool]] = {
    "plain": {},
    "less_bn": {"less_bn": True},
    "less_bn, head": {"less_bn": True, "full_norm_head": True},
}


def times(name: str, engine: str, batch: int, rounds: int) -> list[str]:
    """A row of the table: milliseconds of the plain step, and the gain of the others."""
    programs = {
        variant: build_program(_FOLDER / f"{name}.onnx", ProgramConfig(engine=engine, **fields))
        for variant, fields in _VARIANTS.items()
    }
    feeds = random_batch(programs["plain"], batch)
    steps = {variant: our_step(program, feeds, 1) for variant, program in programs.items()}
    spent = compare(steps, rounds, 0.2, time.process_time)
    plain = spent["plain"]
    gains = [
        str(Ratio.of_rounds(plain, spent[variant])) for variant in _VARIANTS if variant != "plain"
    ]
    return [name, engine, f"{1000 * statistics.median(plain):.2f}", *gains]


def accuracy(
    name: str, fields: Mapping[str, Any], seed: int, size: int, epochs: int, rate: float
) -> float:
    """Share of the test digits that a network gets right after training.

    Args:
        name: One of the models.
        fields: Further fields of the configuration.
        seed: Seed of the weights and of the order of the data.
        size: Height and width of the images.
        epochs: Number of epochs of batches of 64, the last incomplete one left out.
        rate: Learning rate at the start; it falls to 0 along a cosine after one epoch of rise.
    """
    with np.load(_FOLDER / "digits.npz") as file:
        data = {key: file[key] for key in file.files}
    model = _fresh(name, seed, size)
    config = ProgramConfig(optimizer=Momentum(), weight_decay=1e-4, **fields)
    program = build_program(model, config)
    stepper = Stepper(program, device="cpu", threads=1)
    rng = np.random.default_rng(seed)
    images, labels = _enlarged(data["x_train"], size), data["y_train"]
    steps = len(labels) // 64
    for step in range(epochs * steps):
        if step % steps == 0:
            order = rng.permutation(len(labels))
        part = order[64 * (step % steps) : 64 * (step % steps + 1)]
        rise = min(1.0, (step + 1) / steps)
        fall = 0.5 * (1 + np.cos(np.pi * step / (epochs * steps)))
        feeds = {"x": images[part], "labels": labels[part]}
        stepper.step(feeds, {"learning_rate": rate * rise * fall})
    exported = export_model(program, stepper.state()).model
    logits = ModelEvaluator(exported, device="cpu", threads=1).evaluate(
        {"x": _enlarged(data["x_test"], size)}
    )["logits"]
    return float((logits.argmax(1) == data["y_test"]).mean())


def _fresh(name: str, seed: int, size: int) -> ir.Model:
    """The model for images of this size, with new weights."""
    model = load_model(_FOLDER / f"{name}.onnx")
    x = model.graph.inputs[0]
    x.shape = ir.Shape(["batch", 3, size, size])
    rng = np.random.default_rng(1000 + seed)
    for parameter in find_parameters(model).values():
        if parameter.role == "weight":
            fan_in = int(np.prod(parameter.shape[1:]))
            drawn = rng.standard_normal(parameter.shape) * np.sqrt(2 / fan_in)
            value = model.graph.initializers[parameter.name]
            value.const_value = ir.tensor(drawn.astype(np.float32), name=parameter.name)
    return model


def _enlarged(images: NDArray[Any], size: int) -> NDArray[Any]:
    """[N, 1, 8, 8] to [N, 3, size, size], each pixel repeated; of mean 0 and deviation 1, about."""
    factor = size // 8
    larger = images.repeat(factor, axis=2).repeat(factor, axis=3)
    return np.ascontiguousarray(((larger - 0.3) / 0.38).repeat(3, axis=1).astype(np.float32))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("time", "accuracy"))
    parser.add_argument("--model", action="append", choices=_MODELS, help="default: all")
    parser.add_argument("--engine", action="append", help="default: the first that can run")
    parser.add_argument("--batch", type=int, default=32, help="for the times (default: 32)")
    parser.add_argument("--rounds", type=int, default=12, help="for the times (default: 12)")
    parser.add_argument("--size", type=int, default=16, help="of the images (default: 16)")
    parser.add_argument("--epochs", type=int, default=15, help="default: 15")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    parser.add_argument("--rate", type=float, action="append", help="learning rate (default: 0.05)")
    arguments = parser.parse_args(argv)
    models, engines = arguments.model or _MODELS, arguments.engine or ["auto"]
    if arguments.what == "time":
        rows = [
            times(name, engine, arguments.batch, arguments.rounds)
            for name in models
            for engine in engines
        ]
        publish(
            ("model", "engine", "plain ms", "less_bn", "less_bn, head"), rows, path=arguments.json
        )
        return 0
    rows = []
    for name in models:
        for rate in arguments.rate or [0.05]:
            for variant, fields in _VARIANTS.items():
                found = [
                    100 * accuracy(name, fields, seed, arguments.size, arguments.epochs, rate)
                    for seed in range(arguments.seeds)
                ]
                each = ", ".join(f"{value:.1f}" for value in found)
                rows.append([name, variant, f"{rate:g}", f"{statistics.mean(found):.2f}", each])
    publish(("model", "variant", "rate", "mean %", "each seed %"), rows, path=arguments.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
