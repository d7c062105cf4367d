r"""AdaSum: combine the updates of several servers, adaptively between their sum and their mean.

Let `a` and `b` be the updates of a parameter tensor on two servers (old minus new weights, after
their optimizers):

    c = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b

which is `a + b` if they are orthogonal and `a` if they are equal. More than two updates are
combined pairwise. A zero update (`a = 0`) leaves `b` unchanged. Within a server, gradients are
averaged.

Dot products are taken per tensor. The two servers of a pair do not exchange whole tensors: each
keeps one half, and the dot products of the halves are summed. Hence there are two graphs,
``adasum.dots`` and ``adasum``.

Source: Maleki et al., Scaling Distributed Training with Adaptive Summation (MLSys 2021), and the
documentation of MindSpore Boost 2.10, which adds 1e-12 to each partial dot product; here a division
by zero is skipped instead, so that small updates are not distorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortboost.boosts.base import Boost, Stage
from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range
from ortboost.graph.build import Builder
from ortboost.graph.formulas import Term

__all__ = ["AdaSum", "combine_graph", "dots_graph"]

_FLOAT = ir.DataType.FLOAT
# The oldest opset whose Split has `num_outputs`, and its IR version.
_OPSET, _IR_VERSION = 18, 8


@dataclass(frozen=True)
class AdaSum(Boost):
    """AdaSum; with a single process it does nothing.

    Args:
        group_size: Processes per server (``device_number`` in MindSpore).
        every: Steps between combinations. In between, the servers train independently, and the sum
            of each server's updates is combined; not in MindSpore.

    Example:
        >>> AdaSum(group_size=4).servers(16)
        4
    """

    group_size: Annotated[int, Range(1)] = 8
    every: Annotated[int, Range(1)] = 1

    name: ClassVar[str] = "adasum"
    stage: ClassVar[Stage] = "update"
    card: ClassVar[str] = "adasum"

    def servers(self, processes: int) -> int:
        """The number of servers.

        Raises:
            ConfigError: It is not a power of two of at least 2, or the last server is incomplete.
        """
        number, rest = divmod(processes, self.group_size)
        if rest or number < 2 or number & (number - 1):
            raise ConfigError(
                f"AdaSum combines pairs of servers: {processes} processes in groups of "
                f"{self.group_size} are {number} servers"
                + (f", with {rest} left over." if rest else "."),
                where=f"boost '{self.name}', group_size",
                fix="Start 2, 4, 8, ... times group_size processes, or set adasum:group-size=N.",
            )
        return number


def dots_graph(number: int) -> ir.Model:
    """Build the graph of `a.b`, `|a|^2` and `|b|^2` for each of ``number`` tensors.

    Inputs ``a0``, ``b0``, ``a1``, ... float32 ``[n_i]``; output ``dots`` float32 ``[3, number]``.
    """
    pairs, b = _pairs(number, "adasum.dots")
    rows = []
    for one, other in ((0, 1), (0, 0), (1, 1)):
        products = [
            b.op("ReduceSum", b.op("Mul", pair[one], pair[other]), keepdims=1, shape=(1,))
            for pair in pairs
        ]
        rows.append(b.op("Concat", *products, axis=0, shape=(number,)))
    # One tensor, to be summed over the halves at once.
    flat = b.op("Concat", *rows, axis=0)
    dots = b.op("Reshape", flat, b.ints(3, number), name="dots", shape=(3, number))
    return _closed(b, [dots])


def combine_graph(number: int) -> ir.Model:
    """Build the graph of the combined tensors.

    Inputs as for :func:`dots_graph`, and ``dots`` summed over all halves; outputs ``c0``,
    ``c1``, ...
    """
    pairs, b = _pairs(number, "adasum")
    dots = ir.val("dots", _FLOAT, (3, number))
    b.graph.inputs.append(dots)
    rows = b.ops("Split", dots, names=[None] * 3, axis=0, num_outputs=3)
    # a.b, then |a|^2 and |b|^2, each [number]
    both, *alone = (b.op("Reshape", row, b.ints(-1), shape=(number,)) for row in rows)
    factors = []
    for own in alone:
        # An update of zero has a factor of 1, and drops out of the sum by itself.
        divisor = Term(b, own).call("Equal", 0.0).where(1.0, Term(b, own))
        factors.append((1.0 - Term(b, both) / divisor * 0.5).value)
    found = []
    for i, pair in enumerate(pairs):
        at = b.ints(i)
        parts = [
            b.op("Mul", value, b.op("Gather", factor, at))
            for value, factor in zip(pair, factors, strict=True)
        ]
        found.append(b.op("Add", *parts, name=f"c{i}", shape=pair[0].shape))
    return _closed(b, found)


def _pairs(number: int, name: str) -> tuple[list[tuple[ir.Value, ir.Value]], Builder]:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name=name)
    pairs = []
    for i in range(number):
        a, b = (ir.val(f"{side}{i}", _FLOAT, (f"n{i}",)) for side in "ab")
        pairs.append((a, b))
        graph.inputs.extend((a, b))
    return pairs, Builder(graph, name)


def _closed(b: Builder, outputs: Sequence[ir.Value]) -> ir.Model:
    b.flush()
    b.graph.outputs.extend(outputs)
    return ir.Model(b.graph, ir_version=_IR_VERSION)
