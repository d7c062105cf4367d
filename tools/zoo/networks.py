"""Architectures written in plain ``torch.nn``, as their papers or a user would write them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tools.zoo.subjects import Batch, TorchSubject

__all__ = ["SUBJECTS"]


def _floats(name: str, *shape: int):
    def make(rng: np.random.Generator) -> Batch:
        return {name: rng.standard_normal(shape).astype(np.float32)}

    return make


def _conv(
    cin: int, cout: int, k: int = 3, s: int = 1, g: int = 1, act: type = nn.ReLU
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(cin, cout, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(cout), act()
    )


class UNet(nn.Module):
    """Ronneberger et al., 2015: skip connections, upsampling to the size of the skip."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = _conv(3, 8), _conv(8, 16), _conv(16, 32)
        self.d, self.e, self.head = _conv(48, 16), _conv(24, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(functional.max_pool2d(a, 2))
        c = self.c(functional.max_pool2d(b, 2))
        up = functional.interpolate(c, size=b.shape[-2:], mode="bilinear", align_corners=False)
        d = self.d(torch.cat([up, b], 1))
        up = functional.interpolate(d, size=a.shape[-2:], mode="nearest")
        return self.head(self.e(torch.cat([up, a], 1)))


class UNetTransposed(nn.Module):
    """The same with transposed convolutions, as most published code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _conv(3, 8), _conv(8, 16)
        self.up, self.e, self.head = (
            nn.ConvTranspose2d(16, 8, 2, 2),
            _conv(16, 8),
            nn.Conv2d(8, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(functional.max_pool2d(a, 2))
        return self.head(self.e(torch.cat([self.up(b), a], 1)))


class YoloHead(nn.Module):
    """A detector like YOLOv8: SiLU, SPPF, boxes as expectations of a distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 16, 3, 2, act=nn.SiLU)
        self.body = _conv(16, 16, 3, 2, act=nn.SiLU)
        self.pool, self.mix = nn.MaxPool2d(5, 1, 2), _conv(64, 16, 1, act=nn.SiLU)
        self.box, self.kind = nn.Conv2d(16, 4 * 8, 1), nn.Conv2d(16, 5, 1)
        self.dfl = nn.Conv2d(8, 1, 1, bias=False).requires_grad_(False)
        self.dfl.weight.data = torch.arange(8.0).view(1, 8, 1, 1)
        self.register_buffer("stride", torch.tensor([4.0]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.stem(x))
        y = self.pool(x)
        z = self.pool(y)
        x = self.mix(torch.cat([x, y, z, self.pool(z)], 1))
        n = x.shape[0]
        box = self.box(x).view(n, 4, 8, -1).transpose(1, 2).softmax(1)
        box = self.dfl(box).view(n, 4, -1) * self.stride
        return torch.cat([box, self.kind(x).view(n, 5, -1)], 1)


class Ssd(nn.Module):
    """Liu et al., 2016: heads at two scales, permuted, flattened and concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _conv(3, 16, 3, 2), _conv(16, 32, 3, 2)
        self.heads = nn.ModuleList([nn.Conv2d(16, 2 * 7, 3, 1, 1), nn.Conv2d(32, 2 * 7, 3, 1, 1)])

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        maps = [a, self.b(a)]
        out = [h(m).permute(0, 2, 3, 1).flatten(1) for h, m in zip(self.heads, maps, strict=True)]
        return torch.cat(out, 1).view(x.shape[0], -1, 7)


class Recurrent(nn.Module):
    """Embedding, a recurrent layer, and the scores of every token or of the last step."""

    def __init__(self, kind: str, *, bidirectional: bool = False, tagger: bool = False) -> None:
        super().__init__()
        self.embedding, self.tagger = nn.Embedding(50, 16), tagger
        cell = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind]
        self.rnn = cell(16, 12, batch_first=True, bidirectional=bidirectional, num_layers=2)
        self.head = nn.Linear(24 if bidirectional else 12, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.rnn(self.embedding(tokens))[0]
        return self.head(x) if self.tagger else self.head(x[:, -1])


class StatefulLstm(nn.Module):
    """A recurrent cell that takes its state as an input, as streaming models do."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        return self.head(self.rnn(x, (h, c))[0][:, -1])


class Crnn(nn.Module):
    """Shi et al., 2015: convolutions, then a recurrent layer along the width."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(1, 8), nn.MaxPool2d(2), _conv(8, 16), nn.MaxPool2d((4, 1)))
        self.rnn = nn.LSTM(16 * 2, 12, bidirectional=True)
        self.head = nn.Linear(24, 11)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).flatten(1, 2).permute(2, 0, 1)
        return self.head(self.rnn(x)[0]).permute(1, 0, 2)


class Dlrm(nn.Module):
    """Naumov et al., 2019: dense features, embeddings, and all dot products between them."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.tables = nn.ModuleList(nn.Embedding(30, 8) for _ in range(3))
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 2))
        i, j = torch.tril_indices(4, 4, -1)
        self.register_buffer("pairs", i * 4 + j)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = [x, *(table(sparse[:, k]) for k, table in enumerate(self.tables))]
        z = torch.stack(rows, 1)
        dots = torch.bmm(z, z.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([x, dots], 1))


