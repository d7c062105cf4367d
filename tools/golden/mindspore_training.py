"""Record MindSpore's training arithmetic as golden files for the tests.

MindSpore 2.10.0 runs on the CPU, so ortboost is compared with the original itself: this script
trains two small nets with it, drives its loss-scale state machines, losses and learning-rate
schedules, collects the errors it raises, and writes what it saw to ``tests/golden/mindspore``.
Every trajectory of the ``mlp`` net is also replayed in float64 numpy from the written formula
(see `replay`), and the script fails when the two differ.

Made with Python 3.11, mindspore 2.10.0 and numpy 1.26.4 (numpy 2 breaks parts of that wheel;
the hash seed only fixes the order of a set in one message)::

    python3.11 -m venv msenv && msenv/bin/pip install mindspore==2.10.0 "numpy<2"
    PYTHONHASHSEED=0 GLOG_v=3 msenv/bin/python tools/golden/mindspore_training.py

Two things make the loss-scale step run on a CPU, neither changes its arithmetic: graph mode, and
``ascend_910b_target=True, enable_allfinite=False`` on the cell, which selects the ``IsFinite``
overflow check. ``LARSUpdate`` has no CPU kernel; a cell with its published formula stands in.

Layout of the files: each holds a JSON string ``meta`` (``json.loads(str(z["meta"]))``) and arrays.
Training runs store ``<run>/loss`` and ``<run>/params``; a row of ``params`` is the concatenation
described by ``meta["layout"][net]``, one row for each step in ``meta[...]["steps"]``. To keep the
files small, ``fc1.weight`` of the mlp is stored as ``[::2, ::4]`` (``stride`` in the layout).
"""

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, amp, nn, ops, train
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]
Hyper = dict[str, Any]

SNAPSHOTS = (1, 2, 10)
OUR_NAMES = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


# --- nets, data, weights -------------------------------------------------------------------


class Mlp(nn.Cell):
    """Dense(64, 32) - ReLU - Dense(32, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(64, 32)
        self.relu = nn.ReLU()
        self.fc2 = nn.Dense(32, 10)

    def construct(self, x):  # noqa: D102 (MindSpore parses this source)
        return self.fc2(self.relu(self.fc1(x)))


class ConvBn(nn.Cell):
    """Two Conv2d - BatchNorm2d - ReLU blocks, global average pool, Dense(6, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, pad_mode="pad", padding=1, has_bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.bn2 = nn.BatchNorm2d(6)
        self.relu = nn.ReLU()
        self.fc = nn.Dense(6, 10)

    def construct(self, x):  # noqa: D102 (MindSpore parses this source)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


NETS: dict[str, Callable[[], Any]] = {"mlp": Mlp, "convbn": ConvBn}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {"fc1.weight": (32, 64), "fc1.bias": (32,), "fc2.weight": (10, 32), "fc2.bias": (10,)},
    "convbn": {
        "conv1.weight": (4, 1, 3, 3),
        "bn1.weight": (4,),
        "bn1.bias": (4,),
        "bn1.running_mean": (4,),
        "bn1.running_var": (4,),
        "conv2.weight": (6, 4, 3, 3),
        "conv2.bias": (6,),
        "bn2.weight": (6,),
        "bn2.bias": (6,),
        "bn2.running_mean": (6,),
        "bn2.running_var": (6,),
        "fc.weight": (10, 6),
        "fc.bias": (10,),
    },
}
STRIDES = {("mlp", "fc1.weight"): (2, 4)}


def our_name(name: str) -> str:
    """Return the PyTorch-style name that the golden files use for a MindSpore parameter."""
    owner, _, leaf = name.rpartition(".")
    return f"{owner}.{OUR_NAMES.get(leaf, leaf)}"


def make_data() -> Arrays:
    """Ten batches of eight images (flattened for the mlp), labels, and the initial weights."""
    rng = np.random.default_rng(20260)
    data: Arrays = {
        "x": rng.standard_normal((10, 8, 1, 8, 8)).astype(np.float32),
        "labels": rng.integers(0, 10, (10, 8)).astype(np.int32),
    }
    for net, shapes in SHAPES.items():
        for name, shape in shapes.items():
            noise = rng.standard_normal(shape)
            if name.endswith("running_var"):
                value = 1 + 0.1 * np.abs(noise)
            elif name.startswith("bn") and name.endswith("weight"):
                value = 1 + 0.1 * noise
            elif len(shape) == 1:
                value = 0.1 * noise
            else:
                value = noise / math.sqrt(math.prod(shape[1:]))
            data[f"{net}/{name}"] = value.astype(np.float32)
    return data


