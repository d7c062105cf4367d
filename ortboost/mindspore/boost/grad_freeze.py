"""``GradientFreeze`` and ``freeze_cell``: train only a part of the network at some updates."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ortboost.boosts.freeze_groups import freeze_groups
from ortboost.boosts.freeze_schedule import (
    FreezeConfig,
    freeze_schedule,
    generate_freeze_index_sequence,
)
from ortboost.core.arguments import check_argument, checked
from ortboost.core.errors import require_known
from ortboost.graph.weights.parameters import find_parameters
from ortboost.mindspore.boost.freeze_opt import FreezeOpt
from ortboost.mindspore.boost.grad_accumulation import GradientAccumulation
from ortboost.mindspore.core.arguments import (
    ArgumentTypeError,
    ArgumentValueError,
    as_argument_error,
    refuse_given,
)
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.train_step import TrainOneStepCell
from ortboost.mindspore.nn.wrap import holds_network, network_of

__all__ = ["GradientFreeze", "freeze_cell"]

_Groups = Sequence[Sequence[Parameter]]


class GradientFreeze:
    """Divides a network into groups, draws the strategy, and makes a :class:`FreezeOpt`.

    Args:
        param_groups: Number of groups; or the groups themselves, lists of parameters, the first
            with all trained parameters.
        freeze_type: 0 (continuous), 1 (interval) or 2 (by cost, not in MindSpore); see
            :mod:`ortboost.boosts.freeze_schedule`.
        freeze_p: Share of the updates that train everything (MindSpore's documentation calls it the
            freezing probability).
        total_steps: Length of the strategy in updates.
        seed: Seed of the random draws. (MindSpore draws from numpy's global generator; here
            ``np.random.seed`` has no effect, and the same ``seed`` always gives the same strategy.)

    Example:
        >>> freeze = GradientFreeze(10, 1, 0.7, 2000)                  # doctest: +SKIP
        >>> network, optimizer = freeze.freeze_generate(net_with_loss, opt)  # doctest: +SKIP
    """

    def __init__(
        self,
        param_groups: int | Sequence[Sequence[Parameter]],
        freeze_type: int,
        freeze_p: float,
        total_steps: int,
        seed: int = 0,
    ) -> None:
        groups: tuple[tuple[str, ...], ...] | None = None
        number: Any = param_groups
        if isinstance(param_groups, list | tuple):
            check_argument("GradientFreeze", "param_groups", param_groups, _Groups)
            groups = tuple(tuple(p.name for p in group) for group in param_groups)
            number = len(groups)
        with as_argument_error("GradientFreeze"):
            self.config = FreezeConfig(
                number, freeze_type, freeze_p, total_steps, seed, groups=groups
            )

    @classmethod
    def of_config(cls, config: FreezeConfig) -> GradientFreeze:
        """Make it from a configuration, which has more settings."""
        freeze = cls(1, 0, 0.0, 1)  # any valid settings, replaced as a whole
        freeze.config = config
        return freeze

    @checked
    def split_parameters_groups(
        self, net: Cell, freeze_para_groups_number: int
    ) -> list[list[Parameter]]:
        """Split parameters into groups: the first has all, each next one drops more of the front.

        The groups follow the layers of the graph, see :mod:`ortboost.boosts.freeze_groups`. For a
        cell without a network they follow the names, by MindSpore's rule: a parameter with 'bn' or
        'bias' in its name belongs to the one before; any other begins a new part if the current
        part has three or more. With fewer layers (or parts) than groups each group contains all:
        nothing is frozen.

        Args:
            net: The network.
            freeze_para_groups_number: Number of groups.

        Raises:
            ArgumentTypeError: ``net`` has no parameters.
        """
        owner, number = "GradientFreeze.split_parameters_groups", freeze_para_groups_number
        with as_argument_error(owner):
            config = FreezeConfig(number, self.config.freeze_type)
            groups, _ = _groups_of(owner, net, config)
        return groups if len(groups) == number else [list(groups[0]) for _ in range(number)]

    def generate_freeze_index_sequence(
        self,
        parameter_groups_number: int,
        freeze_strategy: int,
        freeze_p: float,
        total_steps: int,
    ) -> list[int]:
        """The group of each update; see :mod:`ortboost.boosts.freeze_schedule`.

        Example:
            >>> GradientFreeze(3, 0, 0.5, 8).generate_freeze_index_sequence(3, 0, 0.5, 8)
            [0, 0, 1, 2, 0, 0, 1, 2]
        """
        with as_argument_error("GradientFreeze.generate_freeze_index_sequence"):
            sequence: list[int] = generate_freeze_index_sequence(
                parameter_groups_number,
                freeze_strategy,
                freeze_p,
                total_steps,
                self.config.seed,
            ).tolist()
        return sequence

    @checked
    def freeze_generate(self, network: Cell, optimizer: Optimizer) -> tuple[Cell, FreezeOpt]:
        """Return the unchanged network, and the optimizer that freezes.

        With fewer layers than groups there is one group: nothing is frozen, and a warning is
        issued.

        Args:
            network: The network, or one with its loss.
            optimizer: The optimizer, made with its parameters.

        Raises:
            ArgumentValueError: The optimizer trains no parameter of a group.
        """
        owner, config, notes = "GradientFreeze.freeze_generate", self.config, list[str]()
        known = {id(p) for p in optimizer.parameters}
        with as_argument_error(owner):
            if config.groups is None:
                groups, notes = _groups_of(owner, network, config)
            else:
                groups = _by_config(owner, network, config.groups)
            sequence = [0] if notes else freeze_schedule(config).tolist()
        for note in notes:
            warnings.warn(note, stacklevel=3)
        chosen = [[p for p in group if id(p) in known] for group in groups]
        made = FreezeOpt(optimizer, chosen, sequence)
        made.separate_state = config.separate_state
        return network, made


@checked
def freeze_cell(
    reducer_flag: bool,
    network: Cell,
    optimizer: FreezeOpt,
    sens: Any,
    grad: Any,
    use_grad_accumulation: bool,
    mean: Any = None,
    degree: Any = None,
    max_accumulation_step: int = 1,
) -> tuple[TrainOneStepCell, ...]:
    """Make a training cell for each group of a :class:`FreezeOpt`, for the user to call in turns.

    ``BoostTrainOneStepCell`` does this automatically with a common state; the cells here share the
    weights, but have their own optimizers (``optimizer.opts``) and counts of updates.

    Args:
        reducer_flag: Must be False: only one process is supported.
        network: The network with its loss.
        optimizer: The groups.
        sens: See :class:`ortboost.mindspore.nn.TrainOneStepCell`.
        grad: For compatibility; gradients are computed in the graph.
        use_grad_accumulation: Accumulate in windows of ``max_accumulation_step``, separately in
            each cell.
        mean: For compatibility, with ``reducer_flag``.
        degree: For compatibility, with ``reducer_flag``.
        max_accumulation_step: Steps per window.

    Raises:
        ArgumentValueError: The optimizer has ``separate_state`` False.
        NotInThisVersionError: ``reducer_flag`` is True.
    """
    refuse_given("freeze_cell", reducer_flag=reducer_flag)
    if not optimizer.separate_state:
        raise ArgumentValueError(
            "The groups of the optimizer share their state, but each cell has its own.",
            where="freeze_cell, optimizer",
            fix="Leave separate_state True, or give the optimizer to BoostTrainOneStepCell.",
        )
    steps = max_accumulation_step if use_grad_accumulation else 1
    return tuple(
        TrainOneStepCell(network, GradientAccumulation(steps, opt), sens) for opt in optimizer.opts
    )


def _groups_of(
    owner: str, cell: Cell, config: FreezeConfig
) -> tuple[list[list[Parameter]], list[str]]:
    """The groups; and if there is only one for lack of layers or parts, a note."""
    if not holds_network(cell):
        return _by_names(owner, cell.trainable_params(), config.param_groups)
    network = network_of(owner, cell)
    own = {p.name: p for p in network.trainable_params()}
    trained = [p for name, p in find_parameters(network.model).items() if name in own]
    groups, report = freeze_groups(network.model, trained, config)
    return [[own[name] for name in group] for group in groups], report.notes if report.kept else []


def _by_config(owner: str, network: Cell, groups: Sequence[Sequence[str]]) -> list[list[Parameter]]:
    own = {p.name: p for p in network_of(owner, network).trainable_params()}
    for name in (name for group in groups for name in group):
        require_known(
            name, own, f"'{name}' is not trained.", f"{owner}, groups", ArgumentValueError
        )
    return [[own[name] for name in group] for group in groups]


def _by_names(
    owner: str, parameters: Sequence[Parameter], number: int
) -> tuple[list[list[Parameter]], list[str]]:
    parts: list[list[Parameter]] = []
    for parameter in parameters:
        follows = "bn" in parameter.name or "bias" in parameter.name
        if parts and (follows or len(parts[-1]) < 3):
            parts[-1].append(parameter)
        else:
            parts.append([parameter])
    if not parts:
        raise ArgumentTypeError(
            "The network has nothing to train.",
            where=owner,
            fix="Set requires_grad = True on the parameters to train.",
        )
    if len(parts) < number:
        note = (
            f"nothing is frozen: {number} groups are requested, but there are {len(parts)} parts "
            "to train"
        )
        return [list(parameters)], [note]
    stride = len(parts) // number
    return [[p for part in parts[index * stride :] for p in part] for index in range(number)], []
