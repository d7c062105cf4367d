r"""Division of THOR's inversions among processes.

Blocks are assigned in descending order of their cost, each to the process with the lowest load so
far (the rule of the longest processing time). The highest load is then at most 4/3 of the smallest
possible one. With loads `L_r`, the `n` blocks of one size, each of cost `c`, are assigned without a
loop: to the processes `r` of the `n` smallest values of

    L_r + k c        for each process r, and k = 0, 1, ..., n - 1

For one process these increase with `k`, so each step of the rule takes the smallest that is left.
The rank of the process and the number of processes are the state
:data:`~ortboost.boosts.roles.PART`, so a program does not depend on them.

Each process sends its inverses in a tensor of all blocks, with zeros for those of the others. The
sum over the processes holds all of them; adding zeros is exact.

Sources: Graham, "Bounds on multiprocessing timing anomalies", 1969; Pauloski et al., "KAISA: an
adaptive second-order optimizer framework for deep neural networks", SC 2021, for assigning inverses
by this rule, with all of them in every process (its `COMM_OPT`); Osawa et al., "Large-scale
distributed second-order optimization using Kronecker-factored approximate curvature", CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortboost.graph.build import Builder

__all__ = ["own_blocks"]

_INT64 = ir.DataType.INT64


def own_blocks(
    b: Builder, part: ir.Value, kinds: Sequence[tuple[int, int]]
) -> list[tuple[ir.Value, ir.Value]]:
    """Append nodes that find the blocks of this process.

    ``part`` is the state :data:`~ortboost.boosts.roles.PART`; ``kinds`` has the number of blocks of
    one cost, and that cost, in descending order of the costs.

    Returns:
        For each kind, whether each block is one of this process, bool ``[blocks]``; and whether any
        is, bool scalar.
    """
    rank, size = (b.op("Gather", part, b.const(i, _INT64), shape=()) for i in range(2))
    axis = b.ints(0)
    # The load of each process, before any block: [processes].
    zeros = b.filled(0, b.op("Unsqueeze", size, axis), _INT64)
    loads, found = zeros, []
    for number, cost in kinds:
        # L_r + k c, row r, column k: [processes, number], flattened.
        steps = b.const(np.arange(number) * cost, _INT64)
        sums = b.op("Reshape", b.op("Add", b.op("Unsqueeze", loads, b.ints(1)), steps), b.ints(-1))
        count = b.const(number, _INT64)
        _, chosen = b.ops("TopK", sums, b.ints(number), names=[None, None], axis=0, largest=0)
        # The place in the flat list gives the row, which is the process.
        owners = b.op("Div", chosen, count)
        added = b.op("Expand", b.const(cost, _INT64), b.ints(number))
        loads = b.op("ScatterElements", loads, owners, added, axis=0, reduction="add")
        own = b.op("Equal", owners, rank, shape=(number,))
        total = b.op("ReduceSum", b.cast(own, _INT64), keepdims=0, shape=())
        some = b.op("Greater", total, b.const(0, _INT64), shape=())
        found.append((own, some))
    return found