def layout(net: str) -> list[dict[str, Any]]:
    """Describe a row of ``params``: name, full shape, stride of what is stored, offset, size."""
    rows, offset = [], 0
    for name, shape in SHAPES[net].items():
        stride = STRIDES.get((net, name), (1,) * len(shape))
        stored = [-(-n // s) for n, s in zip(shape, stride, strict=True)]
        size = math.prod(stored)
        rows.append(
            {
                "name": name,
                "shape": list(shape),
                "stride": list(stride),
                "stored": stored,
                "offset": offset,
                "size": size,
            }
        )
        offset += size
    return rows


def flatten(net: str, values: Arrays) -> Array:
    """Concatenate the stored part of every parameter into one row."""
    parts = []
    for entry in layout(net):
        window = tuple(slice(None, None, s) for s in entry["stride"])
        parts.append(np.asarray(values[entry["name"]])[window].ravel())
    return np.concatenate(parts)


def make_net(net: str, data: Arrays) -> Any:
    """Build a net and give it the stored weights."""
    cell = NETS[net]()
    for parameter in cell.get_parameters():
        parameter.set_data(Tensor(data[f"{net}/{our_name(parameter.name)}"]))
    return cell


def read(cell: Any) -> Arrays:
    """Copy the values of a net, including moving statistics."""
    return {our_name(p.name): np.array(p.asnumpy()) for p in cell.get_parameters()}


def batches(net: str, data: Arrays, count: int) -> Iterator[tuple[Array, Array]]:
    """Yield ``count`` batches, starting over after the tenth."""
    for step in range(count):
        x = data["x"][step % 10]
        yield (x.reshape(8, 64) if net == "mlp" else x), data["labels"][step % 10]


# --- optimizers ----------------------------------------------------------------------------


class LarsUpdate(nn.Cell):
    """Stands in for the ``LARSUpdate`` operator, which has no CPU kernel.

    It takes the norms itself: the CPU kernel of ``SquareSumAll``, which computes them in
    ``nn.LARS``, gives wrong sums from its sixth launch on.
    """

    def __init__(self, epsilon: float, coefficient: float, use_clip: bool = False) -> None:
        super().__init__()
        self.use_clip = use_clip
        self.epsilon = epsilon
        self.coefficient = coefficient

    def construct(self, w, g, w_square, g_square, decay, lr):  # noqa: D102 (parsed by MindSpore)
        w_norm = ops.sqrt((w * w).sum())
        g_norm = ops.sqrt((g * g).sum())
        rate = self.coefficient * w_norm / (g_norm + decay * w_norm + self.epsilon)
        if self.use_clip:
            rate = ops.clamp(rate / lr, 0.0, 1.0)
        return (g + decay * w) * rate


def make_optimizer(cell: Any, hyper: Hyper) -> Any:
    """Build a MindSpore optimizer from a plain description (what ``meta`` stores)."""
    options = dict(hyper)
    kind, groups, lars = (
        options.pop("optimizer"),
        options.pop("groups", None),
        options.pop("lars", None),
    )
    params: Any = cell.trainable_params()
    if groups:
        by_name = {our_name(p.name): p for p in params}
        params = [{**g, "params": [by_name[n] for n in g["params"]]} for g in groups]
    optimizer = getattr(nn, kind)(params, **options)
    if lars is not None:
        optimizer = nn.LARS(optimizer, **lars)
        optimizer.lars = LarsUpdate(**lars)
    return optimizer


def group_of(hyper: Hyper, name: str) -> tuple[Any, float]:
    """Return learning rate (a number or a list) and weight decay of one parameter."""
    base = (hyper["learning_rate"], hyper.get("weight_decay", 0.0))
    for group in hyper.get("groups", []):
        if name in group["params"]:
            return group.get("lr", base[0]), group.get("weight_decay", base[1])
    return base


def gradients(p: Arrays, x: Array, labels: Array) -> tuple[float, Arrays]:
    """Loss and gradients of the mlp, by hand, in float64."""
    x = x.astype(np.float64)
    pre = x @ p["fc1.weight"].T + p["fc1.bias"]
    hidden = np.maximum(pre, 0)
    logits = hidden @ p["fc2.weight"].T + p["fc2.bias"]
    logits -= logits.max(1, keepdims=True)
    soft = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(soft[rows, labels]).mean())
    soft[rows, labels] -= 1
    d_logits = soft / len(labels)
    d_pre = (d_logits @ p["fc2.weight"]) * (pre > 0)
    return loss, {
        "fc1.weight": d_pre.T @ x,
        "fc1.bias": d_pre.sum(0),
        "fc2.weight": d_logits.T @ hidden,
        "fc2.bias": d_logits.sum(0),
    }


def update(hyper: Hyper, name: str, step: int, w: Array, g: Array, slots: Arrays) -> Array:
    """One update of one parameter as MindSpore documents it; ``step`` counts updates from 1.

    Args:
        hyper: The optimizer description.
        name: The parameter's name.
        step: Number of this update, from 1; skipped steps do not count.
        w: The parameter.
        g: Its un-scaled gradient.
        slots: Optimizer state of this parameter, changed in place.

    Returns:
        The new parameter.
    """
    lr, decay = group_of(hyper, name)
    lr = lr[step - 1] if isinstance(lr, list) else lr
    kind = hyper["optimizer"]
    if "lars" in hyper:
        lars = hyper["lars"]
        if "bias" not in name:
            w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
            rate = lars["coefficient"] * w_norm / (g_norm + decay * w_norm + lars["epsilon"])
            if lars.get("use_clip"):
                rate = min(max(rate / lr, 0.0), 1.0)
            g = (g + decay * w) * rate
    elif kind != "AdamWeightDecay":
        g = g + decay * w
    if kind in ("Adam", "AdamWeightDecay"):
        b1, b2 = hyper.get("beta1", 0.9), hyper.get("beta2", 0.999)
        slots["m"] = b1 * slots.get("m", np.zeros_like(w)) + (1 - b1) * g
        slots["v"] = b2 * slots.get("v", np.zeros_like(w)) + (1 - b2) * g * g
        if kind == "AdamWeightDecay":
            return w - lr * (
                slots["m"] / (np.sqrt(slots["v"]) + hyper.get("eps", 1e-6)) + decay * w
            )
        lr_t = lr * math.sqrt(1 - b2**step) / (1 - b1**step)
        m = slots["m"]
        if hyper.get("use_nesterov"):
            m = b1 * m + (1 - b1) * g
        return w - lr_t * m / (np.sqrt(slots["v"]) + hyper.get("eps", 1e-8))
    momentum = hyper.get("momentum", 0.0)
    if kind == "Momentum":
        slots["v"] = momentum * slots.get("v", 0.0) + g
        return w - lr * slots["v"]  # the CPU kernel ignores use_nesterov
    if momentum == 0.0:
        return w - lr * g
    first = "buf" not in slots
    damped = g if first else (1 - hyper.get("dampening", 0.0)) * g
    slots["buf"] = momentum * slots.get("buf", 0.0) + damped
    return w - lr * (g + momentum * slots["buf"] if hyper.get("nesterov") else slots["buf"])


def replay(hyper: Hyper, data: Arrays, skip: list[bool]) -> tuple[list[float], list[Arrays]]:
    """Replay a run of the mlp in float64; steps marked in ``skip`` update nothing.

    Returns:
        The losses, and the parameters after each step.
    """
    p = {n: data[f"mlp/{n}"].astype(np.float64) for n in SHAPES["mlp"]}
    slots: dict[str, Arrays] = {n: {} for n in p}
    losses, history, applied = [], [], 0
    for (x, labels), skipped in zip(batches("mlp", data, len(skip)), skip, strict=True):
        loss, grads = gradients(p, x, labels)
        losses.append(loss)
        if not skipped:
            applied += 1
            p = {n: update(hyper, n, applied, p[n], grads[n], slots[n]) for n in p}
        history.append(dict(p))
    return losses, history


# --- training runs -------------------------------------------------------------------------


def scaled_step(cell: Any, optimizer: Any, scale: Any) -> Any:
    """Build the loss-scale training cell in the form that runs on a CPU."""
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    step = nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(cell, loss), optimizer, scale)
    step.ascend_910b_target = True
    step.enable_allfinite = False
    step.set_train()
    return step


def base_runs() -> dict[str, Hyper]:
    """The optimizers both nets are trained with, without weight decay."""
    return {
        "sgd": {"optimizer": "SGD", "learning_rate": 0.1},
        "sgd_momentum": {"optimizer": "SGD", "learning_rate": 0.05, "momentum": 0.9},
        "sgd_dampening": {
            "optimizer": "SGD",
            "learning_rate": 0.05,
            "momentum": 0.9,
            "dampening": 0.1,
        },
        "sgd_nesterov": {
            "optimizer": "SGD",
            "learning_rate": 0.05,
            "momentum": 0.9,
            "nesterov": True,
        },
        "momentum": {"optimizer": "Momentum", "learning_rate": 0.05, "momentum": 0.9},
        "adam": {"optimizer": "Adam", "learning_rate": 1e-2},
    }


