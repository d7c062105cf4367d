"""Record MindSpore's second-order optimizer `nn.thor` as golden files for the tests.

Three small nets are trained for six steps, of which the first and the fourth are of second order.
What is stored are the weights before, and after steps 1, 3 and 6.

Made with Python 3.11, mindspore 2.10.0 and numpy 2.4.6::

    GLOG_v=3 msenv/bin/python tools/golden/mindspore_thor.py

MindSpore has three kernels of `thor` for GPUs only: here numpy stands in for them, in float64.
`CholeskyTrsm` gives the inverse of the Cholesky factor, of the blocks of 128 rows on the diagonal;
for embeddings, whose inverse MindSpore squares without a transpose, it gives the symmetric root of
the inverse, with which that is right. `ThorIm2Col` cuts patches, `UpdateThorGradient` multiplies
blocks. On a CPU the optimizer reads `G` of the first layer before the backward pass has written it,
so that it would be that of the step of second order before, at first zero: a pass without an update
fills in all factors first. All else is MindSpore's own code, with its GPU optimizer; layers are in
float32, as they are on a GPU.

``thor.npz``: ``meta`` is a JSON string with the settings of each run and the names of its
parameters; ``<net>/x`` and ``<net>/labels`` are the batches, ``<net>/<parameter>`` is ``[snapshots,
...]``.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.nn.layer import thor_layer
from mindspore.ops import operations
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
STEPS, SNAPSHOTS, BLOCK, CLASSES = 6, (1, 3, 6), 128, 5


def blocks_of(n: int) -> list[slice]:
    return [slice(i, min(i + BLOCK, n)) for i in range(0, n, BLOCK)]


def cholesky_inverses(a: NDArray[Any]) -> NDArray[Any]:
    """Inverse Cholesky factors of the blocks, the last one padded with the unit matrix."""
    parts = blocks_of(len(a))
    size = len(a) if len(parts) == 1 else BLOCK
    found = np.stack([np.eye(size)] * len(parts))
    for block, part in zip(found, parts, strict=True):
        inverse = np.linalg.inv(np.linalg.cholesky(a[part, part].astype(float)))
        block[: len(inverse), : len(inverse)] = inverse
    return found.astype(np.float32)


def root_of_inverse(a: NDArray[Any]) -> NDArray[Any]:
    values, vectors = np.linalg.eigh(a.astype(float))
    return ((vectors / np.sqrt(values)) @ vectors.T).astype(np.float32)


def block_product(g: NDArray[Any], grad: NDArray[Any], a: NDArray[Any]) -> NDArray[Any]:
    """`G_i grad_ij A_j`; ``a`` is repeated for each block of the rows."""
    found = np.zeros(grad.shape)
    for i, rows in enumerate(blocks_of(grad.shape[0])):
        for j, columns in enumerate(blocks_of(grad.shape[1])):
            part = grad[rows, columns].astype(float)
            left = g[i, : part.shape[0], : part.shape[0]]
            right = a[i, j, : part.shape[1], : part.shape[1]]
            found[rows, columns] = left @ part @ right
    return found.astype(np.float32)


class CholeskyTrsm(nn.Cell):
    """Inverse Cholesky factors; see the module for what it is without blocks."""

    def __init__(self, split_dim: int = 0) -> None:
        super().__init__()

        def shape(a: list[int]) -> list[int]:
            if not split_dim:
                return a
            parts = len(blocks_of(a[0]))
            size = a[0] if parts == 1 else BLOCK
            return [parts, size, size]

        function = cholesky_inverses if split_dim else root_of_inverse
        self.op = ops.Custom(function, shape, lambda dtype: dtype, func_type="pyfunc")

    def construct(self, a: Any) -> Any:
        """The forward pass."""
        return self.op(a)


class UpdateThorGradient(nn.Cell):
    """A gradient between the inverses of its two factors, in blocks."""

    def __init__(self, split_dim: int = 1) -> None:
        super().__init__()
        self.op = ops.Custom(
            block_product, lambda g, grad, a: grad, lambda g, grad, a: grad, func_type="pyfunc"
        )

    def construct(self, g: Any, grad: Any, a: Any) -> Any:
        """The forward pass."""
        return self.op(g, grad, a)


class ThorIm2Col(nn.Cell):
    """Patches with padding ``same``: ``[channels, kernel, kernel, samples, height, width]``."""

    def __init__(self, kernel_size: Any, stride: Any, pad_mode: str) -> None:
        super().__init__()
        assert pad_mode == "same"
        (kh, kw), (sh, sw) = kernel_size, stride

        def shape(x: list[int]) -> list[int]:
            return [x[1], kh, kw, x[0], -(-x[2] // sh), -(-x[3] // sw)]

        def cut(x: NDArray[Any]) -> NDArray[Any]:
            _, _, _, _, height, width = shape(list(x.shape))
            needed = [
                max(0, (n - 1) * s + k - m)
                for n, s, k, m in ((height, sh, kh, x.shape[2]), (width, sw, kw, x.shape[3]))
            ]
            pads = [(n // 2, n - n // 2) for n in needed]
            x = np.pad(x, [(0, 0), (0, 0), *pads])
            found = np.zeros(shape_of(x, height, width), np.float32)
            for i in range(kh):
                for j in range(kw):
                    part = x[:, :, i : i + sh * height : sh, j : j + sw * width : sw]
                    found[:, i, j] = part.transpose(1, 0, 2, 3)
            return found

        def shape_of(x: NDArray[Any], height: int, width: int) -> list[int]:
            return [x.shape[1], kh, kw, x.shape[0], height, width]

        self.op = ops.Custom(cut, shape, lambda dtype: dtype, func_type="pyfunc")

    def construct(self, x: Any) -> Any:
        """The forward pass."""
        return self.op(ops.stop_gradient(x))


class DenseNet(nn.Cell):
    """Factors of more than 128 rows on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Dense(130, 129), nn.Dense(129, 7)
        self.fc3, self.relu = nn.Dense(7, CLASSES, has_bias=False), nn.ReLU()

    def construct(self, x: Any) -> Any:
        """The forward pass."""
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


