"""Locate a difference: the faulty rewrite, or the first intermediate tensor that differs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import OrtBoostError
from ortboost.deploy.intermediates import AT_A_TIME, intermediate_floats, run_intermediates
from ortboost.deploy.pipeline import Step
from ortboost.deploy.tolerance import Tolerance
from ortboost.deploy.verify import Difference, compare
from ortboost.graph.shape_inference import infer_shapes

__all__ = ["IntermediateDifference", "faulty_step", "first_difference"]


def faulty_step(base: ir.Model, steps: Sequence[Step], passes: Callable[[ir.Model], bool]) -> str:
    """Find the rewrite that breaks a graph, by bisection.

    Args:
        base: The graph before all steps; it is not modified.
        steps: The steps applied to it, in order. The result of all of them fails.
        passes: Whether a graph is correct.

    Returns:
        The name of the first step after which the graph fails, assuming that it then keeps failing;
        an empty string if ``base`` itself fails.
    """

    def passes_after(count: int) -> bool:
        model = base.clone()
        try:
            for step in steps[:count]:
                step.apply(model)
            return passes(model)
        except OrtBoostError:  # a graph that cannot be run fails, too
            return False

    if not passes_after(0):
        return ""
    if passes_after(len(steps) - 1):  # usually it is the last, the conversion to a lower precision
        return steps[-1].name
    counts = range(1, len(steps))
    return steps[bisect_left(counts, True, key=lambda count: not passes_after(count))].name


@dataclass(frozen=True)
class IntermediateDifference:
    """The first intermediate tensor that differs between two graphs.

    Args:
        difference: How much it differs.
        node: The node of the second graph that computes it.
        op_type: The operator of this node.
        inputs: The inputs of this node.
        compared: Number of tensors compared.
    """

    difference: Difference
    node: str
    op_type: str
    inputs: tuple[str, ...]
    compared: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "tensor": self.difference.output,
            "max_abs": self.difference.max_abs,
            "max_rel": self.difference.max_rel,
            "node": self.node,
            "op_type": self.op_type,
            "inputs": list(self.inputs),
            "compared": self.compared,
        }


def first_difference(
    one: ir.Model,
    other: ir.Model,
    feeds: Mapping[str, NDArray[Any]],
    tolerance: Tolerance,
    *,
    device: str = "cpu",
) -> IntermediateDifference | None:
    """Compare the intermediate float tensors that two graphs share by name, in the second's order.

    Args:
        one: The reference graph.
        other: The graph under test.
        feeds: One batch of inputs.
        tolerance: The allowed difference.
        device: Where to run.

    Returns:
        The first tensor beyond the tolerance, or ``None``.
    """
    one, other = one.clone(), other.clone()
    for model in (one, other):
        infer_shapes(model)  # files do not always have the types of intermediate tensors
    known = {value.name for value in intermediate_floats(one)}
    shared = [value for value in intermediate_floats(other) if value.name in known]
    for start in range(0, len(shared), AT_A_TIME):
        part = [value.name or "" for value in shared[start : start + AT_A_TIME]]
        want, have = (
            run_intermediates(model, part, feeds, device=device) for model in (one, other)
        )
        for offset, name in enumerate(part):
            found = compare([want], [have], [name], tolerance=tolerance).differences[0]
            if found.within:
                continue
            node = shared[start + offset].producer()
            assert node is not None
            return IntermediateDifference(
                found,
                node.name or "",
                node.op_type,
                tuple(value.name or "" for value in node.inputs if value is not None),
                start + offset + 1,
            )
    return None