def all_runs(net: str) -> dict[str, Hyper]:
    """Every training run of a net: name and optimizer description."""
    runs = {
        f"{name}/wd{decay:g}": {**hyper, "weight_decay": decay}
        for name, hyper in base_runs().items()
        for decay in (0.0, 1e-2)
    }
    momentum, adam = base_runs()["momentum"], base_runs()["adam"]
    if net == "convbn":
        front = [n for n in SHAPES[net] if n.startswith("bn") and "running" not in n]
        rest = [n for n in SHAPES[net] if not n.startswith("bn")]
        runs["momentum_grouped/wd0.01"] = {
            **momentum,
            "weight_decay": 1e-2,
            "groups": [{"params": front, "lr": 0.02}, {"params": rest}],
        }
        return runs
    groups = [
        {"params": ["fc2.weight", "fc2.bias"], "lr": 0.02, "weight_decay": 0.02},
        {"params": ["fc1.weight", "fc1.bias"], "lr": 0.01, "weight_decay": 0.0},
    ]
    runs["momentum_grouped/own"] = {**momentum, "groups": groups}
    runs["adam_grouped/own"] = {**adam, "groups": groups}
    runs["momentum_grouped/default"] = {
        **momentum,
        "weight_decay": 1e-2,
        "groups": [groups[0], {"params": ["fc1.weight", "fc1.bias"]}],
    }
    decoupled = {"optimizer": "AdamWeightDecay", "learning_rate": 1e-2}
    runs["adam_weight_decay/wd0"] = {**decoupled, "weight_decay": 0.0}
    runs["adam_weight_decay/wd0.01"] = {**decoupled, "weight_decay": 1e-2}
    lars = {"epsilon": 1e-5, "coefficient": 0.02}
    runs["lars_momentum/wd0"] = {**momentum, "weight_decay": 0.0, "lars": lars}
    runs["lars_momentum/wd0.01"] = {**momentum, "weight_decay": 1e-2, "lars": lars}
    clipped = {"epsilon": 1e-5, "coefficient": 0.02, "use_clip": True}
    runs["lars_clip/wd0.01"] = {**momentum, "weight_decay": 1e-2, "lars": clipped}
    runs["adam_eps/wd0"] = {
        **adam,
        "weight_decay": 0.0,
        "beta1": 0.8,
        "beta2": 0.99,
        "eps": 1e-2,  # large enough to show where it enters
    }
    runs["adam_nesterov/wd0"] = {**adam, "weight_decay": 0.0, "use_nesterov": True}
    return runs


def compare(name: str, got: Array, want: Array, tolerance: float) -> float:
    """Return the largest absolute difference; fail when it is above ``tolerance``."""
    error = float(np.max(np.abs(np.asarray(got, np.float64) - want)))
    if not error <= tolerance:
        raise AssertionError(f"{name}: MindSpore and the numpy replay differ by {error:g}")
    return error


def record_training(net: str, data: Arrays) -> Arrays:
    """Train a net with every optimizer; replay the mlp runs in numpy."""
    out: Arrays = {}
    runs, errors = all_runs(net), {}
    for name, hyper in runs.items():
        cell = make_net(net, data)
        step = scaled_step(
            cell, make_optimizer(cell, hyper), nn.DynamicLossScaleUpdateCell(2**12, 2, 1000)
        )
        losses, rows = [], []
        for number, (x, labels) in enumerate(batches(net, data, 10), 1):
            loss, overflow, scale = step(Tensor(x), Tensor(labels))
            if bool(overflow.asnumpy()) or float(scale.asnumpy()) != 2**12:
                raise AssertionError(f"{net} {name}: unexpected overflow at step {number}")
            losses.append(loss.asnumpy())
            if number in SNAPSHOTS:
                rows.append(flatten(net, read(cell)))
        out[f"{name}/loss"] = np.asarray(losses, np.float32)
        out[f"{name}/params"] = np.stack(rows)
        if net == "mlp":
            want_loss, history = replay(hyper, data, [False] * 10)
            want = np.stack([flatten(net, history[n - 1]) for n in SNAPSHOTS])
            tolerance = 2e-4 if "adam" in name else 5e-6
            compare(name, out[f"{name}/loss"], np.asarray(want_loss), tolerance)
            errors[name] = compare(name, out[f"{name}/params"], want, tolerance)
    meta: dict[str, Any] = {
        "steps": SNAPSHOTS,
        "layout": {net: layout(net)},
        "loss_scale": {"loss_scale_value": 2**12, "scale_factor": 2, "scale_window": 1000},
        "runs": runs,
    }
    if net == "mlp":
        meta["replay_max_abs_error"] = errors
        meta["notes"] = [
            "Flat lists: weight decay hits every parameter, biases too (only names with beta or"
            " gamma are skipped).",
            "Groups: weight decay hits every parameter of a group whose weight_decay is > 0.",
            "SGD: the first momentum buffer is the gradient, dampening acts from the second step.",
            "Momentum(use_nesterov=True) equals Momentum on CPU (checked, not stored);"
            " SGD(nesterov=True) and Adam(use_nesterov=True) do apply it.",
            "Adam: epsilon is added to sqrt(v) before any bias correction of v.",
            "AdamWeightDecay: no bias correction, epsilon 1e-6, decay times lr added.",
            "LARS: LARSUpdate has no CPU kernel; a cell with its formula stands in (norms"
            " included: the CPU kernel of SquareSumAll is wrong from its sixth launch on), the rest"
            " is MindSpore's. Parameters with bias in the name get neither LARS nor weight decay.",
        ]
        check_momentum_nesterov(data)
    else:
        meta["notes"] = [
            "Flat lists: weight decay skips bn*.weight and bn*.bias (MindSpore's gamma and beta);"
            " conv2.bias and fc.bias decay.",
            "momentum_grouped: groups decay every parameter, the batch-norm ones too.",
            "Batch norm: running = 0.9 running + 0.1 batch, unbiased batch variance in the running"
            " one, biased in the forward pass, eps 1e-5.",
            "conv2.bias is followed by a batch norm, so its true gradient is zero: without weight"
            " decay its Adam trajectory (and so bn2.running_mean) is amplified rounding noise;"
            " see ill_conditioned.",
        ]
        meta["ill_conditioned"] = {
            "adam/wd0": ["conv2.bias", "bn2.running_mean"],
        }
    out["meta"] = np.array(json.dumps(meta))
    return out


def check_momentum_nesterov(data: Arrays) -> None:
    """Confirm that the CPU kernel of Momentum ignores ``use_nesterov``."""
    hyper = {**base_runs()["momentum"], "use_nesterov": True}
    cell = make_net("mlp", data)
    step = scaled_step(
        cell, make_optimizer(cell, hyper), nn.DynamicLossScaleUpdateCell(2**12, 2, 1000)
    )
    for x, labels in batches("mlp", data, 3):
        step(Tensor(x), Tensor(labels))
    _, history = replay(hyper, data, [False] * 3)
    compare("momentum nesterov", flatten("mlp", read(cell)), flatten("mlp", history[-1]), 5e-6)


