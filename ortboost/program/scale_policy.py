r"""The law of the loss scale, as nodes of the step graph.

With `S` the scale, `good` the steps since it last moved, `f` the factor and `window`:

    finite:       good <- good + 1;   if good >= window:   S <- min(S f, max),  good <- 0
    overflow:     S <- max(S / f, min),  good <- 0

which is that of MindSpore's `DynamicLossScaleUpdateCell`, with bounds. With a hysteresis of `h` the
scale shrinks from the `h`-th overflow on that came since it last grew (DeepSpeed's
`DynamicLossScaler`).

A grouped scale (MindSpore's `GroupLossScaleManager`) has one `S_i` for each group of layers and moves
at every step: `S_i <- S_i grow` where the gradients of group `i` are finite, `S_i <- S_i shrink` where
they are not.

The host twin of both is :mod:`ortboost.core.loss_scale`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortboost.core.loss_scale import DynamicScaleConfig, GroupedScaleConfig
from ortboost.graph.build import Builder
from ortboost.program import catalogue as names
from ortboost.program.config import ProgramConfig

__all__ = ["counters", "passed", "skipped"]

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL


def counters(config: ProgramConfig) -> dict[str, int]:
    """The counters that the law keeps, int64 scalars, and where they start."""
    law = config.loss_scale
    found: dict[str, int] = {}
    if isinstance(law, DynamicScaleConfig):
        found[names.GOOD_STEPS] = -int(law.late_growth)
        if law.hysteresis > 1:
            found[names.LIVES] = law.hysteresis
    if config.check_finite:
        found[names.LAST_SKIPPED] = found[names.CONSECUTIVE_SKIPS] = found[names.TOTAL_SKIPS] = 0
    return found


def passed(
    b: Builder,
    config: ProgramConfig,
    states: Mapping[str, ir.Value],
    scale: ir.Value | None,
    groups: Sequence[int] = (),
) -> dict[str, ir.Value]:
    """Scale and counters after a step whose gradients are finite (or are not looked at).

    Args:
        b: Where the nodes go.
        config: The configuration.
        states: State name to its value before the step.
        scale: float32 scalar, or ``[N]`` with a grouped scale; ``None`` for no scaling.
        groups: Numbers of the scale groups that this graph trains, from 1.

    Returns:
        State name to its next value.
    """
    law = config.loss_scale
    found: dict[str, ir.Value] = {}
    if isinstance(law, DynamicScaleConfig) and scale is not None:
        good = b.op("Add", states[names.GOOD_STEPS], b.const(1, _INT64))
        grow = b.op("GreaterOrEqual", good, b.const(law.window, _INT64), dtype=_BOOL)
        larger = b.op("Mul", scale, b.const(law.factor))
        if law.max_scale is not None:
            larger = b.op("Min", larger, b.const(law.max_scale))
        found[names.SCALE] = b.op("Where", grow, larger, scale, dtype=_FLOAT)
        found[names.GOOD_STEPS] = b.op("Where", grow, b.const(0, _INT64), good, dtype=_INT64)
        if law.hysteresis > 1:
            full = b.const(law.hysteresis, _INT64)
            kept = full if law.consecutive_hysteresis else states[names.LIVES]
            found[names.LIVES] = b.op("Where", grow, full, kept, dtype=_INT64)
    elif isinstance(law, GroupedScaleConfig) and scale is not None:
        factors = np.ones(law.number, np.float32)
        factors[[number - 1 for number in groups]] = law.grow
        found[names.SCALE] = _bounded(b, b.op("Mul", scale, b.const(factors)), law)
    if config.check_finite:
        zero = b.const(0, _INT64)
        found[names.LAST_SKIPPED] = found[names.CONSECUTIVE_SKIPS] = zero
        found[names.TOTAL_SKIPS] = states[names.TOTAL_SKIPS]
    return found


def skipped(
    b: Builder,
    config: ProgramConfig,
    states: Mapping[str, ir.Value],
    scale: ir.Value | None,
    blamed: Mapping[int, ir.Value],
) -> dict[str, ir.Value]:
    """Scale and counters after a step that overflowed.

    Args:
        b: Where the nodes go.
        config: The configuration.
        states: State name to its value before the step.
        scale: float32 scalar, or ``[N]`` with a grouped scale; ``None`` for no scaling.
        blamed: Number of a scale group that this graph trains, to a bool scalar: it overflowed.

    Returns:
        State name to its next value.
    """
    law, one = config.loss_scale, b.const(1, _INT64)
    found: dict[str, ir.Value] = {}
    if isinstance(law, DynamicScaleConfig) and scale is not None:
        smaller = b.op("Mul", scale, b.const(np.float32(1.0) / np.float32(law.factor)))
        smaller = b.op("Max", smaller, b.const(law.min_scale))
        if law.hysteresis > 1:
            lives = states[names.LIVES]
            last = b.op("Equal", lives, one, dtype=_BOOL)
            smaller = b.op("Where", last, smaller, scale, dtype=_FLOAT)
            left = b.op("Sub", lives, one)
            found[names.LIVES] = b.op("Where", last, one, left, dtype=_INT64)
        found[names.SCALE] = smaller
        found[names.GOOD_STEPS] = b.const(-int(law.late_growth), _INT64)
    elif isinstance(law, GroupedScaleConfig) and scale is not None:
        shrink, grow = b.const(law.shrink), b.const(law.grow)
        factors = []
        for number in range(1, law.number + 1):
            factor = b.const(1.0)  # nothing of this group is trained by this graph
            if number in blamed:
                factor = b.op("Where", blamed[number], shrink, grow, dtype=_FLOAT, shape=())
            factors.append(b.op("Reshape", factor, b.ints(1), shape=(1,)))
        ratio = b.op("Concat", *factors, axis=0, shape=(law.number,))
        found[names.SCALE] = _bounded(b, b.op("Mul", scale, ratio), law)
    found[names.LAST_SKIPPED] = one
    found[names.CONSECUTIVE_SKIPS] = b.op("Add", states[names.CONSECUTIVE_SKIPS], one)
    found[names.TOTAL_SKIPS] = b.op("Add", states[names.TOTAL_SKIPS], one)
    return found


def _bounded(b: Builder, scales: ir.Value, law: GroupedScaleConfig) -> ir.Value:
    if law.min_scale is not None:
        scales = b.op("Max", scales, b.const(law.min_scale))
    if law.max_scale is not None:
        scales = b.op("Min", scales, b.const(law.max_scale))
    return scales
