"""Define six small networks in PyTorch and export them to ONNX, with either exporter.

The networks are the models shipped in ``models/``; the graphs are kept in the form that users have:
nothing is folded, parameters keep their PyTorch names, the batch is symbolic. Only data that
describe the exporting machine are removed: stack traces, documentation strings and per-node
metadata.

Two exporters are supported:

* ``torchscript`` (``dynamo=False``), in ``TrainingMode.TRAINING``. Only this one writes
  ``BatchNormalization`` in training form (``training_mode=1`` and the two running outputs).
* ``dynamo`` (``dynamo=True``). It writes ``BatchNormalization`` in inference form even for a
  module in ``train()``. Its optimizer, which is on by default, is meant for inference: it folds
  that batch normalization into the ``Conv`` before it, replaces weights by transposed copies with
  new names, and lets parameters that are equal at the start (the ones and zeros of every layer
  normalization) share one initializer. It is therefore off for the networks concerned, and an
  export that lost a parameter is rejected.

The shipped files were made with PyTorch 2.13.0, onnx 1.23.2 and onnxscript 0.7.2.

Examples:
    Export every shipped model with its default exporter, from the root of the repository::

        python -m tools.export_torch --model all --out models

    List the parameters and ``requires_grad`` beside a model::

        python -m tools.export_torch --model mlp --parameters --out build

    See what the other exporter writes for one network::

        python -m tools.export_torch --model resnet20 --exporter dynamo --out build
"""

from __future__ import annotations

import argparse
import io
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from ortboost.program.parameter_list import write_parameters

__all__ = [
    "CLASSES",
    "EXPORTERS",
    "NETWORKS",
    "VOCABULARY",
    "BottleneckResNet",
    "ConvBnDropout",
    "LeNet5",
    "Mlp",
    "MobileNetLike",
    "NetworkSpec",
    "ResNet20",
    "TransformerTiny",
    "build",
    "export",
    "export_dynamo",
    "export_torchscript",
    "main",
    "strip_machine_information",
    "write",
]

EXPORTERS = ("torchscript", "dynamo")
CLASSES = 10
VOCABULARY = 256
SEQUENCE = 16