def record_overflow(data: Arrays) -> Arrays:
    """Feed batches that overflow: skipped updates, the scale's course, the learning rate."""
    momentum = base_runs()["momentum"]
    decayed = {**momentum, "weight_decay": 1e-2}
    schedule = [round(0.1 * 0.7**i, 6) for i in range(10)]
    cases: dict[str, dict[str, Any]] = {
        "window3": {
            "hyper": decayed,
            "scale": [2**12, 2, 3],
            "count": 24,
            "fill": {2: "inf", 3: "1e38", 9: "nan", 10: "inf", 11: "1e38", 17: "inf"},
            "steps": [1, 2, 3, 4, 5, 12, 13, 24],
        },
        "factor3": {
            "hyper": momentum,
            "scale": [5.0, 3, 4],
            "count": 16,
            "fill": {1: "inf", 2: "inf", 3: "inf", 9: "nan"},
            "steps": [1, 4, 16],
        },
        "schedule": {
            "hyper": {**momentum, "learning_rate": schedule},
            "scale": [2**12, 2, 1000],
            "count": 10,
            "fill": {3: "inf", 4: "inf"},
            "steps": [3, 5, 6, 10],
        },
        "adam": {
            "hyper": base_runs()["adam"],
            "scale": [2**12, 2, 3],
            "count": 10,
            "fill": {0: "inf", 3: "inf", 4: "inf"},
            "steps": [1, 2, 5, 10],
        },
    }
    out: Arrays = {}
    for name, case in cases.items():
        cell = make_net("mlp", data)
        optimizer = make_optimizer(cell, case["hyper"])
        step = scaled_step(cell, optimizer, nn.DynamicLossScaleUpdateCell(*case["scale"]))
        state = list(optimizer.get_parameters())
        series: dict[str, list[Any]] = {"loss": [], "overflow": [], "loss_scale": [], "updates": []}
        rows = []
        for index, (x, labels) in enumerate(batches("mlp", data, case["count"])):
            fill = case["fill"].get(index)
            before = [np.array(p.asnumpy()) for p in state]
            batch = x if fill is None else np.full_like(x, float(fill))
            loss, overflow, scale = (t.asnumpy() for t in step(Tensor(batch), Tensor(labels)))
            series["loss"].append(loss)
            series["overflow"].append(overflow)
            series["loss_scale"].append(scale)
            series["updates"].append(int(optimizer.global_step.asnumpy()[0]))
            moved = any(
                not np.array_equal(p.asnumpy(), b) for p, b in zip(state, before, strict=True)
            )
            if bool(overflow) != (fill is not None) or moved == bool(overflow):
                raise AssertionError(f"{name}: step {index} did not behave as fed")
            if index + 1 in case["steps"]:
                rows.append(flatten("mlp", read(cell)))
        for key, values in series.items():
            kind = {"overflow": np.bool_, "updates": np.int32}.get(key, np.float32)
            out[f"{name}/{key}"] = np.asarray(values).reshape(-1).astype(kind)
        out[f"{name}/params"] = np.stack(rows)
        skip = [index in case["fill"] for index in range(case["count"])]
        losses, history = replay(case["hyper"], data, skip)
        good = ~np.asarray(skip)
        tolerance = 2e-4 if name == "adam" else 2e-5
        compare(name, out[f"{name}/loss"][good], np.asarray(losses)[good], tolerance)
        want = np.stack([flatten("mlp", history[n - 1]) for n in case["steps"]])
        compare(name, out[f"{name}/params"], want, tolerance)
    record_plain(data, out, cases)
    out["meta"] = np.array(
        json.dumps(
            {
                "layout": {"mlp": layout("mlp")},
                "cases": cases,
                "notes": [
                    "fill: index of the step (from 0) to the value the whole batch x is filled "
                    "with;"
                    " every other step takes batch index % 10. steps: rows of params, counted from "
                    "1.",
                    "loss_scale is the returned value, after the update. updates is global_step.",
                    "On overflow parameters, slots and global_step stay as they are (checked).",
                    "Do not compare the loss of an overflowing step: MindSpore's CPU ReLU turns "
                    "nan into 0,"
                    " so it is often finite there.",
                    "plain: TrainOneStepCell(net, opt, sens=1024.0), optimizer loss_scale=1024.0.",
                ],
            }
        )
    )
    return out


def record_plain(data: Arrays, out: Arrays, cases: dict[str, dict[str, Any]]) -> None:
    """Five steps of ``TrainOneStepCell`` with ``sens`` and a matching optimizer ``loss_scale``."""
    for name, decay in (("plain_wd0", 0.0), ("plain_wd0.01", 1e-2)):
        hyper = {**base_runs()["momentum"], "weight_decay": decay}
        cell = make_net("mlp", data)
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        step = nn.TrainOneStepCell(
            nn.WithLossCell(cell, loss),
            make_optimizer(cell, {**hyper, "loss_scale": 1024.0}),
            sens=1024.0,
        )
        step.set_train()
        losses = [
            step(Tensor(x), Tensor(labels)).asnumpy() for x, labels in batches("mlp", data, 5)
        ]
        out[f"{name}/loss"] = np.asarray(losses, np.float32)
        out[f"{name}/params"] = flatten("mlp", read(cell))[None]
        cases[name] = {"hyper": hyper, "sens": 1024.0, "count": 5, "fill": {}, "steps": [5]}
        want_loss, history = replay(hyper, data, [False] * 5)
        compare(name, out[f"{name}/loss"], np.asarray(want_loss), 5e-6)
        compare(name, out[f"{name}/params"], flatten("mlp", history[-1])[None], 5e-6)


# --- loss scale ----------------------------------------------------------------------------


def record_loss_scale() -> Arrays:
    """Drive the update cells and the host manager with one overflow pattern."""
    rng = np.random.default_rng(400)
    chance = np.repeat([0.3, 0.02, 0.1, 0.6], 100)
    pattern = rng.random(400) < chance
    combos: dict[str, list[float]] = {
        "a": [2**12, 2, 5],
        "b": [5.0, 3, 4],
        "c": [2.0**24, 2, 20],
        "d": [1.0, 1.5, 3],
        "e": [2.0**16, 4, 1],
        "f": [0.5, 2, 10],
        "g": [2.0**120, 2, 4],
        "h": [1024.0, 2, 150],
    }
    out: Arrays = {"overflow": pattern}
    for key, (start, factor, window) in combos.items():
        cell = nn.DynamicLossScaleUpdateCell(start, factor, int(window))
        scale = ms.Parameter(Tensor(start, ms.float32), name="scale")
        values = []
        for overflow in pattern:
            returned = cell(scale, Tensor(bool(overflow)))
            if bool(returned.asnumpy()) != overflow:
                raise AssertionError("the cell changed the overflow flag")
            values.append(float(scale.asnumpy()))
        out[f"{key}/cell"] = np.asarray(values, np.float32)
        if start < 1:
            continue
        manager = amp.DynamicLossScaleManager(start, factor, int(window))
        host = []
        for overflow in pattern:
            manager.update_loss_scale(bool(overflow))
            host.append(float(manager.get_loss_scale()))
        out[f"{key}/manager"] = np.asarray(host, np.float64)
    fixed = nn.FixedLossScaleUpdateCell(128.0)
    scale = ms.Parameter(Tensor(128.0, ms.float32), name="fixed_scale")
    values = []
    for overflow in pattern[:20]:
        fixed(scale, Tensor(bool(overflow)))
        values.append(float(scale.asnumpy()))
    out["fixed/cell"] = np.asarray(values, np.float32)
    out["meta"] = np.array(
        json.dumps(
            {
                "combos": combos,
                "notes": [
                    "combos: start, factor, window. Value i is the scale after overflow[i].",
                    "cell is float32, on the device; manager is float64, on the host. They agree"
                    " for power-of-two factors while float32 holds the scale (in e it reaches inf "
                    "and"
                    " stays there); a start below 1 exists for the cell only.",
                ],
            }
        )
    )
    return out


