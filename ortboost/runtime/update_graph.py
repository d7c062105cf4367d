"""The update of several processes: the same in all, except for parts of sums that each computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.program.catalogue import read_catalogue
from ortboost.program.segments import order_exchanges
from ortboost.program.split import cut_exchanges, cut_name
from ortboost.runtime.exchange import Exchange
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.process_group import Buffer, ProcessGroup
from ortboost.runtime.segmented_graph import SegmentedGraph
from ortboost.runtime.state import DeviceState

__all__ = ["UpdateGraph"]


class UpdateGraph:
    """An opened update or flush graph, cut at its exchange points; some inputs have buffers."""

    def __init__(
        self,
        model: ir.Model,
        state: DeviceState,
        group: ProcessGroup,
        *,
        threads: int | None,
        placed: Mapping[str, Buffer],
    ) -> None:
        model, points = cut_exchanges(model)
        catalogue, device = read_catalogue(model), state.device
        states = [entry.next for entry in catalogue.state if entry.next is not None]
        form = for_device(model, device, states=states, threads=threads)
        levels = order_exchanges(form, [spec.name for spec in points])
        self.exchanges = [Exchange(group, points, level, device) for level in levels]
        # A segment for each level of exchange points, and one for the rest.
        buffers = [exchange.buffer for exchange in self.exchanges]
        self._graph = SegmentedGraph(
            form,
            catalogue,
            state,
            [*(list(map(cut_name, level)) for level in levels), []],
            threads=threads,
            placed={**placed, **{name: buffer for buffer in buffers for name in buffer.names}},
        )

    def run(self, rates: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Update the state with these learning rates, and return the other outputs."""
        values = self._graph.run(0, rates)
        for number, exchange in enumerate(self.exchanges, 1):
            exchange.run(1.0)
            values |= self._graph.run(number, rates)
        return values
