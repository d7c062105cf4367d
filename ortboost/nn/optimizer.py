"""The base of the optimizers: parameter groups, learning rates, and the optimizer's own state.

An optimizer here is a description. The training step that uses it builds the update rule into its
graph; the slots (moments) and the count of applied updates belong to the optimizer and follow it to
another training step.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortboost.faces.arguments import (
    ArgumentKeyError,
    ArgumentRuntimeError,
    ArgumentTypeError,
    ArgumentValueError,
    NotInThisVersionError,
    check_range,
    check_type,
    is_number,
)
from ortboost.faces.cell import Cell
from ortboost.errors import UsageError, nearest
from ortboost.faces.live_state import LiveState
from ortboost.network import Parameter
from ortboost.nn.learning_rate_schedule import LearningRateSchedule
from ortboost.optimizers import Optimizer as Rule
from ortboost.program import catalogue as names
from ortboost.program.config import ParameterGroup

__all__ = ["Optimizer", "exact_patterns"]

_GROUP_KEYS = ("params", "lr", "weight_decay", "order_params", "grad_centralization")


@dataclass(frozen=True)
class _Group:
    """Parameters that share a rate and a decay; ``None`` is the optimizer's own."""

    params: list[Parameter]
    rate: Any = None
    weight_decay: float | None = None


