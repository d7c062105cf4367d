"""Four networks of usual size with random weights, exported from PyTorch for the benchmarks.

ResNet-50, a MobileNetV2, an encoder of the size of BERT base and a ViT-B/16 are written here in
plain ``torch.nn``, as a user would write them, and exported with either exporter. The files are
large (14 to 440 MB) and are never committed; the benchmark makes them where it is told to.

BatchNormalization gets random statistics: with the zeros and ones of a fresh network folding it
would prove little.

Examples:
    All four with both exporters, into a scratch folder::

        python -m tools.bench.networks --out /tmp/networks
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

__all__ = ["EXPORTERS", "NETWORKS", "BertEncoder", "MobileNetV2", "ResNet50", "Vit", "export"]

EXPORTERS = ("torchscript", "dynamo")
_VOCABULARY = 30522


class Bottleneck(nn.Module):
    """1x1 - 3x3 - 1x1 convolutions with a shortcut."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, 4 * width, 1, stride=stride, bias=False),
                nn.BatchNorm2d(4 * width),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """The ImageNet ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        channels = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(blocks):
                layers.append(Bottleneck(channels, width, stride if block == 0 else 1))
                channels = 4 * width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.fc(self.features(x))


def _conv(channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1):
    return (
        nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
    )


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; with a shortcut where the shapes agree."""

    def __init__(self, channels_in: int, channels: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = channels_in * expand
        body: list[nn.Module] = []
        if expand != 1:
            body += [*_conv(channels_in, hidden, 1), nn.ReLU6()]
        body += [*_conv(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
        body += _conv(hidden, channels, 1)
        self.body = nn.Sequential(*body)
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        return x + self.body(x) if self.residual else self.body(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 with the strides and widths of the paper."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_conv(3, 32, 3, 2), nn.ReLU6()]
        channels = 32
        for expand, width, blocks, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for block in range(blocks):
                layers.append(
                    InvertedResidual(channels, width, stride if block == 0 else 1, expand)
                )
                channels = width
        self.features = nn.Sequential(*layers, *_conv(channels, 1280, 1), nn.ReLU6())
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(self.dropout(self.features(x).mean((2, 3))))


class Attention(nn.Module):
    """Multi-head self-attention written out, as in most code that is exported."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).transpose(1, 2)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the mixed values; ``bias`` is added to the scores."""
        query, key, value = (self._split(f(x)) for f in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / self.size**0.5
        if bias is not None:
            scores = scores + bias
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """A Transformer layer, with the normalization after (BERT) or before (ViT) each half."""

    def __init__(self, width: int, heads: int, *, first: bool) -> None:
        super().__init__()
        self.first = first
        self.attention = Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def _mlp(self, x: Tensor) -> Tensor:
        return self.drop(self.narrow(nn.functional.gelu(self.wide(x))))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the output of the layer."""
        if self.first:
            x = x + self.drop(self.attention(self.norm1(x), bias))
            return x + self._mlp(self.norm2(x))
        x = self.norm1(x + self.drop(self.attention(x, bias)))
        return self.norm2(x + self._mlp(x))


class BertEncoder(nn.Module):
    """Embeddings, twelve layers, pooler; the size of BERT base."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(_VOCABULARY, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, first=False) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the pooled first token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.positions(places)[None])
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, bias)
        return torch.tanh(self.pooler(x[:, 0]))


class Vit(nn.Module):
    """ViT-B/16 for 224x224 images."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 197, width))
        self.layers = nn.ModuleList(Layer(width, heads, first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def _image() -> dict[str, Tensor]:
    return {"x": torch.rand(2, 3, 224, 224)}


def _text() -> dict[str, Tensor]:
    mask = torch.ones(2, 64, dtype=torch.int64)
    mask[1, 40:] = 0
    return {"tokens": torch.randint(0, _VOCABULARY, (2, 64)), "mask": mask}


@dataclass(frozen=True)
class NetworkSpec:
    """How to build and export one network.

    Attributes:
        make: Builds the module.
        example: Makes inputs by name to trace it with.
        output: Name of the output.
    """

    make: Callable[[], nn.Module]
    example: Callable[[], dict[str, Tensor]]
    output: str = "logits"


NETWORKS = {
    "resnet50": NetworkSpec(ResNet50, _image),
    "mobilenetv2": NetworkSpec(MobileNetV2, _image),
    "bert_base": NetworkSpec(BertEncoder, _text, "pooled"),
    "vit_b16": NetworkSpec(Vit, _image),
}


def build(spec: NetworkSpec) -> nn.Module:
    """A network with seeded weights and random statistics, in evaluation mode."""
    torch.manual_seed(0)
    module = spec.make().eval()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.0)
            nn.init.normal_(layer.bias, std=0.1)
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return module


def export(name: str, exporter: str, path: Path, opset: int = 18) -> None:
    """Export one network, unfolded, the batch (and the length of a text) symbolic."""
    spec = NETWORKS[name]
    module, example = build(spec), spec.example()
    text = "tokens" in example
    arguments = tuple(example.values())
    common = {"input_names": list(example), "output_names": [spec.output], "opset_version": opset}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
            shape = {0: batch, 1: length} if text else {0: batch}
            torch.onnx.export(
                module, arguments, str(path), dynamo=True, optimize=False, verbose=False,
                external_data=False, dynamic_shapes=tuple(shape for _ in arguments), **common,
            )  # fmt: skip
        else:
            axes = {key: {0: "batch", **({1: "length"} if text else {})} for key in example}
            torch.onnx.export(
                module, arguments, str(path), dynamo=False, do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                dynamic_axes={**axes, spec.output: {0: "batch"}}, **common,
            )  # fmt: skip


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.networks", description=__doc__)
    parser.add_argument("--model", choices=NETWORKS, action="append", help="default: all")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="default: both")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.model or NETWORKS:
        for exporter in arguments.exporter or EXPORTERS:
            path = arguments.out / f"{name}_{exporter}.onnx"
            export(name, exporter, path)
            print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
