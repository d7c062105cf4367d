"""Gradient clipping, after unscaling and accumulation and before the optimizer.

- ``value``: `g <- min(max(g, -c), c)` elementwise;
- ``norm``: `g <- g min(1, c / (|g| + 1e-6))` for each tensor separately;
- ``global-norm``: the same with the norm of all gradients together
  (Pascanu et al., 2013; the 1e-6 is that of `torch.nn.utils.clip_grad_norm_`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import onnx_ir as ir

from ortboost.boosts.base import Boost, Stage, UpdateContext
from ortboost.core.field_types import Range
from ortboost.graph.build import Builder

__all__ = ["Clip", "ClipConfig"]

_TINY, _HUGE = 1e-37, 1e37  # these and their reciprocals are in the range of float32


@dataclass(frozen=True)
class Clip(Boost):
    """Gradient clipping.

    Args:
        by: ``value`` clips each element to [-limit, limit]; ``norm`` and ``global-norm`` scale down
            a gradient, or all of them, whose norm exceeds the limit.
        limit: The largest value or norm.

    Raises:
        ConfigError: The kind is unknown, or the limit is not positive.

    Example:
        >>> Clip("global-norm", 1.0).to_dict()
        {'name': 'clip', 'by': 'global-norm', 'limit': 1.0}
    """

    by: Literal["value", "norm", "global-norm"]
    limit: Annotated[float, Range(above=_TINY, below=_HUGE)]

    name: ClassVar[str] = "clip"
    stage: ClassVar[Stage] = "gradients"
    row_wise: ClassVar[bool] = True

    def transform_gradients(
        self, update: UpdateContext, gradients: Mapping[str, ir.Value]
    ) -> Mapping[str, ir.Value]:
        """Apply the formulas of the module docstring."""
        b = update.b
        if self.by == "value":
            low, high = b.const(-self.limit), b.const(self.limit)
            return {name: b.op("Clip", g, low, high) for name, g in gradients.items()}
        norms = {name: b.op("ReduceL2", g, keepdims=0, shape=()) for name, g in gradients.items()}
        if self.by == "norm":
            factors = {name: self._factor(b, norm) for name, norm in norms.items()}
        else:
            # In float64: the squares of many large norms may overflow together.
            doubles = [b.cast(norm, ir.DataType.DOUBLE) for norm in norms.values()]
            squares = [b.op("Mul", norm, norm) for norm in doubles]
            total = b.combined("Sum", squares, shape=())
            norm = b.cast(b.op("Sqrt", total), ir.DataType.FLOAT)
            factors = dict.fromkeys(norms, self._factor(b, norm))
        return {name: b.op("Mul", g, factors[name]) for name, g in gradients.items()}

    def _factor(self, b: Builder, norm: ir.Value) -> ir.Value:
        ratio = b.op("Div", b.const(self.limit), b.op("Add", norm, b.const(1e-6)))
        return b.op("Min", ratio, b.const(1.0))


ClipConfig: TypeAlias = Clip
"""The former name of :class:`Clip`."""
