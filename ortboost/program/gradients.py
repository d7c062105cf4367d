r"""Gradients between the engine and the boosts: finite check and unscaling.

With scaled gradients `G = S g` from the engine, and `d` the gradient divisor:

    g      = G / S / d                 a multiplication with the rounded reciprocal, as in MindSpore
    finite = all(16 sum(g^2) < inf)    as 0 * 16 sum(g^2) == 0: 0 * inf and 0 * nan are nan
             and all(|s| < inf)        s: the next running statistics

The square protects the new state. Adam squares the gradient, and norms for clipping or adaptation
sum squares: with finite gradients above 1.8e19 the result is inf, which sooner or later leads to
NaN (`Sqrt(inf)` is NaN on onnxruntime-training 1.19.2, `inf - inf` everywhere). So a tensor whose
norm is 2^62 = 4.6e18 or more counts as overflow. Below this, every optimizer stays finite: weight
decay and momentum may add a factor of 4 before a square overflows, and clipping, centralization and
the mean over a window or over processes do not increase the norm of a gradient. `G` itself may use
the whole range of float32.

The variance of activations above 1.8e19 is inf too, while the normalized values and all gradients
are 0: only the running statistics show it. If they were accepted, they would stay infinite for the
rest of the run.

With a scale for each group of layers (:mod:`ortboost.boosts.group_loss_scale`) all of this is done
for each group with its own `S_i`.

Small gradients are first packed into one vector, as the overhead of a node exceeds the cost of
their elements.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortboost.boosts.base import GraphContext
from ortboost.boosts.roles import LossScaler
from ortboost.graph.build import Builder
from ortboost.graph.weights.parameters import Parameter

__all__ = ["INCOMING", "LARGEST_NORM", "STATISTICS", "ZEROS", "ScaledGradients"]

ZEROS, INCOMING = "ortboost/zeros", "ortboost/incoming"
"""Name prefixes of float32 scalars that are zero if gradients are finite.

