"""Run the evaluation graph of a program, without opening its training graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arrays import as_dtype
from ortboost.program.program import Program
from ortboost.program.state_file import check_state
from ortboost.runtime.feeds import check_lengths, fed_array, refused_batch
from ortboost.runtime.session import open_session, training_device
from ortboost.runtime.state import DeviceState

__all__ = ["Evaluator", "open_evaluator"]


class Evaluator:
    """Runs the evaluation graph of a program on a state that is on the device.

    ``state`` may be the part of the state that the graph reads; it does not change.
    """

    def __init__(self, program: Program, state: DeviceState, *, threads: int | None = None) -> None:
        self.device = state.device
        self.inputs = program.evaluation_inputs
        self.state = state
        self._broadcast = program.config.loss.broadcast
        self._session = open_session(program.evaluation, device=self.device, threads=threads)
        # A file may name an output twice.
        self._outputs = list(dict.fromkeys(output.name for output in self._session.get_outputs()))
        data = {spec.name for spec in self.inputs}
        self._state_names = [v.name for v in self._session.get_inputs() if v.name not in data]

    def evaluate(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute the outputs of the model, and ``loss``, for one batch.

        Numbers are converted to the type of an input if that can hold them. A sequence is a list of
        arrays.

        Raises:
            UsageError: An input is missing or does not fit, or the runtime rejects the shapes.
        """
        batch = {}
        for spec in self.inputs:
            array = as_dtype(
                fed_array(feeds, spec, self.inputs), spec.dtype, f"input '{spec.name}'"
            )
            batch[spec.name] = np.asarray(array, order="C")
        check_lengths(batch, self.inputs, broadcast=self._broadcast)
        binding = self._session.io_binding()
        for name, array in batch.items():
            binding.bind_cpu_input(name, array)
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        try:
            with self.state.lock:
                # Each time again: a step may have swapped the buffers of the state.
                for name in self._state_names:
                    binding.bind_ortvalue_input(name, self.state.current(name))
                self._session.run_with_iobinding(binding)
        except Exception as error:  # the bindings raise bare exceptions of many kinds
            raise refused_batch(error, batch) from error
        return dict(zip(self._outputs, binding.copy_outputs_to_cpu(), strict=True))


def open_evaluator(
    program: Program,
    state: Mapping[str, NDArray[Any]],
    *,
    device: str = "auto",
    threads: int | None = None,
) -> Evaluator:
    """Open only the evaluation graph of a program, with the tensors that it reads on the device.

    Any onnxruntime can therefore evaluate a program whose gradients need onnxruntime-training, and
    optimizer slots take no memory. The state is that of a checkpoint, by name.

    Raises:
        FileError: The state does not fit the program.
        UsageError: The device is unknown.

    Example:
        >>> evaluator = open_evaluator(program, program.initial)  # doctest: +SKIP
        >>> evaluator.evaluate({"x": x, "labels": y})["loss"]  # doctest: +SKIP
        array(2.31, dtype=float32)
    """
    device = training_device(device)
    check_state(program.catalogue, state, where="state to load")
    inputs = {value.name for value in program.evaluation.graph.inputs}
    read = tuple(
        dataclasses.replace(entry, next=None)  # read-only: one buffer is enough
        for entry in program.catalogue.state
        if entry.name in inputs
    )
    values = {entry.name: state[entry.name] for entry in read}
    placed = DeviceState(dataclasses.replace(program.catalogue, state=read), values, device, ())
    return Evaluator(program, placed, threads=threads)
