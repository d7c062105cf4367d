"""Write ``tests/golden/torch_layers``: layers of PyTorch from both exporters, and gradients.

These are the layers whose exports are hard to read: the exporters cut the weights of a recurrent
layer up and put the gates in another order, compute axes and sizes from constants, and split what
one projection made. For each network there is a file by TorchScript, one by dynamo, and
``<network>.npz``:

==============  ========================================================================
``x, labels``   the batch, of 4 samples where the files have a symbolic dimension
``loss``        mean softmax cross-entropy in training mode
``g:<name>``    its gradient by each parameter
==============  ========================================================================

all in float32, from the weights in the file. The shipped files were made with PyTorch 2.13.0 (CPU),
onnx 1.23.2 and onnxscript 0.7.2.

Examples:
    From the root of the repository::

        python -m tools.golden.torch_layers
"""

from __future__ import annotations

import argparse
import io
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.export_torch import strip_machine_information, write

__all__ = ["NETWORKS", "main"]

_BATCH, _CLASSES = 4, 3


class Recurrent(nn.Module):
    """Embedding, a bidirectional LSTM, a GRU and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(6, 5, batch_first=True)
        self.out = nn.Linear(5, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, 6]`` tokens to logits."""
        _, last = self.gru(self.lstm(self.embedding(x))[0])
        return self.out(last[-1])


class Attending(nn.Module):
    """An encoder layer of torch behind learned positions, with a causal mask and a tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_CLASSES, 8)
        self.positions = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[N, 5]`` tokens to logits."""
        mask = torch.triu(torch.full((5, 5), float("-inf")), 1)
        hidden = self.layer(self.embedding(x) + self.positions, src_mask=mask)
        return (hidden @ self.embedding.weight.T)[:, -1]


class Decoder(nn.Module):
    """Down by an average pool, up by a transposed convolution and by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.resize = nn.Upsample(scale_factor=2, mode="bilinear")
        self.out = nn.Linear(3, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, 2, 8, 8]`` to logits."""
        small = functional.avg_pool2d(functional.silu(self.norm(self.first(x))), 2)
        large = self.resize(functional.max_pool2d(functional.elu(self.up(small)), 2))
        return self.out(large.amax((2, 3)))


class Signal(nn.Module):
    """One axis: convolution, PReLU with a slope a channel, average pool, two normalizations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.PReLU(4)
        self.hidden = nn.Linear(16, 6)
        self.norm2 = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, 3, 8]`` to logits."""
        pooled = functional.avg_pool1d(self.act(self.norm(self.conv(x))), 2)
        return self.out(torch.tanh(self.norm2(self.hidden(pooled.flatten(1)))))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "recurrent": (Recurrent, lambda: torch.randint(0, 9, (_BATCH, 6))),
    "attending": (Attending, lambda: torch.randint(0, _CLASSES, (_BATCH, 5))),
    "decoder": (Decoder, lambda: torch.randn(_BATCH, 2, 8, 8)),
    "signal": (Signal, lambda: torch.randn(_BATCH, 3, 8)),
}
"""Name to the network and its batch."""


def _build(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(sum(map(ord, name)))
    make, batch = NETWORKS[name]
    return make().train(), batch()


def _torchscript(name: str) -> onnx.ModelProto:
    module, x = _build(name)
    file = io.BytesIO()
    torch.onnx.export(
        module,
        (x,),
        file,
        dynamo=False,
        opset_version=18,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}},
    )
    return onnx.load_from_string(file.getvalue())


def _dynamo(name: str) -> onnx.ModelProto:
    module, x = _build(name)
    program = torch.onnx.export(
        module,
        (x,),
        dynamo=True,
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        optimize=False,  # it folds normalizations, and renames transposed weights
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _gradients(name: str) -> dict[str, np.ndarray]:
    module, x = _build(name)
    labels = torch.arange(_BATCH) % _CLASSES
    loss = functional.cross_entropy(module(x), labels)
    loss.backward()
    found = {"x": x.numpy(), "labels": labels.numpy(), "loss": loss.detach().numpy()}
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None
        found[f"g:{key}"] = parameter.grad.numpy()
    return found


def main(argv: list[str] | None = None) -> int:
    """Write the files."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden.torch_layers",
        description="Make tests/golden/torch_layers.",
        epilog="example: python -m tools.golden.torch_layers",
    )
    parser.add_argument("--out", type=Path, default=Path("tests/golden/torch_layers"))
    out = parser.parse_args(argv).out
    warnings.simplefilter("ignore")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    for name in NETWORKS:
        for exporter, export in (("torchscript", _torchscript), ("dynamo", _dynamo)):
            model = export(name)
            strip_machine_information(model)
            onnx.checker.check_model(model, full_check=True)
            write(model, out / f"{name}_{exporter}.onnx")
        np.savez_compressed(out / f"{name}.npz", **_gradients(name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
