"""Which boosts there are, in which order they are applied, and which of them exclude each other.

Rewrites of the forward graph come first, then differentiation, then what happens to the gradients, then
the update; gradient freeze makes one such graph for each of its groups. The order is not a matter of
taste:

- ``less-bn`` before ``full-norm-head``: both look at the graph as the user's exporter wrote it, and the
  second adds nodes;
- ``mixed-precision`` before ``group-loss-scale``: the boundaries between groups have the type of the tensors
  that they are in;
- ``loss-scale`` before ``grad-accumulation``: what is summed is un-scaled by the scale that was used,
  and a micro-batch that overflowed is not in the sum;
- ``clip`` after ``grad-accumulation``: the norm is that of the update;
- ``grad-centralization`` last, after the weight decay, as in MindSpore's optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import DynamicScaleConfig, FixedScaleConfig, GroupedScaleConfig
from ortboost.program.config import ProgramConfig

__all__ = ["BOOSTS", "EXCLUDED", "Boost", "check_combination", "enabled_boosts"]


_ONE_SCALE = (DynamicScaleConfig, FixedScaleConfig)


@dataclass(frozen=True)
class Boost:
    """One boost.

    Args:
        name: Its name, as on its card.
        stage: ``forward``, ``gradients``, ``update`` or ``graphs``: where it works.
        enabled: Whether a configuration has it.
    """

    name: str
    stage: str
    enabled: Callable[[ProgramConfig], bool]


BOOSTS: tuple[Boost, ...] = (
    Boost("less-bn", "forward", lambda c: c.less_bn),
    Boost("full-norm-head", "forward", lambda c: c.full_norm_head),
    Boost("mixed-precision", "forward", lambda c: c.precision.low is not None),
    Boost("loss-scale", "gradients", lambda c: isinstance(c.loss_scale, _ONE_SCALE)),
    Boost("group-loss-scale", "gradients", lambda c: isinstance(c.loss_scale, GroupedScaleConfig)),
    Boost("grad-accumulation", "gradients", lambda c: c.accumulate > 1),
    Boost("clip", "gradients", lambda c: c.clip is not None),
    Boost("grad-centralization", "update", lambda c: c.centralize is not None),
    Boost("grad-freeze", "graphs", lambda c: c.grad_freeze is not None),
)
"""All boosts, in the order in which they are applied."""

EXCLUDED: Mapping[frozenset[str], str] = {}
"""Pairs that do not go together, with the reason."""


def enabled_boosts(config: ProgramConfig) -> tuple[str, ...]:
    """Names of the boosts of a configuration, in the order in which they are applied.

    Example:
        >>> enabled_boosts(ProgramConfig(accumulate=2, less_bn=True))
        ('less-bn', 'loss-scale', 'grad-accumulation')
    """
    return tuple(boost.name for boost in BOOSTS if boost.enabled(config))


def check_combination(config: ProgramConfig) -> None:
    """Refuse boosts that exclude each other.

    Raises:
        ConfigError: Two of them do; the reason is named.
    """
    names = set(enabled_boosts(config))
    for pair, reason in EXCLUDED.items():
        if pair <= names:
            one, other = sorted(pair)
            raise ConfigError(
                f"'{one}' and '{other}' do not go together: {reason}.",
                where="configuration",
                fix=f"Leave out {one} or {other}.",
            )