# --- losses --------------------------------------------------------------------------------


def value_and_grad(loss: Any, prediction: Array, target: Array) -> tuple[Array, Array]:
    """Loss value and its gradient (output gradient: ones) with respect to the prediction."""
    gradient = ops.GradOperation(get_all=True)(loss)(Tensor(prediction), Tensor(target))[0]
    return loss(Tensor(prediction), Tensor(target)).asnumpy(), gradient.asnumpy()


def record_losses() -> Arrays:
    """Values and gradients of the four losses, every reduction."""
    rng = np.random.default_rng(7)
    logits = rng.standard_normal((5, 4)).astype(np.float32) * 2
    sparse = rng.integers(0, 4, 5).astype(np.int32)
    one_hot = np.eye(4, dtype=np.float32)[sparse]
    soft = rng.random((5, 4)).astype(np.float32)
    soft /= soft.sum(1, keepdims=True)
    target = rng.standard_normal((5, 4)).astype(np.float32)
    target[0, 0] = logits[0, 0]
    binary = (rng.random((5, 4)) < 0.5).astype(np.float32)
    weight = rng.random((5, 4)).astype(np.float32) + 0.5
    pos_weight = rng.random(4).astype(np.float32) + 0.5
    out: Arrays = {
        "logits": logits,
        "labels_sparse": sparse,
        "labels_onehot": one_hot,
        "labels_soft": soft,
        "target": target,
        "labels_binary": binary,
        "weight": weight,
        "pos_weight": pos_weight,
    }
    cross, bce = nn.SoftmaxCrossEntropyWithLogits, nn.BCEWithLogitsLoss
    extra = {"weight": Tensor(weight)}, {"pos_weight": Tensor(pos_weight)}
    table: dict[str, tuple[Callable[[str], Any], Array]] = {
        "softmax_sparse": (lambda r: cross(sparse=True, reduction=r), sparse),
        "softmax_onehot": (lambda r: cross(sparse=False, reduction=r), one_hot),
        "softmax_soft": (lambda r: cross(sparse=False, reduction=r), soft),
        "mse": (lambda r: nn.MSELoss(reduction=r), target),
        "l1": (lambda r: nn.L1Loss(reduction=r), target),
        "huber": (lambda r: nn.HuberLoss(r, 0.5), target),
        "bce": (lambda r: bce(reduction=r), binary),
        "bce_soft": (lambda r: bce(reduction=r), soft),
        "bce_weight": (lambda r: bce(r, **extra[0]), binary),
        "bce_pos_weight": (lambda r: bce(r, **extra[1]), binary),
        "bce_both": (lambda r: bce(r, **extra[0], **extra[1]), binary),
    }
    for name, (make, labels) in table.items():
        for reduction in ("mean", "sum", "none"):
            value, gradient = value_and_grad(make(reduction), logits, labels)
            out[f"{name}/{reduction}/value"] = value
            out[f"{name}/{reduction}/grad"] = gradient
            want, want_grad = loss_formula(name, reduction, out)
            compare(f"{name} {reduction}", value, want, 2e-5)
            compare(f"{name} {reduction} gradient", gradient, want_grad, 2e-6)
    out["meta"] = np.array(
        json.dumps(
            {
                "keys": "<loss>/<reduction>/value and /grad; the prediction is always logits",
                "target_of": {
                    "softmax_sparse": "labels_sparse",
                    "softmax_onehot": "labels_onehot",
                    "softmax_soft": "labels_soft",
                    "mse": "target",
                    "l1": "target",
                    "huber": "target",
                    "bce": "labels_binary",
                    "bce_soft": "labels_soft",
                    "bce_weight": "labels_binary",
                    "bce_pos_weight": "labels_binary",
                    "bce_both": "labels_binary",
                },
                "notes": [
                    "The gradient is that of the sum of the value (output gradient ones).",
                    "softmax mean and none reduce over rows; the others over all elements.",
                    "target[0, 0] equals logits[0, 0]: the derivative of |x| at 0 is 0.",
                    "huber has delta = 0.5.",
                    "bce with weight: the mean divides by the number of elements, not by weights.",
                ],
            }
        )
    )
    return out


def loss_formula(name: str, reduction: str, a: Arrays) -> tuple[Array, Array]:
    """The losses in float64: value, and gradient with respect to the logits."""
    x = a["logits"].astype(np.float64)
    if name.startswith("softmax"):
        y = a["labels_soft" if name.endswith("soft") else "labels_onehot"].astype(np.float64)
        log_soft = x - x.max(1, keepdims=True)
        log_soft -= np.log(np.exp(log_soft).sum(1, keepdims=True))
        value = -(y * log_soft).sum(1)
        grad = np.exp(log_soft) * y.sum(1, keepdims=True) - y
    elif name == "huber":
        d = x - a["target"]
        value = np.where(abs(d) <= 0.5, d * d / 2, 0.5 * (abs(d) - 0.25))
        grad = np.clip(d, -0.5, 0.5)
    elif name in ("mse", "l1"):
        d = x - a["target"]
        value, grad = (d * d, 2 * d) if name == "mse" else (np.abs(d), np.sign(d))
    else:
        y = a["labels_soft" if name.endswith("soft") else "labels_binary"].astype(np.float64)
        w = a["weight"] if name in ("bce_weight", "bce_both") else 1.0
        p = a["pos_weight"] if name in ("bce_pos_weight", "bce_both") else 1.0
        value = w * (p * y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x))
        s = 1 / (1 + np.exp(-x))
        grad = w * (-p * y * (1 - s) + (1 - y) * s)
    if reduction == "mean":
        return value.mean(), grad / value.size
    return (value.sum() if reduction == "sum" else value), grad


# --- schedules -----------------------------------------------------------------------------


