r"""The groups of gradient freeze: group 0 trains everything, each next one less.

Freezing always drops a prefix of the network: the backward pass runs from the loss down to the first
layer that is trained, and what lies below it is not computed at all. A *layer* is a node with a weight
(convolution, matrix product, embedding, ...) together with the biases and normalizations that follow it,
in the order in which the graph computes them; a weight that several nodes share belongs to the first.

With `L` layers and `n` groups, group `i` drops the first `i floor(L / n)` layers. With the type ``COST`` it
drops as many layers as fit into `i / n` of the cost of the backward pass: in a convolutional network
the early layers have few parameters and cost the most. The cost of a layer is

    multiply-accumulates + 32 * elements that its nodes give out

for one sample; the second term is for what moves data and hardly computes (normalization, activation).
Its factor is from measured steps of `models/` on a CPU, where fits gave 10 to 100; docs/benchmarks.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.errors import ConfigError
from ortboost.graph.cost import count_cost, with_lengths
from ortboost.graph.query import Parameter, static_shape
from ortboost.program.freeze_schedule import COST, FreezeConfig, freeze_schedule
from ortboost.report import Report

__all__ = ["Layer", "find_layers", "freeze_groups"]

_ELEMENT = 32  # multiply-accumulates that take as long as the traffic of one element


@dataclass
class Layer:
    """A node with a weight, and what follows it.

    Args:
        node: Name of the node.
        parameters: Names of the trained parameters.
        cost: Cost of its forward pass for one sample; the backward pass costs in proportion.
    """

    node: str
    parameters: list[str] = field(default_factory=list)
    cost: int = 0


def find_layers(model: ir.Model, trained: Sequence[Parameter]) -> list[Layer]:
    """The layers with trained parameters, in the order in which the graph computes them.

    Args:
        model: The forward graph.
        trained: What is trained.
    """
    roles = {parameter.name: parameter.role for parameter in trained}
    costs = _costs(model)
    layers: list[Layer] = []
    placed: set[str] = set()
    for node in model.graph:
        found = [name for name in _reads(node, roles) if name not in placed]
        if found and (not layers or any(roles[name] == "weight" for name in found)):
            layers.append(Layer(node.name or ""))
        if layers:  # what comes before the first layer has no backward pass
            layers[-1].parameters += found
            layers[-1].cost += costs.get(node.name or "", 0)
        placed.update(found)
    return layers


def freeze_groups(
    model: ir.Model, trained: Sequence[Parameter], config: FreezeConfig
) -> tuple[tuple[tuple[str, ...], ...], Report]:
    """The parameters that each group trains.

    Args:
        model: The forward graph.
        trained: What is trained when nothing is frozen.
        config: The configuration.

    Returns:
        One tuple of names for each group, and the report.

    Raises:
        ConfigError: There are fewer layers than groups, or a group names what is not trained.
    """
    report = Report("grad_freeze")
    names = [parameter.name for parameter in trained]
    if config.groups is not None:
        for group in config.groups:
            stray = [name for name in group if name not in names]
            if stray:
                raise ConfigError(
                    f"'{stray[0]}' is not trained.",
                    where="grad_freeze, groups",
                    fix=f"Names are like {', '.join(names[:3])}.",
                )
        for index, group in enumerate(config.groups):
            report.changed[f"group {index}"] = f"trains {len(group)} of {len(names)} tensors"
        return config.groups, report
    layers = find_layers(model, trained)
    number = config.param_groups
    if len(layers) < number:
        raise ConfigError(
            f"{number} groups are wanted, and the network has {len(layers)} layers to train.",
            where="grad_freeze, param_groups",
            fix=f"Use param_groups={max(1, min(len(layers), number // 2))} or less.",
        )
    costs = np.array([layer.cost for layer in layers], np.float64)
    shares = np.concatenate([[0.0], np.cumsum(costs) / max(costs.sum(), 1.0)])
    cuts = [_cut(index, number, shares, config) for index in range(number)]
    groups = []
    for index, cut in enumerate(cuts):
        members = [name for layer in layers[cut:] for name in layer.parameters]
        groups.append(tuple(name for name in names if name in set(members)))
        report.changed[f"group {index}"] = (
            f"trains {len(groups[-1])} of {len(names)} tensors, from '{layers[cut].node}' on; "
            f"saves {shares[cut]:.0%} of the backward pass"
        )
    schedule = freeze_schedule(config)
    saved = float(np.mean([shares[cuts[index]] for index in schedule]))
    full = float(np.mean(schedule == 0))
    report.notes.append(
        f"{full:.0%} of the updates train everything; on average {saved:.0%} of the backward pass "
        "is saved"
    )
    return tuple(groups), report


def _cut(index: int, number: int, shares: NDArray[np.float64], config: FreezeConfig) -> int:
    """How many layers a group drops; at least the last one stays."""
    layers = len(shares) - 1
    if config.freeze_type != COST:
        return index * (layers // number)
    affordable = int(np.searchsorted(shares, index / number + 1e-9, side="right")) - 1
    return min(affordable, layers - 1)


def _reads(node: ir.Node, known: dict[str, str]) -> list[str]:
    """Trained parameters that a node reads, those of its branches too."""
    values = list(node.inputs)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            values += [v for inner in attribute.as_graph().all_nodes() for v in inner.inputs]
    found = [v.name for v in values if v is not None and v.name in known]
    return list(dict.fromkeys(name for name in found if name is not None))


def _costs(model: ir.Model) -> dict[str, int]:
    """Node to the cost of its forward pass for one sample, where shapes are known."""
    settled = with_lengths(model, {})
    found = dict(count_cost(model).nodes)
    for node in settled.graph:
        for output in node.outputs:
            shape = static_shape(output)
            if shape is not None and node.name:
                found[node.name] = found.get(node.name, 0) + _ELEMENT * math.prod(shape)
    return found
