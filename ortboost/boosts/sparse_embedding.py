r"""Sparse gradients of embedding tables: an update reads and writes only the rows of its batch.

A table `w` of `n` rows that is only looked up, `y = w[i]`, is read through its distinct rows:

    u  = the distinct values of i, where an index -k stands for n - k
    r  = w[u]                     [rows, ...]
    y  = r[j]                     with u[j] = i

The loss is differentiated with respect to `r` instead of `w`, so the gradients of repeated indices
are summed in a tensor of the size of the batch, and nothing of the size of the table is computed.
Several lookups of a table share `u`. The update reads `w[u]` and the slots `m[u]`, and writes

    w[u] <- w',  m[u] <- m'

in place. All other rows keep every bit: for SGD without momentum and weight decay, whose dense
update does not change them either, the results are equal. Otherwise the update is *lazy*: momentum
and Adam's averages of the other rows do not decay, and no momentum or weight decay moves them. The
number of updates, for Adam's bias correction, is that of all steps.

Sources: ``torch.nn.Embedding(sparse=True)`` and ``torch.optim.SparseAdam`` (documentation of torch
2.13); Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016, section
4.2, for sparse updates of large tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Rows, Stage
from ortboost.boosts.roles import GradientGatherer, StepTaker
from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.parameters import Parameter
from ortboost.graph.query import constant, is_standard, label, match_names
from ortboost.graph.reach import uses_inside

__all__ = ["SparseEmbedding"]

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL


@dataclass(frozen=True)
class SparseEmbedding(Boost):
    """Sparse gradients and lazy updates of embedding tables.

    Args:
        tables: Shell-style patterns of parameter names; ``None`` for all suitable tables.
        min_rows: Tables with fewer rows keep their dense gradient: it costs less than finding the
            distinct rows.

    Raises:
        ConfigError: A value has the wrong type or is out of range; when converting, a pattern
            matches nothing.

    Example:
        >>> SparseEmbedding(("tok*",)).to_dict()
        {'name': 'sparse-embedding', 'tables': ('tok*',), 'min_rows': 4096}
    """

    tables: tuple[str, ...] | None = None
    min_rows: Annotated[int, Range(1)] = 4096

    name: ClassVar[str] = "sparse-embedding"
    stage: ClassVar[Stage] = "gradients"
    card: ClassVar[str] = "sparse-embedding"
    excludes: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "grad-accumulation": "each step of a window reads other rows",
            "thor": "it preconditions the gradient of a whole table",
            "adasum": "each process reads other rows",
            "dim-reduce": "the components span whole tables",
        }
    )

    @property
    def needs_one_process(self) -> str:
        """Each process reads other rows."""
        return "The rows of a sparse gradient are those of the local batch."

    def misfit(self, optimizer: object, others: Sequence[Boost]) -> str | None:
        """Accept only what is known to treat each row of a table by itself."""
        if not getattr(optimizer, "row_wise", False):
            name = getattr(optimizer, "name", type(optimizer).__name__)
            return f"the optimizer '{name}' does not update each row of a table by itself"
        for other in others:
            gathers = isinstance(other, (GradientGatherer, StepTaker))
            if gathers or (_transforms(type(other)) and not other.row_wise):
                return f"'{other.name}' uses the gradient of a whole table"
        return None

    def rewrite_decomposed(self, graph: GraphContext) -> Report:
        """Look up distinct rows, and look up the results in these.

        Raises:
            ConfigError: A pattern matches nothing.
        """
        report = Report(self.name)
        asked = self._asked(graph.trained)
        values = {value.name: value for value in graph.model.graph.inputs}
        b = Builder(graph.model.graph, f"ortboost/{self.name}")
        for parameter in graph.trained:
            found = _readers(values[parameter.name], graph.model.graph)
            if parameter.name not in asked or not (asked[parameter.name] or found.lookups):
                continue
            reason = found.reason or self._too_small(parameter)
            if reason is None:
                graph.rows[parameter.name] = _through_distinct_rows(parameter, found, b)
                count = len(found.lookups)
                report.changed[parameter.name] = (
                    f"the rows of {count} lookup{'s' * (count > 1)} are updated, lazily"
                )
            else:
                report.kept[parameter.name] = f"dense, {reason}"
        graph.model.graph.sort()
        if not report.changed:
            report.notes.append("no table has a sparse gradient")
        return report

    def _asked(self, trained: Sequence[Parameter]) -> dict[str, bool]:
        """The parameters to look at, and whether a pattern names them."""
        names = [parameter.name for parameter in trained]
        if self.tables is None:
            return dict.fromkeys(names, False)
        matched, idle = match_names(names, self.tables)
        if idle:
            raise ConfigError(
                f"The pattern '{idle[0]}' matches no trained parameter.",
                where=f"boost '{self.name}', tables",
                fix=f"Names are like {', '.join(names[:3])}.",
            )
        return dict.fromkeys(matched, True)

    def _too_small(self, parameter: Parameter) -> str | None:
        rows = parameter.shape[0]
        return None if rows >= self.min_rows else f"it has {rows} rows, min_rows is {self.min_rows}"

    def watched(self, graph: GraphContext) -> tuple[Sequence[str], Sequence[str]]:
        """The row numbers, which the update needs."""
        trained = {parameter.name for parameter in graph.trained}
        return [rows.indices for name, rows in graph.rows.items() if name in trained], ()


def _transforms(boost: type[Boost]) -> bool:
    """Whether a boost changes or uses gradients in the update."""
    methods = ("transform_gradients", "after_decay", "batch_means", "observe")
    return any(getattr(boost, name) is not getattr(Boost, name) for name in methods)


@dataclass(frozen=True)
class _Readers:
    """What reads a table.

    Args:
        lookups: Its lookups.
        copies: The table, and casts of it, which the lookups read.
        reason: Why its gradient stays dense.
    """

    lookups: Sequence[ir.Node]
    copies: Sequence[ir.Value]
    reason: str | None = None


def _readers(table: ir.Value, graph: ir.Graph) -> _Readers:
    lookups: list[ir.Node] = []
    copies = [table]
    reason = None
    for value in copies:  # grows
        if value.is_graph_output():
            reason = "it is an output of the model"
        for node, index in value.uses():
            if node.graph is graph and is_standard(node, "Cast", "Identity"):
                copies.append(node.outputs[0])
            elif node.graph is graph and is_standard(node, "Gather") and _is_lookup(node, index):
                lookups.append(node)
            else:
                reason = reason or f"{node.op_type} '{label(node)}' reads it too"
    ids = [node.inputs[1] for node in lookups]
    if reason is None and not lookups:
        reason = "nothing looks up its rows"
    if reason is None and all(constant(value) is not None for value in ids):
        reason = "its indices are constant"
    if reason is None and _depend(ids, lookups):
        reason = "the indices of a lookup depend on another one"
    return _Readers(lookups, copies, reason)


def _is_lookup(node: ir.Node, index: int) -> bool:
    """Whether a Gather reads the value as a table: along its first axis."""
    table = node.inputs[0]
    rank = 0 if table is None or table.shape is None else len(table.shape)
    return index == 0 and node.attributes.get_int("axis", 0) in (0, -rank)


def _depend(values: Iterable[ir.Value | None], nodes: Sequence[ir.Node]) -> bool:
    """Whether one of the values is computed from a result of the nodes."""
    seen: set[ir.Node] = set()
    pending = [value.producer() for value in values if value is not None]
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            read = (*node.inputs, *uses_inside(node))
            pending += [value.producer() for value in read if value is not None]
    return not seen.isdisjoint(nodes)


def _through_distinct_rows(parameter: Parameter, readers: _Readers, b: Builder) -> Rows:
    """Let the lookups of a table read its distinct rows; see the module's formulas."""
    table = readers.copies[0]
    ids = list(dict.fromkeys(node.inputs[1] for node in readers.lookups if node.inputs[1]))
    flat = [b.op("Reshape", b.cast(value, _INT64), b.ints(-1), shape=[None]) for value in ids]
    indices = _from_the_start(b, _joined(b, flat), parameter.shape[0])
    distinct, places = _distinct(b, indices)
    rows = b.op("Gather", table, distinct, axis=0)
    lengths = [b.op("Shape", value, dtype=_INT64, shape=[1]) for value in flat]
    parts = (places,)
    if len(flat) > 1:
        parts = b.ops("Split", places, _joined(b, lengths), names=[None] * len(flat), axis=0)
    place_of = {}
    for value, part in zip(ids, parts, strict=True):
        shape = b.op("Shape", value, dtype=_INT64)
        place_of[value] = b.op("Reshape", part, shape, allowzero=1, shape=value.shape)
    b.flush()
    for copy in readers.copies:
        for node, index in list(copy.uses()):
            if node in readers.lookups:
                node.replace_input_with(1, place_of[node.inputs[1]])
            if copy is table and node is not rows.producer():
                node.replace_input_with(index, rows)
    for copy in (rows, *readers.copies[1:]):
        copy.shape = ir.Shape([None, *parameter.shape[1:]])
    return Rows(distinct.name or "", rows.name or "")


