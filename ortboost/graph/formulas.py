"""Formulas: Python's operators create nodes."""

from __future__ import annotations

from typing import Any, TypeAlias

import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.rewriting import Site

__all__ = ["Operand", "Term"]


class Term:
    """A value in a formula; operators and :meth:`call` create the nodes of further terms.

    A number becomes a constant of the element type of the term that it is combined with. If both
    branches of :meth:`where` are numbers, they get the type of what the condition compares.

    Args:
        b: Creates the nodes.
        value: The value.
        shape: The shape of all results, if known.

    Example:
        >>> x = ir.val("x", ir.DataType.FLOAT)
        >>> b = Builder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}), "demo")
        >>> y = 1 - Term(b, x).call("Exp")
        >>> [node.op_type for node in b.nodes], y.value.name
        (['Exp', 'Sub'], 'demo/Sub')
    """

    def __init__(self, b: Builder | Site, value: ir.Value, shape: ir.Shape | None = None) -> None:
        self.b, self.value, self.shape = b, value, shape
        unknown = b.dtype if isinstance(b, Site) else ir.DataType.FLOAT
        self._dtype = value.dtype or unknown

    def call(self, op_type: str, *others: Operand, **attributes: Any) -> Term:
        """Apply an operator to this term and others."""
        return self._made(op_type, self, *others, **attributes)

    def where(self, yes: Operand, no: Operand) -> Term:
        """``yes`` where this term, a condition, holds, else ``no``."""
        like = next((branch for branch in (yes, no) if isinstance(branch, Term)), self)
        return self._made("Where", self, like._as_value(yes), like._as_value(no))

    def cast(self, dtype: ir.DataType) -> Term:
        """The term in another element type."""
        return Term(self.b, self.b.cast(self.value, dtype), self.shape)

    def _made(self, op_type: str, *operands: Operand, **attributes: Any) -> Term:
        values = [self._as_value(operand) for operand in operands]
        made = Term(self.b, self.b.op(op_type, *values, shape=self.shape, **attributes), self.shape)
        if made.value.dtype in (ir.DataType.BOOL, None):
            made._dtype = self._dtype
        return made

    def _as_value(self, operand: Operand) -> ir.Value:
        if isinstance(operand, Term):
            return operand.value
        if isinstance(operand, ir.Value):
            return operand
        if self._dtype.is_integer() and operand != int(operand):
            raise TypeError(f"{operand} beside a term of {self._dtype.name} would be truncated")
        return self.b.const(operand, self._dtype)

    def __add__(self, other: Operand) -> Term:
        return self.call("Add", other)

    def __sub__(self, other: Operand) -> Term:
        return self.call("Sub", other)

    def __rsub__(self, other: float) -> Term:
        return self._made("Sub", other, self)

    def __mul__(self, other: Operand) -> Term:
        return self.call("Mul", other)

    def __truediv__(self, other: Operand) -> Term:
        return self.call("Div", other)

    def __matmul__(self, other: Operand) -> Term:
        return self.call("MatMul", other)

    def __neg__(self) -> Term:
        return self.call("Neg")

    def __gt__(self, other: Operand) -> Term:
        return self.call("Greater", other)

    def __lt__(self, other: Operand) -> Term:
        return self.call("Less", other)


Operand: TypeAlias = Term | ir.Value | float
"""What a term is combined with."""
