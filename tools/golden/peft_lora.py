"""Make ``tests/golden/torch/lora.npz``: a network trained by PEFT with adapters of LoRA.

The network is a convolution, a ReLU, a mean over positions, and two linear layers, of which the
first gets an adapter, as the convolution does. It is trained for six steps on the mean cross
entropy. Arrays of the file (N = 5 samples, 6 steps):

==========================  ===================================================================
``conv.weight``, ...        float32: the network, which is not trained
``<case>/start/<tensor>``   float32: the adapters at the start, in PEFT's layout
``x``, ``labels``           float32 ``[6, N, 3, 6, 6]``, int64 ``[6, N]``
``cases``                   JSON: case to rank, alpha, and the arguments of ``torch.optim``
``<case>/loss``             float64 ``[6]``: the loss before each step
``<case>/<tensor>``         float64: each adapter after the last step
``<case>/logits``           float64 ``[N, 4]``: of the last batch after the last step
``<case>/merged/<weight>``  float64: the weights after ``merge_and_unload``
``versions``                of PEFT and torch
==========================  ===================================================================

The second matrices start with random numbers, not with zero, so that a wrong gradient of the first
ones shows at once. The shipped file was made with PEFT 0.21.2 and PyTorch 2.13.0 (CPU).

Examples:
    From the root of the repository::

        python -m tools.golden.peft_lora
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from numpy.typing import NDArray
from torch import nn

__all__ = ["CASES", "Network", "main", "trained"]

STEPS, SAMPLES, CLASSES = 6, 5, 4
ADAPTED = ("conv", "fc1")
CASES: dict[str, dict[str, Any]] = {
    "sgd": {"rank": 2, "alpha": 3.0, "optimizer": "SGD", "lr": 0.05, "momentum": 0.9},
    "adamw": {"rank": 3, "alpha": 3.0, "optimizer": "AdamW", "lr": 0.01, "weight_decay": 0.1},
}


class Network(nn.Module):
    """A convolution and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(6, 7)
        self.fc2 = nn.Linear(7, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[N, 3, H, W]`` to ``[N, 4]``."""
        pooled = torch.relu(self.conv(x)).mean((2, 3))
        logits: torch.Tensor = self.fc2(torch.relu(self.fc1(pooled)))
        return logits


def _problem() -> dict[str, NDArray[Any]]:
    """Weights and batches; multiples of 1/64, exact in float32."""
    rng = np.random.default_rng(4)

    def values(*shape: int) -> NDArray[np.float32]:
        return (rng.integers(-48, 49, shape) / 64).astype(np.float32)

    state = {name: values(*tensor.shape) for name, tensor in Network().state_dict().items()}
    return {
        **state,
        "x": values(STEPS, SAMPLES, 3, 6, 6),
        "labels": rng.integers(0, CLASSES, (STEPS, SAMPLES)),
    }


def trained(
    problem: dict[str, NDArray[Any]], case: dict[str, Any]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The adapters at the start, and the results, in float64."""
    rank, alpha, rule, *_ = case.values()
    arguments = {k: v for k, v in case.items() if k not in ("rank", "alpha", "optimizer")}
    network = Network().double()
    network.load_state_dict({k: torch.from_numpy(problem[k]) for k in network.state_dict()})
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(ADAPTED))
    model = peft.get_peft_model(network, config, autocast_adapter_dtype=False)
    rng = np.random.default_rng(5)
    adapters = {
        f"{layer}.lora_{half}": getattr(model.get_submodule(f"base_model.model.{layer}"), name)[
            "default"
        ].weight
        for layer in ADAPTED
        for half, name in (("A", "lora_A"), ("B", "lora_B"))
    }
    start = {
        k: (rng.integers(-32, 33, v.shape) / 64).astype(np.float32) for k, v in adapters.items()
    }
    with torch.no_grad():
        for name, value in adapters.items():
            value.copy_(torch.from_numpy(start[name]))
    optimizer = getattr(torch.optim, rule)(adapters.values(), **arguments)
    losses = []
    for x, labels in zip(problem["x"], problem["labels"], strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(torch.from_numpy(x).double()), torch.from_numpy(labels)
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = {"loss": np.array(losses)}
    found |= {name: value.detach().numpy().copy() for name, value in adapters.items()}
    found["logits"] = model(torch.from_numpy(problem["x"][-1]).double()).detach().numpy()
    merged = model.merge_and_unload()
    weights = {f"merged/{n}.weight": merged.get_submodule(n).weight for n in ADAPTED}
    return start, found | {name: value.detach().numpy() for name, value in weights.items()}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tests/golden/torch/lora.npz"))
    out = parser.parse_args().out
    problem = _problem()
    arrays = dict(problem)
    for name, case in CASES.items():
        start, found = trained(problem, case)
        arrays |= {f"{name}/start/{key}": array for key, array in start.items()}
        arrays |= {f"{name}/{key}": array for key, array in found.items()}
    versions = f"peft {peft.__version__}, torch {torch.__version__}"
    np.savez_compressed(
        out, **arrays, cases=np.array(json.dumps(CASES)), versions=np.array(versions)
    )


if __name__ == "__main__":
    main()
