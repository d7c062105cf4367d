"""Loss-scale state machines: pure functions on frozen states that mirror the in-graph ones.

Float16 gradients below about 6e-8 become zero. Therefore the loss is multiplied by S before the
backward pass and the gradients are multiplied by 1/S after it. When a gradient overflows, the
update is skipped and S shrinks; after a window of steps without overflow, S grows.

Order of one step (MindSpore's ``DynamicLossScaleUpdateCell``, 2.10)::

    S1    = max(S * reciprocal(factor), min_scale) if overflow else S      float32, in this order
    grow  = window <= cur_iter - last_overflow_iter                        with the old ``last``
    last  = cur_iter if (overflow or grow) else last
    S     = min(S1 * factor, max_scale) if (grow and not overflow) else S1
    cur  += 1

**Hysteresis** (DeepSpeed's): with `h` above 1, an overflow is tolerated, `h - 1` times; the
scale shrinks only at the next one. Growth restarts the count; with ``consecutive_hysteresis``,
so does every step without overflow.

**Grouped** (MindSpore's ``GroupLossScaleManager``): one scale for each group of layers, and after
every step

    s_i <- s_i 2^(-1/2)      if group i overflowed
    s_i <- s_i 2^(1/1000)    otherwise

within optional bounds. Any overflow skips the whole update. Which group overflowed is decided by
:mod:`ortboost.boosts.group_loss_scale`.

The dynamic scale first grows on the ``window``-th step without overflow; a step that overflows when
growth is due only shrinks it. ``max_scale`` is an addition: MindSpore's scale can reach infinity
(compare pytorch/pytorch#98828); ``max_scale=None`` matches MindSpore bit for bit.

References:
    Micikevicius et al., Mixed Precision Training, ICLR 2018 (arXiv:1710.03740), section 3.2.
    DeepSpeed, fp16 configuration (``hysteresis``, ``consecutive_hysteresis``).
    MindSpore 2.10, ``mindspore.boost.GroupLossScaleManager``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range, check_kinds, describe_family

__all__ = [
    "NO_SCALE",
    "SCALES",
    "DynamicScaleConfig",
    "FixedScaleConfig",
    "GroupedScaleConfig",
    "NoScaleConfig",
    "ScaleConfig",
    "ScaleState",
    "initial_state",
    "scale_text",
    "update",
]

_SMALLEST: Final = float(np.finfo(np.float32).smallest_normal)  # its reciprocal is finite
_LARGEST: Final = float(np.finfo(np.float32).max)

_Scale: TypeAlias = Annotated[float, Range(_SMALLEST, _LARGEST)]


@dataclass(frozen=True)
class DynamicScaleConfig(Configuration):
    """A scale that adapts to the gradients.

    Args:
        init_scale: Initial scale. A value below ``min_scale`` is kept until the first overflow
            raises it, as in MindSpore.
        scale_factor: Shrink and growth factor, above 1. Powers of two keep the mantissa exact.
        scale_window: Steps without overflow before the scale grows.
        min_scale: Lower bound of the scale.
        max_scale: Upper bound of the scale; None for no limit.
        hysteresis: Number of overflows until the scale shrinks; 1 shrinks it at the first.
        consecutive_hysteresis: A step without overflow resets the count of overflows; otherwise
            only growth does.
        late_growth: The first growth after the start or an overflow comes one step later, after
            `window + 1` steps without overflow, as in DeepSpeed.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> DynamicScaleConfig(init_scale=2.0**16, scale_window=1000).max_scale
        16777216.0
    """

    init_scale: _Scale = 2.0**16
    scale_factor: Annotated[float, Range(above=1, most=_LARGEST)] = 2.0
    scale_window: Annotated[int, Range(1)] = 2000
    min_scale: _Scale = 1.0
    max_scale: _Scale | None = 2.0**24
    hysteresis: Annotated[int, Range(1)] = 1
    consecutive_hysteresis: bool = False
    late_growth: bool = False

    def __post_init__(self) -> None:
        check_kinds(self, "loss scale")
        if self.max_scale is not None and max(self.init_scale, self.min_scale) > self.max_scale:
            raise ConfigError(
                f"'max_scale' is {self.max_scale}, below 'init_scale' or 'min_scale'.",
                where="loss scale",
                fix="Use min_scale <= max_scale and init_scale <= max_scale.",
            )


@dataclass(frozen=True)
class FixedScaleConfig(Configuration):
    """A scale that never changes; an overflow still skips the update.

    Raises:
        ConfigError: The scale is not a finite number above 0.

    Example:
        >>> FixedScaleConfig(1024.0).scale
        1024.0
    """

    scale: _Scale = 128.0

    def __post_init__(self) -> None:
        check_kinds(self, "loss scale")


@dataclass(frozen=True)
class NoScaleConfig(Configuration):
    """No scaling: the scale is 1.

    Example:
        >>> NO_SCALE == NoScaleConfig()
        True
    """


NO_SCALE: Final = NoScaleConfig()
"""Scaling is off."""


@dataclass(frozen=True)
class GroupedScaleConfig(Configuration):
    """One scale for each group of layers.

    Args:
        init_scale: Initial scale of all groups, or one for each.
        groups: Number of groups, each a range of layers; or for each group shell-style patterns of
            parameter names.
        grow: Factor for a group that did not overflow, above 1.
        shrink: Factor for a group that overflowed, below 1.
        min_scale: Lower bound of every scale; None for no limit, as in MindSpore.
        max_scale: Upper bound of every scale; None for no limit, as in MindSpore.
        marks: Tensors at which the scale changes, if the groups alone should not decide, with the
            group before and after each, ``(tensor, i, i + 1)``; 0 and `groups + 1` are outside all
            groups.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> GroupedScaleConfig(2.0**12, groups=(("conv*",), ("fc*",))).number
        2
    """

    init_scale: _Scale | tuple[_Scale, ...] = 2.0**12
    groups: Annotated[int, Range(1)] | tuple[tuple[str, ...], ...] = 2
    grow: Annotated[float, Range(1, _LARGEST)] = 2.0 ** (1 / 1000)
    shrink: Annotated[float, Range(_SMALLEST, below=1)] = 2.0**-0.5
    min_scale: _Scale | None = 1.0
    max_scale: _Scale | None = 2.0**24
    marks: tuple[tuple[str, int, int], ...] = ()

    @property
    def number(self) -> int:
        """Number of groups."""
        return len(self.groups) if isinstance(self.groups, tuple | list) else int(self.groups)

    def __post_init__(self) -> None:
        check_kinds(self, "loss scale")
        if self.number < 1:
            raise ConfigError(
                f"'groups' is {self.groups}.",
                where="loss scale, groups",
                fix="Give their number, or a list of patterns for each: [['conv*'], ['fc*']].",
            )
        init = self.init_scale
        starts = tuple(init) if isinstance(init, tuple | list) else (init,)
        if len(starts) not in (1, self.number) or not starts:
            raise ConfigError(
                f"There are {len(starts)} initial scales and {self.number} groups.",
                where="loss scale, init_scale",
                fix="Give one number, or one for each group.",
            )
        low = 0.0 if self.min_scale is None else self.min_scale
        high = math.inf if self.max_scale is None else self.max_scale
        if not 0 <= low <= min(starts) or not max(starts) <= high:
            raise ConfigError(
                f"The initial scale {starts[0] if len(starts) == 1 else starts} is outside "
                f"{low:g} to {high:g}.",
                where="loss scale, min_scale and max_scale",
                fix="Use min_scale <= init_scale <= max_scale, or None for no limit.",
            )
        if min(starts) / max(starts) < _SMALLEST:  # the ratio would underflow
            raise ConfigError(
                f"The initial scales {min(starts):g} and {max(starts):g} are too far apart.",
                where="loss scale, init_scale",
                fix="Gradients that pass from group to group are multiplied by the ratio, which "
                "must fit into float32.",
            )
        for tensor, before, after in self.marks:
            if not (0 <= before <= self.number + 1 and 0 <= after <= self.number + 1):
                raise ConfigError(
                    f"The mark at '{tensor}' leads from group {before} to {after}.",
                    where="loss scale, marks",
                    fix=f"Groups are 1 to {self.number}; 0 and {self.number + 1} are outside all "
                    "groups.",
                )

    def starts(self) -> NDArray[np.float32]:
        """The initial scale of each group, float32 ``[groups]``."""
        return np.broadcast_to(np.asarray(self.init_scale, np.float32), (self.number,)).copy()


ScaleConfig: TypeAlias = DynamicScaleConfig | FixedScaleConfig | NoScaleConfig | GroupedScaleConfig
"""The loss-scale policies."""

SCALES: Final[Mapping[str, type[Any]]] = {
    "dynamic": DynamicScaleConfig,
    "fixed": FixedScaleConfig,
    "grouped": GroupedScaleConfig,
    "off": NoScaleConfig,
}
"""Name of a policy in configuration files to its class."""

describe_family(
    ScaleConfig,
    "kind",
    SCALES,
    words="a loss scale",
    default="dynamic",
    written={"init_scale": "init", "scale_factor": "factor", "scale_window": "window"},
)


@dataclass(frozen=True)
class ScaleState:
    """The state of the scale between two steps, with the dtypes that the graph uses.

    Args:
        scale: float32, the scale of the next step.
        cur_iter: int32, 1 + number of completed steps.
        last_overflow_iter: int32, the step of the last overflow *or growth*; 0 for none.
        skipped_last: Whether the last step was skipped.
        consecutive_skips: int64, number of steps skipped in a row until now.
        total_skips: int64, number of all skipped steps.
        overflows_left: int64, overflows until the scale shrinks, the last one included.
    """

    scale: np.float32
    cur_iter: int = 1
    last_overflow_iter: int = 0
    skipped_last: bool = False
    consecutive_skips: int = 0
    total_skips: int = 0
    overflows_left: int = 1


def initial_state(config: ScaleConfig) -> ScaleState:
    """The state before the first step.

    Example:
        >>> float(initial_state(FixedScaleConfig(128)).scale)
        128.0
    """
    if isinstance(config, GroupedScaleConfig):
        raise TypeError("Each group has its own scale: use GroupedScaleConfig.starts().")
    if isinstance(config, DynamicScaleConfig):
        # late_growth: the window is counted from 1, not 0, and so ends one step later.
        return ScaleState(
            np.float32(config.init_scale),
            last_overflow_iter=int(config.late_growth),
            overflows_left=config.hysteresis,
        )
    return ScaleState(np.float32(config.scale if isinstance(config, FixedScaleConfig) else 1.0))


def update(state: ScaleState, overflow: bool, config: ScaleConfig) -> ScaleState:
    """The state after one step of a policy.

    In case of an ``overflow``, an (un-scaled) gradient was not finite, and the update was skipped.

    Example:
        >>> config = DynamicScaleConfig(init_scale=4, scale_window=2)
        >>> state = initial_state(config)
        >>> for overflow in (False, False, True):
        ...     state = update(state, overflow, config)
        ...     print(float(state.scale))
        4.0
        8.0
        4.0
    """
    scale, last, left = state.scale, state.last_overflow_iter, state.overflows_left
    if isinstance(config, DynamicScaleConfig):
        factor = np.float32(config.scale_factor)
        if overflow and left > 1:
            left -= 1
        elif overflow:
            # Multiply by the rounded reciprocal instead of dividing: they differ for factor 3.
            scale = max(scale * (np.float32(1) / factor), np.float32(config.min_scale))
        grow = config.scale_window <= state.cur_iter - last  # it is due; an overflow prevents it
        # Growth and an overflow both begin a new window.
        if overflow:
            last = state.cur_iter + int(config.late_growth)
        elif grow:
            last = state.cur_iter
        if grow and not overflow:
            with np.errstate(over="ignore"):  # without max_scale it may reach infinity
                scale = scale * factor
            if config.max_scale is not None:
                scale = min(scale, np.float32(config.max_scale))
        if not overflow and (grow or config.consecutive_hysteresis):
            left = config.hysteresis
    return ScaleState(
        scale=np.float32(scale),
        cur_iter=state.cur_iter + 1,
        last_overflow_iter=last,
        skipped_last=overflow,
        consecutive_skips=state.consecutive_skips + 1 if overflow else 0,
        total_skips=state.total_skips + int(overflow),
        overflows_left=left,
    )


def scale_text(scale: float) -> str:
    """Format a scale for messages; large powers of two are written as such.

    Example:
        >>> scale_text(2.0**24), scale_text(1024.0), scale_text(4.5)
        ('2^24', '1024', '4.5')
    """
    mantissa, exponent = math.frexp(scale)  # 2^k is 0.5 * 2^(k + 1)
    return f"2^{exponent - 1}" if mantissa == 0.5 and exponent > 14 else f"{scale:g}"