class Gcn(nn.Module):
    """Kipf and Welling, 2017, over an edge list: messages are summed where they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(7, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            h = layer(x)
            x = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]) + h
            x = torch.relu(x) if layer is self.a else x
        return x


class Gat(nn.Module):
    """Velickovic et al., 2018, with a dense adjacency mask."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.left, self.right = (
            nn.Linear(7, 8, bias=False),
            nn.Linear(8, 1),
            nn.Linear(8, 1),
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.w(x)
        e = functional.leaky_relu(self.left(h) + self.right(h).transpose(1, 2), 0.2)
        e = e.masked_fill(adjacency == 0, float("-inf")).softmax(-1)
        return self.head(functional.elu(e @ h)).mean(1)


class Dcgan(nn.Module):
    """The generator of Radford et al., 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z[:, :, None, None])


class StyleTransfer(nn.Module):
    """Johnson et al., 2016: reflection padding, instance normalization, a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 9)
        self.na, self.b, self.nb = (
            nn.InstanceNorm2d(8, affine=True),
            nn.Conv2d(8, 8, 3),
            nn.InstanceNorm2d(8, affine=True),
        )
        self.c = nn.Conv2d(8, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.na(self.a(functional.pad(x, [4] * 4, mode="reflect"))))
        x = x + self.nb(self.b(functional.pad(x, [1] * 4, mode="reflect")))
        x = functional.interpolate(x, scale_factor=2, mode="nearest")
        return self.c(functional.pad(x, [1] * 4, mode="reflect"))


class Tcn(nn.Module):
    """Bai et al., 2018: dilated causal convolutions with weight normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            parametrizations.weight_norm(nn.Conv1d(4 if i == 0 else 8, 8, 3, dilation=2**i))
            for i in range(3)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            y = torch.relu(layer(functional.pad(x, [2 * 2**i, 0])))
            x = y if i == 0 else x + y
        return self.head(x[:, :, -1])


class Shuffle(nn.Module):
    """A unit of ShuffleNet V2 (Ma et al., 2018): split, depthwise branch, channel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 16, 3, 2)
        self.branch = nn.Sequential(
            _conv(8, 8, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8),
            _conv(8, 8, 1),
        )  # fmt: skip
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, 1)
        x = torch.cat([left, self.branch(right)], 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(x.mean((2, 3)))


class PointNet(nn.Module):
    """Qi et al., 2017: the same layers for each point, then the maximum over all."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1)
        )
        self.head = nn.Linear(32, 5)

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.body(points).amax(2))


class Vae(nn.Module):
    """Kingma and Welling, 2014, with its noise as an input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.mean, self.log = nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.b, self.c = nn.Linear(4, 16), nn.Linear(16, 20)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        h = functional.softplus(self.a(x))
        z = self.mean(h) + torch.exp(0.5 * self.log(h)) * noise
        return torch.sigmoid(self.c(functional.selu(self.b(z))))


class Mlps(nn.Module):
    """A table of activations, one layer each."""

    def __init__(self) -> None:
        super().__init__()
        acts = [nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Hardswish(), nn.CELU(), nn.PReLU(16),
                nn.Softsign(), nn.LogSigmoid(), nn.Hardtanh(), nn.Tanhshrink()]  # fmt: skip
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), act, nn.RMSNorm(16)) for act in acts
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Translator(nn.Module):
    """``nn.Transformer``: encoder, decoder, causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.position = nn.Parameter(torch.randn(1, 32, 16))
        self.body = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 40)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.embedding(source) + self.position[:, : source.shape[1]]
        y = self.embedding(target) + self.position[:, : target.shape[1]]
        mask = torch.triu(torch.full((target.shape[1], target.shape[1]), float("-inf")), 1)
        return self.head(self.body(x, y, tgt_mask=mask))


class SuperResolution(nn.Module):
    """Shi et al., 2016: a sub-pixel convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.pixel_shuffle(self.b(torch.tanh(self.a(x))), 2)


class Siamese(nn.Module):
    """Two inputs through one network, compared by the cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(10, 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, 8)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cosine_similarity(self.body(x), self.body(y))


class Volume(nn.Module):
    """A small 3-d network for medical volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(1, 6, 3, padding=1, bias=False), nn.BatchNorm3d(6), nn.LeakyReLU(0.1), nn.MaxPool3d(2),
            nn.Conv3d(6, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool3d(1),
        )  # fmt: skip
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


def _tokens(name: str, vocabulary: int, *shape: int):
    def make(rng: np.random.Generator) -> Batch:
        return {name: rng.integers(0, vocabulary, shape)}

    return make


def _stateful(rng: np.random.Generator) -> Batch:
    x = rng.standard_normal((3, 6, 8)).astype(np.float32)
    h, c = rng.standard_normal((2, 1, 3, 12)).astype(np.float32)
    return {"x": x, "h": h, "c": c}


