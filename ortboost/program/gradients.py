r"""What happens to gradients between the engine and the optimizer: check, un-scale, clip.

With scaled gradients `G = S g` from the engine, and `d` the gradient divisor:

    finite = all(G is finite)      as sum(0 * G) == 0: 0 * inf and 0 * nan are nan, and a sum of finite
                                   zeros cannot overflow, which a sum of G can
    g      = G / S / d             a multiplication with the rounded reciprocal, as in MindSpore
    g      = clipped g             see :class:`ortboost.program.config.ClipConfig`

`G` is checked before it is un-scaled, which is the same as long as un-scaling only shrinks; where the
configuration allows `S d < 1`, what is checked is `g`.

Small gradients are laid into one vector first: for them a node costs more than the numbers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.query import Parameter
from ortboost.loss_scale import DynamicScaleConfig, FixedScaleConfig
from ortboost.program.config import ClipConfig, ProgramConfig

__all__ = ["ScaledGradients", "clipped"]

_SMALL = 8192  # elements; larger gradients are not worth a copy
_BOOL = ir.DataType.BOOL


class ScaledGradients:
    """The gradients of one step, scaled by `S`.

    Args:
        b: Gets the nodes.
        config: The configuration.
        trained: The parameters, in order.
        gradients: Parameter name to its scaled gradient.
        scale: `S`, float32 scalar; ``None`` for no scaling.
    """

    def __init__(
        self,
        b: Builder,
        config: ProgramConfig,
        trained: Sequence[Parameter],
        gradients: Mapping[str, ir.Value],
        scale: ir.Value | None,
    ) -> None:
        self.b, self.config, self.gradients = b, config, gradients
        self.factor = self._factor(scale)  # reads the scale, so before the branches that write it
        self.small = [p for p in trained if p.size <= _SMALL]
        self.packed: ir.Value | None = None

    def pack(self) -> None:
        """Lay the small gradients into one vector."""
        if len(self.small) < 2:
            self.small = []
            return
        flat = [
            self.gradients[p.name]
            if len(p.shape) == 1
            else self.b.op("Reshape", self.gradients[p.name], self.b.ints(-1), shape=(p.size,))
            for p in self.small
        ]
        length = sum(p.size for p in self.small)
        self.packed = self.b.op("Concat", *flat, axis=0, shape=(length,))

    def finite(self) -> ir.Value:
        """Whether all are finite: bool scalar."""
        zero = self.b.const(0.0)
        checked = list(self._large().values())
        if self.packed is not None:
            checked.append(self.packed)
        if self.factor is not None and self._unscaling_may_overflow():
            checked = [self.b.op("Mul", grad, self.factor) for grad in checked]
        sums = [
            self.b.op("ReduceSum", self.b.op("Mul", grad, zero), keepdims=0, shape=())
            for grad in checked
        ]
        total = self.b.op("Sum", *sums, shape=()) if len(sums) > 1 else sums[0]
        return self.b.op("Equal", total, zero, dtype=_BOOL, shape=())

    def unscaled(self) -> dict[str, ir.Value]:
        """Parameter name to `G / S / d`."""
        if self.factor is None:
            return dict(self.gradients)
        b, factor = self.b, self.factor
        found = dict(self.gradients)
        if self.packed is not None:
            vector = b.op("Mul", self.packed, factor)
            sizes = b.ints(*(p.size for p in self.small))
            parts = b.ops("Split", vector, sizes, names=[None] * len(self.small), axis=0)
            for p, part in zip(self.small, parts, strict=True):
                shaped = len(p.shape) == 1
                found[p.name] = part if shaped else b.op("Reshape", part, b.ints(*p.shape))
            large = self._large()
        else:
            large = dict(self.gradients)
        found.update({name: b.op("Mul", grad, factor) for name, grad in large.items()})
        return found

    def _large(self) -> dict[str, ir.Value]:
        inside = {p.name for p in self.small} if self.packed is not None else set()
        return {name: grad for name, grad in self.gradients.items() if name not in inside}

    def _factor(self, scale: ir.Value | None) -> ir.Value | None:
        """`1 / (S d)`, or ``None`` for 1."""
        factor = None if scale is None else self.b.op("Reciprocal", scale, shape=())
        if self.config.gradient_divisor != 1.0:
            divisor = self.b.const(np.float32(1.0) / np.float32(self.config.gradient_divisor))
            factor = divisor if factor is None else self.b.op("Mul", factor, divisor)
        return factor

    def _unscaling_may_overflow(self) -> bool:
        """Whether `1 / (S d)` can be above 1, so that a finite `G` may have an infinite `g`."""
        law, smallest = self.config.loss_scale, 1.0
        if isinstance(law, DynamicScaleConfig):
            smallest = min(law.init, law.min_scale)
        elif isinstance(law, FixedScaleConfig):
            smallest = law.scale
        return smallest * min(self.config.gradient_divisor, 1.0) < 1.0


def clipped(
    b: Builder, clip: ClipConfig | None, gradients: Mapping[str, ir.Value]
) -> dict[str, ir.Value]:
    """Gradients after clipping.

    Args:
        b: Gets the nodes.
        clip: How; ``None`` changes nothing.
        gradients: Parameter name to un-scaled gradient.
    """
    if clip is None:
        return dict(gradients)
    if clip.by == "value":
        low, high = b.const(-clip.limit), b.const(clip.limit)
        return {name: b.op("Clip", g, low, high) for name, g in gradients.items()}
    norms = {name: b.op("ReduceL2", g, keepdims=0, shape=()) for name, g in gradients.items()}
    if clip.by == "norm":
        factors = {name: _clip_factor(b, norm, clip) for name, norm in norms.items()}
    else:
        squares = [b.op("Mul", norm, norm) for norm in norms.values()]
        total = b.op("Sum", *squares, shape=()) if len(squares) > 1 else squares[0]
        factors = dict.fromkeys(norms, _clip_factor(b, b.op("Sqrt", total), clip))
    return {name: b.op("Mul", g, factors[name]) for name, g in gradients.items()}


def _clip_factor(b: Builder, norm: ir.Value, clip: ClipConfig) -> ir.Value:
    ratio = b.op("Div", b.const(clip.limit), b.op("Add", norm, b.const(1e-6)))
    return b.op("Min", ratio, b.const(1.0))
