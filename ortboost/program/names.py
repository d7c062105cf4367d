"""The names in the graphs of a program: inputs, states, outputs, and the graphs themselves.

- Parameters and buffers have the names of the user's model.
- Tensors added by ortboost start with ``ortboost/``.
- The next value of the state ``S`` is the output ``ortboost/next/S``.
"""

from __future__ import annotations

from ortboost.boosts.grad_accumulation import accumulator_name
from ortboost.boosts.loss_scale import GOOD_STEPS, OVERFLOWS_LEFT
from ortboost.boosts.roles import EXCHANGED, EXCHANGED_GRADIENT, FLUSHED, MICRO_STEPS, SCALE
from ortboost.transforms.trainable_norm import NEXT, next_name

__all__ = [
    "ACCEPT_GRAPH",
    "BATCH_MEAN",
    "CONSECUTIVE_SKIPS",
    "EXCHANGED",
    "EXCHANGED_GRADIENT",
    "FLUSHED",
    "FLUSH_GRAPH",
    "GOOD_STEPS",
    "LAST_SKIPPED",
    "LEARNING_RATE",
    "LOSS",
    "LOSS_SCALE",
    "LOSS_SCALES",
    "MICRO_STEPS",
    "NEXT",
    "OVERFLOW",
    "OVERFLOWS_LEFT",
    "PROMISED",
    "RATE",
    "RAW",
    "SCALE",
    "STEP",
    "STEP_GRAPH",
    "TOTAL_SKIPS",
    "TRIAL_GRAPH",
    "accumulator_name",
    "graph_name",
    "group_step",
    "learning_rate_name",
    "next_name",
    "slot_name",
    "slot_parameter",
]

LOSS = "loss"
OVERFLOW = "overflow"
LOSS_SCALE = "loss_scale"
LOSS_SCALES = "loss_scales"
LEARNING_RATE = "learning_rate"
STEP = "ortboost/step"
LAST_SKIPPED = "ortboost/last_skipped"
CONSECUTIVE_SKIPS = "ortboost/consecutive_skips"
TOTAL_SKIPS = "ortboost/total_skips"
RAW = "ortboost/raw/"
"""Prefix of new running statistics, before it is known whether the step is skipped."""
BATCH_MEAN = "ortboost/batch_mean/"
"""Prefix of batch means that boosts use besides gradients, see ``Boost.batch_means``."""
STEP_GRAPH, FLUSH_GRAPH = "step", "flush"
TRIAL_GRAPH, ACCEPT_GRAPH = "trial", "accept"
RATE = "rate"
"""Input of the graphs ``trial`` and ``accept``: the rate of the step."""
PROMISED = "promised"
"""Output of ``trial``: the term of the acceptance test, see ``LineSearch.trial_weights``."""


def slot_name(slot: str, parameter: str, group: int = 0) -> str:
    """The name of the state that an optimizer keeps for a parameter, in a slot of this name.

    ``group`` is the number of the freeze group that the state belongs to.

    Example:
        >>> slot_name("momentum", "fc1.weight")
        'ortboost/slot/momentum/fc1.weight'
        >>> slot_name("momentum", "fc1.weight", 2)
        'ortboost/slot/momentum.2/fc1.weight'
    """
    return f"ortboost/slot/{slot}{f'.{group}' if group else ''}/{parameter}"


def slot_parameter(name: str) -> str:
    """The parameter of a state that :func:`slot_name` named.

    Example:
        >>> slot_parameter("ortboost/slot/momentum/fc1/weight")
        'fc1/weight'
    """
    return name.split("/", 3)[3]


def group_step(group: int) -> str:
    """The name of the state that counts the updates of one freeze group.

    Example:
        >>> group_step(0)
        'ortboost/step.0'
    """
    return f"{STEP}.{group}"


def graph_name(kind: str, group: int = 0) -> str:
    """Name of the graph, a ``step`` or ``flush``, that trains a freeze group.

    Example:
        >>> graph_name("step"), graph_name("step", 2)
        ('step', 'step.2')
    """
    return f"{kind}.{group}" if group else kind


def learning_rate_name(group: str | None) -> str:
    """Name of the learning-rate input of a parameter group; ``None`` for all other parameters."""
    return LEARNING_RATE if group is None else f"{LEARNING_RATE}/{group}"
