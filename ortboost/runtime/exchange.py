r"""The sums over processes within a step, between two segments of a graph.

With `f_r` the weight of this process's gradients in the sum over all (see
:mod:`ortboost.runtime.shared_step`), a gradient `g_r` that it computes stands for `f_r g_r`. So
values of the forward pass are summed as they are, and the sum of gradients is, in the units of this
process,

    (1 / f_r) sum_q f_q g_q

A process without samples adds zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortboost.program.catalogue import TensorSpec
from ortboost.program.names import EXCHANGED_GRADIENT
from ortboost.program.split import cut_name
from ortboost.runtime.process_group import Buffer, ProcessGroup

__all__ = ["Exchange"]


class Exchange:
    """The exchange points of a level; the values of the processes travel in one message.

    Args:
        group: The processes.
        specs: All exchange points of the graph, of one dtype and static shapes.
        level: The names of those of this level.
        device: ``cpu`` or ``cuda``.

    Attributes:
        buffer: The values of this process, and after :meth:`run` the sums, under both names.
    """

    def __init__(
        self, group: ProcessGroup, specs: Sequence[TensorSpec], level: Iterable[str], device: str
    ) -> None:
        chosen = {*level}
        shapes = {s.name: [d for d in s.shape if isinstance(d, int)] for s in specs}
        shapes = {name: shape for name, shape in shapes.items() if name in chosen}
        (dtype,) = {s.dtype for s in specs}
        self.buffer = Buffer(group, shapes, dtype, device)
        for name in shapes:  # one graph writes X/cut, the next reads the sum X from the same memory
            self.buffer.alias(name, cut_name(name))
        self._gradients = [name for name in shapes if name.startswith(EXCHANGED_GRADIENT)]

    def run(self, weight: float | None) -> None:
        """Sum the values, with the weight `f_r` of this process, 1 in the update.

        The weight is ``None`` if the process has no samples.
        """
        if weight is None:
            self.buffer.scale(0.0)  # the buffer may still hold values of an earlier step
        else:
            self.buffer.scale(weight, self._gradients)
        self.buffer.start_sum().wait()
        if weight is not None:
            self.buffer.scale(1.0 / weight, self._gradients)