def _from_the_start(b: Builder, indices: ir.Value, length: int) -> ir.Value:
    """Count negative indices from the start; those out of range stay, and the lookup fails."""
    below = b.op("Less", indices, b.const(0, _INT64), dtype=_BOOL)
    inside = b.op("GreaterOrEqual", indices, b.const(-length, _INT64), dtype=_BOOL)
    from_start = b.op("Add", indices, b.const(length, _INT64))
    counted = b.op("And", below, inside)
    return b.op("Where", counted, from_start, indices, dtype=_INT64, shape=indices.shape)


def _distinct(b: Builder, indices: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The distinct values in order, and for each index the place of its value among them.

    Sorting is faster than the CPU kernel of Unique (a quarter of its time in onnxruntime 1.31 for
    8,192 indices), which has no kernel on CUDA.
    """
    length = b.op("Shape", indices, dtype=_INT64, shape=[1])
    ordered, order = b.ops(
        "TopK", indices, length, names=[None] * 2, shape=[None], axis=0, largest=0, sorted=1
    )
    before = b.op("Slice", ordered, b.ints(0), b.ints(-1), b.ints(0), shape=[None])
    before = b.op("Concat", b.ints(-1), before, axis=0, shape=[None])  # no index is -1 by now
    new = b.op("Not", b.op("Equal", ordered, before, dtype=_BOOL, shape=[None]), shape=[None])
    distinct = b.op("Compress", ordered, new, axis=0, shape=[None])
    number = b.op("CumSum", b.cast(new, _INT64), b.const(0, _INT64), shape=[None])
    number = b.op("Sub", number, b.const(1, _INT64), shape=[None])
    # Every element is replaced: the first input only gives the shape.
    return distinct, b.op("ScatterElements", indices, order, number, axis=0, shape=[None])


def _joined(b: Builder, values: Sequence[ir.Value]) -> ir.Value:
    return values[0] if len(values) == 1 else b.op("Concat", *values, axis=0, shape=[None])