def record_schedules() -> Arrays:
    """Learning-rate lists and schedule cells on small examples."""
    epochs: Hyper = {"total_step": 12, "step_per_epoch": 2}
    decay: Hyper = {"learning_rate": 0.1, "decay_rate": 0.9, **epochs, "decay_epoch": 2}
    to_end: Hyper = {"learning_rate": 0.1, "end_learning_rate": 0.01, "power": 0.5}
    options_of: dict[str, Hyper] = {
        "exponential_decay_lr": decay,
        "natural_exp_decay_lr": decay,
        "inverse_decay_lr": {**decay, "decay_rate": 0.5},
        "polynomial_decay_lr": {**to_end, **epochs, "decay_epoch": 4},
        "cosine_decay_lr": {"min_lr": 0.01, "max_lr": 0.1, **epochs, "decay_epoch": 4},
        "warmup_lr": {"learning_rate": 0.1, **epochs, "warmup_epoch": 3},
        "piecewise_constant_lr": {"milestone": [2, 5, 10], "learning_rates": [0.1, 0.05, 0.01]},
    }
    lists = {name: (name, options) for name, options in options_of.items()}
    for name in ("exponential_decay_lr", "natural_exp_decay_lr", "inverse_decay_lr"):
        lists[f"{name}/stair"] = (name, {**lists[name][1], "is_stair": True})
    updating = {**options_of["polynomial_decay_lr"], "update_decay_epoch": True}
    lists["polynomial_decay_lr/update"] = ("polynomial_decay_lr", updating)
    cells: dict[str, tuple[str, Hyper]] = {
        "CosineDecayLR": ("CosineDecayLR", {"min_lr": 0.01, "max_lr": 0.1, "decay_steps": 8}),
        "WarmUpLR": ("WarmUpLR", {"learning_rate": 0.1, "warmup_steps": 5}),
        "PolynomialDecayLR": ("PolynomialDecayLR", {**to_end, "decay_steps": 5}),
    }
    for name in ("ExponentialDecayLR", "NaturalExpDecayLR", "InverseDecayLR"):
        options = {"learning_rate": 0.1, "decay_rate": 0.9, "decay_steps": 4}
        cells[name] = (name, options)
        cells[f"{name}/stair"] = (name, {**options, "is_stair": True})
    cells["PolynomialDecayLR/update"] = (
        "PolynomialDecayLR",
        {**cells["PolynomialDecayLR"][1], "update_decay_steps": True},
    )
    out: Arrays = {}
    for key, (name, options) in lists.items():
        out[key] = np.asarray(getattr(nn, name)(**options), np.float64)
        compare(key, out[key], list_formula(name, options), 1e-12)
    for key, (name, options) in cells.items():
        cell = getattr(nn, name)(**options)
        values = [cell(Tensor(step, ms.int32)).asnumpy() for step in range(12)]
        out[key] = np.asarray(values, np.float32).reshape(-1)
        compare(key, out[key], cell_formula(name, options), 1e-7)
    out["meta"] = np.array(
        json.dumps(
            {
                "calls": {
                    k: {"name": n, "arguments": o} for k, (n, o) in {**lists, **cells}.items()
                },
                "notes": [
                    "Functions give a list of float; cells are called with global_step 0..11.",
                    "NaturalExpDecayLR is lr * exp(-rate * step), with is_stair step is floored to "
                    "a"
                    " multiple of decay_steps; its documentation divides by decay_steps instead.",
                    "Functions count whole epochs, floor(i / step_per_epoch); cells count steps.",
                ],
            }
        )
    )
    return out


def list_formula(name: str, o: Hyper) -> Array:
    """The learning-rate lists, from their documented formulas."""
    if name == "piecewise_constant_lr":
        counts = np.diff([0, *o["milestone"]])
        return np.repeat(np.asarray(o["learning_rates"]), counts)
    values = []
    for i in range(o["total_step"]):
        epoch = i // o["step_per_epoch"]
        if name == "warmup_lr":
            values.append(o["learning_rate"] * min(epoch, o["warmup_epoch"]) / o["warmup_epoch"])
            continue
        span = o["decay_epoch"]
        ratio = epoch // span if o.get("is_stair") else epoch / span
        if name == "exponential_decay_lr":
            values.append(o["learning_rate"] * o["decay_rate"] ** ratio)
        elif name == "natural_exp_decay_lr":
            steps = epoch // span * span if o.get("is_stair") else epoch
            values.append(o["learning_rate"] * math.exp(-o["decay_rate"] * steps))
        elif name == "inverse_decay_lr":
            values.append(o["learning_rate"] / (1 + o["decay_rate"] * ratio))
        elif name == "polynomial_decay_lr":
            if o.get("update_decay_epoch"):
                span = span * max(1, math.ceil(epoch / span))
            left = 1 - min(epoch, span) / span
            gap = o["learning_rate"] - o["end_learning_rate"]
            values.append(gap * left ** o["power"] + o["end_learning_rate"])
        else:
            wave = 1 + math.cos(math.pi * min(epoch, span) / span)
            values.append(o["min_lr"] + 0.5 * (o["max_lr"] - o["min_lr"]) * wave)
    return np.asarray(values)


def cell_formula(name: str, o: Hyper) -> Array:
    """The schedule cells at steps 0 to 11, from their documented formulas."""
    t = np.arange(12, dtype=np.float64)
    if name == "WarmUpLR":
        return o["learning_rate"] * np.minimum(t, o["warmup_steps"]) / o["warmup_steps"]
    span = float(o["decay_steps"])
    if name == "CosineDecayLR":
        wave = 1 + np.cos(np.pi * np.minimum(t, span) / span)
        return o["min_lr"] + 0.5 * (o["max_lr"] - o["min_lr"]) * wave
    ratio = np.floor(t / span) if o.get("is_stair") else t / span
    if name == "NaturalExpDecayLR":  # its documentation divides by decay_steps, the code does not
        return o["learning_rate"] * np.exp(-o["decay_rate"] * ratio * span)
    if name == "PolynomialDecayLR":
        spans = span * np.maximum(1, np.ceil(t / span)) if o.get("update_decay_steps") else span
        left = 1 - np.minimum(t, spans) / spans
        end = o["end_learning_rate"]
        return (o["learning_rate"] - end) * left ** o["power"] + end
    lr, rate = o["learning_rate"], o["decay_rate"]
    if name == "ExponentialDecayLR":
        return lr * rate**ratio
    return lr / (1 + rate * ratio)


# --- errors --------------------------------------------------------------------------------

