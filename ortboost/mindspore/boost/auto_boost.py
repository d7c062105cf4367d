"""``AutoBoost``: boost a network and its optimizer by level."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from ortboost.core.arguments import checked
from ortboost.core.report import Report
from ortboost.mindspore.boost.dim_reduce import DimReduce, read_components
from ortboost.mindspore.boost.grad_accumulation import GradientAccumulation
from ortboost.mindspore.boost.grad_freeze import GradientFreeze
from ortboost.mindspore.boost.less_bn import LessBN
from ortboost.mindspore.boost.optimizer_process import OptimizerProcess
from ortboost.mindspore.boost.parameter_process import ParameterProcess
from ortboost.mindspore.communication import shared_group
from ortboost.mindspore.core.arguments import NotInThisVersionError, as_argument_error
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.updates import OptimizerWrapper
from ortboost.mindspore.nn.wrap import WithEvalCell, network_of
from ortboost.program.boost_config import BoostConfig, resolve_boost
from ortboost.program.boosted import ADASUM_IDLE, SCALE_GROUPS_GIVEN
from ortboost.training.data.batches import part_rows

__all__ = ["AutoBoost", "warn_of_unused"]

_UNUSED: WeakSet[AutoBoost] = WeakSet()  # only for a warning: no configuration is read from here


class AutoBoost:
    """Boosts by level, independent for each instance.

    Levels: ``O0`` nothing; ``O1`` LessBN (with the full-normalization head and gradient
    centralization) and gradient freeze; ``O2`` also AdaSum, which has no effect with one process. A
    dictionary or a JSON file configures details, see :mod:`ortboost.program.boost_config`.

    Unlike in MindSpore, instances do not share a configuration, the tables of the levels are never
    modified, unknown or out-of-range values are errors, and settings without effect cause a
    warning.

    Args:
        level: ``O0``, ``O1`` or ``O2``.
        boost_config_dict: The dictionary, or the path of a JSON file with it.

    Attributes:
        level: The level.
        config: The resolved configuration, :class:`ortboost.program.boost_config.BoostConfig`.
        reports: What the last :meth:`network_auto_process_train` did and did not do, with reasons.

    Raises:
        ArgumentValueError: A level, mode, section or key is unknown, or a value is invalid.
        FileError: The file cannot be read.

    Example:
        >>> boost = AutoBoost("O1", {"grad_freeze": {"param_groups": 4}})
        >>> boost.boost_config["grad_freeze"], boost.config.grad_freeze.param_groups
        (True, 4)
    """

    def __init__(
        self,
        level: str = "O0",
        boost_config_dict: Mapping[str, Any] | str | os.PathLike[str] = "",
    ) -> None:
        with as_argument_error("AutoBoost"):
            self.config: BoostConfig = resolve_boost(level, boost_config_dict)
        self.level = level
        self.reports: tuple[Report, ...] = ()
        if self.config.idle:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.config.idle.items())
            warnings.warn(f"settings of AutoBoost without effect: {reasons}", stacklevel=2)
        if any(self.boost_config.values()):
            _UNUSED.add(self)

    @property
    def boost_config(self) -> dict[str, bool]:
        """A copy of the mapping from boost name to whether it is enabled."""
        return dict(vars(self.config.on))

    @property
    def grad_accumulation_step(self) -> int:
        """Steps per window of accumulation."""
        return self.config.grad_accumulation.grad_accumulation_step

    @property
    def device_number(self) -> int:
        """Devices per server."""
        return self.config.common.device_number

    @property
    def gradient_groups(self) -> list[int] | None:
        """Indices at which a new group for the exchange of gradients starts."""
        points = self.config.common.gradient_split_groups
        return None if points is None else list(points)

    @checked
    def network_auto_process_train(
        self, network: Cell, optimizer: Optimizer
    ) -> tuple[Cell, Optimizer | OptimizerWrapper]:
        """Boost a network and its optimizer for training.

        LessBN converts the network in place: only the returned optimizer trains what is left and
        the new head, with the same learning rates and weight decays, by name. With fewer layers
        than groups of gradient freeze nothing is frozen, and a warning is issued.

        Args:
            network: A network, or one with its loss.
            optimizer: An optimizer with its parameters.

        Returns:
            The network (of the same kind as the argument), and the optimizer for a training cell.

        Raises:
            NotInThisVersionError: An enabled boost is not in this version.
            ModelError: There is no layer for the full-normalization head.
        """
        owner = "AutoBoost.network_auto_process_train"
        backbone = network_of(owner, network)
        self._check_version(owner)
        _UNUSED.discard(self)
        on, report = self.config.on, Report("auto_boost")
        reports: list[Report] = []
        result: Optimizer | OptimizerWrapper = optimizer
        if on.dim_reduce:  # alone, as in MindSpore
            enabled = (name for name, value in self.boost_config.items() if value)
            others = [name for name in enabled if name != "dim_reduce"]
            report.kept.update(dict.fromkeys(others, "dim_reduce replaces the whole step"))
            report.kept.update(self.config.idle)
            report.changed["dim_reduce"] = f"{self.config.dim_reduce.n_components} components"
            self.reports = (report,)
            return network, self._reduced(backbone, optimizer)
        if on.less_bn:
            # First: the groups of gradient freeze follow from the layers that are left.
            reports += LessBN.convert(backbone, self.config.less_bn.fn_flag)
            optimizer = result = self._optimizer_for(backbone, optimizer)
            report.changed["less_bn"] = "the network, in place, and a new optimizer"
        if on.grad_freeze:
            freeze = GradientFreeze.of_config(self.config.grad_freeze)
            network, result = freeze.freeze_generate(network, optimizer)
            if result.groups_num > 1:
                report.changed["grad_freeze"] = f"{result.groups_num} groups"
            else:
                report.kept["grad_freeze"] = "nothing is frozen: there is one group"
        if on.grad_accumulation and self.grad_accumulation_step > 1:
            result = GradientAccumulation(self.grad_accumulation_step, result)
            report.changed["grad_accumulation"] = f"windows of {self.grad_accumulation_step}"
        if on.loss_scale_group:
            report.kept["loss_scale_group"] = SCALE_GROUPS_GIVEN
        if on.adasum:
            report.kept["adasum"] = ADASUM_IDLE
        report.kept.update(self.config.idle)
        self.reports = (report, *reports)
        return network, result

    def network_auto_process_eval(self, network: Cell) -> Cell:
        """Get the network for evaluation.

        It is the network itself: LessBN converts it in place, unless this was done for training.
        (MindSpore makes one without the head, which cannot load the weights.)

        Args:
            network: A network, or one with its loss, in a
                :class:`ortboost.mindspore.nn.WithLossCell` or a
                :class:`ortboost.mindspore.nn.WithEvalCell`.
        """
        if not self.config.on.less_bn:
            return network
        if isinstance(network, WithEvalCell):
            backbone = network.backbone_network
        else:
            backbone = network_of("AutoBoost.network_auto_process_eval", network)
        LessBN.convert(backbone, self.config.less_bn.fn_flag)
        return network

    def _optimizer_for(self, network: Network, optimizer: Optimizer) -> Optimizer:
        """Make an optimizer of the parameters that the given one trains, and of those of a head."""
        less = self.config.less_bn
        trained = {p.name for p in optimizer.parameters}
        if isinstance(network, LessBN):
            trained |= network.added
        parameters = [p for p in network.trainable_params() if p.name in trained]
        process, groups = OptimizerProcess(optimizer), ParameterProcess()
        groups.assign_parameter_group(parameters, self.gradient_groups)
        process.origin_params = groups.generate_group_params(parameters, process.origin_params)
        if less.gc_flag:
            process.add_grad_centralization(network, less.gc_multiple_of)
        return process.generate_new_optimizer()

    def _reduced(self, network: Network, optimizer: Optimizer) -> DimReduce:
        """Replace the step of the optimizer by that of dimension reduction."""
        section, group = self.config.dim_reduce, shared_group()
        rank, size = (0, 1) if group is None else (group.rank, group.size)
        return DimReduce(
            network,
            optimizer,
            network.trainable_params(),
            read_components(section, network)[part_rows(section.n_components, rank, size)],
            section.n_components,
            section.rho,
            section.gamma,
            section.alpha,
            section.sigma,
            rank,
            size,
        )

    def _check_version(self, owner: str) -> None:
        group = shared_group()
        if self.config.on.adasum and group is not None and group.size > 1:
            raise NotInThisVersionError(
                "The boost 'adasum' is not in this version of training cells.",
                where=f"{owner}, level {self.level}, {group.size} processes",
                fix="Convert the model to a program with --boost adasum, or call boost.AdaSum "
                "yourself; {'boost': {'mode': 'manual', 'adasum': False}} turns it off.",
            )


def warn_of_unused(cell: str) -> None:
    """Warn that a training cell is made while an :class:`AutoBoost` has not been applied.

    MindSpore's cells read the enabled boosts from a singleton. Here boosts come with network and
    optimizer, so that ported code might train without them.
    """
    if _UNUSED:
        gc.collect()  # drop those of failed calls
    for boost in _UNUSED:
        warnings.warn(
            f"AutoBoost({boost.level!r}) was not applied, so this {cell} trains without it; call "
            "network, optimizer = boost.network_auto_process_train(network, optimizer) first",
            stacklevel=4,
        )
