"""The framework for rules that replace nodes by equivalent ones.

A rule is a function of a :class:`Site`. It returns the values that replace the outputs of the node
(these outputs themselves if it changed the node in place), or ``None`` if there is nothing to do.
It raises :class:`Refusal` with the reason if it does not apply to this form of the operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.build import Builder, detach, replace_node
from ortboost.graph.query import (
    constant,
    input_at,
    is_read,
    is_standard,
    is_unused,
    known_shape,
    label,
)

__all__ = [
    "Refusal",
    "Rule",
    "Site",
    "can_replace",
    "remove_unused",
    "replace_value",
    "rewrite_nodes",
    "rewrites",
]


class Refusal(Exception):  # noqa: N818 - a result of a rule, not an error
    """A rule does not apply to this form of its operator; the message says why."""


class Site:
    """A node that may be replaced, with helpers to do so.

    Args:
        node: The node.
        builder: Creates the new nodes.
        opset: Version of the standard opset of the model.

    Attributes:
        note: The change that the rule made, for the report, if it differs from node to node.
    """

    def __init__(self, node: ir.Node, builder: Builder, opset: int) -> None:
        self.node = node
        self.builder = builder
        self.opset = opset
        self.note = ""

    def input(self, index: int) -> ir.Value:
        """A required input; raises :class:`Refusal` if it is missing."""
        value = self.optional(index)
        if value is None:
            raise Refusal(f"its input {index} is missing; the file is not valid, export it again")
        return value

    def optional(self, index: int) -> ir.Value | None:
        """An optional input; ``None`` if it is omitted."""
        return input_at(self.node, index)

    def array(self, index: int) -> NDArray[Any] | None:
        """The array of an input, if it is given and constant."""
        return constant(self.optional(index))

    @property
    def dtype(self) -> ir.DataType:
        """Element type of the first input."""
        return self.input(0).dtype or ir.DataType.FLOAT

    def rank(self, index: int = 0) -> int:
        """Number of dimensions of an input; raises :class:`Refusal` if it is unknown."""
        return len(self.shape(index))

    def shape(self, index: int = 0) -> tuple[int | str | None, ...]:
        """Shape of an input as ints, names and ``None``; raises :class:`Refusal` if not known."""
        shape = known_shape(self.input(index))
        if shape is None:
            raise Refusal(
                f"the rank of '{self.input(index).name}' is unknown; give the shapes of the "
                "model's inputs"
            )
        return shape

    def axis(self, name: str = "axis", default: int = -1) -> int:
        """An axis attribute, counted from the front; raises :class:`Refusal` if it is too low."""
        value = self.node.attributes.get_int(name, default)
        axis = value + self.rank() if value < 0 else value
        if axis < 0:
            raise Refusal(f"its input of rank {self.rank()} has no axis {value}")
        return axis

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
        """Create a node; see :meth:`Builder.op`. Trailing inputs that are ``None`` are dropped."""
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        return self.builder.op(op_type, *given, **options)

    def ops(
        self, op_type: str, *inputs: ir.Value | None, count: int, **options: Any
    ) -> tuple[ir.Value, ...]:
        """Create a node with ``count`` outputs; see :meth:`Builder.ops`."""
        return self.builder.ops(op_type, *inputs, names=[None] * count, **options)

    def cast(self, value: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
        """Cast to the dtype of the first input, or to ``dtype``; see :meth:`Builder.cast`."""
        return self.builder.cast(value, dtype or self.dtype)

    def const(self, value: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant with the element type of the first input, or with ``dtype``."""
        return self.builder.const(value, dtype or self.dtype)

    def filled(
        self,
        number: float,
        sizes: ir.Value,
        dtype: ir.DataType | None = None,
        shape: Sequence[int | str | None] | ir.Shape | None = None,
    ) -> ir.Value:
        """Fill a tensor, by default of the dtype of the first input; see :meth:`Builder.filled`."""
        return self.builder.filled(number, sizes, dtype or self.dtype, shape)

    def ints(self, *values: int) -> ir.Value:
        """A one-dimensional int64 constant."""
        return self.builder.ints(*values)

    def computed_by(self, node: ir.Node) -> list[ir.Value]:
        """Replace the node by an earlier one, changed so that it computes the same.

        Its output takes over the name: under its own name it was another tensor.
        """
        made, out = node.outputs[0], self.node.outputs[0]
        if not out.is_graph_output():  # else it takes over the name when it replaces the output
            made.name, out.name = out.name, made.name
        return [made]

    def shape_of(self, value: ir.Value, start: int = 0, end: int | None = None) -> ir.Value:
        """Dimensions of a value at run time, as an int64 vector; has no gradient."""
        bounds = {"start": start} if end is None else {"start": start, "end": end}
        return self.op("Shape", value, dtype=ir.DataType.INT64, **bounds)


Rule = Callable[[Site], "Sequence[ir.Value | None] | None"]


