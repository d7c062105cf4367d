"""Write ``tests/golden/torch/autocast.npz``: short runs with PyTorch's automatic mixed precision.

The shipped ``mlp`` and ``lenet5`` are trained on the digits for 20 steps of SGD with momentum, as
they are (float32) and under ``torch.autocast("cpu", ...)`` in bfloat16 and float16. Gradients are
scaled by 1024 and un-scaled.

Arrays, for each model and each of ``float32``, ``bfloat16``, ``float16``:

=========================  ===========================================================
``<model>/<format>/loss``    float64 [steps] loss before each update
``<model>/<format>/error``   relative distance of the first gradient from that of float32
=========================  ===========================================================

and ``steps``, ``batch``, ``rate``, ``momentum``, ``scale``, ``torch_version``. Batch ``i`` has the
training digits ``i * batch`` to ``(i + 1) * batch - 1``.

The shipped file was made with PyTorch 2.13.0 (CPU).

Examples:
    From the root of the repository::

        python -m tools.golden.torch_autocast
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from tools.golden.torch_gradients import load

__all__ = ["FORMATS", "MODELS", "main", "train"]

MODELS = ("mlp", "lenet5")
FORMATS = ("float32", "bfloat16", "float16")
STEPS, BATCH, RATE, MOMENTUM, SCALE = 20, 32, 0.02, 0.9, 1024.0


def train(name: str, kind: str, root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Train a model in a format.

    Args:
        name: a model of ``models/``.
        kind: one of :data:`FORMATS`.
        root: the root of the repository.

    Returns:
        The losses, and the first gradient as one vector.
    """
    module = load(name, root / "models" / f"{name}.onnx")
    with np.load(root / "models" / "digits.npz") as file:
        images, labels = torch.from_numpy(file["x_train"]), torch.from_numpy(file["y_train"])
    if name == "mlp":
        images = images.reshape(len(images), -1)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
    losses, first = [], np.zeros(0)
    for index in range(STEPS):
        part = slice(index * BATCH, (index + 1) * BATCH)
        optimizer.zero_grad()
        with torch.autocast("cpu", getattr(torch, kind), enabled=kind != "float32"):
            loss = functional.cross_entropy(module(images[part]), labels[part])
        (loss * SCALE).backward()
        for parameter in module.parameters():
            parameter.grad /= SCALE
        if index == 0:
            first = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
        optimizer.step()
        losses.append(float(loss.detach()))
    return np.array(losses), first.astype(np.float64)


def main(arguments: list[str] | None = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {}
    for name in MODELS:
        exact = np.zeros(0)
        for kind in FORMATS:
            losses, gradient = train(name, kind, options.root)
            exact = gradient if kind == "float32" else exact
            error = np.linalg.norm(gradient - exact) / np.linalg.norm(exact)
            arrays[f"{name}/{kind}/loss"] = losses
            arrays[f"{name}/{kind}/error"] = np.float64(error)
            print(name, kind, f"error {error:.2e}", losses[[0, 1, -1]])
    numbers = {"steps": STEPS, "batch": BATCH, "rate": RATE, "momentum": MOMENTUM, "scale": SCALE}
    arrays |= {key: np.asarray(value) for key, value in numbers.items()}
    arrays["torch_version"] = np.array(torch.__version__)
    np.savez_compressed(options.root / "tests" / "golden" / "torch" / "autocast.npz", **arrays)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
