"""Update rules as graph fragments: one file a rule, the formulas at its top."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ortboost.core.errors import ConfigError, nearest
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
    "optimizer_to_dict",
]

OPTIMIZERS: Mapping[str, type[Any]] = {
    rule.name: rule for rule in (Sgd, Momentum, Adam, AdamW, Lars)
}
"""Name to optimizer class."""


def optimizer_to_dict(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer as JSON data.

    Example:
        >>> optimizer_to_dict(Sgd(momentum=0.5))["momentum"]
        0.5
    """
    data: dict[str, Any] = {"name": optimizer.name}
    for item in dataclasses.fields(optimizer):  # type: ignore[arg-type]
        value = getattr(optimizer, item.name)
        data[item.name] = optimizer_to_dict(value) if isinstance(value, Optimizer) else value
    return data


def optimizer_from_dict(data: Mapping[str, Any]) -> Optimizer:
    """Build an optimizer from its name and hyper-parameters.

    Raises:
        ConfigError: Unknown name or hyper-parameter; the nearest one is named.

    Example:
        >>> optimizer_from_dict({"name": "adam", "beta1": 0.8}).beta1
        0.8
    """
    arguments = dict(data)
    name = str(arguments.pop("name", ""))
    if name not in OPTIMIZERS:
        raise ConfigError(
            f"Unknown optimizer '{name}'.", where="optimizer", fix=nearest(name, OPTIMIZERS)
        )
    fields = [item.name for item in dataclasses.fields(OPTIMIZERS[name])]
    for key, value in arguments.items():
        if key not in fields:
            raise ConfigError(
                f"The optimizer '{name}' has no argument '{key}'.",
                where=f"optimizer '{name}'",
                fix=nearest(key, fields),
            )
        if key == "inner":
            if not isinstance(value, (Mapping, Optimizer)):
                raise ConfigError(
                    f"{key} = {value!r} is not an optimizer.",
                    where=f"optimizer '{name}', {key}",
                    fix='Give an optimizer with its name, for example {"name": "momentum"}.',
                )
            arguments[key] = optimizer_from_dict(value) if isinstance(value, Mapping) else value
    rule: Optimizer = OPTIMIZERS[name](**arguments)
    return rule
