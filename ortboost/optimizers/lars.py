r"""LARS: layer-wise adaptive rates around another optimizer.

    r  = c |w| / (|g| + wd |w| + eps)     if |w| > 0 and |g| > 0, else 1
    r  = min(r / lr, 1)                   with clipping
    g <- r (g + wd w)

The inner optimizer updates with `g` (after gradient centralization, if enabled) and without weight
decay. Parameters that are not adapted (biases and normalization) pass on their gradient unchanged,
without decay, as in MindSpore's `nn.LARS`.

Source: You et al., "Large Batch Training of Convolutional Networks", 2017, equation 6; the form
with ``eps`` and clipping is from MindSpore's `nn.LARS` documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range, check_kinds
from ortboost.graph.build import Builder
from ortboost.optimizers.base import NotNegative, Optimizer, Rule, Update, UpdateInputs, regularized
from ortboost.optimizers.sgd import Momentum

__all__ = ["Lars"]


@dataclass(frozen=True)
class Lars(Rule):
    """LARS.

    Args:
        inner: The optimizer that applies the adapted gradient.
        trust_coefficient: The factor `c`, above 0.
        epsilon: Added to the denominator.
        use_clip: Bound the adapted rate by the learning rate: `min(r / lr, 1)`.

    Raises:
        ConfigError: A value is out of range, or the inner optimizer is LARS, too.

    Example:
        >>> Lars(Momentum(momentum=0.9), trust_coefficient=0.01).slots
        ('momentum',)
    """

    name: ClassVar[str] = "lars"
    inner: Optimizer = field(default_factory=Momentum)
    trust_coefficient: Annotated[float, Range(1e-30, below=3.4e38)] = 0.001
    epsilon: NotNegative = 1e-5
    use_clip: bool = False

    def __post_init__(self) -> None:
        check_kinds(self, f"optimizer '{self.name}'")
        if isinstance(self.inner, Lars):
            raise ConfigError(
                "LARS would adapt the gradient twice.",
                where="optimizer 'lars', inner",
                fix="Choose another inner optimizer, such as Momentum.",
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots of the inner optimizer."""
        return self.inner.slots

    def update(self, b: Builder, p: UpdateInputs) -> Update:
        """Append the nodes of one update; see the module's formulas."""
        grad = self._adapted(b, p) if p.adapt else p.grad
        # The adapted gradient includes the decay, which the ratio scales; others have no decay.
        return self.inner.update(b, replace(p, grad=grad, weight_decay=0.0))

    def _adapted(self, b: Builder, p: UpdateInputs) -> ir.Value:
        # The norm of the gradient is that before the decay, which has a term of its own.
        weight_norm = _norm(b, p.weight)
        grad_norm = _norm(b, p.grad)
        denominator = b.op("Add", grad_norm, b.const(self.epsilon))
        if p.weight_decay:
            decay = b.op("Mul", weight_norm, b.const(p.weight_decay))
            denominator = b.op("Add", denominator, decay)
        # Boosts act on the adapted gradient, in the inner optimizer.
        grad = regularized(b, replace(p, after_decay=None))
        ratio = b.op("Div", b.op("Mul", weight_norm, b.const(self.trust_coefficient)), denominator)
        zero = b.const(0.0)
        both = b.op(
            "And",
            b.op("Greater", weight_norm, zero, dtype=ir.DataType.BOOL),
            b.op("Greater", grad_norm, zero, dtype=ir.DataType.BOOL),
        )
        # Where replaces 0 / 0 of a zero gradient with epsilon 0, too.
        ratio = b.op("Where", both, ratio, b.const(1.0), dtype=ir.DataType.FLOAT)
        if self.use_clip:
            ratio = b.op("Min", b.op("Div", ratio, p.learning_rate), b.const(1.0))
        return b.op("Mul", grad, ratio)


def _norm(b: Builder, value: ir.Value) -> ir.Value:
    return b.op("ReduceL2", value, keepdims=0, shape=())
