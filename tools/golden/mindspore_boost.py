"""Record MindSpore Boost's gradient freeze, accumulation and centralization as golden files.

The two small nets of ``mindspore_training.py`` are trained by MindSpore's own Boost cells; what is
stored is the loss of every step and the weights after some. Every run of the ``mlp`` is also
replayed in float64 numpy from the written formula, and the script fails when the two differ.

Made with Python 3.11, mindspore 2.10.0 and numpy 1.26.4, as ``mindspore_training.py``::

    GLOG_v=3 msenv/bin/python tools/golden/mindspore_boost.py

What had to be done to the original for that, and why it changes no number of these runs:

- ``AutoBoost`` is a singleton for the process: it is taken down before each run;
- ``sens=1.0`` is given to the plain cell, which without it returns no loss;
- ``FreezeOpt`` cannot rebuild Adam (it passes an empty ``kwargs`` on): that entry is removed;
- ``Centralization`` has no CPU kernel: a function with its formula stands in (the rule of 16 is not
  in the operator but in the optimizer, and is MindSpore's);
- in the ``convbn`` runs with accumulation MindSpore runs the second batch norm of the forward pass
  twice a step, so that its statistics move twice (a replay in PyTorch that does just that agrees to
  1e-7): ``meta["twice"]`` names them;
- ``GroupLossScaleManager`` casts to float16 between the groups of a net that is float32: left out.

``boost.npz``: ``meta`` is a JSON string: ``layout`` of a row (see ``mindspore_training.py``), and
for each run its net, kind and arguments; ``<run>/loss``, ``<run>/params`` (rows after ``steps``),
and with a loss scale ``<run>/overflow`` and ``<run>/loss_scale``.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, boost, nn, ops
from mindspore.boost.grad_freeze import FreezeOpt
from mindspore.nn.optim import optimizer as base_optimizer
from mindspore_training import (
    SHAPES,
    Array,
    Arrays,
    Hyper,
    batches,
    compare,
    flatten,
    gradients,
    layout,
    make_data,
    make_net,
    make_optimizer,
    our_name,
    update,
)

MOMENTUM: Hyper = {"optimizer": "Momentum", "learning_rate": 0.05, "momentum": 0.9}
DAMPENED: Hyper = {
    "optimizer": "SGD",
    "learning_rate": 0.05,
    "momentum": 0.9,
    "dampening": 0.1,
    "weight_decay": 1e-2,
}
ADAM: Hyper = {"optimizer": "Adam", "learning_rate": 1e-2}
STRATEGY = [0, 1, 2, 0, 1, 0, 2, 1, 0, 2]
GROUPS = {
    "mlp": [
        ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
        ["fc2.weight", "fc2.bias"],
        ["fc2.bias"],
    ],
    "convbn": [
        [n for n in SHAPES["convbn"] if "running" not in n],
        ["conv2.weight", "conv2.bias", "bn2.weight", "bn2.bias", "fc.weight", "fc.bias"],
        ["fc.weight", "fc.bias"],
    ],
}
WEIGHTS = {
    "mlp": ["fc1.weight", "fc2.weight"],
    "convbn": ["conv1.weight", "conv2.weight", "fc.weight"],
}
FALLING = [round(0.1 * 0.8**i, 6) for i in range(12)]


def centralization(x: Any, axes: Any) -> Any:
    """Stands in for the ``Centralization`` operator."""
    return x - ops.ReduceMean(keep_dims=True)(x, tuple(axes))


def centralized(net: str, decay: float) -> list[dict[str, Any]]:
    """Groups as MindSpore's ``OptimizerProcess`` makes them: centralized weights, and the rest."""
    rest = [n for n in SHAPES[net] if n not in WEIGHTS[net] and "running" not in n]
    return [
        {"params": WEIGHTS[net], "grad_centralization": True, "weight_decay": decay},
        {"params": rest, "weight_decay": decay},
    ]


def all_runs() -> dict[str, dict[str, Any]]:
    """Every run: net, boost, optimizer, and what the boost takes."""
    runs: dict[str, dict[str, Any]] = {}
    for net in ("mlp", "convbn"):
        decayed = {**MOMENTUM, "weight_decay": 1e-2}
        for name, hyper in (("momentum", decayed), ("sgd", DAMPENED)):
            runs[f"{net}/freeze/{name}"] = {"hyper": hyper, "strategy": STRATEGY}
            runs[f"{net}/gc/{name}"] = {"hyper": {**hyper, "groups": centralized(net, 1e-2)}}
        for count in (2, 3, 4):
            runs[f"{net}/accumulate/{count}"] = {"hyper": decayed, "accumulate": count, "count": 12}
    runs["mlp/freeze/adam"] = {"hyper": ADAM, "strategy": STRATEGY}
    runs["mlp/freeze/list"] = {
        "hyper": {**MOMENTUM, "learning_rate": FALLING[:10]},
        "strategy": STRATEGY,
    }
    runs["mlp/freeze/in_turns"] = {"hyper": MOMENTUM, "strategy": None}
    runs["mlp/freeze/again"] = {"hyper": MOMENTUM, "strategy": [0, 2, 1]}
    runs["mlp/accumulate/list"] = {
        "hyper": {**MOMENTUM, "learning_rate": FALLING},
        "accumulate": 3,
        "count": 12,
    }
    runs["mlp/scaled/plain"] = {
        "hyper": MOMENTUM,
        "scale": [2**12, 2, 3],
        "fill": {"3": "inf", "7": "nan"},
    }
    runs["mlp/scaled/accumulate"] = {
        "hyper": {**MOMENTUM, "learning_rate": FALLING},
        "accumulate": 2,
        "count": 12,
        "scale": [2**12, 2, 3],
        "fill": {"2": "inf", "5": "inf", "9": "nan"},
    }
    for name, run in runs.items():
        run["net"] = name.split("/")[0]
        run.setdefault("count", 10)
        run["steps"] = [run["count"]] if "accumulate" in run else [2, run["count"]]
        if "strategy" in run:
            run["groups"] = GROUPS[run["net"]]
    return runs


