r"""A boost of your own: gradient noise.

    g <- g + s r,    s^2 = eta / t^gamma,    r = 1 or -1 at random        at update t = 1, 2, ...

The noise has the variance of Neelakantan et al., "Adding Gradient Noise Improves Learning for Very
Deep Networks", 2015, whose noise is normal. A Dropout draws it, the only random operator of
onnxruntime that accepts a seed at each step: a resumed run draws the same. docs/own_boost.md shows
how to use the boost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.boosts import Boost, UpdateContext, register
from ortboost.core.errors import ConfigError


@dataclass(frozen=True)
class GradientNoise(Boost):
    """Add noise to the gradients, less and less.

    Args:
        eta: Variance of the noise at the first update, above 0.
        gamma: How fast it falls.
    """

    eta: float = 0.01
    gamma: float = 0.55

    name = "gradient-noise"
    stage = "gradients"

    def __post_init__(self) -> None:
        super().__post_init__()  # the types
        if not 0 < self.eta < 1e30:
            raise ConfigError(f"eta = {self.eta}.", where=self.name, fix="Give a number above 0.")

    def transform_gradients(
        self, update: UpdateContext, gradients: Mapping[str, ir.Value]
    ) -> Mapping[str, ir.Value]:
        """The formula of the module."""
        b = update.b
        number = b.op("Cast", update.step, dtype=ir.DataType.FLOAT, to=ir.DataType.FLOAT)
        variance = b.op("Div", b.const(self.eta), b.op("Pow", number, b.const(self.gamma)))
        deviation = b.op("Sqrt", variance)
        half, training = b.const(0.5), b.const(True, ir.DataType.BOOL)
        noisy = {}
        for parameter in update.trained:
            ones = b.op("Expand", b.const(1.0), b.ints(*parameter.shape))
            # Read the mask: onnxruntime 1.31 removes a Dropout in a branch if nothing does.
            _, mask = b.ops("Dropout", ones, half, training, names=[None, None])
            mask.dtype = ir.DataType.BOOL
            noise = b.op("Where", mask, deviation, b.op("Neg", deviation), dtype=deviation.dtype)
            noisy[parameter.name] = b.op("Add", gradients[parameter.name], noise)
        return noisy


register(GradientNoise, after="clip")
