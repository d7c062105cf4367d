"""Make ``tests/golden/torch/sparse.npz``: what PyTorch does with sparse gradients of a table.

A table of 40 rows and 3 columns is looked up twice in a step, with repeated indices, and trained
for six steps on the mean squared error of ``(w[i].sum(1) + w[j]) @ head``. Arrays of the file (N =
5 samples, 6 steps):

=====================  =======================================================================
``table``, ``head``    float32 ``[40, 3]``, ``[3, 2]``: the start; the head is not trained
``i``, ``j``           int64 ``[6, N, 2]``, ``[6, N]``: the indices
``labels``             float32 ``[6, N, 2]``
``cases``              JSON: case to optimizer, its arguments, padding index, bound of the norm
``<case>``             float64 ``[40, 3]``: the table after the last step
``<case>/exp_avg``     float64 ``[40, 3]``, for SparseAdam, and ``exp_avg_sq``
``torch_version``      the version that computed them
=====================  =======================================================================

The norm is that of the coalesced gradient, with the formula of ``clip_grad_norm_``, which refuses
sparse tensors.

The shipped file was made with PyTorch 2.13.0 (CPU).

Examples:
    From the root of the repository::

        python -m tools.golden.torch_sparse
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["CASES", "main", "trained"]

ROWS, WIDTH, SAMPLES, STEPS = 40, 3, 5, 6
CASES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "SGD", "arguments": {"lr": 0.1}},
    "sgd_padding": {"optimizer": "SGD", "arguments": {"lr": 0.1}, "padding_idx": 7},
    "sgd_clipped": {"optimizer": "SGD", "arguments": {"lr": 0.1}, "clip_norm": 0.5},
    "adam": {"optimizer": "SparseAdam", "arguments": {"lr": 0.01}},
    "adam_padding": {"optimizer": "SparseAdam", "arguments": {"lr": 0.01}, "padding_idx": 7},
}


def _problem() -> dict[str, NDArray[Any]]:
    """Start values and batches; multiples of 1/64, exact in float32."""
    rng = np.random.default_rng(3)

    def values(*shape: int) -> NDArray[np.float32]:
        return (rng.integers(-64, 65, shape) / 64).astype(np.float32)

    return {
        "table": values(ROWS, WIDTH),
        "head": values(WIDTH, 2),
        "i": rng.integers(0, 12, (STEPS, SAMPLES, 2)),  # so few that they repeat
        "j": rng.integers(5, 20, (STEPS, SAMPLES)),
        "labels": values(STEPS, SAMPLES, 2),
    }


def trained(problem: dict[str, NDArray[Any]], case: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The table and the averages of SparseAdam after all steps, in float64."""
    table = torch.nn.Embedding(
        ROWS,
        WIDTH,
        padding_idx=case.get("padding_idx"),
        sparse=True,
        dtype=torch.float64,
        _weight=torch.from_numpy(problem["table"]).double(),
    )
    head = torch.from_numpy(problem["head"]).double()
    optimizer = getattr(torch.optim, case["optimizer"])(table.parameters(), **case["arguments"])
    batches = [torch.from_numpy(problem[key]) for key in ("i", "j", "labels")]
    for i, j, labels in zip(*batches, strict=True):
        optimizer.zero_grad()
        guess = (table(i).sum(1) + table(j)) @ head
        ((guess - labels) ** 2).mean().backward()
        if "clip_norm" in case:
            gradient = table.weight.grad.coalesce()
            factor = min(1.0, case["clip_norm"] / (gradient.values().norm().item() + 1e-6))
            table.weight.grad = gradient * factor
        optimizer.step()
    slots = optimizer.state[table.weight] if case["optimizer"] == "SparseAdam" else {}
    found = {key: slots[key].numpy() for key in ("exp_avg", "exp_avg_sq") if key in slots}
    return {"": table.weight.detach().numpy(), **found}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tests/golden/torch/sparse.npz"))
    out = parser.parse_args().out
    problem = _problem()
    found = {
        name + ("/" if key else "") + key: array
        for name, case in CASES.items()
        for key, array in trained(problem, case).items()
    }
    np.savez_compressed(
        out,
        **problem,
        **found,
        cases=np.array(json.dumps(CASES)),
        torch_version=np.array(torch.__version__),
    )


if __name__ == "__main__":
    main()
