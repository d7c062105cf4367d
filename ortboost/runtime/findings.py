"""The result of a diagnosis: where a step first became non-finite."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ortboost.runtime.tensor_stats import TensorStats

__all__ = ["Diagnosis", "Finding"]


@dataclass(frozen=True)
class Finding:
    """The origin of a non-finite tensor.

    Args:
        where: ``input``, ``state``, ``forward`` (the loss depends on it), ``backward`` (a gradient
            depends on it), ``update`` (it depends on a gradient), or ``statistics`` (none of
            these).
        node: The node that computed it; empty for inputs and states.
        op: Its operator.
        tensor: The tensor.
        inputs: Statistics of the inputs of the node.
        parameters: The parameters among the inputs.
    """

    where: str
    node: str
    op: str
    tensor: TensorStats
    inputs: tuple[TensorStats, ...] = ()
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        # forward: 'h', made by Exp 'exp' with 'w', has 3 % inf (its inputs reach 95 in 'x'; ...)
        found = [
            f"{100 * share:.3g} % {kind}"
            for kind, share in (("inf", self.tensor.inf), ("nan", self.tensor.nan))
            if share
        ]
        maker = f", made by {self.op} '{self.node}'" if self.node else ""
        maker += f" with '{self.parameters[0]}'" if self.parameters else ""
        text = f"{self.where}: '{self.tensor.name}'{maker}, has {' and '.join(found)}"
        carried = [stats.name for stats in self.inputs if not stats.finite]
        if carried:
            return f"{text} (inf comes in by '{carried[0]}')"
        reached = [(i.abs_max, i.name) for i in self.inputs if i.abs_max is not None]
        if not reached:
            return text
        largest, name = max(reached, key=lambda pair: pair[0])
        return (
            f"{text} (its inputs reach {largest:.3g} in '{name}'; "
            f"{self.tensor.dtype} ends at {self.tensor.limit:.3g})"
        )


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis.

    Args:
        findings: The first tensors that became non-finite, in topological order.
        nonfinite: Total number of non-finite tensors.
        tensors: Number of tensors examined.
        loss_scale: The loss scale of the step.
    """

    findings: tuple[Finding, ...]
    nonfinite: int
    tensors: int
    loss_scale: float

    def __str__(self) -> str:
        if self.findings:
            return f"first in {self.findings[0]}"
        if self.nonfinite:
            return f"{self.nonfinite} tensors are not finite, and none of them feeds a gradient"
        return "all tensors are finite when the step is run again"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {**asdict(self), "text": str(self)}
