"""The second-order update: damped inverses of the current factors or of their running average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.boosts.base import Key, StepContext, UpdateContext
from ortboost.boosts.roles import PART
from ortboost.boosts.thor_inverse import (
    Factor,
    inverse_cost,
    inverted_factors,
    padded_rows,
    split_stack,
)
from ortboost.boosts.thor_layers import Layer, NormLayer
from ortboost.boosts.thor_shares import own_blocks
from ortboost.boosts.thor_sides import Sides, mean_name, state_name
from ortboost.graph.bodies import choose
from ortboost.graph.build import Builder
from ortboost.graph.formulas import Term

__all__ = ["KEPT", "LAYERS", "Refresh"]

LAYERS = Key[list[Layer | NormLayer]]("layers")
"""Key of the layers in the memory of a conversion."""
KEPT: Final = "ortboost/thor/kept_blocks"
"""Name of the state that counts blocks whose new inverse was not accurate."""
_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
_DOUBLE = ir.DataType.DOUBLE


@dataclass(frozen=True)
class Refresh:
    """Computes the inverses, with the settings of :class:`~ortboost.boosts.thor.Thor`."""

    sides: Sides
    damping: float | tuple[float, ...]
    damping_decay: float
    pi: bool
    factor_decay: float
    distribute_inverses: bool

    def factors(self, step: StepContext) -> dict[tuple[str, str], ir.Value]:
        """The factors of this batch by weight and side, and the ``gain`` of a weight if any."""
        b, found = step.b, {}
        for layer in step.memory[LAYERS]:
            parts = {
                side: step.batch_means[mean_name(side, layer.weight)]
                for side in (*self.sides.of(layer), "gain", "share")
                if mean_name(side, layer.weight) in step.batch_means
            }
            share = parts.pop("share", None)
            # From the means s A and s G, which processes can average, to sqrt(s) A and sqrt(s) G.
            root = None if share is None else b.op("Sqrt", share)
            for side, value in parts.items():
                found[layer.weight, side] = value if root is None else b.op("Div", value, root)
        return found

    def refreshed(
        self, update: UpdateContext, old: Mapping[tuple[str, str], ir.Value]
    ) -> dict[tuple[str, str], ir.Value]:
        """The inverses of this update's factors; the old ones where the new are not accurate."""
        b, found = update.b, dict[tuple[str, str], ir.Value]()
        chains, diagonal = self._factors_to_invert(update)
        for key, value in diagonal.items():
            found[key] = self._reciprocal(b, value, self.root(update), old[key])
        kept = update.states[KEPT]
        for size, members in chains.items():
            if self.distribute_inverses:
                new = [update.sums[_sum_name(*factor.key)] for factor in members]
                accurate = b.cast(update.sums[_flags_name(size)], _BOOL)
            else:
                stack, accurate = inverted_factors(b, members, size)
                new = split_stack(b, members, stack)
            counts = b.ints(*(factor.shape[0] for factor in members))
            # A block whose new inverse is not accurate keeps the old one.
            flags = b.ops("Split", accurate, counts, names=[None] * len(members), axis=0)
            for factor, inverse, good in zip(members, new, flags, strict=True):
                found[factor.key] = b.op("Where", good, inverse, old[factor.key])
            bad = b.cast(b.op("Not", accurate), _INT64)
            kept = b.op("Add", kept, b.op("ReduceSum", bad, keepdims=0, shape=()))
        for (name, side), value in found.items():
            update.next_of[state_name("inverse", side, name)] = value
        update.next_of[KEPT] = kept
        return found

    def parts(self, update: UpdateContext, applies: ir.Value | None) -> dict[str, ir.Value]:
        """The inverses that this process computes, and whether they are accurate.

        Those of other processes are zeros; see :mod:`ortboost.boosts.thor_shares`.
        """
        b, found = update.b, dict[str, ir.Value]()
        chains, _ = self._factors_to_invert(update)
        numbers = {size: sum(f.shape[0] for f in members) for size, members in chains.items()}
        kinds = [(number, inverse_cost(size)) for size, number in numbers.items()]
        divided = own_blocks(b, update.states[PART], kinds)
        for (size, members), (own, some) in zip(chains.items(), divided, strict=True):
            if applies is not None:
                # No inverses are needed in a skipped step, nor within an accumulation window.
                some = b.op("And", some, applies, shape=())
            # `choose` takes over collected nodes as those of a branch.
            b.flush()
            compute = partial(_own_inverses, b, members, size, own, numbers[size])
            zeros = partial(_zeros, b, size, numbers[size])
            name = f"ortboost/thor/own_{size}"
            stack, flags = choose(b, name, some, compute, zeros, prefix=f"{name}/").values()
            for factor, inverse in zip(members, split_stack(b, members, stack), strict=True):
                found[_sum_name(*factor.key)] = inverse
            found[_flags_name(size)] = flags
        return found

    def _factors_to_invert(
        self, update: UpdateContext
    ) -> tuple[dict[int, list[Factor]], dict[tuple[str, str], ir.Value]]:
        """The factors with blocks, by padded size, the largest first; and the diagonal factors."""
        b = update.b
        layers = update.memory[LAYERS]
        keys = [(layer.weight, side) for layer, side in self.sides.all(layers)]
        if update.window > 1:
            factors = {key: update.states[state_name("window", key[1], key[0])] for key in keys}
        else:
            factors = self.factors(update)
        if self.factor_decay:
            factors = {key: self._averaged(update, key, new) for key, new in factors.items()}
        # Blocks of equal padded size are inverted together, in one chain of batched products.
        chains: dict[int, list[Factor]] = {}
        diagonal = {}
        root = self.root(update)
        for layer in layers:
            dampings = self._dampings(b, layer, factors, root)
            for side in self.sides.of(layer):
                key, shape = (layer.weight, side), self.sides.shape(layer, side)
                if len(shape) == 3 and isinstance(layer, Layer):
                    gain = factors.get((layer.weight, "gain")) if side == "a" else None
                    factor = Factor(key, shape, factors[key], dampings[side], gain)
                    chains.setdefault(padded_rows(shape[1]), []).append(factor)
                else:
                    diagonal[key] = factors[key]
        return dict(sorted(chains.items(), reverse=True)), diagonal

    def _averaged(self, update: UpdateContext, key: tuple[str, str], new: ir.Value) -> ir.Value:
        """The running average of a factor; a factor that is not finite does not change it."""
        b, state = update.b, state_name("factor", key[1], key[0])
        if state in update.next_of:  # computed before the branches
            return update.next_of[state]
        old, factor, decay = Term(b, update.states[state]), Term(b, new), self.factor_decay
        mean = old * decay + factor * (1 - decay)
        first = Term(b, update.step).call("Equal", 1.0)
        finite = (factor * 0.0).call("ReduceSum", keepdims=0).call("Equal", 0.0)
        update.next_of[state] = finite.where(first.where(new, mean), old).value
        return update.next_of[state]

    def root(self, update: UpdateContext) -> ir.Value:
        """The square root of the damping of this update, float64 scalar."""
        b = update.b

        def make() -> ir.Value:
            one = b.const(1.0, _DOUBLE)
            if isinstance(self.damping, tuple):
                index = b.cast(b.op("Sub", update.step, one), _INT64)
                index = b.op("Min", index, b.const(len(self.damping) - 1, _INT64))
                value = b.op("Gather", b.const(self.damping, _DOUBLE), index, shape=())
            else:
                value = b.const(self.damping, _DOUBLE)
            if self.damping_decay != 1:
                done = b.op("Sub", update.step, one)
                decay = b.op("Pow", b.const(self.damping_decay, _DOUBLE), done)
                value = b.op("Mul", value, decay)
            return b.op("Sqrt", value)

        return b.shared("thor.root", make)

    def _dampings(
        self,
        b: Builder,
        layer: Layer | NormLayer,
        factors: Mapping[tuple[str, str], ir.Value],
        root: ir.Value,
    ) -> dict[str, ir.Value]:
        """The damping of each factor: the root, divided between the two factors with ``pi``."""
        if not self.pi or not isinstance(layer, Layer):
            return dict.fromkeys(self.sides.of(layer), root)
        a, g = (self._mean_eigenvalue(b, layer, side, factors[layer.weight, side]) for side in "ag")
        # A bound, so that one factor is never left almost without damping.
        ratio = (a / g).call("Sqrt").call("Min", 1e3).call("Max", 1e-3)
        whole = Term(b, root)
        return {"a": (whole * ratio).value, "g": (whole / ratio).value}

    def _mean_eigenvalue(self, b: Builder, layer: Layer, side: str, factor: ir.Value) -> Term:
        length = (layer.inputs if side == "a" else layer.outputs) * layer.groups
        term = Term(b, factor)
        if len(self.sides.shape(layer, side)) == 3:
            # Only the diagonals count for the trace; rows of padding are zeros.
            term = term * b.const(np.eye(self.sides.blocks(layer, side).size))
        mean = term.call("ReduceSum", keepdims=0) / float(length)
        # A factor of zeros, such as that of a dead layer, must not divide by zero.
        return mean.call("Max", 1e-30).cast(_DOUBLE)

    def _reciprocal(self, b: Builder, factor: ir.Value, root: ir.Value, old: ir.Value) -> ir.Value:
        """`1 / (f + sqrt(d))`; the old value where that is not a finite float32."""
        new = (Term(b, b.cast(factor, _DOUBLE)) + root).call("Reciprocal").cast(_FLOAT)
        good = new.call("LessOrEqual", float(np.finfo(np.float32).max))  # false for NaN
        return good.where(new, old).value