class Mlp(nn.Module):
    """Two linear layers on the flattened 8x8 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.fc2(functional.relu(self.fc1(x)))


class LeNet5(nn.Module):
    """LeNet-5 for 8x8 images: padded convolutions, otherwise the usual 120-84-10 head.

    The image is finally 2x2, so there are 32 channels where LeNet-5 has 16. With He initialization,
    a few epochs are enough.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5, padding=2)
        self.fc1 = nn.Linear(32 * 2 * 2, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, CLASSES)
        for layer in (self.conv1, self.conv2, self.fc1, self.fc2, self.fc3):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        return self.fc3(x)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with a projection if the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = _projection(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet20(nn.Module):
    """The CIFAR ResNet-20: three stages of three basic blocks, 16-32-64 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, stride=1)
        self.layer2 = self._stage(16, 32, stride=2)
        self.layer3 = self._stage(32, 64, stride=2)
        self.fc = nn.Linear(64, CLASSES)

    @staticmethod
    def _stage(channels_in: int, channels: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            BasicBlock(channels_in, channels, stride),
            BasicBlock(channels, channels, 1),
            BasicBlock(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class Bottleneck(nn.Module):
    """1x1 - 3x3 - 1x1 convolutions with a fourfold expansion and a shortcut."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels = width * self.expansion
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.shortcut = _projection(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class BottleneckResNet(nn.Module):
    """A small ResNet of bottleneck blocks with a strided stem and a max pool, as in ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Bottleneck(16, 8, 1), Bottleneck(32, 8, 1))
        self.layer2 = nn.Sequential(Bottleneck(32, 16, 2), Bottleneck(64, 16, 1))
        self.layer3 = nn.Sequential(Bottleneck(64, 32, 2))
        self.fc = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, project; added to the input if the shape allows."""

    def __init__(
        self, channels_in: int, channels: int, stride: int, activation: type[nn.Module]
    ) -> None:
        super().__init__()
        hidden = channels_in * 3
        self.residual = stride == 1 and channels_in == channels
        self.expand = nn.Conv2d(channels_in, hidden, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.act1 = activation()
        self.depthwise = nn.Conv2d(
            hidden, hidden, 3, stride=stride, padding=1, groups=hidden, bias=False
        )
        self.bn2 = nn.BatchNorm2d(hidden)
        self.act2 = activation()
        self.project = nn.Conv2d(hidden, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        y = self.act1(self.bn1(self.expand(x)))
        y = self.act2(self.bn2(self.depthwise(y)))
        y = self.bn3(self.project(y))
        return x + y if self.residual else y


class MobileNetLike(nn.Module):
    """Inverted residuals: ReLU6 in the first blocks as in v2, HardSwish in the last as in v3."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.ReLU6()
        self.blocks = nn.Sequential(
            InvertedResidual(8, 8, 1, nn.ReLU6),
            InvertedResidual(8, 16, 2, nn.ReLU6),
            InvertedResidual(16, 16, 1, nn.Hardswish),
            InvertedResidual(16, 24, 2, nn.Hardswish),
        )
        self.head = nn.Conv2d(24, 96, 1, bias=False)
        self.bn_head = nn.BatchNorm2d(96)
        self.act_head = nn.Hardswish()
        self.fc = nn.Linear(96, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.act(self.bn(self.stem(x)))
        x = self.act_head(self.bn_head(self.head(self.blocks(x))))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class EncoderLayer(nn.Module):
    """A pre-norm transformer encoder layer with an erf GELU."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)
        self.drop1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.drop2 = nn.Dropout(dropout)

    def attention(self, x: Tensor) -> Tensor:
        """Multi-head self attention without a mask."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.fc2(functional.gelu(self.fc1(self.norm2(x)))))


class TransformerTiny(nn.Module):
    """Token and position embeddings, two encoder layers, mean pooling, a linear classifier."""

    def __init__(self, width: int = 64, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(1, SEQUENCE, width) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        x = self.drop(self.embedding(tokens) + self.positions)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.norm(x).mean(dim=1))


class ConvBnDropout(nn.Module):
    """The smallest network with all features on which exporters differ (golden files only).

    One convolution has a bias and one has none: the dynamo exporter writes a zero bias through
    ``CastLike`` for the latter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(8 * 2 * 2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(self.drop(torch.flatten(x, 1)))


def _projection(channels_in: int, channels: int, stride: int) -> nn.Module:
    if stride == 1 and channels_in == channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
    )


@dataclass(frozen=True)
class NetworkSpec:
    """How to build and export one network.

    Attributes:
        make: builds the module.
        shape: shape of one sample, without the batch.
        seed: seed of the initial parameters.
        exporter: the exporter of the shipped file.
        input_name: name of the only graph input; ``tokens`` means int64 token ids.
        optimize: whether the dynamo exporter may run its optimizer.
        opset: version of the default ONNX domain.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    seed: int
    exporter: str
    input_name: str = "x"
    optimize: bool = True
    opset: int = 18

    def example(self, batch: int = 2) -> Tensor:
        """Return an input of the right shape and type to trace the network with."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.input_name == "tokens":
            return torch.randint(0, VOCABULARY, (batch, *self.shape), generator=generator)
        return torch.rand(batch, *self.shape, generator=generator)


NETWORKS: dict[str, NetworkSpec] = {
    "mlp": NetworkSpec(Mlp, (64,), 1, "torchscript"),
    "lenet5": NetworkSpec(LeNet5, (1, 8, 8), 2, "dynamo"),
    "resnet20": NetworkSpec(ResNet20, (3, 32, 32), 3, "torchscript", optimize=False),
    "resnet_bottleneck": NetworkSpec(
        BottleneckResNet, (3, 32, 32), 4, "torchscript", optimize=False
    ),
    "mobilenet_like": NetworkSpec(MobileNetLike, (3, 32, 32), 5, "torchscript", optimize=False),
    "transformer_tiny": NetworkSpec(
        TransformerTiny, (SEQUENCE,), 6, "dynamo", input_name="tokens", optimize=False
    ),
}


def build(spec: NetworkSpec) -> nn.Module:
    """Build a network in training mode with its seeded initial parameters."""
    torch.manual_seed(spec.seed)
    return spec.make().train()


def export_torchscript(spec: NetworkSpec) -> onnx.ModelProto:
    """Export with the TorchScript exporter, in training mode and without constant folding.

    Below opset 11 the parameters also become graph inputs, as in files of that age.

    Args:
        spec: the network.

    Returns:
        The ONNX model. The exporter traces by running the network in training mode, which changes
        the running statistics; they are reset to their initial values.
    """
    module = build(spec)
    initial = {name: buffer.clone() for name, buffer in module.named_buffers()}
    file = io.BytesIO()
    torch.onnx.export(
        module,
        (spec.example(),),
        file,
        dynamo=False,
        opset_version=spec.opset,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        keep_initializers_as_inputs=spec.opset < 11,
        input_names=[spec.input_name],
        output_names=["logits"],
        dynamic_axes={spec.input_name: {0: "batch"}, "logits": {0: "batch"}},
    )
    model = onnx.load_from_string(file.getvalue())
    for initializer in model.graph.initializer:
        if initializer.name in initial:
            value = initial[initializer.name].numpy()
            initializer.CopyFrom(numpy_helper.from_array(value, initializer.name))
    return model


def export_dynamo(spec: NetworkSpec) -> onnx.ModelProto:
    """Export with the dynamo exporter, from a module in training mode.

    Args:
        spec: the network.

    Returns:
        The ONNX model, as the exporter wrote it.
    """
    program = torch.onnx.export(
        build(spec),
        (spec.example(),),
        dynamo=True,
        opset_version=spec.opset,
        optimize=spec.optimize,
        input_names=[spec.input_name],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def export(spec: NetworkSpec, exporter: str | None = None) -> onnx.ModelProto:
    """Export a network, remove data that describe the machine, and check the result.

    Args:
        spec: the network.
        exporter: ``"torchscript"`` or ``"dynamo"``; by default the one of the shipped file.

    Returns:
        The checked ONNX model.

    Raises:
        RuntimeError: if the exporter lost or renamed a parameter.
    """
    exporter = exporter or spec.exporter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        model = (export_dynamo if exporter == "dynamo" else export_torchscript)(spec)
    strip_machine_information(model)
    onnx.checker.check_model(model, full_check=True)
    kept = {initializer.name for initializer in model.graph.initializer}
    lost = [name for name, _ in build(spec).named_parameters() if name not in kept]
    if lost:
        raise RuntimeError(f"the {exporter} exporter lost or renamed: {', '.join(lost)}")
    return model


def strip_machine_information(model: onnx.ModelProto) -> None:
    """Remove documentation strings and metadata, which hold stack traces and local paths.

    Args:
        model: the model, changed in place.
    """
    for message in _messages(model):
        if message.doc_string:
            message.doc_string = ""
        del message.metadata_props[:]


def _messages(model: onnx.ModelProto) -> Iterator:
    graph = model.graph
    yield model
    yield graph
    for group in (graph.node, graph.initializer, graph.input, graph.output, graph.value_info):
        yield from group


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write a model as one file and print a summary.

    Args:
        model: the model.
        path: where to write it; folders are created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    operators = Counter(node.op_type for node in model.graph.node)
    print(
        f"{path}: {path.stat().st_size:,} bytes, IR {model.ir_version}, "
        f"opset {model.opset_import[0].version}, "
        + ", ".join(f"{name} {count}" for name, count in sorted(operators.items()))
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.export_torch",
        description="Export the shipped networks from PyTorch to ONNX.",
        epilog=(
            "examples:\n"
            "  python -m tools.export_torch --model all --out models\n"
            "  python -m tools.export_torch --model resnet20 --exporter dynamo --out build\n"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=[*NETWORKS, "all"], default="all", help="what to export")
    parser.add_argument(
        "--exporter", choices=EXPORTERS, help="default: the one of the shipped file"
    )
    parser.add_argument(
        "--parameters",
        action="store_true",
        help="also write NAME.txt: the parameters and requires_grad, for ortboost --parameters",
    )
    parser.add_argument("--out", type=Path, default=Path("models"), help="folder to write to")
    arguments = parser.parse_args(argv)

    names = list(NETWORKS) if arguments.model == "all" else [arguments.model]
    for name in names:
        path = arguments.out / f"{name}.onnx"
        write(export(NETWORKS[name], arguments.exporter), path)
        if arguments.parameters:
            named = build(NETWORKS[name]).named_parameters()
            for lost in write_parameters(path.with_suffix(".txt"), path, named):
                print(f"  '{lost}' is in no tensor of the file")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
