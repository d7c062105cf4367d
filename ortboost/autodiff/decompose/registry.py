"""The table of decompositions: operator to the rule that expresses it by differentiable ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ortboost.graph.rewriting import Rule

__all__ = ["DECOMPOSITIONS", "decomposes"]

DECOMPOSITIONS: dict[str, Rule] = {}
"""Operator to rule; complete once :mod:`ortboost.autodiff.decompose` is imported."""


R = TypeVar("R", bound=Rule)


def decomposes(*op_types: str) -> Callable[[R], R]:
    """Register a rule for operators, as a decorator. The docstring of a rule states its formula."""

    def enter(rule: R) -> R:
        DECOMPOSITIONS.update(dict.fromkeys(op_types, rule))
        return rule

    return enter
