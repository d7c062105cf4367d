r"""The reverse pass: gradients of the values of one graph, or of one branch of an ``If``.

The nodes are visited from the last to the first. The rule for each computes the gradients of its
inputs from those of its outputs; the gradients of all uses of a value are summed:

    grad(x) = sum over uses (node, i) of x:  J_i(node)^T grad(outputs of node)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.own_rule import call_own_rule
from ortboost.autodiff.portable.registry import conditions, find_rule, has_own_rule
from ortboost.autodiff.refused import REFUSED
from ortboost.core.errors import ModelError
from ortboost.graph.build import Builder
from ortboost.graph.query import input_at, is_standard, known_shape, label
from ortboost.graph.reach import STOPS, Reach
from ortboost.graph.rewriting import Refusal
from ortboost.graph.shapes.shape_inference import node_fault

__all__ = ["gradient_support", "reverse_pass"]

_WEIGHTS = "the class weights have no gradient; make them constant"
# The third inputs that have no gradient, with the reason.
_CONSTANT = {
    "NegativeLogLikelihoodLoss": _WEIGHTS,
    "Pad": "its padding value has no gradient; make it constant",
    "SoftmaxCrossEntropyLoss": _WEIGHTS,
}


def gradient_support(node: ir.Node, active: Collection[str] = frozenset()) -> str | None:
    """``None`` if there is a rule for this form of the node, else the reason why not.

    ``active`` are the names of the values that need a gradient.
    """
    try:
        _check_constants(node, active)
    except Refusal as refusal:
        return str(refusal)
    standard = is_standard(node)
    if standard and node.op_type in STOPS:
        return "no gradient flows through it"
    if find_rule(node) is not None:
        return conditions(node)
    if standard:
        return REFUSED.get(node.op_type, "the portable engine has no gradient rule for it")
    return f"{node.domain}::{node.op_type} has no gradient rule; register one, or export without it"


def _check_constants(node: ir.Node, active: Collection[str]) -> None:
    """Refuse a node if an input needs a gradient that our rules do not have."""
    constant = input_at(node, 2) if is_standard(node, *_CONSTANT) else None
    own = has_own_rule(node.domain, node.op_type)
    if constant is not None and constant.name in active and not own:
        raise Refusal(_CONSTANT[node.op_type])


def reverse_pass(
    reached: Reach,
    seeds: Mapping[str, ir.Value],
    wanted: Sequence[str],
    builder: Builder,
    opset: int,
) -> dict[str, ir.Value | None]:
    """Build the gradients of values.

    Args:
        reached: Nodes on the differentiable path, and the values that have gradients.
        seeds: Name to gradient, for the values to start from.
        wanted: Names of the values whose gradients are requested.
        builder: Receives the new nodes.
        opset: Version of the standard opset.

    Returns:
        Name to gradient, ``None`` if there is none, for all of ``wanted``.
    """
    # Name to the gradients of its uses. They are complete when its producer is reached, because all
    # readers come after it; then they are dropped.
    parts = {name: [seed] for name, seed in seeds.items()}
    kept = set(wanted)
    for node in reversed(reached.nodes):
        found = [_total(parts.pop(out.name or "", []), builder) for out in node.outputs]
        # Requested gradients of inner values are needed again at the end.
        for output, gradient in zip(node.outputs, found, strict=True):
            if gradient is not None and output.name in kept:
                parts[output.name or ""] = [gradient]
        if not any(gradient is not None for gradient in found):
            continue
        for value, gradient in _apply(node, builder, opset, found, reached.active):
            parts.setdefault(value.name or "", []).append(gradient)
    return {name: _total(parts.get(name, []), builder) for name in wanted}


def _apply(
    node: ir.Node, builder: Builder, opset: int, gradients: Gradients, active: frozenset[str]
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Each input of a node that needs a gradient, with that gradient."""
    rule = find_rule(node)
    if rule is None:
        raise ModelError(
            f"The operator {node.op_type} has no gradient rule.",
            where=f"node '{label(node)}'",
            fix="Register one, or freeze the parameters before it.",
        )
    wanted = frozenset(i for i, v in enumerate(node.inputs) if v is not None and v.name in active)
    site = Backward(node, builder, opset, gradients, wanted, active)
    try:
        _check_constants(node, active)  # gradient_support does not look into bodies
        own = has_own_rule(node.domain, node.op_type)
        gradients_of_inputs = call_own_rule(rule, site) if own else rule(site)
    except Refusal as refusal:
        raise ModelError(
            f"This form of {node.op_type} has no gradient: {refusal}.",
            where=f"node '{label(node)}'",
            fix="Export it in another form, or freeze the parameters before it.",
        ) from refusal
    except IndexError as error:  # of a shape or attribute shorter than the operator needs
        fault = node_fault(node, opset) if is_standard(node) else None
        if fault is None:
            raise
        raise ModelError(
            f"A {node.op_type} does not fit its inputs.",
            where=f"node '{label(node)}': {fault}",
            fix="Export the model again, or check that the download or copy is complete.",
        ) from error
    # A rule may leave out the last inputs, and gives a gradient to inputs that need none.
    for value, gradient in (*zip(node.inputs, gradients_of_inputs, strict=False), *site.captured):
        if value is None or gradient is None or value.name not in active:
            continue
        if gradient.dtype is None:
            gradient.type = value.type
        if gradient.shape is None and value.shape is not None:
            gradient.shape = value.shape
        yield value, gradient


def _total(parts: Sequence[ir.Value], builder: Builder) -> ir.Value | None:
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    shape = known_shape(parts[0])
    return builder.op("Add" if len(parts) == 2 else "Sum", *parts, shape=shape)
