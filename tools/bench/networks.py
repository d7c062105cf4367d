"""Six networks of usual size with random weights, exported from PyTorch for the benchmarks.

ResNet-50, a MobileNetV2, an encoder of the size of BERT base, a ViT-B/16, a U-Net and a decoder of
100 million parameters as in Llama are written here in plain ``torch.nn``, as a user would write
them, and exported with either exporter. The files are large (14 to 440 MB) and are never committed;
the benchmark writes them into the given folder.

BatchNormalization gets random statistics: with the zeros and ones of a fresh network folding it
would prove little.

Examples:
    All with both exporters, into a scratch folder::

        python -m tools.bench.networks --out /tmp/networks
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tools.export_torch import Bottleneck

__all__ = [
    "EXPORTERS",
    "NETWORKS",
    "BertEncoder",
    "Decoder",
    "Encoder",
    "MobileNetV2",
    "NetworkSpec",
    "ResNet50",
    "UNet",
    "Vit",
    "build",
    "export",
    "spec_of",
    "write_batch",
]

EXPORTERS = ("torchscript", "dynamo")
_VOCABULARY, _TOKENS, _LENGTH = 30522, 16000, 128


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


class UNet(nn.Module):
    """U-Net with BatchNormalization and transposed convolutions, 64 to 512 channels, 21 classes."""

    def __init__(self, width: int = 64, classes: int = 21) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(
            self._double(a, b) for a, b in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1])
        self.join = nn.ModuleList(self._double(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _double(channels_in: int, channels: int) -> nn.Module:
        return nn.Sequential(
            *_conv(channels_in, channels, 3), nn.ReLU(), *_conv(channels, channels, 3), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each pixel."""
        kept = []
        for level, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for up, join, skipped in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([skipped, up(x)], 1))
        return self.head(x)


class Encoder(nn.Module):
    """Transformer layers on embedded tokens; for :mod:`tools.bench.growth`."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Layer(width, max(1, width // 64), first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class RmsNorm(nn.Module):
    """`w x / sqrt(mean(x^2) + eps)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized values."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class DecoderLayer(nn.Module):
    """Causal attention with rotary positions, then a gated network; both after an RMS norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        hidden = width * 8 // 3
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Return the output of the layer."""
        shape = (x.shape[0], x.shape[1], self.heads, self.size)
        normed = self.norm1(x)
        query, key, value = (
            f(normed).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
        scores = query @ key.transpose(-1, -2) / self.size**0.5 + mask
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        normed = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    """A language model as in Llama: 12 layers, 768 wide, 16,000 tokens, 109 million parameters."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(_TOKENS, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, _TOKENS, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(_LENGTH), 1e4 ** (-torch.arange(0, size, 2) / size))
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        mask = torch.full((_LENGTH, _LENGTH), -1e9).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each position."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        return self.head(self.norm(x))


def _image(batch: int, side: int = 224) -> dict[str, Tensor]:
    return {"x": torch.rand(batch, 3, side, side)}


def _text(batch: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, _LENGTH, dtype=torch.int64)
    mask[1:, _LENGTH * 5 // 8 :] = 0
    return {"tokens": torch.randint(0, _VOCABULARY, (batch, _LENGTH)), "mask": mask}


@dataclass(frozen=True)
class NetworkSpec:
    """How to build and export one network.

    Attributes:
        make: Builds the module.
        example: Makes inputs by name for so many samples.
        output: Name of the output.
        free_length: Whether the length of a text is symbolic too.
        class_axis: Axis of the output that counts the classes.
    """

    make: Callable[[], nn.Module]
    example: Callable[[int], dict[str, Tensor]]
    output: str = "logits"
    free_length: bool = False
    class_axis: int = 1


NETWORKS = {
    "resnet50": NetworkSpec(ResNet50, _image),
    "mobilenetv2": NetworkSpec(MobileNetV2, _image),
    "bert_base": NetworkSpec(BertEncoder, _text, "pooled", free_length=True),
    "vit_b16": NetworkSpec(Vit, _image),
    "unet": NetworkSpec(UNet, lambda batch: _image(batch, 128)),
    "decoder_100m": NetworkSpec(
        Decoder, lambda batch: {"tokens": torch.randint(0, _TOKENS, (batch, _LENGTH))}, class_axis=2
    ),
}


def spec_of(name: str) -> NetworkSpec:
    """A network by its name, which may also be ``encoder-LAYERSxWIDTHxTOKENS``."""
    if not name.startswith("encoder-"):
        return NETWORKS[name]
    layers, width, length = map(int, name.removeprefix("encoder-").split("x"))
    return NetworkSpec(
        lambda: Encoder(layers, width), lambda batch: {"x": torch.randn(batch, length, width)}
    )


def build(spec: NetworkSpec, *, dropout: bool = True) -> nn.Module:
    """A network with seeded weights and random statistics, in evaluation mode.

    Args:
        spec: What to build.
        dropout: Keep Dropout; without it all contestants have the same loss.
    """
    torch.manual_seed(0)
    module = spec.make().eval()
    for layer in module.modules():
        if isinstance(layer, nn.Dropout) and not dropout:
            layer.p = 0.0
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.0)
            nn.init.normal_(layer.bias, std=0.1)
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return module


def write_batch(name: str, samples: int, path: Path) -> None:
    """Write inputs and labels for one step as ``.npz``."""
    spec = spec_of(name)
    module = build(spec)
    feeds = spec.example(samples)
    with torch.no_grad():
        shape = list(module(*feeds.values()).shape)
    classes = shape.pop(spec.class_axis)
    feeds["labels"] = torch.randint(0, classes, shape)
    np.savez(path, **{key: value.numpy() for key, value in feeds.items()})


def export(name: str, exporter: str, path: Path, opset: int = 18, *, dropout: bool = True) -> None:
    """Export one network, unfolded, the batch (and the length of a text) symbolic."""
    spec = spec_of(name)
    module, example = build(spec, dropout=dropout), spec.example(2)
    text = spec.free_length
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
    parser.add_argument("--model", action="append", help=f"default: {', '.join(NETWORKS)}")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="default: both")
    parser.add_argument(
        "--batch", type=int, help="also a batch of so many samples; the models without Dropout"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.model or NETWORKS:
        for exporter in arguments.exporter or EXPORTERS:
            path = arguments.out / f"{name}_{exporter}.onnx"
            export(name, exporter, path, dropout=arguments.batch is None)
            print(f"{path}: {path.stat().st_size:,} bytes")
        if arguments.batch is not None:
            write_batch(name, arguments.batch, arguments.out / f"{name}.npz")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
