"""Record MindSpore's LessBN and its full-normalization head as golden files for the tests.

Three small nets are wrapped in ``mindspore.boost.LessBN`` and trained; what is stored is which
normalizations vanished (their statistics did not move) and the weights after steps 1, 2 and 10. The
head's layer is also run by itself, forward and backward, rows below its clamp included.

Made with Python 3.11, mindspore 2.10.0 and numpy 1.26.4, as ``mindspore_training.py``::

    GLOG_v=3 msenv/bin/python tools/golden/mindspore_less_bn.py

Graph mode: MindSpore removes the normalizations in a pass of its graph compiler.

``less_bn.npz``: ``meta`` is a JSON string with the runs and the names of their parameters, which
are those of PyTorch; ``<net>/init`` are the weights before, one after the other,
``<net>/<run>/<step>`` those after a step, ``<net>/<run>/loss``; ``x``, ``labels``, ``rows`` are the
batches. ``head/...`` is the layer by itself.
"""

import argparse
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.boost import LessBN
from mindspore.boost.less_batch_normalization import CommonHeadLastFN
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

STEPS, SNAPSHOTS = 10, (1, 2, 10)
OUR_NAMES = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
RUNS: dict[str, list[dict[str, Any]]] = {
    "mlp": [
        {"name": "fn", "fn": True, "optimizer": "Momentum", "lr": 0.2},
        {"name": "fn_adam", "fn": True, "optimizer": "Adam", "lr": 0.01},
        {"name": "fn_decay", "fn": True, "optimizer": "Momentum", "lr": 0.2, "decay": 0.01},
    ],
    "bottleneck": [
        {"name": "less_bn", "fn": False, "optimizer": "Momentum", "lr": 0.05},
        {"name": "less_bn_fn", "fn": True, "optimizer": "Momentum", "lr": 0.05},
    ],
    "basic": [{"name": "less_bn", "fn": False, "optimizer": "Momentum", "lr": 0.05}],
}


def conv(inputs: int, outputs: int, size: int = 1, stride: int = 1) -> Any:
    """A convolution that keeps the image's size, without a bias."""
    return nn.Conv2d(
        inputs, outputs, size, stride, pad_mode="pad", padding=size // 2, has_bias=False
    )


class Mlp(nn.Cell):
    """Dense(12, 8) - ReLU - Dense(8, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(12, 8)
        self.relu = nn.ReLU()
        self.fc2 = nn.Dense(8, 5)

    def construct(self, x):  # noqa: D102 (MindSpore parses this source)
        return self.fc2(self.relu(self.fc1(x)))


class Bottleneck(nn.Cell):
    """1x1, 3x3, 1x1; a projection where the number of channels changes."""

    def __init__(self, inputs: int, middle: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, middle), nn.BatchNorm2d(middle)
        self.conv2, self.bn2 = conv(middle, middle, 3, stride), nn.BatchNorm2d(middle)
        self.conv3, self.bn3 = conv(middle, outputs), nn.BatchNorm2d(outputs)
        self.projects = inputs != outputs
        if self.projects:
            self.down, self.bnd = conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()

    def construct(self, x):  # noqa: D102 (MindSpore parses this source)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.projects:
            x = self.bnd(self.down(x))
        return self.relu(y + x)


class Basic(nn.Cell):
    """3x3, 3x3; a projection where the number of channels changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.projects = inputs != outputs
        if self.projects:
            self.down, self.bnd = conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()

    def construct(self, x):  # noqa: D102 (MindSpore parses this source)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.projects:
            x = self.bnd(self.down(x))
        return self.relu(y + x)


class Residual(nn.Cell):
    """A stem, two blocks, global average pool, Dense."""

    def __init__(self, one: Any, two: Any, channels: int) -> None:
        super().__init__()
        self.conv0, self.bn0 = conv(1, 4, 3), nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.one, self.two = one, two
        self.fc = nn.Dense(channels, 5)

    def construct(self, x):  # noqa: D102 (MindSpore parses this source)
        x = self.relu(self.bn0(self.conv0(x)))
        return self.fc(self.two(self.one(x)).mean((2, 3)))


NETS = {
    "mlp": Mlp,
    "bottleneck": lambda: Residual(Bottleneck(4, 3, 8, 2), Bottleneck(8, 3, 8, 1), 8),
    # The identity block comes first: after a projection MindSpore's pattern takes the stem's
    # normalization too, which is what ortboost does not follow.
    "basic": lambda: Residual(Basic(4, 4, 1), Basic(4, 6, 2), 6),
}


def our_name(name: str) -> str:
    """The PyTorch-style name of a parameter, without the prefix of the wrapper."""
    owner, _, leaf = name.removeprefix("network.").rpartition(".")
    return f"{owner}.{OUR_NAMES.get(leaf, leaf)}"


def start(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> Arrays:
    """Initial weights: none of them zero, so that no gradient is missed."""
    values = {}
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape)
        owner = name.rpartition(".")[0].rpartition(".")[2]
        if name.endswith("running_var"):
            value = 1 + 0.1 * np.abs(noise)
        elif owner.startswith("bn") and name.endswith("weight"):
            value = 1 + 0.1 * noise
        elif len(shape) == 1:
            value = 0.1 * noise
        else:
            value = noise * math.sqrt(2 / math.prod(shape[1:]))
        values[name] = value.astype(np.float32)
    return values