def _sum_name(weight: str, side: str) -> str:
    """Name of the inverses of a factor among the sums over processes."""
    return f"thor/inverse_{side}/{weight}"


def _flags_name(size: int) -> str:
    """Name of the flags of all blocks padded to ``size``, 1 where an inverse is accurate."""
    return f"thor/accurate_{size}"


def _own_inverses(
    b: Builder, factors: Sequence[Factor], size: int, own: ir.Value, number: int
) -> dict[str, ir.Value]:
    """Inverses and flags of all blocks, those of other processes as zeros."""
    places = b.op("NonZero", own)  # [1, own blocks]
    rows = b.op("Transpose", places, perm=[1, 0])
    inverses, accurate = inverted_factors(b, factors, size, b.op("Squeeze", places, b.ints(0)))
    return {
        key: b.op("ScatterND", zeros, rows, part, shape=zeros.shape)
        for (key, zeros), part in zip(
            _zeros(b, size, number).items(), (inverses, b.cast(accurate, _FLOAT)), strict=True
        )
    }


def _zeros(b: Builder, size: int, number: int) -> dict[str, ir.Value]:
    shapes = {"inverses": (number, size, size), "accurate": (number, 1, 1)}
    return {key: b.filled(0, b.ints(*shape), shape=shape) for key, shape in shapes.items()}
