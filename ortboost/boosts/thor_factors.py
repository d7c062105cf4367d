r"""Kronecker factors of a layer from its inputs and output gradients, and the preconditioning.

A layer has `R` rows (samples times positions) of inputs `a` and output gradients `D`; the loss has
`N` terms, so that `g = N D` is the gradient of one term. The mean Fisher matrix of the layer is
approximated by a Kronecker product:

    F  ~  (R / N) A (x) G,      A = sum(a a^T) / R,     G = sum(g g^T) / R

For a fully connected layer of a classifier, `R = N`. For a convolution, `R / N` is the number of
positions; this is the approximation of Grosse and Martens. For a language model, every position is
a term. Each group of a convolution has its own rows and its own product. A factor with more than
``block`` rows is approximated by its diagonal blocks.

With `s = R / N` and damping `d`, the stored factors are `sqrt(s) A` and `sqrt(s) G`:

    u = (sqrt(s) G + sqrt(d) I)^-1  dL/dW  (sqrt(s) A + sqrt(d) I)^-1

which equals the inverses of `A + sqrt(d/s) I` and `G + sqrt(d/s) I`, divided by `s`. They are
computed from `s A`, `s G` and `s`. These are means over the terms, so that processes can average
them with their shares of `N`; `sqrt(s) A` is not a mean if `s` differs between processes. For scale
and bias of a layer normalization with normalized input `x`, the diagonal of `F` is used:

    f_scale = sum((g x)^2) / N,     f_bias = sum(g^2) / N,     u = dL/dw / (f + sqrt(d))

``mode="mindspore"`` computes the factors as MindSpore 2.10 does on a GPU, with `B` its
``batch_size``:

- fully connected: `s = 1`; `A` is divided by the length of `a`, not by `R`;
  `G = B^2 sum(D D^T) / R`;
- convolution: patches use ``same`` padding regardless of the layer's; `a` and `D` are averaged over
  the batch before the products; `R` and `s` count positions, of the patches for `A` and of the
  output for `G`; `u` is divided by the `s` of `A`;
- embedding: `A` holds the count of each id, divided by `B`; `G` is not divided into blocks;
- layer normalization: `f = (dL/dw)^2 / B`, at every step.

Sources: Chen et al., "THOR, Trace-based Hardware-driven Layer-Oriented Natural Gradient Descent
Computation", AAAI 2021 (blocks, reuse of inverses); Martens and Grosse, "Optimizing Neural Networks
with Kronecker-factored Approximate Curvature", ICML 2015 (factors, damping); Grosse and Martens, "A
Kronecker-factored approximate Fisher matrix for convolution layers", ICML 2016.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortboost.boosts.thor_layers import Layer, NormLayer
from ortboost.boosts.thor_sides import Blocks, Sides
from ortboost.graph.build import Builder
from ortboost.graph.formulas import Term

__all__ = ["FactorMaker", "precondition"]

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
_Rows: TypeAlias = tuple[ir.Value, ir.Value, ir.Value | None]  # rows, their divisor, s


@dataclass(frozen=True)
class FactorMaker:
    """Appends nodes for the factors of layers.

    Args:
        b: Builder for the nodes.
        values: Name of an intermediate value or of its gradient to the value.
        unscale: Factor that unscales gradients; ``None`` for 1.
        terms: Factor from `D` to `g`: `N` for a mean loss, 1 for a sum; float32 scalar.
        number: `N`, float32 scalar.
        sides: The blocks of the factors.
        batch_size: `B` for MindSpore's factors, else ``None``.
    """

    b: Builder
    values: Mapping[str, ir.Value]
    unscale: ir.Value | None
    terms: ir.Value
    number: ir.Value
    sides: Sides
    batch_size: int | None

    def of(self, layer: Layer | NormLayer) -> dict[str, ir.Value]:
        """The factors of a layer by side, float32: ``a`` and ``g`` as blocks, or ``f``.

        If present, ``gain`` is a factor for the product of the inverses, and ``share`` is `s`; with
        ``share``, the others are `s A` and `s G`.
        """
        if isinstance(layer, NormLayer):
            return {"f": self._norm(layer)}
        if layer.kind == "dense":
            return self._dense(layer)
        return self._conv(layer) if layer.kind == "conv" else self._embedding(layer)

    # ---- kinds of layers ----------------------------------------------------------------------

    def _dense(self, layer: Layer) -> dict[str, ir.Value]:
        a = self._rows(self._input(layer), layer.inputs)  # [1, in, R]
        d = self._rows(self._gradient(layer), layer.outputs)  # [1, out, R]
        rows = self._length(d, 2)
        if self.batch_size:
            length = self.b.const(float(layer.inputs))
            return self._both(layer, (a, length, None), (d, rows, None))
        return self._means(layer, a, d)

    def _conv(self, layer: Layer) -> dict[str, ir.Value]:
        b, axes = self.b, len(layer.kernel)
        x, d = self._input(layer), self._gradient(layer)
        attributes = dict(layer.attributes or {})
        if self.batch_size:
            # MindSpore averages before the products, and always pads like this.
            x, d = (b.op("ReduceMean", v, b.ints(0), keepdims=1) for v in (x, d))
            attributes.pop("pads", None)
            attributes["auto_pad"] = ir.AttrString("auto_pad", "SAME_UPPER")
        # Extract patches with a depthwise convolution: one one-hot kernel per channel and offset.
        places = math.prod(layer.kernel)
        channels = layer.inputs * layer.groups // places
        one_hot = b.const(np.eye(places).reshape(places, 1, *layer.kernel))
        kernels = b.op("Tile", one_hot, b.ints(channels, *[1] * (axes + 1)))
        patches = b.op(
            "Conv", x, kernels, group=channels, **{k: a.value for k, a in attributes.items()}
        )
        a = self._positions(patches, layer.groups, layer.inputs)  # [groups, in k..., R]
        d = self._positions(d, layer.groups, layer.outputs)  # [groups, out, R]
        rows = self._length(d, 2)
        if self.batch_size:
            positions = self._length(a, 2)
            found = self._both(layer, (a, positions, positions), (d, rows, rows))
            # The inverses divide by sqrt(s_A s_G), MindSpore by s_A.
            return {**found, "gain": b.op("Sqrt", b.op("Div", rows, positions))}
        return self._means(layer, a, d)

    def _embedding(self, layer: Layer) -> dict[str, ir.Value]:
        b = self.b
        d = self._rows(self._gradient(layer), layer.outputs)
        rows = self._length(d, 2)
        ids = b.op("Reshape", self.values[layer.source], b.ints(-1))
        ones = b.op("Expand", b.const(1.0), b.op("Shape", ids))
        # A is the mean of unit vectors' outer products: a diagonal with the share of each id.
        zeros = b.const(np.zeros(layer.inputs))
        counts = b.op("ScatterElements", zeros, ids, ones, reduction="add", shape=(layer.inputs,))
        blocks = self.sides.blocks(layer, "g")
        if self.batch_size:
            a = b.op("Div", counts, b.const(float(self.batch_size)))
            return {"a": a, "g": self._moment(d, rows, blocks, None)}
        return {
            "a": b.op("Div", counts, self.number),
            "g": self._moment(d, self.number, blocks, None),
            "share": b.op("Div", rows, self.number),
        }

    def _norm(self, layer: NormLayer) -> ir.Value:
        b, size = self.b, math.prod(layer.shape)
        d = b.op("Reshape", self._gradient(layer), b.ints(-1, size))
        if layer.scale:
            # The normalized input, computed again: the operator need not output its statistics.
            x = b.op("Reshape", b.cast(self.values[layer.source], _FLOAT), b.ints(-1, size))
            centered = Term(b, x) - b.op("ReduceMean", x, b.ints(1), keepdims=1)
            variance = (centered * centered).call("ReduceMean", b.ints(1), keepdims=1)
            d = (Term(b, d) * (centered / (variance + layer.epsilon).call("Sqrt"))).value
        total = b.op("ReduceSumSquare", d, b.ints(0), keepdims=0)
        mean = b.op("Div", total, self.number)
        return b.op("Reshape", mean, b.ints(*layer.shape), shape=layer.shape)

    # ---- parts --------------------------------------------------------------------------------

    def _both(self, layer: Layer, a: _Rows, d: _Rows) -> dict[str, ir.Value]:
        rows, divisor, share = d
        return {
            "a": self._moment(a[0], a[1], self.sides.blocks(layer, "a"), a[2]),
            "g": self._moment(rows, divisor, self.sides.blocks(layer, "g"), share),
        }

    def _means(self, layer: Layer, a: ir.Value, d: ir.Value) -> dict[str, ir.Value]:
        """Means over the terms, not over the rows."""
        share = self.b.op("Div", self._length(d, 2), self.number)
        return {**self._both(layer, (a, self.number, None), (d, self.number, None)), "share": share}

    def _input(self, layer: Layer) -> ir.Value:
        return self.b.cast(self.values[layer.source], _FLOAT)

    def _gradient(self, layer: Layer | NormLayer) -> ir.Value:
        """`g`, unscaled before it is squared."""
        b = self.b
        gradient = b.cast(self.values[f"{layer.output}_grad"], _FLOAT)
        factor = self.terms if self.unscale is None else b.op("Mul", self.terms, self.unscale)
        return b.op("Mul", gradient, factor)

    def _rows(self, value: ir.Value, length: int) -> ir.Value:
        """Reshape ``[..., length]`` to ``[1, length, rows]``."""
        b = self.b
        flat = b.op("Reshape", value, b.ints(1, -1, length))
        return b.op("Transpose", flat, perm=[0, 2, 1])

    def _positions(self, value: ir.Value, groups: int, length: int) -> ir.Value:
        """Reshape ``[samples, groups * length, ...]`` to ``[groups, length, rows]``."""
        b = self.b
        flat = b.op("Reshape", value, b.ints(0, groups, length, -1))
        turned = b.op("Transpose", flat, perm=[1, 2, 0, 3])
        return b.op("Reshape", turned, b.ints(groups, length, -1))

    def _length(self, value: ir.Value, axis: int) -> ir.Value:
        b = self.b
        length = b.op("Gather", b.op("Shape", value), b.const(axis, _INT64), shape=())
        return b.cast(length, _FLOAT)

    def _moment(
        self, rows: ir.Value, divisor: ir.Value, blocks: Blocks, share: ir.Value | None
    ) -> ir.Value:
        """Blocks of `sqrt(s) sum(row row^T) / divisor`, from ``[groups, length, rows]``."""
        b = self.b
        if blocks.padding:
            # Zeros at the end of axis 1 fill the last block.
            rows = b.op("Pad", rows, b.ints(0, 0, 0, 0, blocks.padding, 0))
        # [groups, length, R] -> [groups * blocks, size, R]: a block is a run of consecutive rows.
        rows = b.op("Reshape", rows, b.ints(*blocks.shape[:2], -1))
        moment = b.op("MatMul", rows, b.op("Transpose", rows, perm=[0, 2, 1]), shape=blocks.shape)
        mean = b.op("Div", moment, divisor)
        return mean if share is None else b.op("Mul", mean, b.op("Sqrt", share), shape=mean.shape)


def precondition(
    b: Builder, layer: Layer, gradient: ir.Value, a: ir.Value, g: ir.Value, sides: Sides
) -> ir.Value:
    """Append nodes for `G^-1 dL/dW A^-1`, in the layout of the weight.

    ``a`` and ``g`` are the blocks of the inverses, for an embedding ``a`` the inverse of the
    diagonal.
    """
    inner, outer = sides.blocks(layer, "a"), sides.blocks(layer, "g")
    if layer.kind == "embedding":
        scaled = b.op("Mul", gradient, b.op("Unsqueeze", a, b.ints(1)))
        matrix = b.op("Unsqueeze", scaled, b.ints(0))
        return b.op("Squeeze", _right(b, matrix, g, outer), b.ints(0), shape=layer.shape)
    # The weight is [in, out] or [out, in, k...]: the factor of axis 0 multiplies from the left.
    first, second = ((a, inner), (g, outer)) if layer.rows_in else ((g, outer), (a, inner))
    matrix = b.op("Reshape", gradient, b.ints(layer.groups, first[1].length, second[1].length))
    matrix = _right(b, _left(b, matrix, *first), *second)
    return b.op("Reshape", matrix, b.ints(*layer.shape), shape=layer.shape)


def _left(b: Builder, matrix: ir.Value, inverse: ir.Value, blocks: Blocks) -> ir.Value:
    """Multiply ``[groups, rows, columns]`` from the left by block-diagonal inverses."""
    if blocks.number == 1:
        return b.op("MatMul", inverse, matrix)
    if blocks.padding:
        matrix = b.op("Pad", matrix, b.ints(0, 0, 0, 0, blocks.padding, 0))
    count, size, _ = blocks.shape
    # [groups, rows, columns] -> [groups * blocks, size, columns], and back without padding.
    parts = b.op("Reshape", matrix, b.const([count, size, -1], _INT64))
    product = b.op("MatMul", inverse, parts)
    whole = b.op("Reshape", product, b.ints(blocks.groups, blocks.number * size, -1))
    return b.op("Slice", whole, b.ints(0), b.ints(blocks.length), b.ints(1))


def _right(b: Builder, matrix: ir.Value, inverse: ir.Value, blocks: Blocks) -> ir.Value:
    """Multiply ``[groups, rows, columns]`` from the right by symmetric block-diagonal inverses."""
    if blocks.number == 1:
        return b.op("MatMul", matrix, inverse)
    turned = b.op("Transpose", matrix, perm=[0, 2, 1])
    return b.op("Transpose", _left(b, turned, inverse, blocks), perm=[0, 2, 1])