def make_step(cell: Any, run: dict[str, Any]) -> Any:
    """MindSpore's training cell for a run."""
    boost.AutoBoost._instance = None
    boost.AutoBoost("O0", {})
    count = run.get("accumulate", 1)
    config = {
        "boost": {"mode": "manual", "grad_accumulation": count > 1},
        "grad_accumulation": {"grad_accumulation_step": count},
    }
    boost.AutoBoost._instance = None
    boost.AutoBoost("O0", config)
    parameters = {our_name(p.name): p for p in cell.trainable_params()}
    optimizer = make_optimizer(cell, run["hyper"])
    if "groups" in run:
        optimizer.init_args.pop("kwargs", None)
        groups = [[parameters[n] for n in group] for group in run["groups"]]
        optimizer = FreezeOpt(optimizer, groups, run["strategy"])
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    with_loss = nn.WithLossCell(cell, loss)
    if "scale" in run:
        scale = nn.DynamicLossScaleUpdateCell(*run["scale"])
        step = boost.BoostTrainOneStepWithLossScaleCell(with_loss, optimizer, scale)
        step.ascend_910b_target, step.enable_allfinite = True, False
    else:
        step = boost.BoostTrainOneStepCell(with_loss, optimizer, sens=1.0)
    # The table of the levels is changed by the manual mode.
    base = boost.boost._boost_config_level["O0"]
    base.update(dict.fromkeys(base, False))
    step.set_train()
    return step


def record(run: dict[str, Any], data: Arrays) -> dict[str, Array]:
    """Train one net and give back what is stored of it."""
    net, fill = run["net"], run.get("fill", {})
    cell = make_net(net, data)
    names = {id(p): our_name(p.name) for p in cell.get_parameters()}
    live = list(cell.get_parameters())
    step = make_step(cell, run)
    series: dict[str, list[Any]] = {"loss": []}
    rows = []
    for index, (x, labels) in enumerate(batches(net, data, run["count"])):
        value = fill.get(str(index))
        x = x if value is None else np.full_like(x, float(value))
        result = step(Tensor(x), Tensor(labels))
        if "scale" in run:
            loss, overflow, scale = (np.array(t.asnumpy()) for t in result)
            series.setdefault("overflow", []).append(bool(overflow))
            series.setdefault("loss_scale", []).append(scale)
            if bool(overflow) != (value is not None):
                raise AssertionError(f"step {index} did not overflow as fed")
        else:
            loss = np.array(result.asnumpy())
        series["loss"].append(loss)
        if index + 1 in run["steps"]:
            # FreezeOpt renames the parameters of the net: they are known by identity.
            rows.append(flatten(net, {names[id(p)]: np.array(p.asnumpy()) for p in live}))
    found = {key: np.asarray(v).reshape(-1) for key, v in series.items()}
    found["loss"] = found["loss"].astype(np.float32)
    return {**found, "params": np.stack(rows)}


def replay(run: dict[str, Any], data: Arrays) -> tuple[Array, Array]:
    """The same run of the mlp in float64 numpy: losses, and the rows."""
    hyper, window = run["hyper"], run.get("accumulate", 1)
    p = {n: data[f"mlp/{n}"].astype(np.float64) for n in SHAPES["mlp"]}
    groups = run.get("groups", [list(p)])
    plan = run.get("strategy", [0]) or list(range(len(groups)))
    slots: dict[Any, Arrays] = {(g, n): {} for g in range(len(groups)) for n in p}
    own = [0] * len(groups)
    losses, rows, held, updates = [], [], [], 0
    for index, (x, labels) in enumerate(batches("mlp", data, run["count"])):
        loss, grads = gradients(p, x, labels)
        losses.append(loss)
        if str(index) not in run.get("fill", {}):
            held.append(grads)
        if len(held) == window:
            group = plan[updates % len(plan)]
            own[group] += 1
            mean = {n: sum(g[n] for g in held) / window for n in p}
            for name in groups[group]:
                g, w = mean[name], p[name]
                decay = hyper.get("weight_decay", 0.0)
                if any(
                    name in e["params"] and "grad_centralization" in e
                    for e in hyper.get("groups", [])
                ):
                    g = g + decay * w
                    g, decay = g - g.mean(tuple(range(1, g.ndim)), keepdims=True), 0.0
                now = {k: v for k, v in hyper.items() if k != "groups"} | {"weight_decay": decay}
                if isinstance(hyper["learning_rate"], list):
                    now["learning_rate"] = hyper["learning_rate"][updates]
                p = {**p, name: update(now, name, own[group], w, g, slots[group, name])}
            updates, held = updates + 1, []
        if index + 1 in run["steps"]:
            rows.append(flatten("mlp", p))
    return np.asarray(losses), np.stack(rows)