class ConvNet(nn.Cell):
    """The second convolution is unpadded, so that its patches differ from MindSpore's factor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, 2, pad_mode="same")
        self.conv2 = nn.Conv2d(6, 8, 3, 1, pad_mode="valid")
        self.fc, self.relu = nn.Dense(8, CLASSES), nn.ReLU()

    def construct(self, x: Any) -> Any:
        """The forward pass."""
        x = self.relu(self.conv2(self.relu(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


class TextNet(nn.Cell):
    """An embedding and a layer normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(40, 8), nn.LayerNorm((8,), epsilon=1e-5)
        self.fc1, self.fc2 = nn.Dense(8, 12), nn.Dense(12, CLASSES)
        self.relu = nn.ReLU()

    def construct(self, ids: Any) -> Any:
        """The forward pass."""
        x = self.norm(self.table(ids)).reshape((-1, 8))
        return self.fc2(self.relu(self.fc1(x)))


RUNS: dict[str, dict[str, Any]] = {
    "dense": {"momentum": 0.9, "weight_decay": 0.01, "clip": False, "batch": 8},
    "conv": {"momentum": 0.9, "weight_decay": 0.0, "clip": False, "batch": 6},
    "text": {"momentum": 0.8, "weight_decay": 0.0, "clip": True, "batch": 12},
}
NETS = {"dense": DenseNet, "conv": ConvNet, "text": TextNet}
RATES = [0.05, 0.04, 0.05, 0.03, 0.05, 0.02]
DAMPING = [0.1, 0.2, 0.05, 0.3, 0.1, 0.02]


def batches(name: str, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    if name == "text":
        return rng.integers(0, 40, (STEPS, 3, 4)), rng.integers(0, CLASSES, (STEPS, 12))
    shape = (8, 130) if name == "dense" else (6, 3, 9, 8)
    x = rng.standard_normal((STEPS, *shape)).astype(np.float32)
    return x, rng.integers(0, CLASSES, (STEPS, shape[0]))


def train(name: str, settings: dict[str, Any], seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    net = NETS[name]()
    for parameter in net.get_parameters():
        scale = 1.0 / np.sqrt(parameter.shape[-1] if parameter.ndim > 1 else 4)
        value = rng.standard_normal(parameter.shape) * scale
        value += parameter.name.endswith("gamma")
        parameter.set_data(Tensor(value.astype(np.float32)))
    optimizer = nn.thor(
        net,
        Tensor(RATES, ms.float32),
        Tensor(DAMPING, ms.float32),
        settings["momentum"],
        weight_decay=settings["weight_decay"],
        batch_size=settings["batch"],
        enable_clip_grad=settings["clip"],
        frequency=3,
    )
    for _, cell in net.cells_and_names():
        if isinstance(cell, nn.DenseThor):
            cell.to_float(ms.float32)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    with_loss = nn.WithLossCell(net, loss)
    cells = {}
    for second in (True, False):
        cells[second] = nn.TrainOneStepCell(with_loss, optimizer)
    still = nn.SGD(net.trainable_params(), learning_rate=0.0)
    filler = nn.TrainOneStepCell(with_loss, still)
    x, labels = batches(name, rng)
    trained = list(net.trainable_params())
    found: dict[str, list[NDArray[Any]]] = {p.name: [p.asnumpy().copy()] for p in trained}
    for step in range(STEPS):
        cell = cells[step % 3 == 0]
        cell.add_flags_recursive(thor=step % 3 == 0)
        kind = ms.int32
        data = Tensor(x[step], kind if name == "text" else ms.float32)
        if step % 3 == 0:
            filler.add_flags_recursive(thor=True)
            filler(data, Tensor(labels[step], kind))
        cell(data, Tensor(labels[step], kind))
        for p in trained if step + 1 in SNAPSHOTS else ():
            found[p.name].append(p.asnumpy().copy())
    stored = {f"{name}/{key}": np.stack(values) for key, values in found.items()}
    return {**stored, f"{name}/x": x, f"{name}/labels": labels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parents[2] / "tests" / "golden" / "mindspore" / "thor.npz"
    parser.add_argument("--out", type=Path, default=here)
    out = parser.parse_args().out
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    operations.CholeskyTrsm = CholeskyTrsm
    operations.UpdateThorGradient = UpdateThorGradient
    thor_layer.ThorIm2Col = ThorIm2Col
    stored: Arrays = {}
    for seed, (name, settings) in enumerate(RUNS.items()):
        stored |= train(name, settings, seed)
    meta = {
        "runs": RUNS,
        "rates": RATES,
        "damping": DAMPING,
        "steps": SNAPSHOTS,
        "mindspore": ms.__version__,
    }
    np.savez_compressed(out, meta=np.array(json.dumps(meta)), **stored)
    print(out, os.path.getsize(out))


if __name__ == "__main__":
    main()
