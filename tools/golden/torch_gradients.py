"""Make ``tests/golden/torch/<model>.npz``: gradients of the shipped models, from PyTorch.

The parameters are read from ``models/<model>.onnx`` by name, so the numbers belong to the shipped
file. One batch is run in training mode (batch normalization uses the statistics of the batch)
with dropout off, under a mean softmax cross-entropy; everything is computed in float64, and again
in float32 to tell how much of a difference is rounding.

Arrays of a file (P parameters, B batch normalizations):

======================  ======================================================================
``input``               the batch: int8 for images, int64 token ids for ``transformer_tiny``
``input_divisor``       the fed batch is ``(input / input_divisor).astype(float32)``; 0 for ids
``labels``              int64 [batch]
``loss, logits``        float64 reference
``loss_f32, logits_f32``  the same in float32
``param_names``         [P] names of the initializers, in the order of the module
``grad_norms``          [P] L2 norm of the whole gradient, float64
``grad_errors_f32``     [P] L2 norm of (float32 gradient - float64 gradient)
``sample_offsets``      [P + 1] samples of parameter i are ``sample_offsets[i:i + 2]``
``sample_indices``      flat (C order) indices into the parameter, ascending, int32
``sample_values``       float64 gradient at those indices
``buffer_names``        [2B] names of the running means and variances (absent without any)
``buffer_offsets``      [2B + 1] values of buffer i are ``buffer_offsets[i:i + 2]``
``buffer_values``       float64 value after the step: momentum 0.1, variance unbiased
``seed, torch_version, onnx_sha256``  where the numbers come from
======================  ======================================================================

Up to 64 entries of every gradient are kept: three quarters are drawn from the entries that are
not zero (an embedding has few), the rest from all others.

Some gradients are zero in exact arithmetic: that of the bias of an attention key (softmax ignores
a shift), and that of a batch normalization bias whose consumers all end, without an activation, in
another batch normalization (the first blocks of ``mobilenet_like``). Only rounding is left of
them, so compare them with a tolerance that is absolute. A few more are small for a similar reason
(``blocks.0.bn1.weight`` of ``mobilenet_like``): ``grad_errors_f32`` is the yardstick for all.

The shipped files were made with PyTorch 2.13.0 (CPU).

Examples:
    From the root of the repository::

        python -m tools.golden.torch_gradients
        python -m tools.golden.torch_gradients --model lenet5
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from tools.export_torch import CLASSES, NETWORKS, VOCABULARY, build

__all__ = ["BATCH", "DIVISOR", "SAMPLES", "Step", "golden", "load", "main", "train_step"]

BATCH = 4
DIVISOR = 16
SAMPLES = 64
SEED = 11


@dataclass(frozen=True)
class Step:
    """What one forward and backward pass gave.

    Attributes:
        loss: the mean loss.
        logits: the output of the network.
        gradients: gradient of every parameter, by name.
        buffers: running mean and variance of every batch normalization, by name.
    """

    loss: np.ndarray
    logits: np.ndarray
    gradients: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]


def load(name: str, path: Path) -> nn.Module:
    """Build a network and give it the parameters and buffers of an ONNX file.

    Args:
        name: a key of ``NETWORKS``.
        path: the ONNX file.

    Returns:
        The network in training mode, with every dropout off.

    Raises:
        KeyError: if the file lacks a parameter or a running statistic.
    """
    module = build(NETWORKS[name])
    initializers = {i.name: i for i in onnx.load(path).graph.initializer}
    state = {
        key: torch.from_numpy(numpy_helper.to_array(initializers[key]).copy())
        for key in module.state_dict()
        if not key.endswith("num_batches_tracked")
    }
    module.load_state_dict(state, strict=False)
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.eval()
    return module


def batch(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the batch of a network.

    Args:
        name: a key of ``NETWORKS``.
        seed: seed of the generator.

    Returns:
        The input as it is stored, and the labels.
    """
    spec = NETWORKS[name]
    rng = np.random.default_rng(seed)
    shape = (BATCH, *spec.shape)
    if spec.input_name == "tokens":
        stored = rng.integers(0, VOCABULARY, shape)
    else:
        stored = np.clip(np.rint(rng.standard_normal(shape) * DIVISOR), -127, 127).astype(np.int8)
    return stored, rng.integers(0, CLASSES, BATCH)


