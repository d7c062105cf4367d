"""The steps of one process: the graphs of a program, on one state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ortboost.program import names
from ortboost.program.program import Program
from ortboost.runtime.compiled_graph import CompiledGraph
from ortboost.runtime.cuda.replay import ReplayedGraph, passing_on
from ortboost.runtime.session import drawing
from ortboost.runtime.state import DeviceState

__all__ = ["LocalStep"]


class LocalStep:
    """Runs the graphs of a program in this process.

    Args:
        program: The program.
        state: Its state.
        threads: Intra-op threads; the runtime's choice if not given.
        replay: Whether to capture the graphs as CUDA graphs; the state is not updated in place.
    """

    def __init__(
        self, program: Program, state: DeviceState, threads: int | None, *, replay: bool
    ) -> None:
        self._program, self._state, self._threads, self._replay = program, state, threads, replay
        self._opened: dict[str, CompiledGraph | ReplayedGraph] = {}

    def prepare(self, name: str) -> None:
        """Open a graph now instead of on first use."""
        self._graph(name)

    def _graph(self, name: str) -> CompiledGraph | ReplayedGraph:
        if name not in self._opened:
            model, catalogue = self._program.graphs[name], self._program.catalogue_of(name)
            if self._replay:
                model, catalogue = passing_on(model, catalogue, self._program.catalogue)
            graph = (model, catalogue, self._state)
            # No reference to this object: without a cycle, its memory is freed at once.
            compiled = partial(CompiledGraph, *graph, threads=self._threads)
            self._opened[name] = ReplayedGraph(compiled, *graph) if self._replay else compiled()
        return self._opened[name]

    def run(
        self, name: str, feeds: Mapping[str, NDArray[Any]], *, seed: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run a graph, and update the state.

        Args:
            name: Name of the graph.
            feeds: Its validated inputs that are not states.
            seed: Seed of its random numbers; ``None`` if it draws none.

        Returns:
            Its outputs that are not states.
        """
        with drawing(seed):
            return self._graph(name).run(feeds)

    def flush(self, name: str, rates: Mapping[str, NDArray[Any]]) -> None:
        """Run a flush graph."""
        self.run(name, rates)

    def try_rate(
        self, feeds: Mapping[str, NDArray[Any]], *, seed: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run a line-search trial; returns its loss and the term of the acceptance test."""
        return self.run(names.TRIAL_GRAPH, feeds, seed=seed)
