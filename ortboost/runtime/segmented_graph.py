"""A graph of gradients that runs segment by segment; what its outputs are stays as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.program.catalogue import Catalogue
from ortboost.program.segments import Segment, cut_segments
from ortboost.runtime.compiled_graph import CompiledGraph
from ortboost.runtime.process_group import Buffer
from ortboost.runtime.state import DeviceState

__all__ = ["SegmentedGraph"]


class SegmentedGraph:
    """Segments that read the state and pass values on to each other, which are never copied.

    What is passed on keeps its memory from one step to the next, as long as batches have the same
    shapes.

    Args:
        form: The graph, in the form for the device.
        catalogue: Its own catalogue.
        state: The state of the program.
        groups: Outputs that each segment ends with, see
            :func:`ortboost.program.segments.cut_segments`.
        device: ``cpu`` or ``cuda``.
        threads: Threads within an operator.
        placed: Outputs that lie in memory of their own on the device.
    """

    def __init__(
        self,
        form: ir.Model,
        catalogue: Catalogue,
        state: DeviceState,
        groups: Sequence[Sequence[str]],
        *,
        device: str,
        threads: int | None,
        placed: Mapping[str, Buffer],
    ) -> None:
        self._passed: dict[str, Any] = {}
        self._shapes: tuple[tuple[int, ...], ...] = ()
        self._segments = []
        types: dict[str, str] = {}
        whole = [Segment(form, takes=(), gives=())]
        for segment in cut_segments(form, groups) if len(groups) > 1 else whole:
            graph = segment.model.graph
            for value in graph.inputs:  # the native engine leaves types to the runtime
                if value.type is None:
                    word = types[value.name or ""].removeprefix("tensor(").rstrip(")")
                    value.type = ir.TensorType(ir.DataType[word.upper()])
            read = {value.name for value in graph.inputs}
            made = {value.name for value in graph.outputs} - {*segment.gives}
            own = dataclasses.replace(
                catalogue,
                batch=tuple(spec for spec in catalogue.batch if spec.name in read),
                state=tuple(entry for entry in catalogue.state if entry.name in read),
                outputs=tuple(spec for spec in catalogue.outputs if spec.name in made),
            )
            self._segments.append(
                CompiledGraph(
                    segment.model,
                    own,
                    state,
                    device=device,
                    threads=threads,
                    placed=placed,
                    prepared=True,
                    passed=self._passed,
                    takes=segment.takes,
                    gives=segment.gives,
                )
            )
            types |= self._segments[-1].types

    def __len__(self) -> int:
        return len(self._segments)

    def run(self, number: int, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run one segment; all of them, in order, make a run of the graph.

        Args:
            number: Which one, from 0.
            feeds: The batch.

        Returns:
            Its outputs that are not placed, by name.

        Raises:
            Exception: Whatever the runtime's bindings raise.
        """
        segment = self._segments[number]
        shapes = tuple(array.shape for array in feeds.values())
        if number == 0 and shapes != self._shapes:
            self._shapes = shapes
            self._passed.clear()
            for one in self._segments:
                one.forget()
        wanted = {spec.name for spec in segment.catalogue.batch}
        return segment.run({name: array for name, array in feeds.items() if name in wanted})
