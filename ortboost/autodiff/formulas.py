"""Formulas of elementwise functions: Python's operators create nodes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortboost.graph.rewriting import Site

__all__ = ["Term"]


class Term:
    """A value in a formula; operators and :meth:`call` create the nodes of further terms.

    Numbers become constants of the type of the term that they are combined with. All results have
    one shape.

    Args:
        site: Creates the nodes.
        value: The value.
        shape: The shape of the results, if known.

    Example:
        >>> from ortboost.graph.build import Builder
        >>> x = ir.val("x", ir.DataType.FLOAT)
        >>> b = Builder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}), "demo")
        >>> y = 1 - Term(Site(ir.node("Tanh", [x]), b, 18), x).call("Exp")
        >>> [node.op_type for node in b.nodes], y.value.name
        (['Exp', 'Sub'], 'demo/Sub')
    """

    def __init__(self, site: Site, value: ir.Value, shape: ir.Shape | None = None) -> None:
        self.site, self.value, self.shape = site, value, shape

    def call(self, op_type: str, *others: Term | ir.Value | float, **attributes: Any) -> Term:
        """Apply an operator to this term and others."""
        return self._made(op_type, self, *others, **attributes)

    def where(self, yes: Term | ir.Value | float, no: Term | ir.Value | float) -> Term:
        """``yes`` where this term, a condition, holds, else ``no``."""
        like = next((branch for branch in (yes, no) if isinstance(branch, Term)), None)
        branches = (self._as_value(branch, like) for branch in (yes, no))
        return self.call("Where", *branches)

    def _made(self, op_type: str, *operands: Term | ir.Value | float, **attributes: Any) -> Term:
        values = [self._as_value(operand, self) for operand in operands]
        made = self.site.op(op_type, *values, shape=self.shape, **attributes)
        return Term(self.site, made, self.shape)

    def _as_value(self, operand: Term | ir.Value | float, like: Term | None) -> ir.Value:
        if isinstance(operand, Term):
            return operand.value
        if isinstance(operand, ir.Value):
            return operand
        return self.site.const(operand, None if like is None else like.value.dtype)

    def __add__(self, other: Term | float) -> Term:
        return self.call("Add", other)

    def __sub__(self, other: Term | float) -> Term:
        return self.call("Sub", other)

    def __rsub__(self, other: float) -> Term:
        return self._made("Sub", other, self)

    def __mul__(self, other: Term | float) -> Term:
        return self.call("Mul", other)

    def __truediv__(self, other: Term | float) -> Term:
        return self.call("Div", other)

    def __neg__(self) -> Term:
        return self.call("Neg")

    def __gt__(self, other: Term | float) -> Term:
        return self.call("Greater", other)

    def __lt__(self, other: Term | float) -> Term:
        return self.call("Less", other)
