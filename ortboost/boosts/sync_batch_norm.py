r"""SyncBatchNorm: normalize by the statistics of the whole batch, not of a process's part.

Each process has `n_r` elements per channel, with mean `m_r` and mean of squares `q_r`. The sums
over the processes `N = sum n_r`, `S = sum n_r m_r`, `Q = sum n_r q_r` give, in all of them,

    mean = S / N    var = |Q / N - mean^2|    a = scale / sqrt(var + epsilon)
    y = (x - m_r) a + (bias + (m_r - mean) a)

A BatchNormalization in training mode is written out in this form. `q_r = mean((x - m_r)^2) + m_r^2`
and everything after it, vectors of one number per channel, are float64: the difference loses no
digit that float32 would have kept. Without the bars, rounding could make the variance of a constant
channel negative. The running variance is corrected by `N / (N - 1)` instead of `n_r / (n_r - 1)`.

`S`, `Q` and `N` pass through *exchange points*. The gradient of a sum over processes is the sum of
the gradients over the processes, so the gradient of an exchange point is one, too. In the forward
graph the point is `y = x * 1` with a graph input for the `1`, which both engines differentiate to
`dx = dy * 1` (as in :mod:`ortboost.boosts.group_loss_scale`); in the gradient graph both products
become Identity nodes whose outputs begin with :data:`~ortboost.boosts.roles.EXCHANGED`. One process
runs the graph with these nodes: its batch is the whole batch. With several processes, the graph is
cut at these nodes, and the values are summed in between (:mod:`ortboost.runtime.exchange`).

Source: torch.nn.SyncBatchNorm, for what is synchronized, the counts of uneven parts and the
unbiased running variance; Chan et al., Algorithms for Computing the Sample Variance (1983), for
combining the statistics of parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Key, Stage
from ortboost.boosts.roles import EXCHANGE_POINT, EXCHANGED, EXCHANGED_GRADIENT
from ortboost.core.errors import ConfigError
from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.formulas import Term
from ortboost.graph.query import is_read, label, static_shape
from ortboost.graph.reach import ancestors, values_by_name
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes
from ortboost.transforms.batch_statistics import WRITTEN_OUT_KEY
from ortboost.transforms.trainable_norm import MOMENTUM_KEY, VARIANCE_KEY

__all__ = ["SyncBatchNorm"]

_DOUBLE, _FLOAT, _INT64 = ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.INT64
_POINTS = Key[tuple[str, ...]]("exchange points")


@dataclass(frozen=True)
class SyncBatchNorm(Boost):
    """Batch statistics over all processes; with a single process the step is unchanged.

    Example:
        >>> import ortboost as ob
        >>> config = ob.ProgramConfig(boosts=(ob.SyncBatchNorm(),))
        >>> program = ob.build_program("models/resnet20.onnx", config)
        >>> len(next(r for r in program.reports if r.rewrite == "sync_batch_norm").changed)
        21
    """

    name: ClassVar[str] = "sync-bn"
    stage: ClassVar[Stage] = "forward"
    card: ClassVar[str] = "sync-bn"
    excludes: ClassVar[Mapping[str, str]] = {
        "adasum": "servers with different weights have no common statistics",
        "dim-reduce": "its trials run the forward pass by themselves, without exchanges",
    }

    def rewrite_network(self, graph: GraphContext) -> None:
        """Refuse a BatchNormalization without running statistics: it has become arithmetic already.

        Raises:
            ConfigError: There is one that normalizes data; those that standardize weights are fine.
        """
        for node in graph.model.graph:
            written_out = node.metadata_props.get(WRITTEN_OUT_KEY)
            if written_out is not None and _reads_data(node):
                raise _refused(written_out, "it has no running statistics")

    def rewrite_decomposed(self, graph: GraphContext) -> Report:
        """Write out each BatchNormalization in training mode, with exchange points.

        Raises:
            ConfigError: The number of channels of a layer is unknown.
        """
        ones: dict[str, ir.Value] = {}
        report = rewrite_nodes(
            graph.model,
            "sync_batch_norm",
            {"BatchNormalization": lambda site: _synchronized(site, ones)},
            "statistics summed over all processes",
            only=lambda node: node.attributes.get_int("training_mode", 0) == 1,
        )
        for node, reason in report.kept.items():
            raise _refused(node, reason)
        if not ones:
            report.notes.append("no BatchNormalization is in training mode")
        graph.model.graph.inputs.extend(ones.values())
        graph.memory[_POINTS] = tuple(ones)
        return report

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Replace the products of the exchange points by Identity nodes."""
        inner = graph.model.graph
        made = values_by_name(inner)
        b = Builder(inner, EXCHANGED)
        for name in graph.memory[_POINTS]:
            one, shape = made[_one(name)], made[name].shape
            for product in [usage.node for usage in one.uses()]:
                value = next(v for v in product.inputs if v is not None and v is not one)
                # The forward product has kept its name; the engine named the others.
                same = b.op("Identity", value, dtype=_DOUBLE, shape=shape)
                replace_node(product, [same], b)
                kind = f"{EXCHANGED}value/" if same.name == name else EXCHANGED_GRADIENT
                same.name = b.unique(kind + name.removeprefix(EXCHANGE_POINT))
            inner.inputs.remove(one)


