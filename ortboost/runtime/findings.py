"""The result of a diagnosis: where a step first became non-finite, and statistics of tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Diagnosis", "Finding", "TensorStats"]

_BFLOAT16_MAX = float.fromhex("0x1.fep127")


@dataclass(frozen=True)
class TensorStats:
    """Statistics of a tensor; the finite ones are None if no value is finite.

    Args:
        name: Name of the tensor.
        dtype: Element type.
        shape: Shape.
        least: Smallest finite value.
        greatest: Largest finite value.
        abs_max: Largest finite absolute value.
        inf: Share of infinite values.
        nan: Share of NaN values.
        limit: Largest finite value of the type.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float | None
    greatest: float | None
    abs_max: float | None
    inf: float
    nan: float
    limit: float

    @classmethod
    def of(cls, name: str, array: NDArray[Any], dtype: str | None = None) -> TensorStats:
        """Compute the statistics of an array, upcast if numpy lacks its original ``dtype``.

        Example:
            >>> TensorStats.of("x", np.array([1, -3, np.inf, np.nan], np.float16)).abs_max
            3.0
        """
        kind = dtype or array.dtype.name
        finite = array[np.isfinite(array)]
        size = max(array.size, 1)
        some = finite.size > 0
        return cls(
            name,
            kind,
            tuple(array.shape),
            float(finite.min()) if some else None,
            float(finite.max()) if some else None,
            float(np.abs(finite).max()) if some else None,
            float(np.isinf(array).sum()) / size,
            float(np.isnan(array).sum()) / size,
            _BFLOAT16_MAX if kind == "bfloat16" else float(np.finfo(kind).max),
        )

    @property
    def finite(self) -> bool:
        """Whether all values are finite."""
        return not (self.inf or self.nan)


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
            return f"{text} (not finite already in '{carried[0]}')"
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