class Optimizer(Cell):
    """Base of the optimizers.

    Args:
        learning_rate: A number; a list, tuple or 1-D array with one number for each applied
            update; or a :class:`LearningRateSchedule`.
        parameters: A list of parameters, or of dicts with the keys ``params``, ``lr``,
            ``weight_decay``, ``grad_centralization`` (False) and, in one of them alone,
            ``order_params``. What a group leaves out is as the optimizer's own.
        weight_decay: Coefficient `wd`, 0 or more. With a plain list it spares the scale and shift of
            normalizations and names with ``beta`` or ``gamma``; in groups it takes all.
        loss_scale: Gradients are divided by it; for a fixed scale whose step does not un-scale
            (``TrainOneStepCell(sens=...)``).

    Raises:
        ArgumentTypeError, ArgumentValueError: As documented by MindSpore.
        ArgumentKeyError: A group lacks ``params`` or has an unknown key.
        ArgumentRuntimeError: A parameter is in two groups.
    """

    def __init__(
        self,
        learning_rate: Any,
        parameters: Any,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self._learning_rate = _check_rate(owner, learning_rate)
        self.weight_decay = _check_decay(owner, weight_decay)
        if isinstance(loss_scale, int) and not isinstance(loss_scale, bool):
            loss_scale = float(loss_scale)
        check_type(owner, "loss_scale", loss_scale, float)
        check_range(owner, "loss_scale", loss_scale, 0, open_low=True)
        self.loss_scale = loss_scale
        self.is_group, self._groups, self.parameters = _read_parameters(owner, parameters)
        self.state = LiveState()
        self.applied_steps = 0
        """Updates applied so far; skipped steps do not count."""

    # ---- what a training step asks for --------------------------------------------------------

    def rule(self) -> Rule:
        """The update rule that goes into the graph."""
        raise NotInThisVersionError(
            f"'{type(self).__name__}' has no update rule.",
            where=type(self).__name__,
            fix="Use SGD, Momentum, Adam, AdamWeightDecay or LARS.",
        )

    def adapted(self) -> tuple[str, ...] | None:
        """Patterns of the parameters that LARS adapts; ``None`` without LARS."""
        return None

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The parameter groups as the program knows them."""
        if self.is_group:
            return tuple(
                ParameterGroup(
                    name=f"group{index}",
                    patterns=exact_patterns(p.name for p in group.params),
                    learning_rate=None if group.rate is None else str(_shown(group.rate)),
                    weight_decay=self.weight_decay
                    if group.weight_decay is None
                    else group.weight_decay,
                )
                for index, group in enumerate(self._groups)
            )
        spared = [p.name for p in self.parameters if "beta" in p.name or "gamma" in p.name]
        if not spared or not self.weight_decay:
            return ()
        return (ParameterGroup("spared", exact_patterns(spared), weight_decay=0.0),)

    def rates(self) -> dict[str, float]:
        """Learning-rate input to its number for the next update.

        Raises:
            ArgumentRuntimeError: A list of rates has no entry for it.
        """
        step = self.applied_steps
        rates = {names.LEARNING_RATE: _rate_at(self._learning_rate, step)}
        for index, group in enumerate(self._groups if self.is_group else ()):
            if group.rate is not None:
                rates[names.learning_rate_name(f"group{index}")] = _rate_at(group.rate, step)
        return rates

    # ---- what users ask for -------------------------------------------------------------------

    @property
    def learning_rate(self) -> Any:
        """The rate as it was given; can be replaced by another of any form."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._learning_rate = _check_rate(type(self).__name__, value)

    @property
    def global_step(self) -> int:
        """Updates applied so far."""
        return self.applied_steps

    def get_lr(self) -> float | tuple[float, ...]:
        """The rate of the next update; with groups one for each parameter, in their order."""
        rates = self.rates()
        own = rates[names.LEARNING_RATE]
        if not self.is_group:
            return own
        by_name = {
            p.name: rates.get(names.learning_rate_name(f"group{index}"), own)
            for index, group in enumerate(self._groups)
            for p in group.params
        }
        return tuple(by_name[p.name] for p in self.parameters)

    def get_weight_decay(self) -> float | tuple[float, ...]:
        """The weight decay; with groups one for each parameter, in their order."""
        if not self.is_group:
            return self.weight_decay
        by_name = {
            p.name: self.weight_decay if group.weight_decay is None else group.weight_decay
            for group in self._groups
            for p in group.params
        }
        return tuple(by_name[p.name] for p in self.parameters)

    def construct(self, *gradients: Any) -> Any:
        """Not here: the update is part of the step graph."""
        raise NotInThisVersionError(
            "An optimizer cannot be called with gradients.",
            where=type(self).__name__,
            fix="Give it to nn.TrainOneStepCell or nn.TrainOneStepWithLossScaleCell.",
        )


def exact_patterns(parameters: Iterable[str]) -> tuple[str, ...]:
    """Patterns that match just these names, whatever characters they hold."""
    return tuple(glob.escape(name) for name in parameters)


def _read_parameters(owner: str, parameters: Any) -> tuple[bool, list[_Group], list[Parameter]]:
    if parameters is None:
        raise ArgumentValueError(
            "No parameters were given.", where=owner, fix="Give net.trainable_params()."
        )
    if isinstance(parameters, Parameter | Mapping) or not isinstance(parameters, Iterable):
        raise ArgumentTypeError(
            f"'params' is {type(parameters).__name__}.",
            where=owner,
            fix="Give a list of parameters or of dicts: net.trainable_params().",
        )
    items = list(parameters)
    if not items:
        raise ArgumentValueError(
            "The list of parameters is empty.", where=owner, fix="Is everything frozen?"
        )
    if isinstance(items[0], Mapping):
        return True, *_read_groups(owner, items)
    _check_parameters(owner, items)
    _check_unique(owner, items, ArgumentValueError)
    return False, [_Group(items)], items


def _read_groups(owner: str, items: Sequence[Any]) -> tuple[list[_Group], list[Parameter]]:
    groups: list[_Group] = []
    order: list[Parameter] | None = None
    for index, item in enumerate(items):
        where = f"{owner}, group {index}"
        if not isinstance(item, Mapping):
            raise ArgumentTypeError(
                f"Group {index} is {type(item).__name__}.", where=where, fix="Give dicts only."
            )
        for key in item:
            if key not in _GROUP_KEYS:
                raise ArgumentKeyError(
                    f"A group has no key '{key}'.", where=where, fix=nearest(str(key), _GROUP_KEYS)
                )
        if "order_params" in item:
            if len(item) > 1:
                raise ArgumentValueError(
                    "'order_params' stands in a dict of its own.", where=where, fix="Split it."
                )
            order = list(item["order_params"])
            _check_parameters(where, order)
            continue
        if "params" not in item:
            raise ArgumentKeyError(
                "A group has no 'params'.", where=where, fix="Give {'params': [...], 'lr': ...}."
            )
        params = list(item["params"])
        if not params:
            raise ArgumentValueError(
                "A group has an empty 'params'.", where=where, fix="Leave the group out."
            )
        _check_parameters(where, params)
        centralize = item.get("grad_centralization", False)
        check_type(where, "grad_centralization", centralize, bool)
        if centralize:
            raise NotInThisVersionError(
                "Gradient centralization is not in this version.",
                where=where,
                fix="Leave 'grad_centralization' out.",
            )
        rate = item.get("lr")
        decay = item.get("weight_decay")
        groups.append(
            _Group(
                params,
                None if rate is None else _check_rate(where, rate, "lr"),
                None if decay is None else _check_decay(where, decay),
            )
        )
    everything = [p for group in groups for p in group.params]
    _check_unique(owner, everything, ArgumentRuntimeError)
    if order is not None and {id(p) for p in order} != {id(p) for p in everything}:
        raise ArgumentValueError(
            "'order_params' does not list just the parameters of the groups.",
            where=owner,
            fix="Give net.trainable_params() there.",
        )
    return groups, everything if order is None else order


def _check_parameters(where: str, items: Sequence[Any]) -> None:
    for item in items:
        if not isinstance(item, Parameter):
            raise ArgumentTypeError(
                f"A {type(item).__name__} is no parameter.",
                where=where,
                fix="Give parameters of the network: net.trainable_params().",
            )


def _check_unique(owner: str, items: Sequence[Parameter], kind: type[UsageError]) -> None:
    seen = set()
    for item in items:
        if id(item) in seen:
            raise kind(
                f"The parameter '{item.name}' was given twice.",
                where=owner,
                fix="Give each parameter once.",
            )
        seen.add(id(item))


def _check_decay(owner: str, value: Any) -> float:
    if isinstance(value, Cell):
        raise NotInThisVersionError(
            "A weight decay that is a Cell is not in this version.",
            where=owner,
            fix="Give a float.",
        )
    if not is_number(value):
        check_type(owner, "weight_decay", value, int, float)
    check_range(owner, "weight_decay", value, 0)
    return float(value)


def _check_rate(owner: str, value: Any, name: str = "learning_rate") -> Any:
    """A number, a 1-D float array, or a schedule."""
    if isinstance(value, LearningRateSchedule):
        return value
    if isinstance(value, str | bytes | bool) or (
        not is_number(value) and not isinstance(value, Iterable)
    ):
        raise ArgumentTypeError(
            f"'{name}' is {type(value).__name__}.",
            where=owner,
            fix="Give a number, a list of numbers, or a schedule such as nn.CosineDecayLR.",
        )
    array = np.asarray(value if is_number(value) or hasattr(value, "shape") else list(value))
    if array.dtype.kind not in "iuf" and array.size:
        raise ArgumentTypeError(
            f"'{name}' holds no numbers.", where=owner, fix="Give numbers of 0 or more."
        )
    if array.ndim > 1 or not array.size:
        raise ArgumentValueError(
            f"'{name}' has the shape {array.shape}.",
            where=owner,
            fix="Give a number, or one number for each step.",
        )
    check_range(owner, name, float(array.min()), 0)
    return float(array) if array.ndim == 0 else array.astype(np.float64)


def _rate_at(rate: Any, step: int) -> float:
    if isinstance(rate, LearningRateSchedule):
        return float(rate(step))
    if isinstance(rate, float):
        return rate
    if step >= len(rate):
        raise ArgumentRuntimeError(
            f"The list of learning rates ends after {len(rate)} updates.",
            where=f"update {step + 1}",
            fix="Give a rate for every step, or use a schedule.",
        )
    return float(rate[step])


def _shown(rate: Any) -> Any:
    """What the program's manifest says of a rate that the host feeds."""
    return rate if isinstance(rate, float) else f"by the host: {type(rate).__name__}"