def read(cell: Any) -> Arrays:
    """Copies of all parameters and statistics."""
    return {our_name(p.name): np.array(p.asnumpy()) for p in cell.get_parameters()}


def record_run(net: str, run: dict[str, Any], initial: Arrays, batches: Arrays) -> Arrays:
    """Train one net; enters the removed normalizations in ``run``."""
    cell = NETS[net]()
    for parameter in cell.get_parameters():
        parameter.set_data(Tensor(initial[our_name(parameter.name)]))
    cell = LessBN(cell, fn_flag=run["fn"])
    before = read(cell)
    kind, rate, decay = run["optimizer"], run["lr"], run.get("decay", 0.0)
    options = {"momentum": 0.9} if kind == "Momentum" else {}
    optimizer = getattr(nn, kind)(cell.trainable_params(), rate, weight_decay=decay, **options)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    step = nn.TrainOneStepCell(nn.WithLossCell(cell, loss), optimizer)
    step.set_train()
    found: Arrays = {}
    losses = []
    data = batches["rows" if net == "mlp" else "x"]
    seen: dict[int, Arrays] = {}
    for index in range(STEPS):
        losses.append(step(Tensor(data[index]), Tensor(batches["labels"][index])).asnumpy())
        if index + 1 in SNAPSHOTS:
            seen[index + 1] = read(cell)
    after = seen[STEPS]
    still = [n for n in before if "running_mean" in n and np.array_equal(before[n], after[n])]
    run["removed"] = sorted(name.removesuffix(".running_mean") for name in still)
    gone = {name for name in before if name.rpartition(".")[0] in run["removed"]}
    for name in gone:
        if not np.array_equal(after[name], before[name]):
            raise SystemExit(f"{net}: '{name}' of a removed normalization moved")
    run["names"] = [name for name in before if name not in gone]
    run["shapes"] = [list(before[name].shape) for name in run["names"]]
    for count, values in seen.items():
        found[str(count)] = np.concatenate([values[name].ravel() for name in run["names"]])
    found["loss"] = np.array(losses, np.float32)
    return found


def record_head() -> Arrays:
    """The layer by itself: output, and gradients of `sum(y * seed)`; the last rows are small."""
    rng = np.random.default_rng(5)
    x, weight = rng.standard_normal((6, 7)), rng.standard_normal((4, 7))
    x[3] *= 1e-3  # below the clamp
    x[4] = 0
    x[5] *= 0.0101 / np.linalg.norm(x[5])  # just above
    weight[3] *= 2e-3 / np.linalg.norm(weight[3])  # below
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    seed = rng.standard_normal((6, 4)).astype(np.float32)
    parameter = ms.Parameter(Tensor(weight), name="weight")
    layer = CommonHeadLastFN(7, 4, weight_init=parameter, has_bias=False)
    layer.multiplier.set_data(Tensor(np.float32(1.7)))
    weights = ms.ParameterTuple([layer.weight, layer.multiplier])

    def value(data):
        return layer(data)

    grad = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)(layer, weights)
    inputs, parameters = grad(Tensor(x), Tensor(seed))
    return {
        "x": x,
        "weight": weight,
        "seed": seed,
        "multiplier": np.float32(1.7),
        "y": value(Tensor(x)).asnumpy(),
        "grad_x": inputs[0].asnumpy(),
        "grad_weight": parameters[0].asnumpy(),
        "grad_multiplier": parameters[1].asnumpy(),
    }


def main() -> None:
    """Write the golden file."""
    parser = argparse.ArgumentParser(description="Write tests/golden/mindspore/less_bn.npz.")
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=Path, default=root / "tests" / "golden" / "mindspore")
    out = parser.parse_args().out.resolve()
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    rng = np.random.default_rng(20261)
    batches: Arrays = {
        "x": rng.standard_normal((STEPS, 8, 1, 8, 8)).astype(np.float32),
        "rows": rng.standard_normal((STEPS, 8, 12)).astype(np.float32),
        "labels": rng.integers(0, 5, (STEPS, 8)).astype(np.int32),
    }
    files: Arrays = dict(batches)
    layouts: dict[str, dict[str, list[int]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # MindSpore leaves its logs in the working directory
        for net, make in NETS.items():
            shapes = {our_name(p.name): tuple(p.shape) for p in make().get_parameters()}
            initial = start(shapes, rng)
            files[f"{net}/init"] = np.concatenate([v.ravel() for v in initial.values()])
            layouts[net] = {name: list(shape) for name, shape in shapes.items()}
            for run in RUNS[net]:
                found = record_run(net, run, initial, batches)
                files.update({f"{net}/{run['name']}/{key}": v for key, v in found.items()})
        files.update({f"head/{name}": value for name, value in record_head().items()})
        os.chdir(root)
    versions = {"mindspore": ms.__version__, "numpy": np.__version__}
    files["meta"] = np.array(json.dumps({"versions": versions, "runs": RUNS, "init": layouts}))
    np.savez_compressed(out / "less_bn.npz", **files)
    print((out / "less_bn.npz").stat().st_size)


if __name__ == "__main__":
    main()
