"""The table of decompositions: operator to the rule that expresses it by differentiable ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import onnx_ir as ir

from ortboost.graph.formulas import Term
from ortboost.graph.rewriting import Rule, Site

__all__ = ["DECOMPOSITIONS", "decomposes", "formula"]

DECOMPOSITIONS: dict[str, Rule] = {}
"""Operator to rule; complete once :mod:`ortboost.autodiff.decompose` is imported."""


R = TypeVar("R", bound=Rule)
_Formula: TypeAlias = Callable[[Site, Term], Term]


def decomposes(*op_types: str) -> Callable[[R], R]:
    """Register a rule for operators, as a decorator. The docstring of a rule states its formula."""

    def enter(rule: R) -> R:
        DECOMPOSITIONS.update(dict.fromkeys(op_types, rule))
        return rule

    return enter


def formula(op_type: str, words: str = "") -> Callable[[_Formula], _Formula]:
    """Register the formula of an operator, of a node and its first input, as a decorator.

    ``words`` state it; if not given, the docstring of the function does.
    """

    def enter(function: _Formula) -> _Formula:
        def rule(site: Site) -> list[ir.Value | None]:
            return [function(site, Term(site, site.input(0))).value]

        rule.__doc__ = words or function.__doc__
        decomposes(op_type)(rule)
        return function

    return enter