def _reads_data(node: ir.Node) -> bool:
    """Whether a node depends on an input of the network."""
    return any(
        value is not None and value.is_graph_input()
        for one in (node, *ancestors(node.inputs))
        for value in one.inputs
    )


def _refused(node: str, reason: str) -> ConfigError:
    return ConfigError(
        f"The batch statistics of '{node}' cannot be synchronized: {reason}.",
        where="boost 'sync-bn'",
        fix="Remove sync-bn, or change this layer.",
    )


def _one(name: str) -> str:
    """The name of the graph input that an exchange point multiplies with."""
    return f"{name}/one"


def _synchronized(site: Site, ones: dict[str, ir.Value]) -> list[ir.Value | None]:
    """The algebra of the module docstring.

    Args:
        site: The BatchNormalization.
        ones: Exchange point to the input that it multiplies with; new ones are added.

    Returns:
        `y`, and the mean and variance if they are read.
    """
    node, rank, shape = site.node, site.rank(), site.shape()
    x, scale, bias = (site.input(index) for index in range(3))
    channels = (static_shape(scale) or (0,))[0]
    if rank < 2 or not channels:
        raise Refusal("the number of its channels is unknown")
    b, vector, wide = site.builder, (channels,), [1, channels, *[1] * (rank - 2)]
    axes = b.ints(0, *range(2, rank))
    dtype = _DOUBLE if x.dtype == _DOUBLE else _FLOAT
    data = b.cast(x, dtype)

    per_channel = ir.Shape(vector)

    def double(value: ir.Value) -> Term:
        flat = b.op("Reshape", value, b.ints(-1), shape=vector)
        return Term(b, b.cast(flat, _DOUBLE), per_channel)

    def exchanged(value: Term, name: str) -> Term:
        name = b.unique(f"{EXCHANGE_POINT}{label(node)}/{name}")
        one = ir.Value(name=_one(name), type=ir.TensorType(_DOUBLE), shape=ir.Shape(()))
        point = value * one
        point.value.name, ones[name] = name, one
        return point

    def column(term: Term) -> ir.Value:
        return b.op("Reshape", term.cast(dtype).value, b.ints(*wide), shape=wide)

    # m_r and q_r of this process; from centered data, as squares of the data would lose digits.
    mean = b.op("ReduceMean", data, axes, keepdims=1, shape=wide)
    centered = b.op("Sub", data, mean, shape=shape)
    squares = b.op("Mul", centered, centered, shape=shape)
    spread = double(b.op("ReduceMean", squares, axes, keepdims=0, shape=vector))
    own = double(mean)
    square = spread + own * own
    # n_r as a tensor [1]: parts of a batch may differ in length.
    size = b.op("Div", b.op("Size", x, shape=()), b.const(channels, _INT64), shape=())
    number = b.cast(b.op("Reshape", size, b.ints(1), shape=(1,)), _DOUBLE)
    # N, then S / N and Q / N.
    total = exchanged(Term(b, number, ir.Shape((1,))), "number").value
    whole = exchanged(own * number, "sum") / total
    squared = exchanged(square * number, "square") / total
    # var, a, and y.
    variance = (squared - whole * whole).call("Abs")
    factor = double(scale) / (variance + node.attributes.get_float("epsilon", 1e-5)).call("Sqrt")
    offset = double(bias) + (own - whole) * factor
    product = b.op("Mul", centered, column(factor), shape=shape)
    result = b.cast(b.op("Add", product, column(offset), shape=shape), x.dtype or _FLOAT)
    # The running statistics, from those of all processes.
    if node.metadata_props.get(VARIANCE_KEY) == "unbiased":
        _count_all(b, node, total)
    outputs: list[ir.Value | None] = [result]
    for output, term in zip(node.outputs[1:], (whole, variance), strict=False):
        outputs.append(term.cast(output.dtype or _FLOAT).value if is_read(output) else None)
    return outputs


def _count_all(b: Builder, node: ir.Node, total: ir.Value) -> None:
    """Correct the running variance by the elements of all processes.

    Beside the node, :mod:`ortboost.transforms.trainable_norm` multiplies the variance by
    `(1 - momentum) n / (n - 1)`.
    """
    count = Term(b, total, ir.Shape((1,)))
    fresh = (
        count / (count - 1.0).call("Max", 1.0) * (1.0 - float(node.metadata_props[MOMENTUM_KEY]))
    )
    weight = fresh.cast(node.outputs[2].dtype or _FLOAT).value
    for usage in list(node.outputs[2].uses()):
        assert usage.node.op_type == "Mul", usage.node.name
        # The other operand is the local weight.
        usage.node.replace_input_with(1 - usage.idx, weight)