def _clicks(rng: np.random.Generator) -> Batch:
    return {
        "dense": rng.standard_normal((6, 6)).astype(np.float32),
        "sparse": rng.integers(0, 30, (6, 3)),
    }


def _graph(rng: np.random.Generator) -> Batch:
    return {
        "x": rng.standard_normal((10, 7)).astype(np.float32),
        "edges": rng.integers(0, 10, (2, 30)),
    }


def _dense_graph(rng: np.random.Generator) -> Batch:
    adjacency = (rng.random((3, 9, 9)) < 0.4) | np.eye(9, dtype=bool)
    return {
        "x": rng.standard_normal((3, 9, 7)).astype(np.float32),
        "adjacency": adjacency.astype(np.float32),
    }


def _two(a: str, b: str, n: int, da: int, db: int):
    def make(rng: np.random.Generator) -> Batch:
        return {
            a: rng.standard_normal((n, da)).astype(np.float32),
            b: rng.standard_normal((n, db)).astype(np.float32),
        }

    return make


def _pair(rng: np.random.Generator) -> Batch:
    return {"source": rng.integers(0, 40, (3, 7)), "target": rng.integers(0, 40, (3, 5))}


IMAGE = {"x": {0: "batch"}}
SIZED = {"x": {0: "batch", 2: "height", 3: "width"}}
TOKENS = {"tokens": {0: "batch"}}

SUBJECTS = (
    TorchSubject("unet", "torch.nn", UNet, _floats("x", 2, 3, 16, 24), dynamic=SIZED),
    TorchSubject("unet-transposed", "torch.nn", UNetTransposed, _floats("x", 2, 3, 16, 16), dynamic=IMAGE),
    TorchSubject("yolo-head", "torch.nn", YoloHead, _floats("x", 2, 3, 32, 32), loss="mse", dynamic=IMAGE),
    TorchSubject("ssd", "torch.nn", Ssd, _floats("x", 2, 3, 32, 32), loss="mse", dynamic=SIZED),
    TorchSubject("lstm", "torch.nn", lambda: Recurrent("lstm"), _tokens("tokens", 50, 3, 9), dynamic=TOKENS),
    TorchSubject("gru-tagger", "torch.nn", lambda: Recurrent("gru", tagger=True), _tokens("tokens", 50, 3, 9), class_axis=2, dynamic=TOKENS),
    TorchSubject("bilstm", "torch.nn", lambda: Recurrent("lstm", bidirectional=True), _tokens("tokens", 50, 3, 9), dynamic=TOKENS),
    TorchSubject("rnn", "torch.nn", lambda: Recurrent("rnn"), _tokens("tokens", 50, 3, 9), dynamic=TOKENS),
    TorchSubject("lstm-stateful", "torch.nn", StatefulLstm, _stateful, dynamic={"x": {0: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}}),
    TorchSubject("crnn", "torch.nn", Crnn, _floats("x", 2, 1, 16, 20), class_axis=2, dynamic=IMAGE),
    TorchSubject("dlrm", "torch.nn", Dlrm, _clicks, dynamic={"dense": {0: "batch"}, "sparse": {0: "batch"}}),
    TorchSubject("gcn", "torch.nn", Gcn, _graph),
    TorchSubject("gat", "torch.nn", Gat, _dense_graph, dynamic={"x": {0: "batch"}, "adjacency": {0: "batch"}}),
    TorchSubject("dcgan", "torch.nn", Dcgan, _floats("x", 3, 8), loss="mse", dynamic=IMAGE),
    TorchSubject("style-transfer", "torch.nn", StyleTransfer, _floats("x", 2, 3, 16, 16), loss="mse", dynamic=SIZED),
    TorchSubject("tcn", "torch.nn", Tcn, _floats("x", 3, 4, 20), dynamic=IMAGE),
    TorchSubject("shufflenet-unit", "torch.nn", Shuffle, _floats("x", 4, 3, 16, 16), dynamic=IMAGE),
    TorchSubject("pointnet", "torch.nn", PointNet, _floats("x", 4, 3, 24), dynamic={"x": {0: "batch", 2: "points"}}),
    TorchSubject("vae", "torch.nn", Vae, _two("x", "noise", 4, 20, 4), loss="mse", dynamic={"x": {0: "batch"}, "noise": {0: "batch"}}),
    TorchSubject("activations", "torch.nn", Mlps, _floats("x", 6, 16), dynamic=IMAGE),
    TorchSubject("translator", "torch.nn", Translator, _pair, class_axis=2, dynamic={"source": {0: "batch", 1: "sources"}, "target": {0: "batch", 1: "targets"}}),
    TorchSubject("super-resolution", "torch.nn", SuperResolution, _floats("x", 2, 1, 8, 8), loss="mse", dynamic=SIZED),
    TorchSubject("siamese", "torch.nn", Siamese, _two("x", "y", 4, 10, 10), loss="mse", dynamic={"x": {0: "batch"}, "y": {0: "batch"}}),
    TorchSubject("volume", "torch.nn", Volume, _floats("x", 2, 1, 6, 8, 8), dynamic=IMAGE),
)  # fmt: skip
"""The networks of this file."""
