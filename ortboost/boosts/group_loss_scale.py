r"""One loss scale per group of layers, with boundaries in the graph that convert gradients.

The groups have the scales `s_1 ... s_N`, from the input of the network to its loss; the gradients
within group `i` carry the factor `s_i`. Where a tensor passes from group `a` to group `b`, a
boundary forwards it unchanged and rescales its gradient:

    forward   y  = x
    backward  dx = dy s_a / s_b

The loss itself has the scale of the group that computes it. See
:mod:`ortboost.boosts.scale_boundaries` for where boundaries are, and how they are inserted.

An overflow is attributed to the group where it began: a gradient of its parameters, or one that it
sends over a boundary, is not finite, while the gradients that it receives are finite. The gradients
of groups below it are not finite either, but they are not the cause.

Source of the method: MindSpore 2.10, ``mindspore.boost.GroupLossScaleManager``. There an Ascend
kernel computes the flags of the groups, and the user's calls define consecutive groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.base import GraphContext, Key
from ortboost.boosts.loss_scale import multiply_loss, scale_from_dict
from ortboost.boosts.roles import SCALE, LossScaler
from ortboost.boosts.scale_boundaries import ScaleGroups, insert_boundaries, resolve_boundaries
from ortboost.core.field_types import write_config
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.reach import values_by_name

__all__ = ["GroupLossScale"]


_GROUPS = Key[ScaleGroups]("groups")
# By name, because emulated precision replaces these values by rounded ones.
_INCOMING = Key[dict[tuple[int, int], list[str]]]("gradients that cross a boundary downward")


@dataclass(frozen=True)
class GroupLossScale(LossScaler):
    """One loss scale per group of layers.

    Args:
        policy: The groups, and how their scales change.

    Example:
        >>> GroupLossScale(GroupedScaleConfig(init_scale=4096.0, groups=4)).policy.number
        4
    """

    policy: GroupedScaleConfig = field(default_factory=GroupedScaleConfig)

    name: ClassVar[str] = "group-loss-scale"
    card: ClassVar[str] = "group-loss-scale"

    def to_dict(self) -> dict[str, Any]:
        """Name and settings of the policy."""
        return {**write_config(self.policy), "name": self.name}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GroupLossScale:
        """Rebuild from :meth:`to_dict`."""
        settings = {key: value for key, value in data.items() if key != "name"}
        return cls(scale_from_dict({"kind": "grouped", **settings}))  # type: ignore[arg-type]

    @property
    def is_dynamic(self) -> bool:
        """Always true: each scale grows or shrinks at every step."""
        return True

    @property
    def number(self) -> int:
        """Number of groups."""
        return self.policy.number

    def start(self) -> NDArray[np.float32]:
        """The initial scales, float32 ``[groups]``."""
        return self.policy.starts()

    def rewrite_decomposed(self, graph: GraphContext) -> Report:
        """Insert the boundaries; at this stage, because an engine may later split nodes."""
        found, report = insert_boundaries(graph.model, graph.trained, graph.objective, self.policy)
        graph.memory[_GROUPS] = found
        return report

    def scale_loss(self, graph: GraphContext, scale: ir.Value) -> None:
        """Multiply the loss by the scale of its group, unless a mark introduces the scale."""
        found = graph.memory[_GROUPS]
        if found.loss <= found.number:
            multiply_loss(graph, scale, found.loss - 1)

    def groups(self, graph: GraphContext) -> Mapping[str, int]:
        """The groups found by :func:`insert_boundaries`."""
        return graph.memory[_GROUPS].of

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Replace the placeholders of the boundaries by ratios."""
        scale = values_by_name(graph.model.graph)[SCALE]
        crossing = resolve_boundaries(graph.model, graph.memory[_GROUPS], scale)
        graph.memory[_INCOMING] = {
            ends: [value.name or "" for value in values] for ends, values in crossing.items()
        }

    def incoming(self, graph: GraphContext) -> Mapping[tuple[int, int], Sequence[ir.Value]]:
        """The gradients that cross the boundaries downward."""
        made = values_by_name(graph.model.graph)
        crossing = graph.memory[_INCOMING]
        return {ends: [made[name] for name in names] for ends, names in crossing.items()}

    def after_finite_step(
        self, b: Builder, states: Mapping[str, ir.Value], scale: ir.Value, groups: Sequence[int]
    ) -> dict[str, ir.Value]:
        """`S_i <- S_i grow` for the groups that are trained."""
        factors = np.ones(self.number, np.float32)
        factors[[number - 1 for number in groups]] = self.policy.grow
        return {SCALE: self._bounded(b, b.op("Mul", scale, b.const(factors)))}

    def after_overflow(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        scale: ir.Value,
        caused: Mapping[int, ir.Value],
    ) -> dict[str, ir.Value]:
        """`S_i <- S_i shrink` for the groups that overflowed, `S_i grow` for the others."""
        shrink, grow = b.const(self.policy.shrink), b.const(self.policy.grow)
        factors = []
        for number in range(1, self.number + 1):
            factor = b.const(1.0)  # this graph trains nothing of this group
            if number in caused:
                factor = b.op("Where", caused[number], shrink, grow, shape=())
            factors.append(b.op("Reshape", factor, b.ints(1), shape=(1,)))
        ratio = b.op("Concat", *factors, axis=0, shape=(self.number,))
        return {SCALE: self._bounded(b, b.op("Mul", scale, ratio))}

    def _bounded(self, b: Builder, scales: ir.Value) -> ir.Value:
        if self.policy.min_scale is not None:
            scales = b.op("Max", scales, b.const(self.policy.min_scale))
        if self.policy.max_scale is not None:
            scales = b.op("Min", scales, b.const(self.policy.max_scale))
        return scales
