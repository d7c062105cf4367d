"""Arguments of optimizers: parameters in a list or in groups, rates, weight decays."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arguments import check_argument
from ortboost.core.errors import UsageError, require_known
from ortboost.core.field_types import Range
from ortboost.mindspore.core.arguments import (
    ArgumentKeyError,
    ArgumentRuntimeError,
    ArgumentTypeError,
    ArgumentValueError,
    NotInThisVersionError,
)
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.nn.learning_rate_schedule import LearningRateSchedule

__all__ = [
    "Group",
    "Rate",
    "check_decay",
    "check_rate",
    "listed",
    "rate_at",
    "read_parameters",
    "shown_rate",
]

_NotNegative: TypeAlias = Annotated[float, Range(0)]
_GROUP_KEYS = ("params", "lr", "weight_decay", "order_params", "grad_centralization")


class Rate(np.lib.mixins.NDArrayOperatorsMixin, Parameter):
    """A constant learning rate: a number that ``set_data`` replaces."""

    def __init__(self, value: float) -> None:
        super().__init__(np.asarray(value, np.float64), "learning_rate")

    def converted(self, data: Any, slice_shape: bool = False) -> NDArray[Any]:
        """The value that ``set_data`` would write, with its errors; 0 or more."""
        value = super().converted(data, slice_shape)
        check_argument("learning_rate.set_data", "data", float(value), _NotNegative)
        return value

    def __float__(self) -> float:
        return float(self.asnumpy())

    def __bool__(self) -> bool:
        return bool(float(self))

    def __repr__(self) -> str:
        return repr(float(self))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        values = (float(value) if isinstance(value, Rate) else value for value in inputs)
        return getattr(ufunc, method)(*values, **more)


@dataclass(frozen=True)
class Group:
    """Parameters that share a rate and a decay; ``None`` stands for the optimizer's value."""

    params: list[Parameter]
    rate: Any = None
    weight_decay: float | None = None
    centralize: bool = False


def read_parameters(owner: str, parameters: Any) -> tuple[bool, list[Group], list[Parameter], bool]:
    """Parse the parameters of an optimizer.

    Returns:
        Whether they were given in groups; the groups; all parameters, in the order of updates; and
        whether ``order_params`` gave this order.
    """
    items = listed(owner, parameters)
    if isinstance(items[0], Mapping):
        return True, *_read_groups(owner, items)
    _check_unique(owner, items, ArgumentValueError)
    return False, [Group(items)], items, False


def listed(owner: str, value: Any) -> list[Any]:
    """Check a non-empty list of parameters or of dicts."""
    items = list(value) if isinstance(value, Iterable) and not isinstance(value, Mapping) else value
    if not items:
        raise ArgumentValueError(
            "The list of parameters is empty.", where=owner, fix="Give net.trainable_params()."
        )
    if not isinstance(items, list) or not (
        all(isinstance(item, Parameter) for item in items)
        or all(isinstance(item, Mapping) for item in items)
    ):
        raise ArgumentTypeError(
            "Neither parameters nor dicts of them were given.",
            where=owner,
            fix="Give net.trainable_params(), or [{'params': [...], 'lr': 0.1}, ...].",
        )
    return items


def _read_groups(owner: str, items: Sequence[Any]) -> tuple[list[Group], list[Parameter], bool]:
    groups: list[Group] = []
    order: list[Parameter] | None = None
    for index, item in enumerate(items):
        where = f"{owner}, group {index}"
        for key in item:
            require_known(key, _GROUP_KEYS, f"A group has no key '{key}'.", where, ArgumentKeyError)
        # As in MindSpore, the order of all parameters stands in a dict of its own.
        if "order_params" in item:
            if len(item) > 1:
                raise ArgumentValueError(
                    "'order_params' needs a separate dict.", where=where, fix="Split the dict."
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
        check_argument(where, "grad_centralization", centralize, bool)
        rate, decay = item.get("lr"), item.get("weight_decay")
        groups.append(
            Group(
                params,
                None if rate is None else check_rate(where, rate, "lr"),
                None if decay is None else check_decay(where, decay),
                centralize,
            )
        )
    everything = [p for group in groups for p in group.params]
    _check_unique(owner, everything, ArgumentRuntimeError)
    if order is not None and {id(p) for p in order} != {id(p) for p in everything}:
        raise ArgumentValueError(
            "'order_params' does not list exactly the parameters of the groups.",
            where=owner,
            fix="Give net.trainable_params() there.",
        )
    return groups, everything if order is None else order, order is not None


def _check_parameters(where: str, items: Sequence[Any]) -> None:
    for item in items:
        check_argument(where, "params", item, Parameter)


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


def check_decay(owner: str, value: Any) -> float:
    """Check that a weight decay is 0 or more, and return it as float."""
    if isinstance(value, Cell):
        raise NotInThisVersionError(
            "A weight decay that is a Cell is not in this version.",
            where=owner,
            fix="Give a float.",
        )
    check_argument(owner, "weight_decay", value, _NotNegative)
    return float(value)


def check_rate(owner: str, value: Any, name: str = "learning_rate") -> Any:
    """Check a learning rate; returns a new :class:`Rate` or float array, or a schedule."""
    if isinstance(value, LearningRateSchedule):
        return value
    single = isinstance(value, numbers.Real | Parameter)
    if isinstance(value, str | bytes | bool) or not (single or isinstance(value, Iterable)):
        raise ArgumentTypeError(
            f"'{name}' is {type(value).__name__}.",
            where=owner,
            fix="Give a number, a list of numbers, or a schedule, ortboost.nn.CosineDecayLR(...).",
        )
    # numpy would take a generator for one object.
    try:
        array = np.asarray(value if single or hasattr(value, "shape") else list(value))
    except ValueError:  # lists of several lengths, or the parameters in place of the rate
        array = np.asarray(None)
    if array.dtype.kind not in "iuf" and array.size:
        raise ArgumentTypeError(
            f"'{name}' is not numeric.", where=owner, fix="Give numbers of 0 or more."
        )
    if array.ndim > 1 or not array.size:
        raise ArgumentValueError(
            f"'{name}' has the shape {array.shape}.",
            where=owner,
            fix="Give a number, or one number per step.",
        )
    check_argument(owner, name, float(array.min()), _NotNegative)
    return Rate(float(array)) if array.ndim == 0 else array.astype(np.float64)


def rate_at(rate: Any, step: int) -> float:
    """The learning rate of one update, counted from 0.

    Raises:
        ArgumentRuntimeError: The list has ended.
    """
    if isinstance(rate, LearningRateSchedule):
        return float(rate(step))
    if isinstance(rate, Rate):
        return float(rate)
    if step >= len(rate):
        raise ArgumentRuntimeError(
            f"The list of learning rates ends after {len(rate)} updates.",
            where=f"update {step + 1}",
            fix="Give a rate for every step, or use a schedule.",
        )
    return float(rate[step])


def shown_rate(rate: Any) -> Any:
    """The text for a rate in the manifest of a program; the host feeds the values."""
    return rate if isinstance(rate, Rate) else f"by the host: {type(rate).__name__}"
