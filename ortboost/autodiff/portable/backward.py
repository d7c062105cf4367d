"""The context of a gradient rule: a node, the gradients of its outputs, and helpers.

A rule returns one gradient for each input of the node, ``None`` if there is none or none is needed;
it raises :class:`~ortboost.graph.rewriting.Refusal` for a form of the operator that it cannot
differentiate. A gradient has the shape and dtype of its tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ortboost.autodiff.broadcast_sum import broadcast_shape, sum_broadcast_axes
from ortboost.autodiff.clamps import has_steep_reader
from ortboost.graph.build import Builder
from ortboost.graph.query import is_standard, known_shape, scalar, source_before
from ortboost.graph.rewriting import Refusal, Site
from ortboost.graph.shapes.symbolic_shapes import is_cut

__all__ = ["Backward", "GradientRule", "Gradients"]

Gradients: TypeAlias = Sequence[ir.Value | None]


class Backward(Site):
    """A node in the reverse pass. Rules call it ``b``, like a builder: they create nodes with it.

    Args:
        node: The node of the forward graph.
        builder: Receives the new nodes.
        opset: Version of the standard opset of the model.
        gradients: Gradient of each output; ``None`` if the loss does not depend on the output.
        wanted: Indices of the inputs that need a gradient.
        active: Names of all values that need a gradient, for nodes with subgraphs.
    """

    def __init__(
        self,
        node: ir.Node,
        builder: Builder,
        opset: int,
        gradients: Gradients,
        wanted: frozenset[int],
        active: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(node, builder, opset)
        self.gradients = gradients
        self.wanted = wanted
        self.active = active
        self.captured: list[tuple[ir.Value, ir.Value]] = []

    def gradient(self, index: int = 0) -> ir.Value:
        """Gradient of an output that the loss depends on."""
        found = self.gradients[index]
        if found is None:
            raise Refusal(f"the loss depends on other outputs, but not on output {index}")
        return found

    def gradient_or_zeros(self, index: int) -> ir.Value:
        """Gradient of an output; zeros of its shape if the loss does not depend on it."""
        found = self.gradients[index]
        if found is not None:
            return found
        return self.zeros_like(self.output(index))

    def zeros_like(self, value: ir.Value) -> ir.Value:
        """Zeros of the type and shape of a value."""
        zero = self.const(0.0, value.dtype or self.dtype)
        return self.op("Expand", zero, self.shape_of(value), shape=value.shape)

    def value_like(self, value: ir.Value, name: str) -> ir.Value:
        """A new value of the type and shape of another, for example an input of a body."""
        name = self.builder.unique(f"{self.builder.prefix}/{name}")
        return ir.Value(name=name, type=value.type, shape=value.shape)

    def output(self, index: int = 0) -> ir.Value:
        """An output of the forward node."""
        return self.node.outputs[index]

    def extra_output(
        self, index: int, dtype: ir.DataType, shape: Sequence[int | str | None] | ir.Shape | None
    ) -> ir.Value:
        """An optional output of the forward node, added if the node lacks it."""
        node = self.node
        if index >= len(node.outputs):
            node.resize_outputs(index + 1)
        output = node.outputs[index]
        if not output.name:
            output.name = self.builder.unique(f"{node.outputs[0].name}/{index}")
        output.dtype = output.dtype or dtype
        if output.shape is None and shape is not None:
            output.shape = ir.Shape(shape)
        return output

    def masked(self, condition: ir.Value, gradient: ir.Value) -> ir.Value:
        """``gradient`` where the condition holds, else 0; the condition may broadcast.

        In 16 bits, where gradients often overflow, and before a function that is infinitely steep
        at a bound, as in `sqrt(clamp(x, min=0))`, a masked infinite gradient gives 0, as in torch.
        Otherwise the mask is a product with 0 or 1, so that a masked infinite gradient becomes NaN;
        Where would be 1.4 to 6 times slower on CPUs.
        """
        dtype, shape = gradient.dtype or self.dtype, broadcast_shape([condition, gradient])
        steep = has_steep_reader(self.output()) or _hides_infinity(self.node)
        if steep or dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            zero = self.const(0.0, dtype)
            return self.op("Where", condition, gradient, zero, shape=shape)
        factor = self.cast(condition, dtype)
        return self.op("Mul", gradient, factor, shape=shape)

    def contribute(self, value: ir.Value, gradient: ir.Value) -> None:
        """Add the gradient of a value that only a subgraph of the node reads."""
        self.captured.append((value, gradient))

    def needs_gradient(self, index: int) -> bool:
        """Whether an input needs a gradient."""
        return index in self.wanted

    def sum_to_shape(self, gradient: ir.Value, value: ir.Value) -> ir.Value:
        """Sum a gradient over the axes along which ``value`` was broadcast, to its shape.

        No node is added if the shapes are known to be equal; equal symbolic names mean equal
        lengths. If the shapes are uncertain, axes whose lengths differ are summed at run time.
        """
        have, want = known_shape(gradient), known_shape(value)
        if have is None:  # a gradient has the shape of its output
            have = known_shape(self.output(0)) if gradient is self.gradients[0] else None
        if want is not None and have is not None and len(want) <= len(have):
            return self._sum_known(gradient, have, value, want)
        return self._sum_at_run_time(gradient, value)

    def _sum_known(
        self,
        gradient: ir.Value,
        have: tuple[int | str | None, ...],
        value: ir.Value,
        want: tuple[int | str | None, ...],
    ) -> ir.Value:
        extra = len(have) - len(want)
        padded = (1,) * extra + want
        summed: list[int] = []
        for axis, (h, w) in enumerate(zip(have, padded, strict=True)):
            if axis < extra or (w == 1 and h != 1):
                summed.append(axis)
            elif w is None or (w != h and not is_cut(w, h)):  # one of them may be 1 at run time
                return self._sum_at_run_time(gradient, value)
        if not summed:
            return gradient
        # One ReduceSum drops the axes that the operand lacks, unless others are summed, too.
        keep = 0 if extra and summed == list(range(extra)) else 1
        shape = [1 if axis in summed else dim for axis, dim in enumerate(have)]
        reduced = self.op(
            "ReduceSum",
            gradient,
            self.ints(*summed),
            keepdims=keep,
            shape=shape[extra:] if not keep else shape,
        )
        if keep and extra:
            axes = self.ints(*range(extra))
            reduced = self.op("Squeeze", reduced, axes, shape=shape[extra:])
        return reduced

    def _sum_at_run_time(self, gradient: ir.Value, value: ir.Value) -> ir.Value:
        return sum_broadcast_axes(self.builder, gradient, self.shape_of(value), value.shape)


GradientRule: TypeAlias = Callable[[Backward], Gradients]


def _hides_infinity(node: ir.Node) -> bool:
    """Whether a node masks with infinity what other functions than Softmax read.

    A row that is masked as a whole has the gradient NaN in them, and in a Softmax only if
    :mod:`ortboost.autodiff.masked_rows` does not find what hides its NaN.
    """
    if not is_standard(node, "Where"):
        return False
    filled = (scalar(source_before(value, "CastLike")) for value in node.inputs[1:])
    readers = (use.node for use in node.outputs[0].uses())
    return -math.inf in filled and not all(is_standard(reader, "Softmax") for reader in readers)
