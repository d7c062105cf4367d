"""Checks of the arguments of :class:`ortboost.Model`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ortboost.core.arguments import check_argument
from ortboost.mindspore.boost.auto_boost import AutoBoost
from ortboost.mindspore.boost.group_loss_scale import GroupLossScaleManager
from ortboost.mindspore.core.arguments import (
    ArgumentTypeError,
    ArgumentValueError,
    Count,
    refuse_given,
)
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.nn.train_step import TrainStep
from ortboost.mindspore.nn.wrap import WithEvalCell, WithLossCell, network_of

__all__ = [
    "backbone_of",
    "boosted",
    "check_indexes",
    "check_scale_groups",
    "check_sink",
    "validation_epochs",
]


def backbone_of(network: Cell) -> Network:
    """The network inside of wrapping cells."""
    while isinstance(network, TrainStep):
        network = network.network
    return network_of("Model, network", network)


def boosted(
    boost: AutoBoost, network: Cell, optimizer: Any, eval_network: Cell | None
) -> tuple[Cell, Any]:
    """Apply boosts to network and optimizer; networks are converted in place."""
    if optimizer is None:
        raise ArgumentValueError(
            "There is no optimizer, so there is nothing to boost.",
            where="Model, boost_level",
            fix="Give an optimizer, or leave boost_level out: a boosted network is evaluated "
            "unchanged.",
        )
    network, optimizer = boost.network_auto_process_train(network, optimizer)
    if isinstance(eval_network, Network | WithLossCell | WithEvalCell):
        boost.network_auto_process_eval(eval_network)
    return network, optimizer


def check_scale_groups(boost: AutoBoost, manager: Any) -> None:
    """Refuse the boost ``loss_scale_group`` without a manager that defines the groups.

    Dimension reduction replaces the whole step, so it needs none.
    """
    on = boost.config.on
    wanted = on.loss_scale_group and not on.dim_reduce
    if wanted and not isinstance(manager, GroupLossScaleManager):
        raise ArgumentTypeError(
            f"With 'loss_scale_group' the manager must define groups, but it is "
            f"{type(manager).__name__}.",
            where="Model, loss_scale_manager",
            fix="Give a boost.GroupLossScaleManager.",
        )


def check_indexes(value: Any) -> tuple[int, int, int] | None:
    """Check that ``eval_indexes`` are three numbers."""
    if value is None:
        return None
    check_argument("Model", "eval_indexes", value, list | tuple)
    if len(value) != 3 or not all(isinstance(index, int) for index in value):
        raise ArgumentValueError(
            f"'eval_indexes' is {value!r}.",
            where="Model, eval_indexes",
            fix="Give three numbers: of the loss, the prediction and the label.",
        )
    return value[0], value[1], value[2]


def check_sink(owner: str, mode: object, size: Any) -> None:
    """Check the sink mode, which has no effect, and refuse a sink size."""
    check_argument(owner, "dataset_sink_mode", mode, bool)
    check_argument(owner, "sink_size", size, int)
    if size != -1 and size < 1:
        raise ArgumentValueError(
            f"'sink_size' is {size}.", where=owner, fix="Give -1, or a number above 0."
        )
    refuse_given(owner, sink_size=mode and size != -1)


def validation_epochs(owner: str, frequency: Any) -> Callable[[int], bool]:
    """Return a function that tells whether a validation follows an epoch, counted from 1."""
    if isinstance(frequency, list | tuple | set | range):
        epochs = set(frequency)
        for number in epochs:
            check_argument(owner, "valid_frequency", number, Count)
        return lambda number: number in epochs
    check_argument(owner, "valid_frequency", frequency, Count | list)
    return lambda number: number % frequency == 0