def record_groups(data: Arrays) -> tuple[dict[str, Array], dict[str, Any]]:
    """``GroupLossScaleManager``: gradients between its boundaries, the course of its scales."""

    class Scaled(nn.Cell):
        """The mlp with two groups: fc1, and fc2."""

        def __init__(self, manager: Any) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Dense(64, 32), nn.Dense(32, 10)
            self.relu, self.manager = nn.ReLU(), manager

        def construct(self, x):
            x = self.manager(x, 0, 1)
            x = self.manager(self.relu(self.fc1(x)), 1, 2)
            return self.manager(self.fc2(x), 2, 3)

    start = [64.0, 1024.0]
    boost.AutoBoost._instance = None
    boost.AutoBoost("O0", {"boost": {"mode": "manual", "loss_scale_group": True}})
    manager = boost.GroupLossScaleManager(start, [])
    cell = Scaled(manager)
    params = cell.trainable_params()
    for p in params:
        p.set_data(Tensor(data[f"mlp/{p.name}"]))
    manager.loss_scale_groups = [params[:2], params[2:]]
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    with_loss = nn.WithLossCell(cell, loss)
    manager.set_loss_scale_status(2, [Tensor(s, ms.float32) for s in start])
    grad = ops.GradOperation(get_by_list=True)
    x, labels = next(batches("mlp", data, 1))
    raw = grad(with_loss, ms.ParameterTuple(params))(Tensor(x), Tensor(labels))
    _, plain = gradients({n: data[f"mlp/{n}"].astype(np.float64) for n in SHAPES["mlp"]}, x, labels)
    ratios = [
        float(np.median(np.array(g.asnumpy())[plain[n] != 0] / plain[n][plain[n] != 0]))
        for g, n in zip(raw, SHAPES["mlp"], strict=True)
    ]
    found: dict[str, Array] = {"groups/ratios": np.asarray(ratios)}
    optimizer = nn.Momentum(params, MOMENTUM["learning_rate"], MOMENTUM["momentum"])
    manager._loss_scale = [Tensor(s, ms.float32) for s in start]
    boost.BoostTrainOneStepWithLossScaleCell._do_keep_mix_fp32 = lambda *_: None
    step = boost.BoostTrainOneStepWithLossScaleCell(with_loss, optimizer, manager)
    step.set_train()
    base = boost.boost._boost_config_level["O0"]
    base.update(dict.fromkeys(base, False))
    losses, scales = [], []
    for x, labels in batches("mlp", data, 10):
        loss, overflows, scale = step(Tensor(x), Tensor(labels))
        if int(overflows.asnumpy()):
            raise AssertionError("a clean step overflowed")
        losses.append(loss.asnumpy())
        scales.append(scale.asnumpy())
    found["groups/loss"] = np.asarray(losses, np.float32)
    found["groups/loss_scale"] = np.asarray(scales, np.float32).reshape(-1)
    found["groups/params"] = flatten("mlp", {p.name: np.array(p.asnumpy()) for p in params})[None]
    return found, {"start": start, "hyper": MOMENTUM, "count": 10, "steps": [10]}


def main() -> int:
    """Make the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("tests/golden/mindspore/boost.npz"))
    arguments = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    base_optimizer.op_gc = centralization
    target = arguments.out.resolve()
    data = make_data()
    out: dict[str, Array] = {}
    runs, errors = all_runs(), {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # MindSpore leaves files where it runs
        for name, run in runs.items():
            found = record(run, data)
            out |= {f"{name}/{key}": value for key, value in found.items()}
            if run["net"] == "mlp":
                losses, rows = replay(run, data)
                good = [i for i in range(run["count"]) if str(i) not in run.get("fill", {})]
                compare(name, found["loss"][good], losses[good], 2e-5)
                errors[name] = compare(
                    name, found["params"], rows, 2e-4 if "adam" in name else 2e-6
                )
            print(name, found["loss"][-1], errors.get(name))
        extra, about = record_groups(data)
        out |= extra
        print(out["groups/ratios"], out["groups/loss_scale"])
    meta = {
        "layout": {net: layout(net) for net in ("mlp", "convbn")},
        "runs": runs,
        "groups": about,
        "twice": {
            name: ["bn2.running_mean", "bn2.running_var"]
            for name in runs
            if name.startswith("convbn/accumulate")
        },
        "replay_max_abs_error": errors,
    }
    np.savez_compressed(target, meta=np.array(json.dumps(meta)), **out)
    print(target, target.stat().st_size)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
