"""Make ``tests/golden/torch/optimizers.npz``: what PyTorch's optimizers do to a toy parameter set.

Five tensors (77 numbers) are updated for ten steps with given gradients; the gradients do not
depend on the parameters. Tensors are flattened in C order and concatenated in the order of
``SHAPES``. Start values and gradients are multiples of 1/64, so they are exact in float32.

Arrays of the file (S kept steps, N = 77):

=====================  =======================================================================
``shapes``             JSON list of the five shapes
``initial``            float32 [N]
``gradients``          float32 [10, N]; odd steps have a norm above 1, even steps below
``steps``              [S] which steps are kept, counted from 1
``cases``              JSON: for every case its optimizer, its arguments and its clipping
``<case>``             float64 [S, N]: the parameters after each kept step, computed in float64
``<case>_f32``         float32 [N]: the parameters after the last step, computed in float32
``torch_version``      the version that computed them
=====================  =======================================================================

``clip_grad_norm_`` takes one norm over all tensors and multiplies by
``min(1, max_norm / (norm + 1e-6))``. Only five steps are kept, to keep the file small.

The shipped file was made with PyTorch 2.13.0 (CPU).

Examples:
    From the root of the repository::

        python -m tools.golden.torch_optimizers
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

__all__ = ["CASES", "KEPT_STEPS", "SHAPES", "Case", "main", "problem", "trajectory"]

SHAPES = [(3, 4), (4,), (2, 3, 3, 3), (1,), (6,)]
STEPS = 10
KEPT_STEPS = (1, 2, 3, 5, 10)
SEED = 5


@dataclass(frozen=True)
class Case:
    """One optimizer with its settings.

    Attributes:
        optimizer: name of a class of ``torch.optim``.
        arguments: its keyword arguments.
        clip_norm: if given, ``clip_grad_norm_`` with this bound runs before every step.
        clip_value: if given, ``clip_grad_value_`` with this bound runs before every step.
    """

    optimizer: str
    arguments: dict[str, float | bool | tuple[float, float]] = field(default_factory=dict)
    clip_norm: float | None = None
    clip_value: float | None = None


_ADAM = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}

CASES: dict[str, Case] = {
    "sgd": Case("SGD", {"lr": 0.1}),
    "sgd_momentum": Case("SGD", {"lr": 0.1, "momentum": 0.9}),
    "sgd_dampening": Case("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    "sgd_nesterov": Case("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd_weight_decay": Case("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    "sgd_clip_norm": Case("SGD", {"lr": 0.1, "momentum": 0.9}, clip_norm=1.0),
    "sgd_clip_value": Case("SGD", {"lr": 0.1, "momentum": 0.9}, clip_value=0.25),
    "adam": Case("Adam", _ADAM),
    "adam_weight_decay": Case("Adam", _ADAM | {"weight_decay": 1e-2}),
    "adamw": Case("AdamW", _ADAM | {"weight_decay": 1e-2}),
}


def problem(seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """Draw the start values and the gradients.

    Args:
        seed: seed of the generator.

    Returns:
        Start values [N] and gradients [10, N], both float32 multiples of 1/64.
    """
    rng = np.random.default_rng(seed)
    size = sum(int(np.prod(shape)) for shape in SHAPES)
    initial = rng.standard_normal(size)
    gradients = rng.standard_normal((STEPS, size))
    gradients *= np.where(np.arange(STEPS) % 2, 0.06, 0.4)[:, None]
    return _round(initial), _round(gradients)


def trajectory(
    case: Case, initial: np.ndarray, gradients: np.ndarray, dtype: torch.dtype
) -> np.ndarray:
    """Run one optimizer.

    Args:
        case: the optimizer and its settings.
        initial: the start values [N].
        gradients: the gradients [10, N].
        dtype: the type that everything is computed in.

    Returns:
        The parameters after every step [10, N].
    """
    parameters = [torch.nn.Parameter(part.clone()) for part in _parts(initial, dtype)]
    optimizer = getattr(torch.optim, case.optimizer)(parameters, **case.arguments)
    path = []
    for row in gradients:
        for parameter, gradient in zip(parameters, _parts(row, dtype), strict=True):
            parameter.grad = gradient.clone()
        if case.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, case.clip_norm)
        if case.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, case.clip_value)
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in parameters]).numpy())
    return np.stack(path)


def _parts(flat: np.ndarray, dtype: torch.dtype) -> list[torch.Tensor]:
    """Split a flat array into the tensors of ``SHAPES``."""
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    parts = torch.from_numpy(flat).to(dtype).split(sizes)
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def _round(values: np.ndarray) -> np.ndarray:
    return (np.rint(values * 64) / 64).astype(np.float32)


def main(argv: list[str] | None = None) -> int:
    """Write the golden file."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden.torch_optimizers",
        description="Make tests/golden/torch/optimizers.npz.",
        epilog="example: python -m tools.golden.torch_optimizers",
    )
    parser.add_argument("--out", type=Path, default=Path("tests/golden/torch/optimizers.npz"))
    out = parser.parse_args(argv).out

    torch.set_num_threads(1)
    initial, gradients = problem()
    arrays = {
        "shapes": np.array(json.dumps(SHAPES)),
        "initial": initial,
        "gradients": gradients,
        "steps": np.array(KEPT_STEPS),
        "cases": np.array(json.dumps({name: asdict(case) for name, case in CASES.items()})),
        "torch_version": np.array(torch.__version__),
    }
    kept = np.array(KEPT_STEPS) - 1
    for name, case in CASES.items():
        arrays[name] = trajectory(case, initial, gradients, torch.float64)[kept]
        arrays[f"{name}_f32"] = trajectory(case, initial, gradients, torch.float32)[-1]
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **arrays)
    norms = np.linalg.norm(gradients.astype(np.float64), axis=1)
    print(f"{out}: {out.stat().st_size:,} bytes, gradient norms {np.round(norms, 2).tolist()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
