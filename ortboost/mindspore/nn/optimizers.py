"""The optimizers with MindSpore's API; the formulas are in :mod:`ortboost.optimizers`.

Arguments that their docstrings omit (``params``, ``learning_rate``, ``weight_decay``,
``loss_scale``) are those of :class:`~ortboost.mindspore.nn.optimizer.Optimizer`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from ortboost import optimizers as rules
from ortboost.core.arguments import check_argument, checked
from ortboost.core.errors import nearest
from ortboost.core.field_words import OnlyFloat, Range
from ortboost.mindspore.core.arguments import (
    ArgumentKeyError,
    ArgumentTypeError,
    ArgumentValueError,
    NotNegativeFloat,
    PositiveFloat,
    refuse_given,
)
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.nn.optimizer import Optimizer, exact_patterns
from ortboost.program.config import ParameterGroup

__all__ = ["LARS", "SGD", "Adam", "AdamWeightDecay", "Momentum"]

_Beta: TypeAlias = Annotated[float, OnlyFloat, Range(above=0, below=1)]


class SGD(Optimizer):
    """Stochastic gradient descent; see :mod:`ortboost.optimizers.sgd`.

    Args:
        momentum: 0 or more.
        dampening: 0 to 1; not applied on the first update.
        nesterov: Whether to use Nesterov momentum; needs a momentum and no dampening.
    """

    @checked
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 0.1,
        momentum: Annotated[float, Range(0)] = 0.0,
        dampening: Annotated[float, Range(0, 1)] = 0.0,
        weight_decay: Any = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentValueError(
                "Nesterov needs a momentum above 0 and a dampening of 0.",
                where="SGD, nesterov",
                fix="Set momentum, for example 0.9, and leave dampening out.",
            )
        self.momentum, self.dampening, self.nesterov = float(momentum), float(dampening), nesterov

    def rule(self) -> rules.Optimizer:
        """The update rule."""
        return rules.Sgd(self.momentum, self.dampening, self.nesterov)


class Momentum(Optimizer):
    """SGD with momentum; see :mod:`ortboost.optimizers.sgd`.

    Args:
        momentum: A float, 0 or more.
        use_nesterov: Whether to use Nesterov momentum. MindSpore 2.10 ignores it on the CPU.
    """

    @checked
    def __init__(
        self,
        params: Any,
        learning_rate: Any,
        momentum: NotNegativeFloat,
        weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        self.momentum, self.use_nesterov = momentum, use_nesterov

    def rule(self) -> rules.Optimizer:
        """The update rule."""
        return rules.Momentum(self.momentum, nesterov=self.use_nesterov and self.momentum > 0)


class Adam(Optimizer):
    """Adam with `eps` as in MindSpore: ``ortboost.Adam(eps_hat=True)``.

    See :mod:`ortboost.optimizers.adam`. The rule of ``ortboost.Adam()``, ``{"name": "adam"}`` and
    ``--optimizer adam`` is PyTorch's instead, which adds `eps` after the bias correction. They
    differ while `t` is small, and for gradients not much larger than `eps`.

    Args:
        beta1: Between 0 and 1, exclusive.
        beta2: Between 0 and 1, exclusive.
        eps: Above 0; added to the square root before any bias correction.
        use_locking: For compatibility; updates never interleave here.
        use_nesterov: Whether to use Nesterov momentum.
        weight_decay: Added to the gradient; see :class:`Optimizer`.
        use_amsgrad: Divide by the running maximum of the second moment.
        **kwargs: ``use_lazy`` and ``use_offload``, which must be False.

    Raises:
        ArgumentKeyError: An argument is unknown.
    """

    @checked
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: _Beta = 0.9,
        beta2: _Beta = 0.999,
        eps: PositiveFloat = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        use_amsgrad: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        for key, value in kwargs.items():
            if key not in ("use_lazy", "use_offload"):
                raise ArgumentKeyError(
                    f"Adam has no argument '{key}'.",
                    where="Adam",
                    fix=nearest(key, ("use_lazy", "use_offload", "use_amsgrad", "use_nesterov")),
                )
            check_argument("Adam", key, value, bool)
        refuse_given("Adam", **kwargs)
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.use_nesterov, self.use_amsgrad = use_nesterov, use_amsgrad

    def rule(self) -> rules.Optimizer:
        """The update rule."""
        return rules.Adam(
            self.beta1,
            self.beta2,
            self.eps,
            amsgrad=self.use_amsgrad,
            nesterov=self.use_nesterov,
            eps_hat=True,
        )


class AdamWeightDecay(Optimizer):
    """Adam with decoupled weight decay and, as in MindSpore, without bias correction.

    This is ``ortboost.AdamW(bias_correction=False)``; ``{"name": "adamw"}`` corrects the bias, as
    PyTorch does.

    Args:
        beta1: Between 0 and 1, exclusive.
        beta2: Between 0 and 1, exclusive.
        eps: Above 0.
        weight_decay: `w` shrinks by `lr wd w`; see :class:`Optimizer`.
    """

    @checked
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: _Beta = 0.9,
        beta2: _Beta = 0.999,
        eps: PositiveFloat = 1e-6,
        weight_decay: Any = 0.0,
    ) -> None:
        super().__init__(learning_rate, params, weight_decay)
        self.beta1, self.beta2, self.eps = beta1, beta2, eps

    def rule(self) -> rules.Optimizer:
        """The update rule."""
        return rules.AdamW(self.beta1, self.beta2, self.eps, bias_correction=False)


class LARS(Optimizer):
    """LARS around another optimizer; see :mod:`ortboost.optimizers.lars`.

    Args:
        optimizer: The optimizer that receives the adapted gradients. LARS takes over its weight
            decay, and shares its parameters and rates.
        epsilon: Added to the denominator, a float.
        coefficient: Trust coefficient, a float above 0.
        use_clip: Bound the adapted rate by the learning rate.
        lars_filter: Whether a parameter is adapted; others get their plain gradient and no weight
            decay. By default all but biases and normalizations, determined by use and by name.
    """

    @checked
    def __init__(
        self,
        optimizer: Optimizer,
        epsilon: NotNegativeFloat = 1e-5,
        coefficient: PositiveFloat = 1e-3,
        use_clip: bool = False,
        lars_filter: Callable[[Parameter], bool] | None = None,
    ) -> None:
        if isinstance(optimizer, LARS) or optimizer.boosts():
            kind = type(optimizer).__name__
            fix = "Give its optimizer." if isinstance(optimizer, LARS) else f"Train with {kind}."
            raise ArgumentTypeError(f"LARS cannot wrap {kind}.", where="LARS, optimizer", fix=fix)
        # Parameters, groups and decay are those of the inner optimizer, not new ones of this one.
        super().__init__(0.0, optimizer.parameters, loss_scale=optimizer.loss_scale)
        self.optimizer, self.epsilon, self.coefficient = optimizer, epsilon, coefficient
        self.use_clip, self.lars_filter = use_clip, lars_filter
        self.is_group, self._groups = optimizer.is_group, optimizer._groups
        self._ordered = optimizer._ordered
        self.weight_decay = optimizer.weight_decay
        self.gc_multiple_of = optimizer.gc_multiple_of

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the inner optimizer."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.optimizer.learning_rate = value

    def renewed(self, parameters: Any) -> LARS:
        """Make a new LARS around a renewed inner optimizer."""
        fresh = super().renewed(parameters)
        fresh.optimizer = self.optimizer.renewed(parameters)
        fresh._groups = fresh.optimizer._groups
        return fresh

    def rule(self) -> rules.Optimizer:
        """The update rule."""
        return rules.Lars(self.optimizer.rule(), self.coefficient, self.epsilon, self.use_clip)

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The groups of the inner optimizer; none for a plain list, where the filter decides."""
        return self.optimizer.groups() if self.is_group else ()

    def rates(self) -> dict[str, float]:
        """The rates of the inner optimizer at this optimizer's count of updates."""
        inner = copy.copy(self.optimizer)  # which may have a count of its own
        inner.applied_steps = self.applied_steps
        return inner.rates()

    def adapted(self) -> tuple[str, ...] | None:
        """Patterns of the adapted parameters."""
        chosen = self.lars_filter or _adapts_by_default
        return exact_patterns(p.name for p in self.parameters if chosen(p))


def _adapts_by_default(parameter: Parameter) -> bool:
    named = "LayerNorm" in parameter.name or "bias" in parameter.name
    return not named and parameter.role in ("weight", "")
