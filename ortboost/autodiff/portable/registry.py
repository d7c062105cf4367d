"""The table of gradient rules, and the rules that users add to it.

A rule is a function of a :class:`~ortboost.autodiff.portable.backward.Backward`: it creates nodes
with ``b.op`` and returns one gradient for each input, ``None`` if there is none or none is needed.
It sums a gradient over broadcast axes with ``b.sum_to_shape``, and raises
:class:`~ortboost.graph.rewriting.Refusal` for a form that it does not support.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.portable.backward import GradientRule
from ortboost.core.arguments import checked
from ortboost.core.errors import UsageError
from ortboost.core.report import Report
from ortboost.graph.reach import STOPS

__all__ = [
    "conditions",
    "find_rule",
    "has_own_rule",
    "own_operators",
    "refuses",
    "register",
    "register_gradient",
    "rules",
    "unused_rules",
]

Condition = Callable[[ir.Node], "str | None"]

_RULES: dict[tuple[str, str], GradientRule] = {}
_CONDITIONS: dict[tuple[str, str], Condition] = {}
_OWN: dict[tuple[str, str], GradientRule] = {}  # the users', which come first


@checked
def register_gradient(
    *op_types: str, domain: str = "", replace: bool = False
) -> Callable[[GradientRule], GradientRule]:
    """Register a gradient rule of your own for operators, as a decorator.

    The portable engine uses it; the native engine refuses models that need it. A rule for a
    function of the model gives the gradient of the function as a whole.

    Args:
        *op_types: Operator names.
        domain: Operator domain, ``""`` for standard ONNX.
        replace: Whether to replace an existing rule.

    Raises:
        UsageError: No operator is named, no gradient flows through it, or there already is a rule
            and ``replace`` is not set.

    Example:
        A custom operator for which the runtime has a kernel or the model a function,
        ``y = x^2 w``::

            @ob.register_gradient("SquareTimes", domain="my.domain")
            def square_times(b):
                x, w, g = b.input(0), b.input(1), b.gradient()
                gx = gw = None
                if b.needs_gradient(0):
                    gx = b.op("Mul", g, b.op("Mul", b.op("Mul", x, w), b.const(2.0)))
                if b.needs_gradient(1):
                    gw = b.sum_to_shape(b.op("Mul", g, b.op("Mul", x, x)), w)
                return [gx, gw]

        A gradient for a standard operator, a straight-through estimator for Round::

            @ob.register_gradient("Round")
            def straight_through(b):
                return [b.gradient()]
    """
    if not op_types or not all(isinstance(op_type, str) for op_type in op_types):
        raise UsageError(
            "A gradient rule is registered for operators by name.",
            where="register_gradient",
            fix='Write @register_gradient("Round") before the rule.',
        )

    def enter(rule: GradientRule) -> GradientRule:
        for op_type in op_types:
            key = (_plain(domain), op_type)
            if not key[0] and op_type in STOPS:
                raise UsageError(
                    f"A gradient rule for {op_type} would never be called.",
                    where=f"register_gradient({op_type!r})",
                    fix="No gradient flows through it: use an operator or function of your own.",
                )
            if key in rules() and not replace:
                raise UsageError(
                    f"There already is a gradient rule for {op_type}.",
                    where=f"register_gradient({op_type!r}, domain={domain!r})",
                    fix="Pass replace=True to replace it.",
                )
            _OWN[key] = rule
        return rule

    return enter


def register(*op_types: str, domain: str = "") -> Callable[[GradientRule], GradientRule]:
    """Register a rule of ortboost itself, as a decorator."""

    def enter(rule: GradientRule) -> GradientRule:
        for op_type in op_types:
            # A module may run twice: a first import may have failed half-way.
            known = _RULES.setdefault((_plain(domain), op_type), rule)
            if known.__module__ != rule.__module__:
                raise UsageError(
                    f"There are two built-in gradient rules for {op_type}.",
                    where=f"{known.__module__} and {rule.__module__}",
                    fix="Register a rule of your own with ortboost.register_gradient.",
                )
            _RULES[_plain(domain), op_type] = rule
        return rule

    return enter


def refuses(*op_types: str) -> Callable[[Condition], Condition]:
    """Register a condition of the built-in rule of standard operators, as a decorator.

    The condition returns why a node is not supported, or ``None``. It is checked before anything is
    built; the rule itself may rely on it.
    """

    def enter(condition: Condition) -> Condition:
        for op_type in op_types:
            _CONDITIONS["", op_type] = condition
        return condition

    return enter


def find_rule(node: ir.Node) -> GradientRule | None:
    """The rule for a node, if there is one."""
    _load()
    key = (_plain(node.domain), node.op_type)
    return _OWN.get(key) or _RULES.get(key)


def conditions(node: ir.Node) -> str | None:
    """Why the rule does not support this form of a node, or ``None``."""
    _load()
    condition = _CONDITIONS.get((_plain(node.domain), node.op_type))
    return None if condition is None or has_own_rule(node.domain, node.op_type) else condition(node)


def rules() -> dict[tuple[str, str], GradientRule]:
    """All rules: (domain, operator) to rule."""
    _load()
    return {**_RULES, **_OWN}


def has_own_rule(domain: str, op_type: str) -> bool:
    """Whether a user registered a rule for an operator."""
    return (_plain(domain), op_type) in _OWN


def own_operators(model: ir.Model) -> set[str]:
    """The operators of a model for which a user registered a rule."""
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    nodes = (node for graph in graphs if _OWN for node in graph.all_nodes())
    return {n.op_type for n in nodes if has_own_rule(n.domain, n.op_type)}


def unused_rules(before: set[str], model: ir.Model) -> Report:
    """Note the rules of users whose operators were in a model, but were removed by rewrites."""
    report = Report("own_rules")
    report.notes += [
        f"the gradient rule registered for {op_type} is not used: the model is rewritten, and no "
        f"{op_type} is left to differentiate"
        for op_type in sorted(before - own_operators(model))
    ]
    return report


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


@functools.cache  # once it has succeeded
def _load() -> None:
    """Import the rules; not on import of this module, which they import."""
    package = importlib.import_module("ortboost.autodiff.portable.rules")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