def train_step(module: nn.Module, x: Tensor, labels: Tensor) -> Step:
    """Run forward and backward once.

    Args:
        module: the network; its running statistics change.
        x: the input.
        labels: int64 class numbers.

    Returns:
        The loss, the logits, the gradients and the running statistics after the step.
    """
    logits = module(x)
    loss = functional.cross_entropy(logits, labels)
    loss.backward()
    return Step(
        loss=loss.detach().numpy(),
        logits=logits.detach().numpy(),
        gradients={name: p.grad.numpy() for name, p in module.named_parameters()},
        buffers={name: b.numpy() for name, b in module.named_buffers() if b.is_floating_point()},
    )


def golden(name: str, path: Path, seed: int) -> dict[str, np.ndarray]:
    """Compute everything that is stored for one network.

    Args:
        name: a key of ``NETWORKS``.
        path: the ONNX file of the network.
        seed: seed of the batch and of the sampled entries.

    Returns:
        The arrays by name.
    """
    stored, labels = batch(name, seed)
    tokens = NETWORKS[name].input_name == "tokens"
    steps = {}
    for dtype in (torch.float64, torch.float32):
        x = torch.from_numpy(stored)
        x = x if tokens else x.to(dtype) / DIVISOR
        steps[dtype] = train_step(load(name, path).to(dtype), x, torch.from_numpy(labels))
    exact, single = steps[torch.float64], steps[torch.float32]

    rng = np.random.default_rng(seed)
    indices = [_sample(gradient.ravel(), rng) for gradient in exact.gradients.values()]
    values = [g.ravel()[i] for g, i in zip(exact.gradients.values(), indices, strict=True)]
    arrays = {
        "input": stored,
        "input_divisor": np.int64(0 if tokens else DIVISOR),
        "labels": labels,
        "loss": exact.loss,
        "logits": exact.logits,
        "loss_f32": single.loss,
        "logits_f32": single.logits,
        "param_names": np.array(list(exact.gradients)),
        "grad_norms": np.array([np.linalg.norm(g) for g in exact.gradients.values()]),
        "grad_errors_f32": np.array(
            [np.linalg.norm(single.gradients[key] - g) for key, g in exact.gradients.items()]
        ),
        "sample_offsets": _offsets(indices),
        "sample_indices": np.concatenate(indices).astype(np.int32),
        "sample_values": np.concatenate(values),
        "seed": np.int64(seed),
        "torch_version": np.array(torch.__version__),
        "onnx_sha256": np.array(hashlib.sha256(path.read_bytes()).hexdigest()),
    }
    if exact.buffers:
        buffers = list(exact.buffers.values())
        arrays["buffer_names"] = np.array(list(exact.buffers))
        arrays["buffer_offsets"] = _offsets(buffers)
        arrays["buffer_values"] = np.concatenate(buffers)
    return arrays


def _sample(gradient: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Choose up to ``SAMPLES`` flat indices, three quarters of them where it is not zero."""
    if gradient.size <= SAMPLES:
        return np.arange(gradient.size)
    nonzero = np.flatnonzero(gradient)
    chosen = rng.choice(nonzero, min(SAMPLES * 3 // 4, nonzero.size), replace=False)
    others = np.setdiff1d(np.arange(gradient.size), chosen)
    return np.sort(np.concatenate([chosen, rng.choice(others, SAMPLES - chosen.size, False)]))


def _offsets(arrays: list[np.ndarray]) -> np.ndarray:
    return np.cumsum([0, *(array.size for array in arrays)]).astype(np.int32)


def main(argv: list[str] | None = None) -> int:
    """Write the golden files and print how exact float32 is."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden.torch_gradients",
        description="Make tests/golden/torch/<model>.npz.",
        epilog="example: python -m tools.golden.torch_gradients --model lenet5",
    )
    parser.add_argument("--model", choices=[*NETWORKS, "all"], default="all")
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of the models")
    parser.add_argument("--out", type=Path, default=Path("tests/golden/torch"))
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args(argv)

    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS if arguments.model == "all" else [arguments.model]:
        arrays = golden(name, arguments.models / f"{name}.onnx", arguments.seed)
        path = arguments.out / f"{name}.npz"
        np.savez_compressed(path, **arrays)
        norms, names = arrays["grad_norms"], arrays["param_names"]
        zero = norms < 1e-10 * norms.max()
        errors = np.where(zero, 0, arrays["grad_errors_f32"] / np.where(zero, 1, norms))
        worst = int(np.argmax(errors))
        print(
            f"{path}: {path.stat().st_size:,} bytes, loss {arrays['loss']:.6f}, largest relative "
            f"error of a float32 gradient {errors[worst]:.1e} ({names[worst]}), "
            f"zero gradients: {', '.join(names[zero]) or 'none'}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