CALLS = """
nn.SGD([])
nn.SGD(None)
nn.SGD([1])
nn.SGD(params, learning_rate=-0.1)
nn.SGD(params, learning_rate='0.1')
nn.SGD(params, learning_rate=True)
nn.SGD(params, learning_rate=[])
nn.SGD(params, learning_rate=[0.1, -0.1])
nn.SGD(params, momentum=-0.1)
nn.SGD(params, momentum='0.9')
nn.SGD(params, dampening=-0.1)
nn.SGD(params, dampening='0')
nn.SGD(params, nesterov=1)
nn.SGD(params, nesterov=True)
nn.SGD(params, momentum=0.9, dampening=0.1, nesterov=True)
nn.SGD(params, weight_decay=-0.1)
nn.SGD(params, weight_decay='0')
nn.SGD(params, loss_scale=0.0)
nn.SGD(params, loss_scale=-1.0)
nn.SGD(params, loss_scale='1')
nn.SGD([{'params': []}])
nn.SGD([{'lr': 0.1}])
nn.SGD([{'params': params, 'momentum': 0.9}])
nn.SGD([{'params': params}, {'params': params}])
nn.SGD(params + params)
nn.Momentum(params)
nn.Momentum(params, 0.1)
nn.Momentum(params, 0.1, 1)
nn.Momentum(params, 0.1, -0.9)
nn.Momentum(params, 0.1, '0.9')
nn.Momentum(params, -0.1, 0.9)
nn.Momentum(params, 1, 0.9)
nn.Momentum(params, 0.1, 0.9, use_nesterov=1)
nn.Momentum(params, 0.1, 0.9, weight_decay=-1.0)
nn.Momentum(params, 0.1, 0.9, loss_scale=0.0)
nn.Adam(params, learning_rate=-0.1)
nn.Adam(params, learning_rate='0.1')
nn.Adam(params, beta1=1.0)
nn.Adam(params, beta1=0.0)
nn.Adam(params, beta1=1)
nn.Adam(params, beta2=1.0)
nn.Adam(params, beta2=-0.1)
nn.Adam(params, eps=0.0)
nn.Adam(params, eps=-1e-8)
nn.Adam(params, eps=1)
nn.Adam(params, use_nesterov=1)
nn.Adam(params, use_amsgrad='x')
nn.Adam(params, weight_decay=-0.1)
nn.Adam(params, loss_scale=0.0)
nn.Adam(params, unknown=1)
nn.AdamWeightDecay(params, beta1=1.0)
nn.AdamWeightDecay(params, eps=0.0)
nn.AdamWeightDecay(params, weight_decay=-0.1)
nn.AdamWeightDecay(params, learning_rate=-1.0)
nn.LARS(params)
nn.LARS(nn.SGD(params), epsilon=1)
nn.LARS(nn.SGD(params), coefficient='0.1')
nn.LARS(nn.SGD(params), use_clip=1)
amp.DynamicLossScaleManager(0.5)
amp.DynamicLossScaleManager('x')
amp.DynamicLossScaleManager(scale_factor=0)
amp.DynamicLossScaleManager(scale_factor=-1)
amp.DynamicLossScaleManager(scale_factor=0.5)
amp.DynamicLossScaleManager(scale_factor='2')
amp.DynamicLossScaleManager(scale_window=0)
amp.DynamicLossScaleManager(scale_window=-1)
amp.DynamicLossScaleManager(scale_window=1.5)
[(m := amp.DynamicLossScaleManager(2.0**16)), [m.update_loss_scale(True) for _ in range(1000)]]
[m.update_loss_scale(True) for m in [amp.DynamicLossScaleManager()] for _ in range(1001)]
amp.FixedLossScaleManager(0.5)
amp.FixedLossScaleManager(0)
amp.FixedLossScaleManager('x')
amp.FixedLossScaleManager(drop_overflow_update=1)
nn.DynamicLossScaleUpdateCell('x', 2, 10)
nn.DynamicLossScaleUpdateCell(0.5, 2, 10)
nn.DynamicLossScaleUpdateCell(2.0, 0, 0)
nn.DynamicLossScaleUpdateCell(2.0, 2, 1.5)
nn.FixedLossScaleUpdateCell(-1)
nn.TrainOneStepWithLossScaleCell(with_loss, nn.SGD(params), scale_sense=1024.0)
nn.TrainOneStepWithLossScaleCell(with_loss, nn.SGD(params), scale_sense=None)
nn.TrainOneStepWithLossScaleCell(with_loss, nn.SGD(params), scale_sense=Tensor([1.0, 2.0]))
nn.TrainOneStepWithLossScaleCell(with_loss, nn.SGD(params), scale_sense=Tensor([[1.0]]))
nn.TrainOneStepWithLossScaleCell(with_loss, nn.SGD(params), scale_sense=Tensor([1.0]))
nn.TrainOneStepWithLossScaleCell(with_loss, nn.SGD(params), scale_sense=Tensor(1.0))
nn.TrainOneStepWithLossScaleCell(with_loss, None, scale_sense=Tensor(1.0))
scaled.set_sense_scale(1024.0)
scaled.set_sense_scale(None)
scaled.set_sense_scale(Tensor([1.0, 2.0]))
scaled.set_sense_scale(Tensor(64.0))
nn.TrainOneStepCell(with_loss, nn.SGD(params), sens=0)
nn.TrainOneStepCell(with_loss, nn.SGD(params), sens=-1.0)
nn.TrainOneStepCell(with_loss, nn.SGD(params), sens='x')
nn.TrainOneStepCell(with_loss, None)
nn.TrainOneStepCell(None, nn.SGD(params))
nn.WithLossCell(1, loss)
nn.WithLossCell(net, 1)
nn.WithLossCell(None, loss)
nn.WithLossCell(1, loss)(images, labels)
nn.WithLossCell(net, loss)(images)
nn.WithEvalCell(1, loss)
nn.WithEvalCell(net, loss, 1)
nn.SoftmaxCrossEntropyWithLogits(sparse=1)
nn.SoftmaxCrossEntropyWithLogits(reduction='avg')
nn.SoftmaxCrossEntropyWithLogits(reduction=None)
nn.SoftmaxCrossEntropyWithLogits(reduction=1)
nn.MSELoss(reduction='avg')
nn.MSELoss(reduction=None)
nn.L1Loss(reduction='avg')
nn.BCEWithLogitsLoss(reduction='avg')
nn.BCEWithLogitsLoss(weight=1.0)
nn.BCEWithLogitsLoss(reduction='avg')(logits, logits)
nn.BCEWithLogitsLoss(weight=1.0)(logits, logits)
nn.MSELoss()(Tensor([1.0]), 1)
nn.MSELoss()(Tensor([1.0, 2.0]), Tensor([1.0, 2.0, 3.0]))
nn.SoftmaxCrossEntropyWithLogits(sparse=True)(logits, Tensor([0.5, 1.5]))
nn.SoftmaxCrossEntropyWithLogits(sparse=True)(logits, 1)
nn.SoftmaxCrossEntropyWithLogits(sparse=False)(logits, Tensor([0, 1]))
train.Model()
train.Model(None, loss, nn.SGD(params))
train.Model(1, loss, nn.SGD(params))
train.Model(net, 1, nn.SGD(params))
train.Model(net, loss, 1)
train.Model(net, loss)
train.Model(net, optimizer=nn.SGD(params))
train.Model(net, loss, nn.SGD(params), metrics={'nope'})
train.Model(net, loss, nn.SGD(params), metrics='acc')
train.Model(net, loss, nn.SGD(params), metrics={'acc': 1})
train.Model(net, loss, nn.SGD(params), amp_level='O9')
train.Model(net, loss, nn.SGD(params), boost_level='O9')
train.Model(net, loss, nn.SGD(params), boost_level=1)
train.Model(net, loss, nn.SGD(params), loss_scale_manager=1)
train.Model(net, loss, nn.SGD(params), unknown=1)
train.Model(net, loss, nn.SGD(params), eval_network=net, metrics={'acc'})
train.Model(net, loss, nn.SGD(params), loss_scale_manager=amp.DynamicLossScaleManager())
train.Model(net, loss, nn.SGD(params), loss_scale_manager=amp.FixedLossScaleManager())
train.Model(net, loss, nn.SGD(params), loss_scale_manager=amp.FixedLossScaleManager(1024, False))
model.train(0, dataset)
model.train(-1, dataset)
model.train(1.5, dataset)
model.train('1', dataset)
model.train(True, dataset)
model.train(1, None)
model.train(1, [1, 2])
model.train(1, dataset, callbacks=1)
model.train(1, dataset, callbacks=[1])
model.train(1, dataset, dataset_sink_mode=1)
model.train(1, dataset, dataset_sink_mode=True)
model.train(1, dataset, sink_size=0)
model.train(1, dataset, sink_size=2)
model.train(1, dataset, initial_epoch=-1)
model.train(1, dataset, initial_epoch=1)
model.train(1, dataset, initial_epoch='0')
train.Model(net).train(1, dataset)
model.eval(dataset)
model.eval(None)
measured.eval([1])
measured.eval(dataset, callbacks=1)
measured.fit(0, dataset, other)
measured.fit(1, dataset, other, valid_frequency=0)
measured.fit(1, dataset, other, valid_frequency='x')
model.fit(1, dataset, other)
model.predict()
model.predict(1)
model.predict(images)
model.train(1, dataset)
measured.eval(dataset)
measured.fit(1, dataset, other)
train.get_metric_fn('nope')
train.get_metric_fn(1)
nn.Accuracy('x')
train.Accuracy('x')
train.Accuracy().eval()
train.Loss().eval()
train.LossMonitor(-1)
train.LossMonitor('x')
train.TimeMonitor(-1)
train.ModelCheckpoint(prefix='a|b')
train.ModelCheckpoint(prefix=1)
train.ModelCheckpoint(config=1)
train.CheckpointConfig(save_checkpoint_steps=-1)
train.CheckpointConfig(save_checkpoint_steps=0, save_checkpoint_seconds=0)
train.CheckpointConfig(keep_checkpoint_max=-1)
train.EarlyStopping(mode='x')
train.EarlyStopping(monitor=1)
train.EarlyStopping(patience=-1)
train.EarlyStopping(min_delta='x')
train.ReduceLROnPlateau(factor=1.0)
train.LearningRateScheduler(1)
nn.exponential_decay_lr(0.0, 0.9, 6, 2, 1)
nn.exponential_decay_lr(0.1, 0.0, 6, 2, 1)
nn.exponential_decay_lr(1, 0.9, 6, 2, 1)
nn.exponential_decay_lr(0.1, 0.9, 0, 2, 1)
nn.exponential_decay_lr(0.1, 0.9, 6.0, 2, 1)
nn.exponential_decay_lr(0.1, 0.9, 6, 2, 0)
nn.exponential_decay_lr(0.1, 0.9, 6, 2, 1, 1)
nn.cosine_decay_lr(0.1, 0.01, 6, 2, 2)
nn.cosine_decay_lr(-0.1, 0.1, 6, 2, 2)
nn.cosine_decay_lr(0, 0.1, 6, 2, 2)
nn.cosine_decay_lr(0.01, 1, 6, 2, 2)
nn.polynomial_decay_lr(0.1, 0.1, 6, 2, 2, 0.5)
nn.polynomial_decay_lr(0.1, -0.1, 6, 2, 2, 0.5)
nn.polynomial_decay_lr(0.1, 0.01, 6, 2, 2, 0.0)
nn.piecewise_constant_lr([2, 1], [0.1, 0.05])
nn.piecewise_constant_lr([2], [0.1, 0.05])
nn.piecewise_constant_lr([], [])
nn.piecewise_constant_lr([2.0], [0.1])
nn.piecewise_constant_lr([2], [1])
nn.piecewise_constant_lr(2, [0.1])
nn.warmup_lr(0.1, 6, 2, 0)
nn.warmup_lr(0.1, 6, 2, -1)
nn.warmup_lr(1, 6, 2, 2)
nn.warmup_lr(0.1, 0, 2, 2)
nn.CosineDecayLR(0.1, 0.01, 4)
nn.CosineDecayLR(0, 0.1, 4)
nn.CosineDecayLR(0.01, 0.1, 0)
nn.CosineDecayLR(0.01, 0.1, 4.0)
nn.ExponentialDecayLR(0.0, 0.9, 4)
nn.ExponentialDecayLR(0.1, 0.9, 0)
nn.ExponentialDecayLR(0.1, 0.9, 4, 1)
nn.PolynomialDecayLR(0.1, 0.01, 4, 0.0)
nn.PolynomialDecayLR(0.1, 0.01, 4, 1)
nn.WarmUpLR(0.1, 0)
nn.WarmUpLR(1, 4)
"""


