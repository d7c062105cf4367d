r"""Time of a step against the rows of an embedding table: dense, sparse, PyTorch dense and sparse.

The network is the mean of the embedded tokens and a linear layer, on 64 texts of 32 tokens drawn
from the whole vocabulary. PyTorch trains the table with SGD or Adam, and with ``sparse=True`` with
SGD or SparseAdam, the linear layer with the dense optimizer. All take turns, one thread, processor
time; the first losses must agree.

Examples:
    The table of the documentation, which needs PyTorch::

        python -m tools.bench.sparse
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ortboost.boosts import LossScale, SparseEmbedding
from ortboost.core.loss_scale import NO_SCALE
from ortboost.deploy.bench_results import Ratio
from ortboost.optimizers import Adam, Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from tools.bench.report import parser_of, publish, say
from tools.bench.step import Step, compare, require_same_loss

__all__ = ["main"]

_BATCH, _TOKENS, _WIDTH, _CLASSES = 64, 32, 64, 10
_RATE = 1e-3
_CONTESTANTS = ("dense", "sparse", "torch dense", "torch sparse")


def _weights(rows: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    shapes = {"table": (rows, _WIDTH), "head": (_WIDTH, _CLASSES)}
    return {name: rng.standard_normal(s).astype(np.float32) / 8 for name, s in shapes.items()}


def _ours(rows: int, feeds: dict[str, NDArray[Any]], optimizer: str, *, sparse: bool) -> Step:
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        bag (int64[N,{_TOKENS}] ids, float[{rows},{_WIDTH}] table, float[{_WIDTH},{_CLASSES}] head,
             int64[1] axis) => (float[N,{_CLASSES}] logits) {{
          e = Gather(table, ids) h = ReduceMean<keepdims = 0>(e, axis)
          logits = MatMul(h, head) }}"""
    )
    values = {value.name: value for value in model.graph.inputs}
    for name, array in {**_weights(rows), "axis": np.array([1])}.items():
        value = values[name]
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=name)
        model.graph.register_initializer(value)
    boosts = (LossScale(NO_SCALE), *((SparseEmbedding(min_rows=1),) if sparse else ()))
    rule = Sgd() if optimizer == "sgd" else Adam(eps_hat=True)
    program = build_program(model, ProgramConfig(boosts=boosts, optimizer=rule))
    stepper = Stepper(program, device="cpu", threads=1)
    return lambda: stepper.step(feeds, {"learning_rate": _RATE}).loss


def _torch(rows: int, feeds: dict[str, NDArray[Any]], optimizer: str, *, sparse: bool) -> Step:
    start = {name: torch.from_numpy(array) for name, array in _weights(rows).items()}
    embedding = torch.nn.Embedding(rows, _WIDTH, sparse=sparse, _weight=start["table"])
    head = torch.nn.Parameter(start["head"])
    dense = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    rule = torch.optim.SparseAdam if sparse and optimizer == "adam" else dense
    optimizers = [rule(embedding.parameters(), lr=_RATE), dense([head], lr=_RATE)]
    ids, labels = torch.from_numpy(feeds["ids"]), torch.from_numpy(feeds["labels"])

    def step() -> float:
        for one in optimizers:
            one.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(embedding(ids).mean(1) @ head, labels)
        loss.backward()
        for one in optimizers:
            one.step()
        return float(loss.item())

    return step


def measure(rows: int, optimizer: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Time all contestants on one size of the table."""
    rng = np.random.default_rng(1)
    feeds = {
        "ids": rng.integers(0, rows, (_BATCH, _TOKENS)),
        "labels": rng.integers(0, _CLASSES, _BATCH),
    }
    makers = (_ours, _ours, _torch, _torch)
    contestants = {
        name: make(rows, feeds, optimizer, sparse="sparse" in name)
        for name, make in zip(_CONTESTANTS, makers, strict=True)
    }
    losses = {who: step() for who, step in contestants.items()}
    require_same_loss(f"{rows} rows, {optimizer}", losses)
    times = compare(contestants, rounds, seconds, time.process_time)
    return {
        "rows": rows,
        "optimizer": optimizer,
        "milliseconds": {who: 1000 * statistics.median(spent) for who, spent in times.items()},
        "dense / sparse": Ratio.of_rounds(times["dense"], times["sparse"]),
        "torch sparse / sparse": Ratio.of_rounds(times["torch sparse"], times["sparse"]),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=(1_000, 10_000, 100_000, 1_000_000))
    parser.add_argument("--optimizer", nargs="+", choices=("sgd", "adam"), default=("sgd", "adam"))
    parser.add_argument("--rounds", type=int, default=10, help="rounds of steps (default: 10)")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each in a round")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    results = []
    for optimizer in arguments.optimizer:
        for rows in arguments.rows:
            say(f"{optimizer}, {rows} rows ...")
            results.append(measure(rows, optimizer, arguments.rounds, arguments.seconds))
    heads = ["optimizer", "rows", *(f"{name} ms" for name in _CONTESTANTS)]
    ratios = ("dense / sparse", "torch sparse / sparse")
    lines = [
        [r["optimizer"], f"{r['rows']:,}"]
        + [f"{r['milliseconds'][name]:.2f}" for name in _CONTESTANTS]
        + [str(r[key]) for key in ratios]
        for r in results
    ]
    plain = [{**r, **{key: vars(r[key]) for key in ratios}} for r in results]
    publish([*heads, *ratios], lines, path=arguments.json, results=plain)
    return 0


if __name__ == "__main__":
    sys.exit(main())
