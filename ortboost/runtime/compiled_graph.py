"""One graph of a program as a session with persistent bindings of the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.query import static_shape
from ortboost.program.catalogue import Catalogue
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.process_group import Buffer
from ortboost.runtime.session import open_session
from ortboost.runtime.state import DeviceState

__all__ = ["CompiledGraph", "own_catalogue"]

_LARGE_STATE = 2**20  # bytes; from here on memory matters more than a few microseconds


class CompiledGraph:
    """A graph that reads and updates the state of a program.

    Args:
        model: The graph.
        catalogue: Its own catalogue.
        state: The state of the program, on the device where the graph runs.
        threads: Intra-op threads.
        placed: Inputs and outputs other than states that have their own buffers on the device.
        prepared: The graph is in the form for the device.
        passed: Values that graphs pass on to each other without copying; each graph adds its own.
        passed_in: Inputs among them.
        passed_on: Outputs among them, besides those of the catalogue.
    """

    def __init__(
        self,
        model: ir.Model,
        catalogue: Catalogue,
        state: DeviceState,
        *,
        threads: int | None,
        placed: Mapping[str, Buffer] | None = None,
        prepared: bool = False,
        passed: dict[str, Any] | None = None,
        passed_in: Sequence[str] = (),
        passed_on: Sequence[str] = (),
    ) -> None:
        self.catalogue, self._placed = catalogue, placed or {}
        self._state = state
        self._passed = {} if passed is None else passed
        self._passed_in, self._passed_on = passed_in, passed_on
        # States that `advance` swaps: a graph that only reads a state must not swap its buffers.
        self._written = [entry.name for entry in catalogue.state if entry.next is not None]
        nexts = [entry.next for entry in catalogue.state if entry.next is not None]
        form = model if prepared else for_device(model, state.device, states=nexts, threads=threads)
        self._shapes = {value.name: static_shape(value) for value in form.graph.outputs}
        self._inputs = {value.name for value in form.graph.inputs}
        # On CUDA the runtime computes shapes, which are int64, on the host.
        self._on_host = {v.name for v in form.graph.outputs if v.dtype == ir.DataType.INT64}
        self._session = open_session(
            form,
            device=state.device,
            threads=threads,
            memory_pattern=state.nbytes < _LARGE_STATE,
            buffer_reuse=False,
            file_order=state.nbytes >= _LARGE_STATE,
        )
        self._read = [entry.name for entry in catalogue.state]
        # Not the placed ones: they have buffers of a fixed shape.
        self._lengths_vary = [
            spec.name
            for spec in catalogue.outputs
            if spec.name not in self._placed and not all(isinstance(d, int) for d in spec.shape)
        ]
        self._bindings: dict[tuple[int, ...], Any] = {}

    @property
    def types(self) -> dict[str, str]:
        """Output to its type in the words of the runtime, as ``tensor(float)``."""
        return {value.name: value.type for value in self._session.get_outputs()}

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run once and advance the state; the outputs that are neither state nor placed, by name.

        Raises:
            Exception: Whatever the runtime's bindings raise.
        """
        binding = self._binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name in self._lengths_vary:  # the last buffer may not fit this batch
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        self._state.advance(self._written)
        outputs = self.catalogue.outputs
        values = binding.get_outputs()
        for name, value in zip(self._passed_on, values[len(outputs) :], strict=False):
            self._passed[name] = value
        # Copies: the runtime writes the answers of a later step over those of this one.
        return {
            spec.name: np.array(value.numpy(), copy=True)
            for spec, value in zip(outputs, values, strict=False)  # states come after them
            if spec.name not in self._placed
        }

    def forget(self) -> None:
        """Bind everything anew at the next run: what is passed on will have other shapes."""
        self._bindings.clear()

    def _binding(self) -> Any:
        """The binding of all states to their current buffers, cached per combination of buffers."""
        phase = self._state.phase(self._read)
        if phase not in self._bindings:
            binding = self._session.io_binding()
            for entry in self.catalogue.state:
                if entry.name in self._inputs:  # a segment may write a state that it does not read
                    binding.bind_ortvalue_input(entry.name, self._state.current(entry.name))
            for name in (spec.name for spec in self.catalogue.batch):
                if name in self._placed:
                    binding.bind_input(name, *self._place(name))
            for spec in self.catalogue.outputs:
                if spec.name in self._placed:
                    binding.bind_output(spec.name, *self._place(spec.name))
                else:
                    binding.bind_output(spec.name, "cpu")
            for name in self._passed_in:
                binding.bind_ortvalue_input(name, self._passed[name])
            for name in self._passed_on:
                if name in self._passed:
                    binding.bind_ortvalue_output(name, self._passed[name])
                else:  # the first run, or other shapes: the runtime allocates
                    host = name in self._on_host
                    binding.bind_output(name, "cpu" if host else self._state.device)
            # States last: `run` relies on the other outputs coming first.
            for entry in self.catalogue.state:
                if entry.next is None:
                    continue
                target, shape = self._state.target(entry.name), self._shapes[entry.next]
                if shape is None or shape == entry.shape:
                    binding.bind_ortvalue_output(entry.next, target)
                else:  # the CPU form computes it in chunks, see ortboost.runtime.cpu.chunks
                    where = target.device_name(), 0, entry.dtype.type, list(shape)
                    binding.bind_output(entry.next, *where, target.data_ptr())
            self._bindings[phase] = binding
        return self._bindings[phase]

    def _place(self, name: str) -> tuple[Any, ...]:
        buffer = self._placed[name]
        shape = list(buffer.shape(name))
        return buffer.device, 0, buffer.dtype.type, shape, buffer.pointer(name)


def own_catalogue(whole: Catalogue, graph: ir.Graph, passed_on: Collection[str] = ()) -> Catalogue:
    """What a graph reads and computes of a catalogue, without outputs that it passes on."""
    read = {value.name for value in graph.inputs}
    made = {value.name for value in graph.outputs} - {*passed_on}
    return dataclasses.replace(
        whole,
        batch=tuple(spec for spec in whole.batch if spec.name in read),
        hyper=tuple(spec for spec in whole.hyper if spec.name in read),
        state=tuple(
            dataclasses.replace(entry, next=entry.next if entry.next in made else None)
            for entry in whole.state
            if entry.name in read or entry.next in made
        ),
        outputs=tuple(spec for spec in whole.outputs if spec.name in made),
    )