def scene(data: Arrays) -> dict[str, Any]:
    """Build the names that `CALLS` speaks of, fresh, so that no call sees what another did."""
    net = make_net("mlp", data)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    params = net.trainable_params()
    x, labels = data["x"].reshape(80, 64), data["labels"].reshape(80)
    sets = [
        ms.dataset.NumpySlicesDataset({"data": x[:16], "label": labels[:16]}, shuffle=False)
        for _ in range(2)
    ]
    with_loss = nn.WithLossCell(net, loss)
    return {
        "nn": nn,
        "amp": amp,
        "train": train,
        "Tensor": Tensor,
        "net": net,
        "loss": loss,
        "params": params,
        "with_loss": with_loss,
        "images": Tensor(x[:8]),
        "labels": Tensor(labels[:8]),
        "logits": Tensor(np.zeros((2, 4), np.float32)),
        "dataset": sets[0].batch(8),
        "other": sets[1].batch(8),
        "scaled": nn.TrainOneStepWithLossScaleCell(with_loss, nn.SGD(params), Tensor(2.0)),
        "model": train.Model(net, loss, nn.SGD(params)),
        "measured": train.Model(net, loss, nn.SGD(params), metrics={"acc"}),
    }


def record_errors(data: Arrays) -> list[dict[str, str]]:
    """Run every call of `CALLS`; keep the type and the start of the message.

    Returns:
        One entry per call; ``type`` is empty when MindSpore accepts it.
    """
    found = []
    for call in CALLS.strip().splitlines():
        kind, message = "", ""
        names = scene(data)
        try:
            eval(call, names)  # the calls above, nothing from outside
        except Exception as error:
            kind = type(error).__name__
            message = " ".join(str(error).split()).strip("-= ")[:80]
        found.append({"call": call, "type": kind, "message_excerpt": message})
    return found


def main() -> None:
    """Write every golden file."""
    parser = argparse.ArgumentParser(description="Write tests/golden/mindspore.")
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=Path, default=root / "tests" / "golden" / "mindspore")
    out = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    versions = {"mindspore": ms.__version__, "numpy": np.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # MindSpore leaves its logs in the working directory
        data = make_data()
        files: dict[str, Arrays] = {
            "data": {**data, "meta": np.array(json.dumps({"versions": versions, "batch_size": 8}))},
            "loss_scale": record_loss_scale(),
            "losses": record_losses(),
            "schedules": record_schedules(),
            "train_mlp": record_training("mlp", data),
            "train_convbn": record_training("convbn", data),
            "overflow": record_overflow(data),
        }
        errors = record_errors(data)
        os.chdir(root)
    for name, arrays in files.items():
        np.savez_compressed(out / f"{name}.npz", **arrays)
    text = ",\n".join(json.dumps(entry) for entry in errors)
    (out / "errors.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
    for path in sorted(out.iterdir()):
        print(f"{path.name:20} {path.stat().st_size:7}")


if __name__ == "__main__":
    main()
