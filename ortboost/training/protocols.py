"""The interface between the trainer's loop and a compiled training step.

The runtime is *below* this layer and does not import it, so these are structural protocols with
read-only members: any object with these attributes conforms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.core.step_result import StepResult

__all__ = ["Array", "Batch", "Evaluator", "InputLike", "InputSpec", "StepResult", "Stepper"]

Array: TypeAlias = NDArray[Any]
Batch: TypeAlias = dict[str, Array]
"""Input name to array; axis 0 of every array is the batch axis, with the same length in all."""


class InputLike(Protocol):
    """Name, dtype and shape of one batch input; a runtime may use its own class for it."""

    @property
    def name(self) -> str:
        """The graph input's name."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the graph input."""

    @property
    def shape(self) -> tuple[int | str | None, ...]:
        """Per axis a length, the name of a symbolic axis, or None. Axis 0 is the batch."""

    @property
    def joined(self) -> tuple[int, ...]:
        """Axes that may have length 0, as the model joins them with values of its own."""


@dataclass(frozen=True)
class InputSpec:
    """The plain implementation of :class:`InputLike`.

    Example:
        >>> InputSpec("x", np.dtype("float32"), ("N", 1, 28, 28)).shape[0]
        'N'
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]
    joined: tuple[int, ...] = ()


class Stepper(Protocol):
    """A compiled training step together with its state."""

    @property
    def inputs(self) -> Sequence[InputLike]:
        """The batch inputs, including labels."""

    @property
    def groups(self) -> Sequence[str]:
        """Names of the learning-rate inputs: ``learning_rate``, ``learning_rate/head``, ..."""

    def step(
        self, feeds: Mapping[str, Array], hyper: Mapping[str, float], *, seed: int
    ) -> StepResult:
        """Run one step on a batch.

        Args:
            feeds: The batch by input name.
            hyper: The value of each learning-rate input.
            seed: Non-negative, below 2**63; a function of (run seed, global step), for dropout.
        """

    def flush(self, hyper: Mapping[str, float]) -> bool:
        """Apply an incomplete window of gradient accumulation; True if there was one."""

    def state(self, *, copy: bool = True) -> Mapping[str, Array]:
        """Every state tensor on the host.

        Without ``copy`` each one is copied when it is accessed, before the next step.
        """

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the whole state."""

    def nonfinite(
        self, feeds: Mapping[str, Array], hyper: Mapping[str, float], *, seed: int
    ) -> list[str]:
        """Names of the non-finite tensors of a step; the state does not change."""


class Evaluator(Protocol):
    """The forward graph in evaluation mode, on the same state as the stepper."""

    def evaluate(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Model outputs by name, in the model's order; with labels also ``loss``."""
