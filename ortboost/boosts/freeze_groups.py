r"""The groups of gradient freeze: group 0 trains everything, each following group less.

Freezing always drops a prefix of the network: the backward pass runs from the loss down to the
first trained layer, and nothing below it is computed.

With `L` layers (:mod:`ortboost.graph.layers`) and `n` groups, group `i` drops the first
`i floor(L / n)` layers. With the type ``COST`` it drops as many layers as fit into `i / n` of the
cost of the backward pass: in a convolutional network the early layers have few parameters and cost
the most.

With fewer layers than groups, `floor(L / n) = 0`: nothing is ever dropped, as in MindSpore, and
there is only one group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.freeze_schedule import COST, FreezeConfig, freeze_schedule
from ortboost.core.errors import ConfigError
from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.layers import find_layers
from ortboost.graph.weights.parameters import Parameter

__all__ = ["freeze_groups"]


def freeze_groups(
    model: ir.Model, trained: Sequence[Parameter], config: FreezeConfig
) -> tuple[tuple[tuple[str, ...], ...], Report]:
    """Find the parameters that each group trains, by name, among those of a forward graph.

    If there are fewer layers than groups, there is a single group, and the report has a note.

    Raises:
        ConfigError: A group contains an untrained name, or the cost of the layers is unknown.
    """
    report = Report("grad_freeze")
    names = [parameter.name for parameter in trained]
    if config.groups is not None:
        _check_given(config.groups, names, report)
        return config.groups, report
    layers = find_layers(model, trained)
    number = config.param_groups
    if len(layers) < number:
        most = len(layers)
        report.kept["grad_freeze"] = few = (
            f"nothing is frozen: {number} groups are requested, but the network has {len(layers)} "
            "layers to train"
        )
        advice = (
            f"; use {most} or fewer (param_groups={most} of the section grad_freeze or of "
            f"FreezeConfig, --boost grad-freeze:groups={most})"
        )
        report.notes.append(f"grad-freeze: {few}{advice if most > 1 else ''}")
        return (tuple(names),), report
    costs = np.array([layer.cost for layer in layers], np.float64)
    if config.freeze_type == COST and not costs.any():
        raise ConfigError(
            "The cost of the layers is unknown.",
            where="grad_freeze, freeze_type",
            fix="Use freeze_type=1, which counts layers, or export with fixed shapes.",
        )
    # The share of the backward pass that the first i layers have.
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
    # The shares over the whole schedule.
    schedule = freeze_schedule(config)
    saved = float(np.mean([shares[cuts[index]] for index in schedule]))
    full = float(np.mean(schedule == 0))
    report.notes.append(
        f"{full:.0%} of the updates train everything; on average {saved:.0%} of the backward pass "
        "is saved"
    )
    return tuple(groups), report


def _check_given(groups: Sequence[Sequence[str]], names: Sequence[str], report: Report) -> None:
    """Refuse untrained names in groups given by the user, and note what no group trains."""
    for group in groups:
        stray = [name for name in group if name not in names]
        if stray:
            raise ConfigError(
                f"'{stray[0]}' is not trained.",
                where="grad_freeze, groups",
                fix=f"Give names of trained parameters, such as {', '.join(names[:3])}.",
            )
    for index, group in enumerate(groups):
        report.changed[f"group {index}"] = f"trains {len(group)} of {len(names)} tensors"
    left = [name for name in names if not any(name in group for group in groups)]
    if left:
        report.notes.append(
            f"grad-freeze: no group trains {count_of(len(left), 'tensor')}, for example '{left[0]}'"
        )


def _cut(index: int, number: int, shares: NDArray[np.float64], config: FreezeConfig) -> int:
    """The number of layers that a group drops; at least the last one is trained."""
    layers = len(shares) - 1
    if index == 0:
        return 0  # trains everything, even layers of cost 0
    if config.freeze_type != COST:
        return index * (layers // number)
    # 1e-9: a share that equals `index / number` up to rounding is affordable.
    affordable = int(np.searchsorted(shares, index / number + 1e-9, side="right")) - 1
    return min(affordable, layers - 1)
