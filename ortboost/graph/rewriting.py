"""Replacing single nodes by others that compute the same: the frame that all such rules share.

A rule is a function of a :class:`Site`. It answers with the values that replace the outputs of the
node, with ``None`` if there is nothing to do for it, or raises :class:`Refusal` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import known_shape

__all__ = ["Refusal", "Rule", "Site", "constant", "label", "rewrite_nodes"]


class Refusal(Exception):  # noqa: N818 - an answer of a rule, not an error
    """The rule knows the operator, but not this form of it; the text says why and what to do."""


def label(node: ir.Node) -> str:
    """A name for a node that a person can find: its own, or that of its first output."""
    if node.name:
        return node.name
    return next((out.name for out in node.outputs if out.name), None) or node.op_type


class Site:
    """A node that may be replaced, and the tools to do it.

    Args:
        node: The node.
        builder: Where new nodes are made.
        opset: Version of the standard opset of the model.
    """

    def __init__(self, node: ir.Node, builder: Builder, opset: int) -> None:
        self.node = node
        self.builder = builder
        self.opset = opset

    def input(self, index: int) -> ir.Value:
        """An input that the operator always has."""
        value = self.optional(index)
        if value is None:
            raise Refusal(f"its input {index} is missing; the model is invalid")
        return value

    def optional(self, index: int) -> ir.Value | None:
        """An input that may be left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def array(self, index: int) -> NDArray[Any] | None:
        """The value of an input, if it is given and constant."""
        value = self.optional(index)
        return None if value is None else constant(value)

    @property
    def dtype(self) -> ir.DataType:
        """Element type of the first input."""
        return self.input(0).dtype or ir.DataType.FLOAT

    def rank(self, index: int = 0) -> int:
        """Number of dimensions of an input; refuses if it is unknown."""
        shape = known_shape(self.input(index))
        if shape is None:
            raise Refusal(
                f"the rank of '{self.input(index).name}' is unknown; give the model's inputs shapes"
            )
        return len(shape)

    def shape(self, index: int = 0) -> tuple[int | str | None, ...]:
        """Shape of an input as ints, names and ``None``; refuses if the rank is unknown."""
        self.rank(index)
        return known_shape(self.input(index)) or ()

    def axis(self, name: str = "axis", default: int = -1) -> int:
        """An axis attribute, counted from the front."""
        value = self.node.attributes.get_int(name, default)
        return value % self.rank() if value < 0 else value

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        return float(self.node.attributes.get_float(name, default))

    def integer(self, name: str, default: int) -> int:
        """An int attribute."""
        return int(self.node.attributes.get_int(name, default))

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list-of-ints attribute."""
        found = self.node.attributes.get_ints(name, None)
        return None if found is None else tuple(int(v) for v in found)

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        return str(self.node.attributes.get_string(name, default))

    def op(self, op_type: str, *inputs: ir.Value | None, **options: Any) -> ir.Value:
        """A new node; see :meth:`Builder.op`. Trailing inputs that are ``None`` are left out."""
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        return self.builder.op(op_type, *given, **options)

    def ops(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        count: int,
        attributes: Mapping[str, Any],
    ) -> list[ir.Value | None]:
        """A new node with several outputs."""
        given: dict[str, Any] = dict(attributes)
        return list(self.builder.ops(op_type, *inputs, names=[None] * count, **given))

    def const(self, value: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant in the element type of the first input."""
        return self.builder.const(value, dtype or self.dtype)

    def ints(self, *values: int) -> ir.Value:
        """A one-dimensional int64 constant."""
        return self.builder.ints(*values)

    def shape_of(self, value: ir.Value, start: int = 0, end: int | None = None) -> ir.Value:
        """Dimensions of a value as an int64 vector, at run time; carries no gradient."""
        bounds = {"start": start} if end is None else {"start": start, "end": end}
        return self.op("Shape", value, dtype=ir.DataType.INT64, **bounds)


Rule = Callable[[Site], "Sequence[ir.Value | None] | None"]


def constant(value: ir.Value) -> NDArray[Any] | None:
    """The array of an initializer or Constant node that is not also a graph input."""
    if value.is_graph_input():
        return None
    tensor = value.const_value
    if tensor is None:
        producer = value.producer()
        if producer is None or producer.op_type != "Constant":
            return None
        tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def rewrite_nodes(
    model: ir.Model,
    name: str,
    rules: Mapping[str, Rule],
    what: str | Mapping[str, str],
    *,
    only: Callable[[ir.Node], bool] = lambda _: True,
) -> Report:
    """Offer every node of the main graph to the rule of its operator, in place.

    Args:
        model: Model of standard operators.
        name: Name of the rewrite, for the report.
        rules: Operator to rule.
        what: What is done, for the report; one text or one for each operator.
        only: Whether a node is offered at all.

    Returns:
        Node to what was done, and node to why it was not.
    """
    report = Report(name)
    graph = model.graph
    builder: Builder | None = None
    for node in list(graph):
        rule = rules.get(node.op_type)
        if rule is None or node.domain not in ("", "ai.onnx") or not only(node):
            continue
        if builder is None:  # made late: it reads all names of the graph
            builder = Builder(graph, f"ortboost/{name}")
        site = Site(node, builder, model.opset_imports.get("", 18))
        node_label = label(node)
        try:
            outputs = rule(site)
        except Refusal as refusal:
            builder.take()
            report.kept[node_label] = f"{node.op_type}: {refusal}"
            continue
        if outputs is None:
            builder.take()
            continue
        done = what if isinstance(what, str) else what[node.op_type]
        report.changed[node_label] = f"{node.op_type}: {done}"
        padded = [*outputs, *[None] * (len(node.outputs) - len(outputs))]
        replace_node(node, padded, builder)
    return report
