"""Evaluation of a program on the state of a stepper, and the checks of what is fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.program.catalogue import TensorSpec
from ortboost.program.program import Program
from ortboost.runtime.session import open_session
from ortboost.runtime.state import DeviceState

__all__ = ["Evaluator", "check_lengths", "fed_array", "refused_batch"]


class Evaluator:
    """Runs the evaluation graph on a state that lives on the device.

    Args:
        program: The program.
        state: The state; read, never written.
        device: ``cpu`` or ``cuda``.
        threads: Threads within an operator.
    """

    def __init__(
        self, program: Program, state: DeviceState, *, device: str, threads: int | None = None
    ) -> None:
        self.inputs = program.evaluation_inputs
        self._state = state
        self._session = open_session(program.evaluation, device=device, threads=threads)
        self._outputs = [output.name for output in self._session.get_outputs()]
        data = {spec.name for spec in self.inputs}
        self._state_names = [v.name for v in self._session.get_inputs() if v.name not in data]

    def evaluate(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs of the model, and ``loss``, for one batch.

        Raises:
            UsageError: An input is missing, or the runtime refuses the shapes.
        """
        binding = self._session.io_binding()
        for name in self._state_names:
            binding.bind_ortvalue_input(name, self._state.current(name))
        for spec in self.inputs:
            array = fed_array(feeds, spec.name, self.inputs)
            binding.bind_cpu_input(spec.name, np.asarray(array, spec.dtype, order="C"))
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # see Stepper.step
            raise refused_batch(error, feeds) from error
        answers = [value.numpy() for value in binding.get_outputs()]
        return dict(zip(self._outputs, answers, strict=True))


def fed_array(
    feeds: Mapping[str, NDArray[Any]], name: str, inputs: Sequence[TensorSpec]
) -> NDArray[Any]:
    """The array for an input, checked to be there, not empty, and with labels that are classes.

    Args:
        feeds: Input name to array.
        name: The input.
        inputs: All inputs, for the message.

    Raises:
        UsageError: The array is missing or empty, or holds a label outside the classes.
    """
    if name not in feeds:
        raise UsageError(
            f"The input '{name}' was not fed.",
            where=f"fed: {', '.join(feeds) or 'nothing'}",
            fix=f"Feed {', '.join(spec.name for spec in inputs)}.",
        )
    if not np.size(feeds[name]):  # kernels divide by the number of samples: the process would die
        raise UsageError(
            f"The input '{name}' is empty.",
            where=f"input '{name}': shape {list(np.shape(feeds[name]))}",
            fix="Feed at least one sample.",
        )
    spec = next(spec for spec in inputs if spec.name == name)
    stray = spec.stray_class(feeds[name])
    if stray is not None:
        raise UsageError(
            f"The label {stray} is no class: the model has {spec.classes}, 0 to {spec.classes - 1}."
            if spec.classes
            else f"The label {stray} is no class.",
            where=f"input '{name}'",
            fix="Fix the labels, give the model a head with more classes (--new-head), or name "
            "the label that does not count (--ignore-index).",
        )
    return feeds[name]


def check_lengths(
    inputs: Sequence[TensorSpec], arrays: Mapping[str, NDArray[Any]], *, broadcast: bool
) -> None:
    """Refuse a symbolic dimension with two lengths, where a runtime might broadcast."""
    seen: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        for dim, length in zip(spec.shape, arrays[spec.name].shape, strict=True):
            if not isinstance(dim, str):
                continue
            known, first = seen.setdefault(dim, (length, spec.name))
            one_row = broadcast and length == 1 and spec.classes is None  # of dense labels, for all
            if known != length and not one_row:
                raise UsageError(
                    f"The dimension '{dim}' is {known} in '{first}' and {length} in '{spec.name}'.",
                    where=f"inputs '{first}' and '{spec.name}'",
                    fix="Feed arrays in which it has one length: as many labels as samples, and labels "
                    "of the shape of the predictions.",
                )


def refused_batch(error: Exception, feeds: Mapping[str, NDArray[Any]]) -> UsageError:
    """The error for a batch that the runtime refused to run."""
    shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
    return UsageError(
        "onnxruntime could not run the step on this batch.",
        where=f"{shapes}: {str(error).strip().splitlines()[0]}",
        fix="Check that the shapes and the label values fit the model.",
    )
