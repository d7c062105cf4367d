r"""Sparse gradients of embedding tables: an update reads and writes only the rows of its batch.

A table `w` of `n` rows that is only looked up, `y = w[i]`, is not differentiated; the gradient of
`y` is. Its rows, with those of further lookups of the table, are summed over repeated indices:

    u  = the distinct values of i, where an index -k stands for n - k      [rows]
    g  = for each of u, the sum of dL/dy over its places in i              [rows, ...]

Nothing of the size of the table is computed. The update reads `w[u]` and the slots `m[u]`, and
writes

    w[u] <- w',  m[u] <- m'

in place. All other rows keep every bit: for SGD without momentum and weight decay, whose dense
update does not change them either, the results are equal (bitwise for a single lookup; with several
the order of summation differs). Otherwise the update is *lazy*: momentum and Adam's averages of the
other rows do not decay, and no momentum or weight decay moves them. The number of updates, for
Adam's bias correction, is that of all steps.

Sources: ``torch.nn.Embedding(sparse=True)`` and ``torch.optim.SparseAdam`` (documentation of torch
2.13); Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning", OSDI 2016, section
4.2, for sparse updates of large tables.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Key, Stage
from ortboost.boosts.roles import GradientAccumulator, LineSearch
from ortboost.core.field_types import Range
from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.build import Builder, free_name
from ortboost.graph.formulas import Term
from ortboost.graph.query import constant, input_at, is_standard, known_shape, label
from ortboost.graph.reach import reach, values_by_name
from ortboost.graph.weights.parameters import Parameter, named_parameters

__all__ = ["SparseEmbedding"]

_INT64 = ir.DataType.INT64
_LOOKUPS = Key[dict[str, list[tuple[str, str]]]]("indices and result of lookups, by table")


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
    excludes: ClassVar[Mapping[str, str]] = {
        "grad-accumulation": "each step of a window reads other rows",
        "thor": "it preconditions the gradient of a whole table",
        "adasum": "each process reads other rows",
        "dim-reduce": "the components span whole tables",
    }

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
            gathers = isinstance(other, (GradientAccumulator, LineSearch))
            if gathers or (_transforms(type(other)) and not other.row_wise):
                return f"'{other.name}' uses the gradient of a whole table"
        return None

    def rewrite_decomposed(self, graph: GraphContext) -> Report:
        """Choose the tables.

        Raises:
            ConfigError: A pattern matches nothing.
        """
        report = Report(self.name)
        asked = self._asked(graph.trained)
        # Only values on a path to the loss have a gradient.
        tables = [p for p in graph.trained if p.name in asked]
        active = reach(graph.model, [p.name for p in tables], graph.objective).active
        values = values_by_name(graph.model.graph)
        graph.memory[_LOOKUPS] = chosen = {}
        for parameter in tables:
            lookups, reason = _lookups(values[parameter.name], graph.model.graph, active)
            # It is not a table, and no pattern names it: the report leaves it out.
            if not (lookups or asked[parameter.name]):
                continue
            # Only now: a scalar has no rows.
            if reason is None and (rows := parameter.shape[0]) < self.min_rows:
                reason = f"it has {rows} rows, min_rows is {self.min_rows}"
            if reason is None:
                graph.rows[parameter.name] = f"ortboost/rows/{parameter.name}"
                chosen[parameter.name] = lookups
                report.changed[parameter.name] = (
                    f"the rows of {count_of(len(lookups), 'lookup')} are updated, lazily"
                )
            else:
                report.kept[parameter.name] = f"dense, {reason}"
        if not report.changed:
            reasons = [f"'{name}' stays {reason}" for name, reason in report.kept.items()]
            report.notes.append("; ".join(["no table has a sparse gradient", *reasons[:1]]))
        return report

    def _asked(self, trained: Sequence[Parameter]) -> dict[str, bool]:
        """The parameters to look at, and whether a pattern names them."""
        names = [parameter.name for parameter in trained]
        if self.tables is None:
            return dict.fromkeys(names, False)
        where = f"boost '{self.name}', tables"
        return dict.fromkeys(named_parameters(trained, self.tables, where), True)

    def watched(self, graph: GraphContext) -> tuple[Sequence[str], Sequence[str]]:
        """The indices of the lookups, and the gradients of their results."""
        found = [pair for p in graph.trained for pair in graph.memory[_LOOKUPS].get(p.name, ())]
        return [indices for indices, _ in found], [result for _, result in found]

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Append the distinct rows and their gradients, by the names of the tables."""
        values = values_by_name(graph.model.graph)
        b = Builder(graph.model.graph, f"ortboost/{self.name}")
        for parameter in graph.trained:
            lookups = graph.memory[_LOOKUPS].get(parameter.name)
            if lookups is None:
                continue
            ids = [values[indices] for indices, _ in lookups]
            parts = [values[f"{result}_grad"] for _, result in lookups]
            gradient = _summed(b, parameter, ids, parts, graph.rows[parameter.name])
            # The update finds gradients by these names; an inner value of the model may have one.
            free_name(graph.model.graph, f"{parameter.name}_grad", owner=gradient)
            gradient.name = f"{parameter.name}_grad"
            graph.model.graph.outputs.append(gradient)
        b.flush()


