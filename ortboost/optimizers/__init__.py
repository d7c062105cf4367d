"""Update rules as graph fragments: one file per rule, with its formulas at the top."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from ortboost.core.errors import ConfigError
from ortboost.core.field_types import describe_family, read_config
from ortboost.optimizers.adam import Adam, AdamW
from ortboost.optimizers.base import Optimizer, Update, UpdateInputs
from ortboost.optimizers.lars import Lars
from ortboost.optimizers.sgd import Momentum, Sgd

__all__ = [
    "OPTIMIZERS",
    "Adam",
    "AdamW",
    "Lars",
    "Momentum",
    "Optimizer",
    "Sgd",
    "Update",
    "UpdateInputs",
    "optimizer_from_dict",
    "register",
]

_R = TypeVar("_R", bound=type[Any])

OPTIMIZERS: dict[str, type[Any]] = {rule.name: rule for rule in (Sgd, Momentum, Adam, AdamW, Lars)}
"""Name to optimizer class; :func:`register` adds those of users."""


describe_family(
    Optimizer,
    "name",
    OPTIMIZERS,
    words="an optimizer",
    # Files use the original name of this field.
    written={"trust_coefficient": "coefficient"},
    hint="; a custom optimizer must be registered first, see docs/own_boost.md.",
)


def optimizer_from_dict(data: Mapping[str, Any]) -> Optimizer:
    """Build an optimizer from its name and hyper-parameters, the reverse of ``write_config``.

    Raises:
        ConfigError: Unknown name or hyper-parameter; the nearest one is suggested.

    Example:
        >>> optimizer_from_dict({"name": "adam", "beta1": 0.8}).beta1
        0.8
    """
    rule: Optimizer = read_config(Optimizer, data, "optimizer")  # type: ignore[type-abstract]
    return rule


def register(rule: _R) -> _R:
    """Register an update rule of your own, so that program folders with it can be read.

    Args:
        rule: The class, a frozen dataclass with the attributes of :class:`Optimizer`; replaces a
            class of the same name and module.

    Returns:
        The class, to allow use as a decorator.

    Raises:
        ConfigError: It is no dataclass, or its name is missing or taken.
    """
    name, place = getattr(rule, "name", ""), f"{rule.__module__}.{rule.__qualname__}"
    old = OPTIMIZERS.get(name, rule)
    known = f"{old.__module__}.{old.__qualname__}"
    if not isinstance(name, str) or not name or known != place:
        raise ConfigError(
            f"{name!r} is not a valid name of an optimizer, or it is taken.",
            where=place,
            fix=f"Set the class attribute 'name' to another one than {', '.join(OPTIMIZERS)}.",
        )
    if not dataclasses.is_dataclass(rule):
        raise ConfigError(
            f"The optimizer '{name}' is no dataclass.",
            where=place,
            fix="Decorate it with @dataclass(frozen=True), below @register.",
        )
    OPTIMIZERS[name] = rule
    return rule
