"""`nn.thor`, MindSpore's second-order optimizer; the algebra is in :mod:`ortboost.boosts.thor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from ortboost.boosts.base import Boost
from ortboost.boosts.thor import Thor
from ortboost.core.arguments import checked
from ortboost.core.field_words import OnlyFloat, Range
from ortboost.mindspore.core.arguments import (
    ArgumentTypeError,
    ArgumentValueError,
    as_argument_error,
)
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.nn.optimizer import Optimizer, exact_patterns
from ortboost.optimizers import Momentum as MomentumRule
from ortboost.optimizers import Optimizer as Rule
from ortboost.program.config import ParameterGroup

__all__ = ["ConvertNetUtils", "thor"]


class thor(Optimizer):  # noqa: N801  MindSpore's name
    """THOR with momentum.

    Args:
        net: The network; its trainable parameters are trained.
        learning_rate: A Tensor with one value, or one per update.
        damping: A number, or a Tensor with one value per update.
        momentum: A float, 0 or more.
        weight_decay: Coefficient; scale and shift of normalizations decay too.
        loss_scale: Gradients are divided by it; for a fixed scale whose step does not unscale.
        batch_size: Samples per batch; used only with ``mode="mindspore"``, otherwise the graph
            counts.
        use_nesterov: Whether to use Nesterov momentum.
        decay_filter: Whether a parameter decays; all by default.
        split_indices: Layers that MindSpore exchanges together between devices; checked, but
            without effect.
        enable_clip_grad: Clip each update to a norm of 1, after the weight decay.
        frequency: Number of updates between computations of factors and inverses, 2 or more.
        **ours: ``mode``, ``block``, ``factor_decay``, ``pi``, ``damping_decay``, ``kl_clip`` and
            ``distribute_inverses`` of :class:`ortboost.boosts.Thor`.

    Example:
        >>> rate, damping = Tensor(0.05), Tensor(0.03)  # doctest: +SKIP
        >>> opt = thor(net, rate, damping, momentum=0.9, frequency=50)  # doctest: +SKIP
        >>> Model(net, loss, opt).train(2, data)  # doctest: +SKIP
    """

    @checked
    def __init__(
        self,
        net: Network,
        learning_rate: Tensor,
        damping: Any,
        momentum: Annotated[float, OnlyFloat, Range(0)],
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        batch_size: int = 32,
        use_nesterov: bool = False,
        decay_filter: Callable[[Parameter], bool] = lambda _: True,
        split_indices: list[int] | tuple[int, ...] | None = None,
        enable_clip_grad: bool = False,
        frequency: Annotated[int, Range(2)] = 100,
        **ours: Any,
    ) -> None:
        rate = learning_rate.item() if learning_rate.ndim == 0 else learning_rate
        super().__init__(rate, net.trainable_params(), weight_decay, loss_scale)
        self.momentum, self.use_nesterov, self.decay_filter = momentum, use_nesterov, decay_filter
        mindspore = ours.get("mode") == "mindspore"
        with as_argument_error("thor"):
            self._boost = Thor.from_dict(
                {
                    "damping": _damping(damping),
                    "frequency": frequency,
                    "batch_size": batch_size if mindspore else None,
                    "clip": enable_clip_grad,
                    **ours,
                }
            )

    def renewed(self, parameters: Any) -> thor:
        """Make a new THOR; groups cannot have rates or decays of their own."""
        fresh = super().renewed(parameters)
        for group in fresh._groups:
            if group.rate is not None or group.weight_decay is not None:
                raise ArgumentValueError(
                    "A group has its own learning rate or weight decay.",
                    where=f"thor, the group of '{group.params[0].name}'",
                    fix="Use the learning rate of thor; decay_filter chooses what decays.",
                )
        return fresh

    def get_frequency(self) -> int:
        """Number of updates between computations of factors and inverses."""
        return self._boost.frequency

    def rule(self) -> Rule:
        """The rule applied to the preconditioned gradients."""
        return MomentumRule(self.momentum, nesterov=self.use_nesterov and self.momentum > 0)

    def boosts(self) -> tuple[Boost, ...]:
        """The boost that preconditions the gradients."""
        return (self._boost,)

    def groups(self) -> tuple[ParameterGroup, ...]:
        """The parameters with and without weight decay."""
        chosen = {True: list[str](), False: list[str]()}
        for parameter in self.parameters if self.weight_decay else ():
            chosen[bool(self.decay_filter(parameter))].append(parameter.name)
        rates = {"decayed": (chosen[True], self.weight_decay), "spared": (chosen[False], 0.0)}
        return tuple(
            ParameterGroup(name, exact_patterns(members), weight_decay=decay)
            for name, (members, decay) in rates.items()
            if members
        )


class ConvertNetUtils:
    """For compatibility: every network is ready for THOR, which finds layers in the graph."""

    @checked
    def convert_to_thor_net(self, net: Network) -> None:
        """Check that it is a network, without changing it."""


def _damping(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.ndim > 1:
        raise ArgumentTypeError(
            f"'damping' is {type(value).__name__}, {array.ndim} axes.",
            where="thor, damping",
            fix="Give a number, or a Tensor with one value per update.",
        )
    return tuple(array.tolist()) if array.ndim else float(array)
