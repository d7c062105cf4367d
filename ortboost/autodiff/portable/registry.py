"""The table of gradient rules, and how a user adds one.

A rule is a function of a :class:`~ortboost.autodiff.portable.backward.Backward`: it makes nodes
with ``b.op`` and answers with one gradient for each input, ``None`` where none is wanted. It sums a
gradient over broadcast axes with ``b.sum_to_shape``, and refuses a form that it cannot do with
:class:`~ortboost.graph.rewriting.Refusal`.

Example:
    An operator of one's own that the runtime has a kernel or a function body for, `y = x^2 w`::

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

    Another gradient for a standard operator, straight through a rounding::

        @register("Round")
        def straight_through(b):
            return [b.gradient()]

    Give ``replace=True`` where there is a rule already.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

import onnx_ir as ir

from ortboost.autodiff.portable.backward import GradientRule
from ortboost.core.errors import UsageError

__all__ = ["conditions", "find_rule", "refuses", "register", "rules"]

_FAMILIES: Final = (
    "elementwise",
    "functions",
    "activations",
    "reductions",
    "softmax",
    "shapes",
    "slicing",
    "padding",
    "indexing",
    "matmul",
    "convolution",
    "pooling",
    "normalization",
    "recurrent",
    "losses",
    "random",
    "col2im",
    "control_flow",
)
Condition = Callable[[ir.Node], "str | None"]

_RULES: dict[tuple[str, str], GradientRule] = {}
_CONDITIONS: dict[tuple[str, str], Condition] = {}
_loaded = False


def register(
    *op_types: str, domain: str = "", replace: bool = False
) -> Callable[[GradientRule], GradientRule]:
    """Enter a gradient rule for operators; used as a decorator.

    Args:
        *op_types: Operator names.
        domain: Operator domain, ``""`` for standard ONNX.
        replace: Take the place of a rule that is there.

    Raises:
        UsageError: There is a rule already and ``replace`` was not given.
    """

    def enter(rule: GradientRule) -> GradientRule:
        for op_type in op_types:
            key = (_plain(domain), op_type)
            if key in _RULES and not replace:
                raise UsageError(
                    f"There is a gradient rule for {op_type} already.",
                    where=f"register({op_type!r}, domain={domain!r})",
                    fix="Pass replace=True if yours shall take its place.",
                )
            _RULES[key] = rule
        return rule

    return enter


def refuses(*op_types: str, domain: str = "") -> Callable[[Condition], Condition]:
    """Enter a condition: from a node to the reason why its form has no rule, or ``None``.

    The check asks it before anything is built; the rule itself may rely on it.
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
    """Why the form of this node has no rule, or ``None``."""
    _load()
    condition = _CONDITIONS.get((_plain(node.domain), node.op_type))
    return None if condition is None else condition(node)


def rules() -> dict[tuple[str, str], GradientRule]:
    """All rules: domain and operator to rule."""
    _load()
    return dict(_RULES)


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _load() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for family in _FAMILIES:
            importlib.import_module(f"ortboost.autodiff.portable.rules.{family}")
