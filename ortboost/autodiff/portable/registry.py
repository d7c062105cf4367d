"""The table of gradient rules, to which users can add their own.

A rule is a function of a :class:`~ortboost.autodiff.portable.backward.Backward`: it creates nodes
with ``b.op`` and returns one gradient for each input, ``None`` if none is needed. It sums a
gradient over broadcast axes with ``b.sum_to_shape``, and raises
:class:`~ortboost.graph.rewriting.Refusal` for a form that it does not support.

Example:
    A custom operator for which the runtime has a kernel or a function body, `y = x^2 w`::

        from ortboost.autodiff.portable.registry import register

        @register("SquareTimes", domain="my.domain")
        def square_times(b):
            x, w, g = b.input(0), b.input(1), b.gradient()
            gx = gw = None
            if b.needs_gradient(0):
                gx = b.op("Mul", g, b.op("Mul", b.op("Mul", x, w), b.const(2.0)))
            if b.needs_gradient(1):
                gw = b.sum_to_shape(b.op("Mul", g, b.op("Mul", x, x)), w)
            return [gx, gw]

    A replacement gradient for a standard operator, a straight-through estimator for Round::

        @register("Round")
        def straight_through(b):
            return [b.gradient()]

    Pass ``replace=True`` if there already is a rule.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.portable.backward import GradientRule
from ortboost.core.errors import UsageError

__all__ = ["conditions", "find_rule", "refuses", "register", "rules"]

Condition = Callable[[ir.Node], "str | None"]

_RULES: dict[tuple[str, str], GradientRule] = {}
_CONDITIONS: dict[tuple[str, str], Condition] = {}
_loaded = False


def register(
    *op_types: str, domain: str = "", replace: bool = False
) -> Callable[[GradientRule], GradientRule]:
    """Register a gradient rule for operators, as a decorator.

    Args:
        *op_types: Operator names.
        domain: Operator domain, ``""`` for standard ONNX.
        replace: Whether to replace an existing rule.

    Raises:
        UsageError: There already is a rule and ``replace`` is not set.
    """

    def enter(rule: GradientRule) -> GradientRule:
        for op_type in op_types:
            key = (_plain(domain), op_type)
            if key in _RULES and not replace:
                raise UsageError(
                    f"There already is a gradient rule for {op_type}.",
                    where=f"register({op_type!r}, domain={domain!r})",
                    fix="Pass replace=True to replace it.",
                )
            _RULES[key] = rule
        return rule

    return enter


def refuses(*op_types: str, domain: str = "") -> Callable[[Condition], Condition]:
    """Register a condition: node to the reason why it is not supported, or ``None``.

    It is checked before anything is built; the rule itself may rely on it.
    """

    def enter(condition: Condition) -> Condition:
        for op_type in op_types:
            _CONDITIONS[(_plain(domain), op_type)] = condition
        return condition

    return enter


def find_rule(node: ir.Node) -> GradientRule | None:
    """The rule for a node, if there is one."""
    _load()
    return _RULES.get((_plain(node.domain), node.op_type))


def conditions(node: ir.Node) -> str | None:
    """Why this form of a node is not supported, or ``None``."""
    _load()
    condition = _CONDITIONS.get((_plain(node.domain), node.op_type))
    return None if condition is None else condition(node)


def rules() -> dict[tuple[str, str], GradientRule]:
    """All rules: (domain, operator) to rule."""
    _load()
    return dict(_RULES)


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _load() -> None:
    global _loaded
    if not _loaded:  # not on import: the rules import this module
        _loaded = True
        package = importlib.import_module("ortboost.autodiff.portable.rules")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
