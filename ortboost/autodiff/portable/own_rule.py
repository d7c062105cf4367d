"""The call of a rule that a user wrote, and a check of what it returns.

A gradient of another shape would fail in training at a node far from the rule, or would be
broadcast without an error.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, GradientRule, Gradients
from ortboost.core.errors import OrtBoostError, UsageError, first_line
from ortboost.core.printable import count_of
from ortboost.graph.query import format_shape, has_subgraph, is_standard, known_shape, label
from ortboost.graph.rewriting import Refusal
from ortboost.graph.shapes.shape_inference import node_fault

__all__ = ["call_own_rule"]


def call_own_rule(rule: GradientRule, b: Backward) -> Gradients:
    """Call a rule.

    Raises:
        Refusal: The rule does not support this form of the node.
        UsageError: The rule fails, or does not return one gradient for each input, of its type and
            shape.
    """
    start = len(b.builder.nodes)
    try:
        found: object = rule(b)
    except (OrtBoostError, Refusal):
        raise
    except Exception as error:
        why = f"fails: {type(error).__name__}: {first_line(error)}"
        raise _wrong(rule, b, why, "Correct the rule.") from error
    if not isinstance(found, list | tuple):
        raise _wrong(rule, b, f"returns a {type(found).__name__}, not a list")
    inputs = b.node.inputs
    # It may leave out the last ones, which need none.
    if len(found) > len(inputs) or any(index >= len(found) for index in b.wanted):
        count = count_of(len(found), "gradient")
        raise _wrong(rule, b, f"returns {count} for {count_of(len(inputs), 'input')}")
    for node in b.builder.nodes[start:]:
        fault = node_fault(node, b.opset) if is_standard(node) and not has_subgraph(node) else None
        if fault is not None:
            raise _wrong(rule, b, f"builds a wrong {node.op_type}: {fault}", "Correct it.")
    for index, (value, gradient) in enumerate(zip(inputs, found, strict=False)):
        if gradient is None or value is None:
            continue
        if not isinstance(gradient, ir.Value):
            kind = type(gradient).__name__
            raise _wrong(rule, b, f"returns a {kind}, not a tensor, for input {index}")
        if None not in (gradient.dtype, value.dtype) and gradient.dtype != value.dtype:
            pair = f"{gradient.dtype} for input {index}, which is {value.dtype}"
            raise _wrong(rule, b, f"returns a gradient of type {pair}")
        have, want = known_shape(gradient), known_shape(value)
        if have is not None and want is not None and _differ(have, want):
            pair = f"{format_shape(have)} for input {index} of shape {format_shape(want)}"
            raise _wrong(rule, b, f"returns a gradient of shape {pair}")
    return found


def _differ(have: tuple[int | str | None, ...], want: tuple[int | str | None, ...]) -> bool:
    """Whether two shapes cannot be equal."""
    numbers = (h != w for h, w in zip(have, want, strict=False) if {type(h), type(w)} == {int})
    return len(have) != len(want) or any(numbers)


_FIX = (
    "Return a list with one gradient of the same type and shape for each input, or None where no "
    "gradient is to flow."
)


def _wrong(rule: GradientRule, b: Backward, what: str, fix: str = _FIX) -> UsageError:
    name = getattr(rule, "__qualname__", repr(rule))
    return UsageError(
        f"The gradient rule for {b.node.op_type} {what}.",
        where=f"node '{label(b.node)}', rule {getattr(rule, '__module__', '')}.{name}",
        fix=fix,
    )
