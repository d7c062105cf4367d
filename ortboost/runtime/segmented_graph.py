"""A graph that runs segment by segment; its outputs are unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.program.catalogue import Catalogue
from ortboost.program.segments import UNKNOWN_SIZES, Segment, cut_segments
from ortboost.runtime.compiled_graph import CompiledGraph, own_catalogue
from ortboost.runtime.process_group import Buffer
from ortboost.runtime.state import DeviceState

__all__ = ["SegmentedGraph"]


class SegmentedGraph:
    """Run the segments of a graph on one state; values pass between segments without a copy.

    Passed values keep their memory from step to step while batches have the same shapes.

    Args:
        form: The graph, prepared for the device.
        catalogue, state, threads, placed: As for :class:`CompiledGraph`.
        groups: Outputs that each segment produces.
        draws_first: See, as for ``groups``, :func:`ortboost.program.segments.cut_segments`.
    """

    def __init__(
        self,
        form: ir.Model,
        catalogue: Catalogue,
        state: DeviceState,
        groups: Sequence[Sequence[str]],
        *,
        threads: int | None,
        placed: Mapping[str, Buffer],
        draws_first: bool = True,
    ) -> None:
        several = len(groups) > 1
        # Then passed values may change their lengths from step to step, and need new memory.
        nodes = {node.op_type for node in form.graph.all_nodes()}
        self._lengths_vary = several and bool(nodes & UNKNOWN_SIZES)
        self._passed: dict[str, Any] = {}
        self._shapes: tuple[tuple[int, ...], ...] = ()
        self._segments = []
        types: dict[str, str] = {}
        whole = [Segment(form, passed_in=(), passed_on=())]
        parts = cut_segments(form, groups, draws_first=draws_first) if several else whole
        for segment in parts:
            graph = segment.model.graph
            # The native engine leaves types to the runtime. A passed value has the type that the
            # session of an earlier segment found; an input of a graph must state it.
            for value in graph.inputs:
                if value.type is None:
                    word = types[value.name or ""].removeprefix("tensor(").rstrip(")")
                    value.type = ir.TensorType(ir.DataType[word.upper()])
            self._segments.append(
                CompiledGraph(
                    segment.model,
                    own_catalogue(catalogue, graph, segment.passed_on),
                    state,
                    threads=threads,
                    placed=placed,
                    prepared=True,
                    passed=self._passed,
                    passed_in=segment.passed_in,
                    passed_on=segment.passed_on,
                )
            )
            types |= self._segments[-1].types

    def __len__(self) -> int:
        return len(self._segments)

    def run(self, number: int, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one segment, by its index; running all of them in order is one run of the graph.

        The rest is as for :meth:`CompiledGraph.run`, for the outputs of the segment.
        """
        segment = self._segments[number]
        shapes = tuple(array.shape for array in feeds.values())
        if number == 0 and (shapes != self._shapes or self._lengths_vary):
            self._shapes = shapes
            self._passed.clear()
            for one in self._segments:
                one.forget()
        used = {spec.name for spec in (*segment.catalogue.batch, *segment.catalogue.hyper)}
        return segment.run({name: array for name, array in feeds.items() if name in used})
