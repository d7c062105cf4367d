r"""Loss scaling with one scale: dynamic, fixed, or none.

With the scale `S`, the number `good` of steps since it last changed, the factor `f`, and `window`:

    finite:       good <- good + 1;   if good >= window:   S <- min(S f, max),  good <- 0
    overflow:     S <- max(S / f, min),  good <- 0

This is the rule of MindSpore's `DynamicLossScaleUpdateCell`, with bounds. With a hysteresis of `h`
the scale shrinks only from the `h`-th overflow since it last grew (DeepSpeed's
`DynamicLossScaler`).

:mod:`ortboost.core.loss_scale` implements the same on the host, and defines the settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.base import GraphContext
from ortboost.boosts.roles import SCALE, LossScaler
from ortboost.core.field_types import read_config, write_config
from ortboost.core.loss_scale import (
    DynamicScaleConfig,
    FixedScaleConfig,
    NoScaleConfig,
    ScaleConfig,
    initial_state,
)
from ortboost.graph.build import Builder
from ortboost.graph.formulas import Term
from ortboost.graph.reach import find_value

__all__ = [
    "GOOD_STEPS",
    "OVERFLOWS_LEFT",
    "LossScale",
    "multiply_loss",
    "scale_from_dict",
]

GOOD_STEPS: Final = "ortboost/good_steps"
OVERFLOWS_LEFT: Final = "ortboost/overflows_left"
_INT64 = ir.DataType.INT64
_OneScale: TypeAlias = DynamicScaleConfig | FixedScaleConfig | NoScaleConfig


@dataclass(frozen=True)
class LossScale(LossScaler):
    """Loss scaling with one scale.

    Args:
        policy: How the scale changes; :data:`ortboost.core.loss_scale.NO_SCALE` for no scaling.

    Example:
        >>> from ortboost import DynamicScaleConfig
        >>> LossScale(DynamicScaleConfig(init_scale=1024.0)).policy.init_scale
        1024.0
    """

    policy: _OneScale = field(default_factory=DynamicScaleConfig)

    name: ClassVar[str] = "loss-scale"
    card: ClassVar[str] = "loss-scale"
    excludes: ClassVar[Mapping[str, str]] = {
        "group-loss-scale": "a loss has either one scale or one per group"
    }

    def to_dict(self) -> dict[str, Any]:
        """Name, kind and settings of the policy."""
        return {"name": self.name, **write_config(self.policy)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LossScale:
        """Rebuild from :meth:`to_dict`; the defaults if no setting is given."""
        settings = {key: value for key, value in data.items() if key != "name"}
        return cls(scale_from_dict(settings)) if settings else cls()  # type: ignore[arg-type]

    @property
    def enabled(self) -> bool:
        """Whether there is a scale."""
        return not isinstance(self.policy, NoScaleConfig)

    @property
    def is_dynamic(self) -> bool:
        """Whether it is dynamic."""
        return isinstance(self.policy, DynamicScaleConfig)

    def start(self) -> NDArray[np.float32]:
        """The initial scale, float32 scalar."""
        return np.asarray(initial_state(self.policy).scale, np.float32)

    def scale_loss(self, graph: GraphContext, scale: ir.Value) -> None:
        """Multiply the loss by `S`."""
        multiply_loss(graph, scale)

    def counters(self) -> dict[str, int]:
        """The number of good steps and, with a hysteresis, of overflows left before it shrinks."""
        policy, found = self.policy, {}
        if isinstance(policy, DynamicScaleConfig):
            # -1 delays the first growth by one step.
            found[GOOD_STEPS] = -int(policy.late_growth)
            if policy.hysteresis > 1:
                found[OVERFLOWS_LEFT] = policy.hysteresis
        return found

    def after_finite_step(
        self, b: Builder, states: Mapping[str, ir.Value], scale: ir.Value, groups: Sequence[int]
    ) -> dict[str, ir.Value]:
        """Grow the scale at the end of a window."""
        policy, found = self.policy, dict[str, ir.Value]()
        if not isinstance(policy, DynamicScaleConfig):
            return found
        good = Term(b, states[GOOD_STEPS]) + 1
        grow = good.call("GreaterOrEqual", policy.scale_window)
        larger = Term(b, scale) * policy.scale_factor
        if policy.max_scale is not None:
            larger = larger.call("Min", policy.max_scale)
        found[SCALE] = grow.where(larger, scale).value
        found[GOOD_STEPS] = grow.where(0, good).value
        if policy.hysteresis > 1:
            full = b.const(policy.hysteresis, _INT64)
            kept = full if policy.consecutive_hysteresis else states[OVERFLOWS_LEFT]
            found[OVERFLOWS_LEFT] = grow.where(full, kept).value
        return found

    def after_overflow(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        scale: ir.Value,
        caused: Mapping[int, ir.Value],
    ) -> dict[str, ir.Value]:
        """Shrink the scale, unless the hysteresis tolerates the overflow."""
        policy, found = self.policy, dict[str, ir.Value]()
        if not isinstance(policy, DynamicScaleConfig):
            return found
        # The rounded reciprocal in float32, as in MindSpore's cell: it differs for a factor of 3.
        smaller = Term(b, scale) * float(np.float32(1.0) / np.float32(policy.scale_factor))
        smaller = smaller.call("Max", policy.min_scale)
        if policy.hysteresis > 1:
            left = Term(b, states[OVERFLOWS_LEFT])
            # Once no overflow is tolerated any more, each one shrinks the scale, until it grows.
            last = left.call("Equal", 1)
            smaller = last.where(smaller, scale)
            found[OVERFLOWS_LEFT] = last.where(1, left - 1).value
        found[SCALE] = smaller.value
        found[GOOD_STEPS] = b.const(-int(policy.late_growth), _INT64)
        return found


def multiply_loss(graph: GraphContext, scale: ir.Value, index: int | None = None) -> None:
    """Append `loss * scale` to a forward graph; the product becomes the objective.

    The scale is a float32 scalar, or ``[groups]`` with the index of one.
    """
    b = Builder(graph.model.graph, "ortboost/scale")
    if index is not None:
        scale = b.op("Gather", scale, b.const(index, _INT64), shape=())
    loss = find_value(graph.model.graph, graph.objective)
    graph.objective = "ortboost/scaled_loss"
    b.op("Mul", loss, scale, name=graph.objective, shape=())
    b.flush()


def scale_from_dict(data: Mapping[str, Any]) -> ScaleConfig:
    """Rebuild a loss scale from the output of :func:`~ortboost.core.field_types.write_config`.

    Raises:
        ConfigError: The kind or a key is unknown; the message suggests the nearest.
    """
    scale: ScaleConfig = read_config(ScaleConfig, data, "loss_scale")  # type: ignore[arg-type]
    return scale