These are the gradients of parameters, and those that enter a scale group.
"""

STATISTICS = "ortboost/statistics"
"""Name prefix of float32 scalars that are zero if the next running statistics are finite."""

LARGEST_NORM = 2.0**62
"""The norm from which an unscaled gradient counts as overflow."""
_SMALL = 8192  # elements; larger gradients are not packed


class ScaledGradients:
    """The gradients of one step, scaled by `S`, or by the `S_i` of their groups.

    Args:
        b: Receives the nodes.
        graph: The context of the gradient graph; its trained parameters are unscaled.
        gradients: Parameter name to its scaled gradient.
        scaler: The boost that scales the loss; ``None`` for no scaling.
        scale: `S`, float32 scalar, or ``[groups]`` with groups; ``None`` for no scaling.
        divisor: `d`.
    """

    def __init__(
        self,
        b: Builder,
        graph: GraphContext,
        gradients: Mapping[str, ir.Value],
        scaler: LossScaler | None,
        scale: ir.Value | None,
        divisor: float,
    ) -> None:
        self.b, self.gradients = b, gradients
        self.scaler, self.divisor = scaler, divisor
        groups = None if scaler is None else scaler.groups(graph)
        # A group and the one above it, to the gradients that enter the former from the latter.
        self.incoming = {} if scaler is None else scaler.incoming(graph)
        members: dict[int, list[Parameter]] = {}
        for parameter in graph.trained:
            number = 0 if groups is None else groups[parameter.name]
            members.setdefault(number, []).append(parameter)
        # The reciprocals are computed here, in the main graph: before a branch writes the scale.
        self.bundles = {
            number: _Bundle(b, found, gradients, self._factor(scale, number), graph.rows)
            for number, found in sorted(members.items())
        }

    def pack(self) -> None:
        """Pack the small gradients into one vector, with groups one per group."""
        for bundle in self.bundles.values():
            bundle.pack()

    def finite(self, statistics: Sequence[ir.Value] = ()) -> ir.Value:
        """Whether all gradients are finite, and these running statistics: bool scalar."""
        sums = [s for bundle in self.bundles.values() for s in self._zeros(bundle)]
        for dtype in dict.fromkeys(value.dtype for value in statistics):
            alike = [value for value in statistics if value.dtype == dtype]
            sums.append(_zero_sum(self.b, self.b.op("Concat", *alike, axis=0), STATISTICS))
        return _is_zero(self.b, sums)

    def caused(self) -> dict[int, ir.Value]:
        """Scale group to whether it caused an overflow: bool scalars; empty with a single scale.

        A group caused it if it overflowed and no gradient that entered it from above did. The
        gradients that it passes down count too: they may overflow even if those of its parameters
        do not, and a group that this graph does not train has no others. The last group always
        counts as the cause of non-finite values in it.
        """
        if not self._groups:
            return {}
        crossing = {
            ends: [_zero_sum(self.b, value, INCOMING) for value in values]
            for ends, values in self.incoming.items()
        }
        # Also groups of which this graph trains nothing: they, too, may send gradients down.
        senders = {above for _, above in crossing if 0 < above <= self._groups}
        numbers = sorted({*self.bundles, *senders})
        found = {}
        for number in numbers:
            own = self._zeros(self.bundles[number]) if number in self.bundles else []
            own += [zero for ends, zeros in crossing.items() if ends[1] == number for zero in zeros]
            above = [z for ends, zeros in crossing.items() if ends[0] == number for z in zeros]
            bad = self.b.op("Not", _is_zero(self.b, own), shape=())
            if above and number != numbers[-1]:
                bad = self.b.op("And", bad, _is_zero(self.b, above), shape=())
            found[number] = bad
        return found

    @property
    def _groups(self) -> int:
        return 0 if self.scaler is None else self.scaler.number

    def unscaled(self) -> dict[str, ir.Value]:
        """Parameter name to `G / S / d`."""
        found: dict[str, ir.Value] = {}
        for bundle in self.bundles.values():
            found.update(bundle.unscaled())
        return {name: found[name] for name in self.gradients if name in found}

    def _zeros(self, bundle: _Bundle) -> list[ir.Value]:
        """Scalars that are zero unless a gradient in the bundle overflows."""
        return [_zero_square(self.b, grad) for grad in bundle.tensors()]

    def _factor(self, scale: ir.Value | None, group: int) -> ir.Value | None:
        """`1 / (S d)`, or ``None`` for 1."""
        factor = None
        if scale is not None:
            if group:
                index = self.b.const(group - 1, ir.DataType.INT64)
                scale = self.b.op("Gather", scale, index, shape=())
            factor = self.b.op("Reciprocal", scale, shape=())
        # One factor for both, so that a gradient is multiplied once.
        if self.divisor != 1.0:
            divisor = self.b.const(np.float32(1.0) / np.float32(self.divisor))
            factor = divisor if factor is None else self.b.op("Mul", factor, divisor)
        return factor


class _Bundle:
    """Gradients with the same scale; `factor` is `1 / (S d)`, ``None`` for 1."""

    def __init__(
        self,
        b: Builder,
        members: Sequence[Parameter],
        gradients: Mapping[str, ir.Value],
        factor: ir.Value | None,
        sparse: Container[str],
    ) -> None:
        self.b, self.factor = b, factor
        self.gradients = {p.name: gradients[p.name] for p in members}
        self.small = [p for p in members if p.size <= _SMALL and p.name not in sparse]
        self.packed: ir.Value | None = None
        self.made: dict[str, ir.Value] = {}

    def pack(self) -> None:
        # One tensor needs no packing.
        if len(self.small) < 2:
            return
        flat = [
            self.gradients[p.name]
            if len(p.shape) == 1
            else self.b.op("Reshape", self.gradients[p.name], self.b.ints(-1), shape=(p.size,))
            for p in self.small
        ]
        length = sum(p.size for p in self.small)
        self.packed = self.b.op("Concat", *flat, axis=0, shape=(length,))

    def tensors(self) -> list[ir.Value]:
        """The unscaled gradients `g`, packed ones as one tensor; computed once."""
        if not self.made:
            given = dict(self.gradients)
            if self.packed is not None:
                inside = {p.name for p in self.small}
                given = {name: grad for name, grad in given.items() if name not in inside}
                given[""] = self.packed
            if self.factor is not None:
                given = {name: self.b.op("Mul", grad, self.factor) for name, grad in given.items()}
            self.made = given
        return list(self.made.values())

    def unscaled(self) -> dict[str, ir.Value]:
        if self.factor is None:
            return dict(self.gradients)
        self.tensors()
        b, found = self.b, {**self.gradients, **self.made}
        # The empty name is that of the packed vector.
        vector = found.pop("", None)
        if vector is not None:
            sizes = b.ints(*(p.size for p in self.small))
            parts = b.ops("Split", vector, sizes, names=[None] * len(self.small), axis=0)
            for p, part in zip(self.small, parts, strict=True):
                shaped = len(p.shape) == 1
                found[p.name] = part if shaped else b.op("Reshape", part, b.ints(*p.shape))
        return found


def _zero_square(b: Builder, grad: ir.Value) -> ir.Value:
    """`0 * 16 * sum(grad^2)`: zero, or NaN."""
    total = b.op("ReduceSumSquare", grad, keepdims=0, shape=())
    total = b.op("Mul", total, b.const(16.0), shape=())  # inf from a norm of 2^62 on
    return b.op("Mul", total, b.const(0.0), name=ZEROS, shape=())


def _zero_sum(b: Builder, value: ir.Value, name: str) -> ir.Value:
    """`sum(0 * value)` as float32: zero, or NaN."""
    dtype = value.dtype or ir.DataType.FLOAT
    zero = b.op("ReduceSum", b.op("Mul", value, b.const(0.0, dtype)), keepdims=0, shape=())
    zero = b.cast(zero, ir.DataType.FLOAT)
    zero.name = b.unique(name)  # ortboost.program.split finds it by its name
    return zero


def _is_zero(b: Builder, sums: Sequence[ir.Value]) -> ir.Value:
    return b.op("Equal", b.combined("Sum", sums, shape=()), b.const(0.0), shape=())