def rewrite_nodes(
    model: ir.Model,
    name: str,
    rules: Mapping[str, Rule | tuple[Rule, str]],
    what: str = "",
    *,
    only: Callable[[ir.Node], bool] = lambda _: True,
    domain: str = "",
    subgraphs: bool = False,
    bypass: bool = False,
) -> Report:
    """Apply to every node of a domain the rule for its operator, in place.

    The outputs of a rule replace those of the node and take over their names; producers that become
    unused are removed.

    Args:
        model: The model.
        name: Name of the rewrite, for the report and for the names of new nodes.
        rules: Operator to rule, or to rule and description of its change.
        what: Description of the changes of other rules, for the report. A rule can give its own
            with :attr:`Site.note`.
        only: A filter: whether to apply a rule to a node.
        domain: The domain of the operators; that of the standard if not given.
        subgraphs: Include the nodes of subgraphs; new constants are those of the main graph.
        bypass: If a rule returns an existing value, let consumers read that value. Otherwise they
            read an Identity of it, which keeps the name of the old output.

    Returns:
        A report of the changed nodes, and of the refused ones with the reason.
    """
    report = Report(name)
    builder = Builder(model.graph, f"ortboost/{name}")
    removed: dict[int, ir.Node] = {}
    for node in list(model.graph.all_nodes() if subgraphs else model.graph):
        entry = rules.get(node.op_type)
        rule, done = entry if isinstance(entry, tuple) else (entry, what)
        foreign = node.domain != domain if domain else not is_standard(node)
        gone = node.graph is None or id(node) in removed  # an earlier rule made it unused
        if rule is None or foreign or gone or not only(node):
            continue
        site = Site(node, builder, model.opset_imports.get("", 18))
        # Before the rule runs: it may rename or disconnect the node.
        node_label, sources = label(node), list(node.inputs)
        try:
            outputs = rule(site)
            if outputs is None:
                builder.take()  # discards nodes that the rule created before it gave up
                continue
            if _replace(node, outputs, builder, bypass):
                removed[id(node)] = node
        except Refusal as refusal:
            builder.take()
            report.kept[node_label] = str(refusal)
            continue
        for unread in _unread([value.producer() for value in sources if value is not None]):
            removed[id(unread)] = unread  # detached now, removed from the graph all at once below
        report.changed[node_label] = site.note or f"{node.op_type}: {done}"
    _remove(removed.values())
    return report


def rewrites(
    *op_types: str, name: str = "", what: str = "", subgraphs: bool = False, bypass: bool = False
) -> Callable[[Rule], Callable[[ir.Model], Report]]:
    """Turn a rule into a rewrite of models that applies it to these operators, as a decorator.

    The rewrite works in place and is called as the rule is, unless there is a ``name``; see
    :func:`rewrite_nodes` for the other arguments.

    Example:
        >>> @rewrites("Neg", what="is its input")
        ... def drop_signs(site: Site) -> list[ir.Value]:
        ...     return [site.input(0)]
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[2] x) => (float[2] y) { [n] a = Neg(x)  y = Abs(a) }''')
        >>> drop_signs(model).changed
        {'n': 'Neg: is its input'}
    """

    def decorate(rule: Rule) -> Callable[[ir.Model], Report]:
        rules = dict.fromkeys(op_types, rule)

        @functools.wraps(rule)
        def rewrite(model: ir.Model) -> Report:
            known = name or rule.__name__
            return rewrite_nodes(model, known, rules, what, subgraphs=subgraphs, bypass=bypass)

        return rewrite

    return decorate


def _replace(
    node: ir.Node, outputs: Sequence[ir.Value | None], builder: Builder, bypass: bool
) -> bool:
    """Put the outputs in the node's place; True if the node still has to be removed."""
    if list(outputs) == list(node.outputs):
        return False  # the rule changed the node in place
    if bypass and len(outputs) == 1 and outputs[0] is not None and not builder.nodes:
        if any(map(is_read, node.outputs[1:])):  # the mask of a Dropout
            raise Refusal("another of its outputs is read")
        if not _bypass_node(node, outputs[0]):
            raise Refusal("an output of the model has the name of its result")
        return False
    # A rule may leave out last outputs that nothing reads.
    values = [*outputs, *[None] * (len(node.outputs) - len(outputs))]
    replace_node(node, values, builder, remove=False)
    return True


def can_replace(old: ir.Value, new: ir.Value) -> bool:
    """Whether consumers of ``old`` can read ``new`` instead.

    If ``old`` is a graph output, ``new`` has to take over its name: it must not be an input, an
    initializer, another output or a value of another graph.
    """
    if not old.is_graph_output():
        return True
    return new.producer() is not None and new.graph is old.graph and not new.is_graph_output()


def replace_value(old: ir.Value, new: ir.Value) -> bool:
    """Let all consumers of ``old`` read ``new``, if they can; a graph output keeps its name."""
    if not can_replace(old, new):
        return False
    if not old.is_graph_output():
        ir.convenience.replace_all_uses_with(old, new)
        return True
    name, old.name = old.name, f"{old.name}/replaced"  # two values must never have the same name
    new.name = name
    new.type = new.type or old.type
    new.shape = old.shape if old.shape is not None else new.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    return True


def _bypass_node(node: ir.Node, value: ir.Value) -> bool:
    """Remove a node with one used output, if its consumers can read ``value`` instead."""
    graph = node.graph
    if graph is None or not replace_value(node.outputs[0], value):
        return False
    graph.remove(node, safe=True)
    return True


def remove_unused(*nodes: ir.Node | None) -> None:
    """Remove unused nodes, and producers that become unused, recursively."""
    _remove(_unread(nodes))


def _unread(nodes: Iterable[ir.Node | None]) -> list[ir.Node]:
    """Disconnect and return unused nodes, and producers that become unused, recursively."""
    pending, found = list(nodes), dict[int, ir.Node]()
    while pending:
        node = pending.pop()
        if node is None or node.graph is None or id(node) in found or not is_unused(node):
            continue
        found[id(node)] = node
        pending += [value.producer() for value in node.inputs if value is not None]
        detach(node)
    return list(found.values())


def _remove(nodes: Iterable[ir.Node]) -> None:
    """Remove detached nodes, those of one graph at once."""
    by_graph: dict[int, list[ir.Node]] = {}
    for node in nodes:
        by_graph.setdefault(id(node.graph), []).append(node)
    for members in by_graph.values():
        graph = members[0].graph
        if graph is not None:
            graph.remove(members, safe=True)
