"""Record MindSpore Boost's dimension reduction as a golden file.

The ``mlp`` of ``mindspore_training.py`` is trained by ``BoostTrainOneStepCell`` with components
that numpy draws from a seed. Made with Python 3.11, mindspore 2.10.0::

    GLOG_v=3 msenv/bin/python tools/golden/mindspore_dim_reduce.py

``dim_reduce.npz``: ``meta`` is a JSON string: ``layout`` of a row (see ``mindspore_training.py``),
``steps`` after which there is a row, and for each run its settings; ``<run>/loss``,
``<run>/params``.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, boost, nn
from mindspore_training import Array, batches, flatten, layout, make_data, make_net, our_name

STEPS = [2, 10]
RUNS: dict[str, dict[str, Any]] = {
    "defaults": {"k": 4, "seed": 1, "size": 1.0},
    "residual": {"k": 8, "seed": 2, "size": 1.0, "alpha": 0.1, "gamma": 0.5},
    "subspace": {"k": 8, "seed": 3, "size": 1.5, "alpha": 0.0},
    "shorter": {"k": 8, "seed": 4, "size": 6.0, "alpha": 0.0, "rho": 0.05, "sigma": 0.1},
}


def main() -> int:
    """Make the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("tests/golden/mindspore/dim_reduce.npz"))
    target = parser.parse_args().out.resolve()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    data, out = make_data(), dict[str, Array]()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, run in RUNS.items():
            cell = make_net("mlp", data)
            parameters = cell.trainable_params()
            names = [our_name(p.name) for p in parameters]  # cells rename them later
            length = sum(p.size for p in parameters)
            rows = np.random.default_rng(run["seed"]).standard_normal((run["k"], length))
            path = f"{folder}/{name}.npy"
            np.save(path, (rows * run["size"] / np.sqrt(length)).astype(np.float32))
            own = {key: run[key] for key in ("rho", "gamma", "alpha", "sigma") if key in run}
            section = {**own, "n_components": run["k"], "pca_mat_path": path}
            boost.AutoBoost._instance = None
            auto = boost.AutoBoost(
                "O1", {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": section}
            )
            network, optimizer = auto.network_auto_process_train(
                cell, nn.Momentum(parameters, 0.05, 0.9)
            )
            loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
            step = boost.BoostTrainOneStepCell(nn.WithLossCell(network, loss), optimizer, sens=1.0)
            step.set_train()
            losses, kept = [], []
            for index, (x, labels) in enumerate(batches("mlp", data, STEPS[-1])):
                losses.append(float(step(Tensor(x), Tensor(labels)).asnumpy()))
                if index + 1 in STEPS:
                    values = [np.array(p.asnumpy()) for p in parameters]
                    kept.append(flatten("mlp", dict(zip(names, values, strict=True))))
            out |= {f"{name}/loss": np.float32(losses), f"{name}/params": np.stack(kept)}
            print(name, losses[0], losses[-1])
    meta = {"layout": layout("mlp"), "steps": STEPS, "runs": RUNS}
    np.savez_compressed(target, meta=np.array(json.dumps(meta)), **out)
    print(target, target.stat().st_size)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
