"""AdaSum between processes by recursive halving and doubling.

:mod:`ortboost.boosts.adasum` has the algebra. With `m` processes per server, each process combines
the tensors assigned to its local rank. In round `s` it pairs with the server at distance `2^s`,
keeps one half of its data and receives the partner's version of that half; the dot products are
summed over the `2^(s+1)` servers whose halves form the tensor. Then the halves are exchanged back
in reverse order. A process sends `2 (1 - 1/servers)` times the size of its tensors, whatever the
number of servers.

Source: Thakur et al., Optimization of Collective Communication Operations in MPICH (2005), for
recursive halving and doubling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.adasum import AdaSum, combine_graph, dots_graph
from ortboost.runtime.process_group import ProcessGroup
from ortboost.runtime.session import open_session

__all__ = ["SharedAdaSum"]

_Floats = NDArray[np.float32]


class SharedAdaSum:
    """Combines the updates of all servers; those of a server have consecutive ranks.

    Raises:
        ConfigError: The number of servers is not a power of two.
    """

    def __init__(self, boost: AdaSum, group: ProcessGroup) -> None:
        self._group, size = group, boost.group_size
        self.servers = boost.servers(group.size)
        self._server, self._place = divmod(group.rank, size)
        ranks = range(group.size)
        self.server = group.part(
            [[r for r in ranks if r // size == n] for n in range(self.servers)]
        )
        # By round s: the blocks of 2^(s+1) neighbouring servers whose halves form a tensor, apart
        # for each local rank. All processes create all groups, in the same order.
        self._blocks = []
        for s in range(self.servers.bit_length() - 1):
            keys = [(place, n) for place in range(size) for n in range(self.servers >> (s + 1))]
            self._blocks.append(
                group.part(
                    [[r for r in ranks if (r % size, r // size >> (s + 1)) == key] for key in keys]
                )
            )
        self._size = size
        self._graphs: dict[int, tuple[Any, Any]] = {}

    def join(self, deltas: Mapping[str, _Floats]) -> dict[str, _Floats]:
        """Combine the updates; all servers get the same result to subtract.

        Args:
            deltas: Parameter name to old minus new weights of this server; all have the same names.
        """
        # Tensors are dealt to the local ranks in turn. The processes of equal local rank, which
        # communicate, have the same ones: if one of them has none, so do all.
        names = sorted(deltas)
        own = names[self._place :: self._size]
        parts = self._halved({name: deltas[name].reshape(-1) for name in own}) if own else {}
        whole = np.zeros(sum(deltas[name].size for name in names), np.float32)
        views, start = {}, 0
        for name in names:
            stop = start + deltas[name].size
            views[name] = whole[start:stop]
            if name in parts:
                views[name][:] = parts[name]
            start = stop
        if self._size > 1:  # collect the results of all local ranks: elsewhere they are zero
            whole[:] = self.server.sum(whole)
        return {name: views[name].reshape(deltas[name].shape) for name in names}

    def _halved(self, flat: Mapping[str, _Floats]) -> dict[str, _Floats]:
        """The combined tensors, from those of this server."""
        pieces = list(flat.values())
        path = []  # of each round: which half was kept, the partner, and what it got
        for s, block in enumerate(self._blocks):
            upper = bool(self._server >> s & 1)  # keeps the upper half; its partner is below
            partner = self._group.rank + (-1 if upper else 1) * (self._size << s)
            halves = [np.split(piece, [len(piece) // 2]) for piece in pieces]
            kept, sent = ([pair[int(side)] for pair in halves] for side in (upper, not upper))
            theirs = self._swap(sent, kept, partner)
            # Both partners take the lower server's update as `a`, so that their dot products add.
            lower_first = (theirs, kept) if upper else (kept, theirs)
            pieces = self._combined(*lower_first, block)
            path.append((upper, partner, sent))
        for upper, partner, sent in reversed(path):  # doubling: the halves travel back
            theirs = self._swap(pieces, sent, partner)  # as long as the half given away
            pairs = zip(theirs, pieces, strict=True) if upper else zip(pieces, theirs, strict=True)
            pieces = [np.concatenate(pair) for pair in pairs]
        return dict(zip(flat, pieces, strict=True))

    def _swap(self, sent: list[_Floats], like: list[_Floats], partner: int) -> list[_Floats]:
        """Exchange pieces with the partner; the received ones have the lengths of ``like``."""
        lengths = [len(piece) for piece in like]
        received = self._group.exchange(
            np.concatenate(sent), partner, np.empty(sum(lengths), np.float32)
        )
        return np.split(received, np.cumsum(lengths)[:-1])

    def _combined(self, a: list[_Floats], b: list[_Floats], block: ProcessGroup) -> list[_Floats]:
        number = len(a)
        if number not in self._graphs:
            self._graphs[number] = tuple(
                open_session(graph(number), device="cpu", threads=1)
                for graph in (dots_graph, combine_graph)
            )
        dots, combine = self._graphs[number]
        feeds = {f"a{i}": piece for i, piece in enumerate(a)}
        feeds |= {f"b{i}": piece for i, piece in enumerate(b)}
        (partial,) = dots.run(["dots"], feeds)  # [3, number], of these halves only
        total = block.sum(partial.astype(np.float64)).astype(np.float32)
        found: list[_Floats] = combine.run(
            [f"c{i}" for i in range(number)], {**feeds, "dots": total}
        )
        return found
