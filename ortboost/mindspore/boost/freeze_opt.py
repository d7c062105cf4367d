"""``FreezeOpt``: an optimizer that trains groups of parameters in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.core.arguments import check_argument, checked
from ortboost.mindspore.core.arguments import ArgumentValueError
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.nn.learning_rate_schedule import LearningRateSchedule
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.parameter_groups import Rate, check_rate, rate_at, read_parameters
from ortboost.mindspore.nn.updates import OptimizerWrapper, Updates

__all__ = ["FreezeOpt"]


class FreezeOpt(OptimizerWrapper):
    """An optimizer that trains one group of parameters at each update.

    Pass it to a training cell in place of the optimizer. Each group has a step graph whose backward
    pass ends at the group's first layer. All share the weights, and each group has its own
    optimizer state, as in MindSpore: a layer in three groups has three momenta, each of which
    changes only on updates of its group. Learning rates are those of ``opt`` by the count of all
    updates, for lists and schedules (MindSpore: for lists that are not longer than the strategy).

    Args:
        opt: The optimizer; its parameters keep their rates and weight decays.
        train_parameter_groups: A list or tuple of groups, each a list or tuple of parameters, or of
            dicts with ``params`` (other keys must repeat the settings of ``opt``); all parameters
            of ``opt`` in one group if not given.
        train_strategy: Index of the group of each update, a list, tuple or 1-D array of integers,
            which repeats. If not given, the groups take turns.

    Attributes:
        train_parameter_groups: The groups, tuples of parameters.
        train_strategy: The indices as a list, or ``None``.
        separate_state: Whether each group has its own optimizer state; set it to False before the
            training cell is made for a shared one (not in MindSpore).

    Raises:
        ArgumentValueError: Also if a group is empty, contains a parameter that ``opt`` lacks, or
            has settings of its own, or an index is out of range.

    Example:
        >>> own = net.trainable_params()  # doctest: +SKIP
        >>> opt = nn.Momentum(own, 0.1, 0.9)  # doctest: +SKIP
        >>> opt = FreezeOpt(opt, [own, own[-2:]], [0, 1, 1])  # doctest: +SKIP
        >>> step = BoostTrainOneStepCell(net_with_loss, opt)  # doctest: +SKIP
    """

    in_words: ClassVar[str] = "a FreezeOpt"

    @checked
    def __init__(
        self, opt: Optimizer, train_parameter_groups: Any = None, train_strategy: Any = None
    ) -> None:
        if train_strategy is not None and train_parameter_groups is None:
            raise ArgumentValueError(
                "'train_strategy' is given without groups.",
                where="FreezeOpt",
                fix="Give train_parameter_groups too.",
            )
        super().__init__(opt)
        self._inner = opt
        self.train_parameter_groups = (
            (tuple(opt.parameters),)
            if train_parameter_groups is None
            else _read_groups(opt, train_parameter_groups)
        )
        self.groups_num = len(self.train_parameter_groups)
        self.train_strategy = _read_strategy(train_strategy, self.groups_num)
        self.separate_state = True
        self._opts: list[Optimizer] | None = None

    def updates(self) -> Updates:
        """How a training step applies it."""
        groups = tuple(tuple(p.name for p in group) for group in self.train_parameter_groups)
        freeze = FreezeConfig(
            groups=groups, sequence=self._sequence(), separate_state=self.separate_state
        )
        return Updates(self._inner, freeze=freeze)

    @property
    def learning_rate(self) -> Any:
        """The learning rate as given; may be replaced, also for :attr:`opts`."""
        return self._inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._inner.learning_rate = value
        for number, opt in enumerate(self._opts or ()):
            opt.learning_rate = self._rate_of_group(self._inner.learning_rate, number)

    @property
    def opts(self) -> list[Optimizer]:
        """An independent optimizer for each group, for :func:`freeze_cell`."""
        if self._opts is None:
            self._opts = [self._of_group(number) for number in range(self.groups_num)]
        return self._opts

    def _sequence(self) -> tuple[int, ...]:
        return tuple(self.train_strategy or range(self.groups_num))

    def _of_group(self, number: int) -> Optimizer:
        chosen = {id(p) for p in self.train_parameter_groups[number]}

        def part(group: Mapping[str, Any]) -> dict[str, Any]:
            found = {**group, "params": [p for p in group["params"] if id(p) in chosen]}
            if "lr" in group:
                found["lr"] = self._rate_of_group(group["lr"], number)
            return found

        origin = self._inner.init_params["params"]
        parameters: list[Any] = [p for p in origin if id(p) in chosen]
        if self._inner.is_group:
            parts = [part(group) for group in origin if "params" in group]
            parameters = [group for group in parts if group["params"]]
        fresh = self._inner.renewed(parameters)
        fresh.learning_rate = self._rate_of_group(self._inner.learning_rate, number)
        return fresh

    def _rate_of_group(self, rate: Any, number: int) -> Any:
        """A rate by the count of updates of one group: rates follow the count of all updates."""
        sequence = self._sequence()
        places = [place for place, group in enumerate(sequence) if group == number]
        constant = isinstance(rate, Rate) or not places
        return rate if constant else _RateOfGroup(rate, places, len(sequence))


class _RateOfGroup(LearningRateSchedule):
    """A schedule over all updates, evaluated by the count of updates of one group."""

    def __init__(self, rate: Any, places: Sequence[int], period: int) -> None:
        super().__init__()
        self.rate, self.places, self.period = rate, places, period

    def construct(self, global_step: int) -> float:
        """The learning rate of update ``global_step`` of the group."""
        # The index-th update of this group in the rounds-th repetition of the strategy.
        rounds, index = divmod(global_step, len(self.places))
        return rate_at(self.rate, rounds * self.period + self.places[index])


def _read_groups(opt: Optimizer, groups: Any) -> tuple[tuple[Parameter, ...], ...]:
    check_argument("FreezeOpt", "train_parameter_groups", groups, tuple | list)
    known = {id(p) for p in opt.parameters}
    found = []
    for number, group in enumerate(groups):
        where = f"FreezeOpt, group {number}"
        check_argument(where, "params", group, tuple | list)
        members: list[Any] = []
        for item in group:
            if not isinstance(item, Mapping):
                members.append(item)
            elif "order_params" not in item:
                members += _read_dict(opt, item, where)
        for member in members:
            check_argument(where, "params", member, Parameter)
            if id(member) not in known:
                raise ArgumentValueError(
                    f"The optimizer does not have the parameter '{member.name}'.",
                    where=where,
                    fix="Make the optimizer with all parameters of the groups.",
                )
        if not members:
            raise ArgumentValueError(
                "A group has no parameters.", where=where, fix="Leave the group out."
            )
        found.append(tuple(members))
    if not found:
        raise ArgumentValueError(
            "There are no groups.", where="FreezeOpt", fix="Give at least one, or leave it out."
        )
    return tuple(found)


def _read_dict(opt: Optimizer, item: Mapping[str, Any], where: str) -> list[Parameter]:
    """The parameters of a dict; refuse settings other than those of the optimizer, which apply."""
    _, (given,), members, _ = read_parameters(where, [item])
    own = {id(p): group for group in opt.init_params["params"] for p in _params_of(group)}
    for p in members:
        group = own.get(id(p))
        settings = group if isinstance(group, Mapping) else {}
        rate = check_rate(where, settings.get("lr", opt.learning_rate))
        decay = settings.get("weight_decay", opt.weight_decay)
        centralize = settings.get("grad_centralization", False)
        for key, value, inner in (
            ("lr", given.rate, rate),
            ("weight_decay", given.weight_decay, decay),
            ("grad_centralization", given.centralize or None, centralize),
        ):
            if value is not None and not np.array_equal(value, inner):
                raise ArgumentValueError(
                    f"A group has its own {key}: {value}, but that of the optimizer for "
                    f"'{p.name}' is {inner}.",
                    where=where,
                    fix="Set rates, decays and centralization in the inner optimizer.",
                )
    return members


def _params_of(group: Parameter | Mapping[str, Any]) -> Sequence[Parameter]:
    return group.get("params", ()) if isinstance(group, Mapping) else (group,)


def _read_strategy(strategy: Any, number: int) -> list[int] | None:
    if strategy is None:
        return None
    check_argument("FreezeOpt", "train_strategy", strategy, tuple | list | np.ndarray)
    if isinstance(strategy, np.ndarray):
        integers = strategy.ndim == 1 and strategy.dtype.kind in "iu"
    else:
        integers = all(isinstance(n, int | np.integer) and type(n) is not bool for n in strategy)
    if not integers or not len(strategy):
        raise ArgumentValueError(
            "'train_strategy' is not a list of integers.",
            where="FreezeOpt, train_strategy",
            fix="Give the index of a group for each update: [0, 1, 0, 2].",
        )
    unknown = [int(index) for index in strategy if not 0 <= index < number]
    if unknown:
        raise ArgumentValueError(
            f"'train_strategy' contains group {unknown[0]}, but there are {number} groups.",
            where="FreezeOpt, train_strategy",
            fix=f"Use 0 to {number - 1}.",
        )
    return [int(index) for index in strategy]
