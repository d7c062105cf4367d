"""Update rules as graph fragments: one file per rule, with its formulas at the top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
]

OPTIMIZERS: Mapping[str, type[Any]] = {
    rule.name: rule for rule in (Sgd, Momentum, Adam, AdamW, Lars)
}
"""Name to optimizer class."""


describe_family(
    Optimizer,
    "name",
    OPTIMIZERS,
    words="an optimizer",
    # Files use the original name of this field.
    written={"trust_coefficient": "coefficient"},
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
