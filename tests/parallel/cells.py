"""A training cell of MindSpore in several processes against one; started by torchrun."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx_ir as ir

import ortboost as ob
from ortboost import boost, nn
from ortboost.communication import get_group_size, get_rank, init, release
from ortboost.training.data.batches import part_rows
from tests.support import small_mlp


def trained(steps, rows, place=None, divided=False):
    network = ob.Network(ir.to_proto(small_mlp()))
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    if place is not None:  # in the space of five directions
        weights = network.trainable_params()
        length = sum(weight.size for weight in weights)
        p = np.random.default_rng(9).standard_normal((5, length)) / np.sqrt(length)
        p = p.astype(np.float32)
        if divided == "by AutoBoost":
            np.save(f"{sys.argv[1]}.{place[0]}.npy", p)
            section = {"n_components": 5, "pca_mat_path": f"{sys.argv[1]}.{place[0]}.npy"}
            config = {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": section}
            _, optimizer = boost.AutoBoost("O0", config).network_auto_process_train(
                network, optimizer
            )
        else:
            p = p[part_rows(5, *place)] if divided else p
            settings = (5, 0.55, 0.9, 0.001, 0.4, *place)
            optimizer = boost.DimReduce(network, optimizer, weights, p, *settings)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    cell = boost.BoostTrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
    for step in range(steps):
        rng = np.random.default_rng(step)
        x, labels = rng.standard_normal((12, 4)), rng.integers(0, 3, 12)
        cell(ob.Tensor(x[rows].astype(np.float32)), ob.Tensor(labels[rows].astype(np.int64)))
    return {p.name: p.asnumpy() for p in network.trainable_params()}, network, cell


if __name__ == "__main__":
    alone, _, _ = trained(6, slice(None))
    reduced_alone, _, _ = trained(6, slice(None), (0, 1))
    refused = {}
    try:
        get_rank()
    except RuntimeError as error:
        refused["before"] = str(error)
    init()
    for name, value in (
        ("device_num", 17),
        ("parallel_mode", "auto_parallel"),
        ("gradients_mean", False),
    ):
        try:
            ob.set_auto_parallel_context(**{"parallel_mode": "data_parallel", name: value})
        except (ValueError, NotImplementedError) as error:
            refused[name] = str(error)
    ob.set_auto_parallel_context(
        parallel_mode=ob.ParallelMode.DATA_PARALLEL,
        gradients_mean=True,
        device_num=get_group_size(),
    )
    weights, network, _ = trained(6, part_rows(12, get_rank(), get_group_size()))
    apart = max(float(np.abs(weights[n] - alone[n]).max()) for n in alone)
    place = (get_rank(), get_group_size())
    reduced_apart, held = [], []
    for divided in (False, True, "by AutoBoost"):
        reduced, _, cell = trained(6, part_rows(12, *place), place, divided)
        reduced_apart.append(max(float(np.abs(reduced[n] - reduced_alone[n]).max()) for n in alone))
        (stepper, _), *_ = cell._steps._built.values()
        held.append(stepper._state.current("ortboost/dim_reduce/basis").shape()[0])
    try:
        trained(1, part_rows(12, *place), place, divided=get_rank() == 0)
    except ob.OrtBoostError as error:
        refused["partly_divided"] = str(error)
    try:
        trained(1, slice(None), (0, 1))
    except ValueError as error:
        refused["rank_size"] = str(error)
    parameters = network.trainable_params()
    old = [ob.Tensor(p.asnumpy()) for p in parameters]
    joins = boost.AdaSum(get_rank(), 1, get_group_size(), parameters)
    deltas = [ob.Tensor(np.zeros(p.shape, np.float32)) for p in parameters]
    shift = np.zeros(parameters[0].shape, np.float32)
    shift.flat[get_rank()] = 1.0  # orthogonal between processes: they add up
    deltas[0] = ob.Tensor(shift)
    joins(deltas, parameters, old)
    moved = (np.asarray(old[0]) - parameters[0].asnumpy()).ravel()
    if get_rank() == 0:
        with open(sys.argv[1], "w") as file:
            found = {
                "apart": apart,
                "reduced_apart": reduced_apart,
                "held": held,
                "refused": refused,
            }
            json.dump({**found, "joined": moved[:4].tolist()}, file)
    release()
