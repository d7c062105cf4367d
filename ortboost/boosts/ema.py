r"""An exponential moving average of the weights, for validation and export.

After each update, with `t` its number from 1, each trained weight `w` and its average `a`:

    d_t = min(decay, (1 + t) / (10 + t))        with warm-up, else decay
    a   <- a + (1 - d_t) (w - a)                a = w before training

Training goes on from `w`; ``eval.onnx`` and exports read `a` in its place. A skipped step changes
neither. The average of a weight that a step of gradient freeze leaves out stays as it is. Running
statistics are those of the training weights, as in torch's ``AveragedModel``: re-estimate them with
``--update-bn``.

Source: Polyak and Juditsky, Acceleration of stochastic approximation by averaging (1992);
``torch.optim.swa_utils.get_ema_multi_avg_fn`` for the average, and
``tf.train.ExponentialMovingAverage`` (``num_updates``) for the warm-up, without which the initial
weights count for about ``1 / (1 - decay)`` updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Stage, State, UpdateContext
from ortboost.core.field_types import Range
from ortboost.graph.formulas import Term
from ortboost.graph.weights.parameters import Parameter

__all__ = ["Ema"]


@dataclass(frozen=True)
class Ema(Boost):
    """An exponential moving average of the trained weights; see the module docstring.

    Args:
        decay: `decay`; 0.999 averages over about a thousand updates.
        warm_up: Whether the average follows faster in the first updates.

    Raises:
        ConfigError: The decay is not between 0 and 1.

    Example:
        >>> Ema(0.99).to_dict()
        {'name': 'ema', 'decay': 0.99, 'warm_up': True}
    """

    decay: Annotated[float, Range(above=0, below=1)] = 0.999
    warm_up: bool = True

    name: ClassVar[str] = "ema"
    stage: ClassVar[Stage] = "update"
    card: ClassVar[str | None] = "ema"
    row_wise: ClassVar[bool] = True
    excludes: ClassVar[Mapping[str, str]] = {
        "adasum": "servers combine their weights after the update, too late for the average",
        "dim-reduce": "its line search sets the weights after the update",
    }

    def states_of(self, graph: GraphContext) -> Sequence[State]:
        """An average for each trained parameter, which starts at its value."""
        return [State(_average(p.name), graph.values[p.name], "slot", "ema") for p in graph.trained]

    def evaluated(self, trained: Sequence[Parameter]) -> Mapping[str, str]:
        """The averages, in place of the weights."""
        return {p.name: _average(p.name) for p in trained}

    def after_update(self, update: UpdateContext) -> None:
        """Move the averages towards the new weights."""
        b, step = update.b, Term(update.b, update.step)
        decay = Term(b, b.const(self.decay, ir.DataType.DOUBLE))
        if self.warm_up:
            decay = decay.call("Min", (step + 1.0) / (step + 10.0))
        share = (1.0 - decay).cast(ir.DataType.FLOAT)
        for parameter in update.trained:
            name = _average(parameter.name)
            average, weight = update.states[name], update.next_of[parameter.name]
            move = (Term(b, weight) - average) * share
            update.next_of[name] = (Term(b, average, average.shape) + move).value


def _average(parameter: str) -> str:
    return f"ortboost/slot/ema/{parameter}"
