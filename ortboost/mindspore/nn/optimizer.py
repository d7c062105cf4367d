"""Base class of the optimizers: parameter groups, learning rates, and optimizer state.

An optimizer here is a description. The training step that uses it builds the update rule into its
graph; the slots (moments) and the count of applied updates belong to the optimizer and move with it
to another training step.
"""

from __future__ import annotations

import copy
import glob
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np

from ortboost.boosts.base import Boost
from ortboost.core.arguments import check_argument, checked
from ortboost.core.field_types import Range
from ortboost.mindspore.core.arguments import ArgumentValueError, NotInThisVersionError
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.live_state import LiveState
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.nn.parameter_groups import (
    Rate,
    check_decay,
    check_rate,
    rate_at,
    read_parameters,
    shown_rate,
)
from ortboost.optimizers import Optimizer as Rule
from ortboost.program import names
from ortboost.program.config import ParameterGroup

__all__ = ["Optimizer", "exact_patterns"]

_Self = TypeVar("_Self", bound="Optimizer")


class Optimizer(Cell):
    """Base class of the optimizers.

    Args:
        learning_rate: A number; a list, tuple or 1-D array with one value per applied update; or a
            :class:`LearningRateSchedule`.
        parameters: A list of parameters, or of dicts with the keys ``params``, ``lr``,
            ``weight_decay``, ``grad_centralization`` and, as the only key of a dict,
            ``order_params``. Missing keys default to the optimizer's values, and no centralization.
        weight_decay: Coefficient `wd`, 0 or more. With a plain list the scale and shift of
            normalizations and names with ``beta`` or ``gamma`` are exempt; groups decay entirely.
        loss_scale: Gradients are divided by it; for a fixed scale whose step does not unscale
            (``TrainOneStepCell(sens=...)``).

    Raises:
        ArgumentKeyError: A group lacks ``params`` or has an unknown key.
        ArgumentRuntimeError: A parameter is in two groups.
    """

    in_words: ClassVar[str] = "an optimizer of ortboost.nn, for example nn.Momentum(...)"

    @checked
    def __init__(
        self,
        learning_rate: Any,
        parameters: Any,
        weight_decay: Any = 0.0,
        loss_scale: Annotated[float, Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self._learning_rate = check_rate(owner, learning_rate)
        self.weight_decay = check_decay(owner, weight_decay)
        self.loss_scale = float(loss_scale)
        self._start(parameters)
        self.gc_multiple_of = 16
        """Only weights of layers with a multiple of this many inputs are centralized."""

    def _start(self, parameters: Any) -> None:
        """Take over parameters, with a new state."""
        read = read_parameters(type(self).__name__, parameters)
        self.is_group, self._groups, self.parameters, self._ordered = read
        self.state = LiveState()
        self.applied_steps = 0
        """Number of applied updates; skipped steps do not count."""
        self.divided_by: Any = None
        """The groups of gradient freeze among which the state is divided, once it is used."""

    # ---- for training steps -------------------------------------------------------------------

    def rule(self) -> Rule:
        """The update rule to build into the graph."""
        raise NotInThisVersionError(
            f"'{type(self).__name__}' has no update rule.",
            where=type(self).__name__,
            fix="Use SGD, Momentum, Adam, AdamWeightDecay or LARS.",
        )

    def adapted(self) -> tuple[str, ...] | None:
        """Patterns of the parameters adapted by LARS; ``None`` without LARS."""
        return None

    def boosts(self) -> tuple[Boost, ...]:
        """Boosts that are part of the rule."""
        return ()

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The parameter groups in the form of a program."""
        if self.is_group:
            return tuple(
                ParameterGroup(
                    name=f"group{index}",
                    patterns=exact_patterns(p.name for p in group.params),
                    learning_rate=None if group.rate is None else str(shown_rate(group.rate)),
                    weight_decay=self.weight_decay
                    if group.weight_decay is None
                    else group.weight_decay,
                )
                for index, group in enumerate(self._groups)
            )
        # By name, as in MindSpore; the program itself exempts normalizations by their use.
        spared = [p.name for p in self.parameters if "beta" in p.name or "gamma" in p.name]
        if not spared or not self.weight_decay:
            return ()
        return (ParameterGroup("spared", exact_patterns(spared), weight_decay=0.0),)

    def rates(self) -> dict[str, float]:
        """The value of each learning-rate input for the next update.

        Raises:
            ArgumentRuntimeError: A list of rates has no entry for it.
        """
        step = self.applied_steps
        rates = {names.LEARNING_RATE: rate_at(self._learning_rate, step)}
        for index, group in enumerate(self._groups if self.is_group else ()):
            if group.rate is not None:
                rates[names.learning_rate_name(f"group{index}")] = rate_at(group.rate, step)
        return rates

    def centralized(self) -> tuple[str, ...]:
        """Names of the parameters in groups with ``grad_centralization``."""
        return tuple(p.name for group in self._groups if group.centralize for p in group.params)

    # ---- for users ----------------------------------------------------------------------------

    @property
    def init_params(self) -> dict[str, Any]:
        """The constructor's parameters as ``params``: a list of parameters or of dicts."""
        if not self.is_group:
            return {"params": list(self.parameters)}
        groups = [
            {
                "params": list(group.params),
                **({} if group.rate is None else {"lr": group.rate}),
                **({} if group.weight_decay is None else {"weight_decay": group.weight_decay}),
                **({"grad_centralization": True} if group.centralize else {}),
            }
            for group in self._groups
        ]
        if self._ordered:
            groups.append({"order_params": list(self.parameters)})
        return {"params": groups}

    def renewed(self: _Self, parameters: Any) -> _Self:
        """Make an optimizer of the same kind and settings for other parameters, with a new state.

        Args:
            parameters: A list of parameters or of dicts, as for :class:`Optimizer`.
        """
        fresh = copy.copy(self)
        fresh._learning_rate = check_rate(type(self).__name__, self._learning_rate)
        fresh._start(parameters)
        return fresh

    @property
    def learning_rate(self) -> Any:
        """The learning rate: a number with ``set_data``, an array, or a schedule.

        It may be replaced by any form of rate.
        """
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        # A Rate is shared: set_data changes it for all optimizers that have it.
        shared = isinstance(value, Rate)
        self._learning_rate = value if shared else check_rate(type(self).__name__, value)

    @property
    def global_step(self) -> Tensor:
        """Number of applied updates, int32."""
        return Tensor(np.int32(self.applied_steps))

    def get_lr(self) -> Tensor | tuple[Tensor, ...]:
        """The learning rate of the next update, float32; with groups one per parameter."""
        rates = self.rates()
        own = rates[names.LEARNING_RATE]
        keys = [names.learning_rate_name(f"group{index}") for index in range(len(self._groups))]
        each = self._each(own, [rates.get(key) for key in keys])
        if isinstance(each, tuple):
            return tuple(Tensor(np.float32(rate)) for rate in each)
        return Tensor(np.float32(each))

    def get_lr_parameter(self, param: Parameter | list[Parameter]) -> Any:
        """The learning rate of a parameter, a number, an array with one per update, or a schedule.

        Args:
            param: A parameter of the optimizer; for a list of them, a list is returned.
        """
        asked = param if isinstance(param, list) else [param]
        given = {p.name: group.rate for group in self._groups for p in group.params}
        for one in asked:
            check_argument("get_lr_parameter", "param", one, Parameter)
            if all(one is not own for own in self.parameters):
                raise ArgumentValueError(
                    f"The optimizer does not have the parameter '{one.name}'.",
                    where="get_lr_parameter",
                    fix="Give one of optimizer.parameters.",
                )
        rates = [self.learning_rate if (r := given.get(p.name)) is None else r for p in asked]
        return rates if isinstance(param, list) else rates[0]

    def get_weight_decay(self) -> float | tuple[float, ...]:
        """The weight decay; with groups one per parameter, in order."""
        return self._each(self.weight_decay, [group.weight_decay for group in self._groups])

    def _each(self, own: float, values: Sequence[float | None]) -> float | tuple[float, ...]:
        """The value of the optimizer; with groups a value per parameter."""
        if not self.is_group:
            return own
        by_name = {
            p.name: own if value is None else value
            for group, value in zip(self._groups, values, strict=True)
            for p in group.params
        }
        return tuple(by_name[p.name] for p in self.parameters)

    def construct(self, *gradients: Any) -> Any:
        """Not supported: the update is part of the step graph."""
        raise NotInThisVersionError(
            "An optimizer cannot be called with gradients.",
            where=type(self).__name__,
            fix="Give it to nn.TrainOneStepCell or nn.TrainOneStepWithLossScaleCell.",
        )


def exact_patterns(parameters: Iterable[str]) -> tuple[str, ...]:
    """Patterns that match exactly these names, whatever characters they contain."""
    return tuple(glob.escape(name) for name in parameters)