def _transforms(boost: type[Boost]) -> bool:
    """Whether a boost changes or uses gradients in the update."""
    methods = ("transform_gradients", "after_decay", "batch_means", "observe")
    return any(getattr(boost, name) is not getattr(Boost, name) for name in methods)


def _lookups(
    table: ir.Value, graph: ir.Graph, active: Container[str | None]
) -> tuple[list[tuple[str, str]], str | None]:
    """Indices and result of each lookup of a table, and why its gradient stays dense, if it does.

    Lookups whose result does not lead to the loss are left out.
    """
    found: list[tuple[str, str]] = []
    reason = None
    copies = [table]
    for value in copies:  # grows
        for node, index in value.uses():
            if node.graph is graph and is_standard(node, "Identity"):
                copies.append(node.outputs[0])
                continue
            ids = input_at(node, 1)
            if node.graph is not graph or index != 0 or ids is None or not _along_rows(node):
                reason = reason or f"{node.op_type} '{label(node)}' reads it too"
            elif node.outputs[0].name in active:
                if constant(ids) is not None:
                    reason = reason or "the indices of a lookup are constant"
                found.append((ids.name or "", node.outputs[0].name or ""))
    return found, reason if found else reason or "nothing looks up its rows"


def _along_rows(node: ir.Node) -> bool:
    """Whether a node is a Gather along the first axis."""
    table = node.inputs[0]
    rank = 0 if table is None or table.shape is None else len(table.shape)
    return is_standard(node, "Gather") and node.attributes.get_int("axis", 0) in (0, -rank)


def _summed(
    b: Builder,
    table: Parameter,
    ids: Sequence[ir.Value],
    gradients: Sequence[ir.Value],
    name: str,
) -> ir.Value:
    """The gradient of the distinct rows, ``[rows, ...]``; their numbers get the name.

    The indices are sorted: the CPU kernel of Unique takes four times as long in onnxruntime 1.31,
    and CUDA has none. The first gradient of each row is gathered, and only the others are added:
    ScatterElements is far slower than Gather.
    """
    kind = table.dtype if table.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    row, rest = [None, *table.shape[1:]], table.shape[1:]
    # All lookups one after the other: indices [places], their gradients [places, ...].
    flat = [b.op("Reshape", b.cast(value, _INT64), b.ints(-1), shape=[None]) for value in ids]
    indices = Term(b, _joined(b, flat), ir.Shape([None]))
    # Negative ones count from the end; the CPU's lookup has refused those out of range.
    indices = (indices < 0).where(indices + table.shape[0], indices)
    rows = [b.op("Reshape", b.cast(g, kind), b.ints(-1, *rest), shape=row) for g in gradients]
    gradient = _joined(b, rows)
    # Sort the indices (smallest first); a place whose index differs from that before is new.
    number = b.op("Shape", indices.value, shape=[1])
    names = [None] * 2
    ordered, order = b.ops(
        "TopK", indices.value, number, names=names, shape=[None], axis=0, largest=0
    )
    before = b.op("Slice", ordered, b.ints(0), b.ints(-1), b.ints(0), shape=[None])
    before = b.op("Concat", b.ints(-1), before, axis=0, shape=[None])  # no index is -1 by now
    again = b.op("Equal", ordered, before, shape=[None])
    new = b.op("Not", again, shape=[None])
    # The distinct rows, the place of each one's first gradient, and the places of all others.
    b.op("Compress", ordered, new, axis=0, name=name, shape=[None])
    first = b.op("Compress", order, new, axis=0, shape=[None])
    others = b.op("Compress", order, again, axis=0, shape=[None])
    # The row of the result that each of the others is added to: distinct indices so far, less 1.
    place = b.op("CumSum", b.cast(new, _INT64), b.const(0, _INT64), shape=[None])
    place = b.op("Compress", place, again, axis=0, shape=[None])
    place = b.op("Sub", place, b.const(1, _INT64), shape=[None])
    added = b.op("Gather", gradient, others, axis=0, shape=row)
    # ScatterElements needs one index for each element.
    column = b.op("Reshape", place, b.ints(-1, *[1] * len(rest)), shape=[None, *[1] * len(rest)])
    column = b.op("Expand", column, b.op("Shape", added), shape=row)
    total = b.op("Gather", gradient, first, axis=0, shape=row)
    total = b.op("ScatterElements", total, column, added, axis=0, reduction="add", shape=row)
    return b.cast(total, table.dtype)


def _joined(b: Builder, values: Sequence[ir.Value]) -> ir.Value:
    shape = [None, *(known_shape(values[0]) or ())[1:]]
    return b.combined("Concat", values, axis=0, shape=shape)
