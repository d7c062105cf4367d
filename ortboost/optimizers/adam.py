r"""Adam and AdamW.

With `t` the number of the update, starting at 1:

    g  <- g + wd w                                    (Adam: decay enters the gradient)
    w  <- w - lr wd w                                 (AdamW: decoupled decay)
    m  <- b1 m + (1 - b1) g
    v  <- b2 v + (1 - b2) g^2
    w  <- w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

With ``eps_hat``, the last line takes the second form given in the paper, as in MindSpore's
`nn.Adam`:

    w  <- w - lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)

`1 - b^t` is computed in double precision: in single precision, `1 - 0.999` has a relative error of
1e-5.

Sources: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, Algorithm 1 and the end
of its section 2; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019; Reddi et
al., "On the Convergence of Adam and Beyond", 2018, for ``amsgrad``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortboost.core.field_types import Range, check_kinds
from ortboost.graph.build import Builder
from ortboost.optimizers.base import Decay, Rule, Update, UpdateInputs, regularized

__all__ = ["Adam", "AdamW"]


@dataclass(frozen=True)
class Adam(Rule):
    """Adam; weight decay is added to the gradient.

    Args:
        beta1: Decay of the running mean of gradients, at least 0 and below 1.
        beta2: Decay of the running mean of squared gradients, at least 0 and below 1.
        eps: Added to the denominator, above 0.
        amsgrad: Divide by the running maximum of `v`.
        nesterov: Use `b1 m + (1 - b1) g` for `m` in the last line.
        eps_hat: Add `eps` where MindSpore does, see the module docstring.
        bias_correction: Divide by `1 - b^t`; MindSpore's `AdamWeightDecay` does not.

    Raises:
        ConfigError: A value out of range.

    Example:
        >>> Adam(amsgrad=True).slots
        ('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq')
    """

    name: ClassVar[str] = "adam"
    decoupled: ClassVar[bool] = False
    row_wise: ClassVar[bool] = True
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    eps: Annotated[float, Range(1e-38, below=3.4e38)] = 1e-8
    amsgrad: bool = False
    nesterov: bool = False
    eps_hat: bool = False
    bias_correction: bool = True

    def __post_init__(self) -> None:
        check_kinds(self, f"optimizer '{self.name}'")

    @property
    def slots(self) -> tuple[str, ...]:
        """Running means of the gradient and of its square, and with ``amsgrad`` the maximum."""
        return ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if self.amsgrad else ())

    def update(self, b: Builder, p: UpdateInputs) -> Update:
        """Append the nodes of one update; see the module's formulas."""
        grad, weight = regularized(b, p, decay=not self.decoupled), p.weight
        # AdamW: w - lr wd w = w (1 - lr wd).
        if p.weight_decay and self.decoupled:
            decay = b.op("Mul", p.learning_rate, b.const(p.weight_decay))
            weight = b.op("Mul", weight, b.op("Sub", b.const(1.0), decay))
        mean = _average(b, p.slots["exp_avg"], grad, self.beta1)
        square = _average(b, p.slots["exp_avg_sq"], b.op("Mul", grad, grad), self.beta2)
        slots = {"exp_avg": mean, "exp_avg_sq": square}
        largest = square
        if self.amsgrad:
            largest = b.op("Max", p.slots["max_exp_avg_sq"], square)
            slots["max_exp_avg_sq"] = largest
        if self.nesterov:  # once more, for this step only: the slot keeps m
            mean = _average(b, mean, grad, self.beta1)
        # Corrections in double precision; only their results, which are scalars, become float32.
        rate, denominator = p.learning_rate, b.op("Sqrt", largest)
        if self.bias_correction:
            correction1 = _bias_correction(b, p.step, self.beta1)
            correction2 = b.op("Sqrt", _bias_correction(b, p.step, self.beta2))
            rate64 = b.op("Div", _cast(b, rate, ir.DataType.DOUBLE), correction1)
            # sqrt(1 - b2^t) belongs to sqrt(v); with eps_hat it is part of the rate instead.
            if self.eps_hat:
                rate64 = b.op("Mul", rate64, correction2)
            else:
                denominator = b.op("Div", denominator, _cast(b, correction2, ir.DataType.FLOAT))
            rate = _cast(b, rate64, ir.DataType.FLOAT)
        denominator = b.op("Add", denominator, b.const(self.eps))
        step = b.op("Mul", b.op("Div", mean, denominator), rate)
        return Update(b.op("Sub", weight, step), slots)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: the weight shrinks by `lr wd w`, outside the moments.

    Example:
        >>> AdamW(beta2=0.95).slots
        ('exp_avg', 'exp_avg_sq')
    """

    name: ClassVar[str] = "adamw"
    decoupled: ClassVar[bool] = True


def _average(b: Builder, old: ir.Value, new: ir.Value, beta: float) -> ir.Value:
    # `1 - beta` is rounded once, from double precision, see the module docstring.
    return b.op("Add", b.op("Mul", old, b.const(beta)), b.op("Mul", new, b.const(1.0 - beta)))


def _bias_correction(b: Builder, step: ir.Value, beta: float) -> ir.Value:
    """`1 - beta^step` in double precision, built once per graph part."""
    double = ir.DataType.DOUBLE
    return b.shared(
        ("bias_correction", beta),
        lambda: b.op("Sub", b.const(1.0, double), b.op("Pow", b.const(beta, double), step)),
    )


def _cast(b: Builder, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """A cast of the learning rate or of a correction, which all parameters share."""
    return b.shared(("cast", value, dtype), lambda: b.op("Cast", value, dtype=dtype, to=dtype))
