"""The factors of layers: their sides, shapes and state names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ortboost.boosts.thor_factors import Blocks
from ortboost.boosts.thor_layers import Layer, NormLayer

__all__ = ["Sides", "mean_name", "state_name"]


@dataclass(frozen=True)
class Sides:
    """The sides from which gradients are preconditioned.

    Args:
        mode: ``paper`` or ``mindspore``.
        block: Maximum rows of a block; 0 for whole factors.
    """

    mode: Literal["paper", "mindspore"]
    block: int

    def of(self, layer: Layer | NormLayer) -> str:
        """The sides of a layer: ``ag``, or ``f`` for an elementwise factor, or none."""
        if isinstance(layer, Layer):
            return "ag"
        return "f" if self.mode == "paper" else ""

    def all(self, layers: Sequence[Layer | NormLayer]) -> Iterator[tuple[Layer | NormLayer, str]]:
        """All pairs of a layer and one of its sides."""
        for layer in layers:
            yield from ((layer, side) for side in self.of(layer))

    def shape(self, layer: Layer | NormLayer, side: str) -> tuple[int, ...]:
        """Shape of a factor; ``[blocks, rows, rows]`` if it is not diagonal."""
        if isinstance(layer, NormLayer):
            return layer.shape
        if side == "a" and layer.kind == "embedding":
            return (layer.inputs,)
        return self.blocks(layer, side).shape

    def blocks(self, layer: Layer, side: str) -> Blocks:
        """The blocks of a factor."""
        length = layer.inputs if side == "a" else layer.outputs
        return Blocks(length, self.limit(layer), layer.groups)

    def limit(self, layer: Layer) -> int:
        """Maximum rows of a block."""
        whole = self.mode == "mindspore" and layer.kind == "embedding"
        return 0 if whole else self.block


def state_name(what: str, side: str, weight: str) -> str:
    """Name of a state: an ``inverse``, a running-average ``factor``, or that of a ``window``."""
    return f"ortboost/thor/{what}_{side}/{weight}"


def mean_name(side: str, weight: str) -> str:
    """Name of a mean over the batch from which a factor is computed."""
    return f"thor/{side}/{weight}"
