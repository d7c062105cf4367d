"""The factors of layers: their sides, shapes, state names and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ortboost.boosts.thor_inverse import inverse_cost, padded_rows
from ortboost.boosts.thor_layers import Layer, NormLayer
from ortboost.graph.query import fixed_lengths, known_shape, producer_of

__all__ = ["Blocks", "Sides", "cost_words", "layer_cost", "mean_name", "state_name"]


@dataclass(frozen=True)
class Blocks:
    """Division of a factor into diagonal blocks.

    Args:
        length: Rows of the factor.
        limit: Maximum rows of a block; 0 for one block.
        groups: Number of such factors, one per group of a convolution.
    """

    length: int
    limit: int
    groups: int = 1

    @property
    def number(self) -> int:
        """Number of blocks per factor."""
        return 1 if not self.limit else -(-self.length // self.limit)

    @property
    def size(self) -> int:
        """Rows of a block; the last block may be padded."""
        return self.length if self.number == 1 else self.limit

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the tensor of all blocks."""
        return (self.groups * self.number, self.size, self.size)

    @property
    def padding(self) -> int:
        """Rows by which the last block is padded."""
        return self.number * self.size - self.length


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
        whole = self.mode == "mindspore" and layer.kind == "embedding"
        length = layer.inputs if side == "a" else layer.outputs
        return Blocks(length, 0 if whole else self.block, layer.groups)


def state_name(what: str, side: str, weight: str) -> str:
    """Name of a state: an ``inverse``, a running-average ``factor``, or that of a ``window``."""
    return f"ortboost/thor/{what}_{side}/{weight}"


def mean_name(side: str, weight: str) -> str:
    """Name of a mean over the batch from which a factor is computed."""
    return f"thor/{side}/{weight}"


def layer_cost(
    layer: Layer | NormLayer, sides: Sides, kept: int, output: ir.Value | None
) -> dict[str, str | int | None]:
    """Compute the costs of a layer, for the report.

    ``kept`` is the number of copies of the factors in the state, including the inverses; ``output``
    is its output in the training graph, which determines the rows per sample.

    Returns:
        Column to value: ``layer``; ``A`` and ``G``, rows and blocks of the factors;
        ``state_bytes``; and multiply-accumulates: ``factors`` per sample (``None`` if its rows are
        not static) and ``inverses`` at second-order updates, ``step`` at every update.
    """
    shapes = {side: sides.shape(layer, side) for side in sides.of(layer)}
    rows = _rows(output, len(layer.shape) if isinstance(layer, NormLayer) else 1)
    if isinstance(layer, NormLayer):
        kind, per_row, inverses = "elementwise", math.prod(layer.shape), 0
        step = per_row
    else:
        kind, blocks = layer.kind, [shape for shape in shapes.values() if len(shape) == 3]
        per_row = sum(map(math.prod, blocks))  # an outer product per row, within the blocks
        if kind == "conv":  # patches are extracted by a convolution with one-hot kernels
            per_row += layer.inputs * layer.groups * math.prod(layer.kernel)
        inverses = sum(shape[0] * inverse_cost(padded_rows(shape[1])) for shape in blocks)
        size = layer.inputs * layer.outputs * layer.groups  # of the weight
        step = size * sum(shape[1] if len(shape) == 3 else 1 for shape in shapes.values())
    return {
        "layer": kind,
        **{side.upper(): _shape_words(layer, sides, side) for side in "ag"},
        "state_bytes": 4 * kept * sum(map(math.prod, shapes.values())),
        "factors": None if rows is None else rows * per_row,
        "inverses": inverses,
        "step": step,
    }


def cost_words(cost: Mapping[str, str | int | None]) -> str:
    """Describe how a layer is preconditioned, and the costs."""
    factors = "" if not cost["A"] else f", A {cost['A']}, G {cost['G']}"
    inverses, step = (float(cost[name] or 0) / 1e6 for name in ("inverses", "step"))
    return (
        f"{cost['layer']}{factors}; {cost['state_bytes']} bytes of state; {inverses:.3g} million "
        f"multiply-accumulates for the inverses, {step:.3g} at each update"
    )


def _shape_words(layer: Layer | NormLayer, sides: Sides, side: str) -> str:
    if isinstance(layer, NormLayer):
        return ""
    shape = sides.shape(layer, side)
    length = layer.inputs if side == "a" else layer.outputs
    if len(shape) == 1:
        return f"{length}, diagonal"
    words = str(length) if layer.groups == 1 else f"{layer.groups} of {length}"
    number = sides.blocks(layer, side).number
    return words if number == 1 else f"{words}, {number} blocks of {shape[1]}"


def _rows(output: ir.Value | None, last: int) -> int | None:
    """Rows per sample: the product of all axes that are neither batch nor features."""
    shape = None if output is None else known_shape(output)
    if shape is None or output is None:
        return None
    inner = shape[2:] if producer_of(output, "Conv") else shape[1 : len(shape) - last]
    sizes = fixed_lengths(inner)
    return None if sizes is None else math.prod(sizes)
