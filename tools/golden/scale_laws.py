"""Make ``tests/golden/torch/loss_scale.npz`` and ``tests/golden/deepspeed/loss_scale.npz``.

The loss scalers of PyTorch and of DeepSpeed are driven through long random patterns of overflows.
Both are the originals: ``torch.amp.GradScaler`` with an optimizer that has one gradient, infinite
where the pattern says so, and DeepSpeed's ``DynamicLossScaler`` (of ``CreateLossScaler`` with
dynamic arguments), whose rank, which is only asked for its log, is answered by 0.

Arrays of a file, for each case:

=====================  =======================================================================
``meta``               JSON: version, and for every case its arguments and number of steps
``<case>/overflow``    uint8, the bits of the pattern (``np.packbits``)
``<case>/exponent``    int16 [steps], log2 of the scale after each step (powers of two)
``<case>/counter``     int32 [steps], growth tracker (PyTorch) or hysteresis (DeepSpeed)
``<case>/applied``     uint8, bits: whether the optimizer moved the weight (PyTorch only)
=====================  =======================================================================

The shipped files were made with PyTorch 2.13.0 (CPU) and deepspeed 0.19.8 (built with
``DS_BUILD_OPS=0``).

Examples:
    From the root of the repository::

        python -m tools.golden.scale_laws
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
from deepspeed.runtime.fp16 import loss_scaler

__all__ = ["DEEPSPEED", "TORCH", "main", "pattern"]

SEED = 4

TORCH: dict[str, dict[str, Any]] = {
    "defaults": {"steps": 30000, "rate": 0.0003, "arguments": {}},
    "defaults_wild": {"steps": 8000, "rate": 0.002, "arguments": {}},
    "short": {"steps": 2000, "rate": 0.2, "arguments": {"growth_interval": 3}},
    "every_step": {"steps": 1000, "rate": 0.5, "arguments": {"growth_interval": 1}},
    "factor_four": {
        "steps": 2000,
        "rate": 0.2,
        "arguments": {"growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3},
    },
    "ceiling": {
        "steps": 400,
        "rate": 0.05,
        "arguments": {"init_scale": 2.0**120, "growth_interval": 2},
    },
}

DEEPSPEED: dict[str, dict[str, Any]] = {
    "defaults": {"steps": 20000, "rate": 0.001, "arguments": {}},
    "defaults_consecutive": {
        "steps": 20000,
        "rate": 0.001,
        "arguments": {"consecutive_hysteresis": True},
    },
    "wild": {"steps": 3000, "rate": 0.3, "arguments": {"scale_window": 3}},
    "wild_consecutive": {
        "steps": 3000,
        "rate": 0.5,
        "arguments": {"scale_window": 2, "consecutive_hysteresis": True},
    },
    "every_step": {"steps": 2000, "rate": 0.6, "arguments": {"scale_window": 1}},
    "three": {"steps": 3000, "rate": 0.3, "arguments": {"scale_window": 4, "delayed_shift": 3}},
    "none": {"steps": 2000, "rate": 0.2, "arguments": {"scale_window": 5, "delayed_shift": 1}},
    "low_minimum": {
        "steps": 1500,
        "rate": 0.6,
        "arguments": {"scale_window": 4, "min_scale": 0.25},
    },
}
DEEPSPEED_DEFAULTS = {
    "init_scale": 2.0**16,
    "scale_window": 1000,
    "min_scale": 1,
    "delayed_shift": 2,
    "consecutive_hysteresis": False,
}
"""The defaults of DeepSpeed's configuration of fp16; ``delayed_shift`` is its ``hysteresis``."""


def pattern(name: str, case: Mapping[str, Any]) -> np.ndarray:
    """Draw which steps of a case overflow, some of them in runs.

    Args:
        name: Name of the case; with the seed it makes the draw.
        case: Steps and rate.

    Returns:
        bool [steps].
    """
    rng = np.random.default_rng([SEED, *name.encode()])
    steps = case["steps"]
    drawn = rng.random(steps) < case["rate"]
    for start in rng.integers(0, steps, size=max(1, steps // 6000)):
        drawn[start : start + int(rng.integers(2, 9))] = True
    return drawn


def run_torch(arguments: Mapping[str, Any], overflows: np.ndarray) -> dict[str, np.ndarray]:
    """Drive ``torch.amp.GradScaler``."""
    scaler = torch.amp.GradScaler("cpu", **arguments)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scales, counters, applied = [], [], []
    for overflow in overflows.tolist():
        scaler.scale(weight.detach())  # its scale is made at the first use
        weight.grad = torch.full((1,), torch.inf if overflow else 1.0)
        before = weight.item()
        scaler.step(optimizer)
        scaler.update()
        applied.append(weight.item() != before)
        weight.data.zero_()
        scales.append(scaler.get_scale())
        counters.append(scaler.state_dict()["_growth_tracker"])
    return {**_packed(scales, counters), "applied": np.packbits(np.array(applied))}


def run_deepspeed(arguments: Mapping[str, Any], overflows: np.ndarray) -> dict[str, np.ndarray]:
    """Drive DeepSpeed's ``DynamicLossScaler``."""
    scaler = loss_scaler.CreateLossScaler(
        torch.half,
        static_loss_scale=0,
        dynamic_scaling=True,
        dynamic_loss_args={**DEEPSPEED_DEFAULTS, **arguments},
    )
    scaler.raise_error_at_min_scale = False  # the law goes on where a run would be stopped
    scales, counters = [], []
    for overflow in overflows.tolist():
        scaler.update_scale(overflow)
        scales.append(scaler.loss_scale)
        counters.append(scaler.cur_hysteresis)
    return _packed(scales, counters)


def _packed(scales: list[float], counters: list[int]) -> dict[str, np.ndarray]:
    exponent = np.log2(np.array(scales, np.float64))
    if not np.array_equal(exponent, np.rint(exponent)):
        raise ValueError("a scale is no power of two")
    return {"exponent": exponent.astype(np.int16), "counter": np.array(counters, np.int32)}


def main(argv: list[str] | None = None) -> int:
    """Write the golden files."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden.scale_laws",
        description="Make loss_scale.npz of tests/golden/torch and tests/golden/deepspeed.",
        epilog="example: python -m tools.golden.scale_laws",
    )
    parser.add_argument("--out", type=Path, default=Path("tests/golden"))
    folder = parser.parse_args(argv).out

    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    loss_scaler.dist.get_rank = lambda: 0
    oracles = (
        ("torch", torch.__version__, TORCH, run_torch),
        ("deepspeed", deepspeed.__version__, DEEPSPEED, run_deepspeed),
    )
    for oracle, version, cases, drive in oracles:
        meta = {
            "version": version,
            "defaults": DEEPSPEED_DEFAULTS if oracle == "deepspeed" else {},
            "cases": {k: {**c["arguments"], "steps": c["steps"]} for k, c in cases.items()},
        }
        arrays: dict[str, np.ndarray] = {"meta": np.array(json.dumps(meta))}
        for name, case in cases.items():
            overflows = pattern(name, case)
            arrays[f"{name}/overflow"] = np.packbits(overflows)
            found = drive(case["arguments"], overflows)
            arrays |= {f"{name}/{key}": value for key, value in found.items()}
            print(oracle, name, overflows.sum(), np.unique(found["exponent"]).tolist())
        target = folder / oracle / "loss_scale.npz"
        target.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(target, **arrays)
        print(f"{target}: {target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
