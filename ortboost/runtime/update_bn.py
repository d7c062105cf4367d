"""Re-estimate the running statistics of BatchNormalization from data, with fixed weights.

Running statistics follow the batches as ``next = m old + (1 - m) batch``. After few updates they
still contain much of their initial values, and always contributions of earlier weights: a model
with a good training loss may validate no better than chance. Here they become the plain mean over
batches,

    S = 1/B sum_b batch_b

in the forward pass of training (batch statistics, dropout enabled) without any update, like
``torch.optim.swa_utils.update_bn``, which sets ``momentum=None``:
https://docs.pytorch.org/docs/stable/optim.html#torch.optim.swa_utils.update_bn.

A step graph computes the raw next statistics in its forward part; that part is extracted and run
with ``old = 0``, which leaves ``(1 - m) batch``. A module that is applied several times has one
such update after the other, and each counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import DivergedError, ModelError, UsageError
from ortboost.graph.query import producer_of, scalar
from ortboost.graph.reach import values_by_name
from ortboost.program.catalogue import TensorSpec
from ortboost.program.names import RAW
from ortboost.program.program import Program
from ortboost.program.split import slice_step
from ortboost.runtime.feeds import check_batch, refused_batch
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.session import drawing, open_session, training_device

__all__ = ["BatchStatistics", "momenta"]


class BatchStatistics:
    """Runs the part of a step that computes batch statistics.

    Raises:
        UsageError: The program keeps no running statistics.

    Example:
        >>> statistics = BatchStatistics(program)                 # doctest: +SKIP
        >>> state |= statistics.over(source.epoch(0), state)               # doctest: +SKIP
    """

    def __init__(
        self, program: Program, *, device: str = "auto", threads: int | None = None
    ) -> None:
        # With m = 1 a statistic never changes: it stays as it is.
        updates = _updates(program)
        self._updates = {k: found for k, found in updates.items() if all(m < 1 for _, m in found)}
        if not self._updates:
            raise UsageError(
                "There are no running statistics to re-estimate.",
                where="--update-bn",
                fix="Leave it out: no BatchNormalization of this program is trained.",
            )
        self._outputs = [value for found in self._updates.values() for value, _ in found]
        model = slice_step(program.step, self._outputs)
        device = training_device(device)
        form = for_device(model, device, threads=threads)
        self._session = open_session(form, device=device, threads=threads)
        needed = {value.name for value in model.graph.inputs if value.name}
        self.inputs: tuple[TensorSpec, ...] = tuple(
            spec for spec in program.catalogue.batch if spec.name in needed
        )
        """The inputs that it reads, without labels."""
        self._seed = program.config.seed if program.catalogue.randomness else None
        self._read = needed & {entry.name for entry in program.catalogue.state}
        self._evaluated = program.evaluated

    def over(
        self, batches: Iterable[Mapping[str, NDArray[Any]]], state: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[np.generic]]:
        """Average the statistics over batches, with the weights of a state, as in a checkpoint.

        The batches are shuffled data, preferably in the batch size of training. The result has the
        new value of each running mean and variance, by name.

        Raises:
            DivergedError: A statistic is not finite.
            UsageError: There are no batches, or one does not fit.
        """
        # With an old value of 0, the raw next one is `(1 - m) batch`.
        fixed = {name: state[self._evaluated.get(name, name)] for name in self._read}
        fixed |= {name: np.zeros_like(state[name]) for name in self._updates if name in self._read}
        sums = {name: np.zeros(state[name].shape, np.float64) for name in self._updates}
        count = 0
        for given in batches:
            batch = check_batch(given, self.inputs, broadcast=False)
            try:
                with drawing(None if self._seed is None else self._seed + count):
                    values = self._session.run(self._outputs, {**fixed, **batch})
            except Exception as error:  # the bindings raise bare exceptions of many kinds
                raise refused_batch(error, batch) from error
            raw = dict(zip(self._outputs, values, strict=True))
            for name, updates in self._updates.items():
                old = np.zeros_like(sums[name])
                for value, m in updates:
                    new = np.asarray(raw[value], np.float64)
                    sums[name] += (new - m * old) / (1 - m) / len(updates)
                    old = new
            count += 1
        if not count:
            raise UsageError(
                "The data for the running statistics have no batches.",
                where="--update-bn",
                fix="Give more samples, or a smaller batch size.",
            )
        for name, total in sums.items():
            if not np.isfinite(total).all():
                raise DivergedError(
                    "The statistics of a batch are not finite.",
                    where=f"update_bn, '{name}'",
                    fix="The weights have diverged, or the data contain NaN: use an earlier "
                    "--checkpoint.",
                )
        return {name: (total / count).astype(state[name].dtype) for name, total in sums.items()}


def momenta(program: Program) -> dict[str, float]:
    """The share of the old value in each updated running statistic, by name.

    Raises:
        ModelError: The update of a statistic has an unknown form.
    """
    return {name: math.prod(m for _, m in found) for name, found in _updates(program).items()}


def _updates(program: Program) -> dict[str, list[tuple[str, float]]]:
    """The updates of each statistic in a step: the value after each, and its factor `m`."""
    made = values_by_name(program.step.graph)
    found: dict[str, list[tuple[str, float]]] = {}
    for entry in program.catalogue.entries("buffer"):
        raw = made.get(RAW + entry.name)
        updates = None if raw is None else _chain(raw, entry.name)
        if raw is not None and updates is None:
            raise ModelError(
                f"The update rule of the statistic '{entry.name}' is unknown.",
                where=f"step graph, '{raw.name}'",
                fix="Convert the model again with this version of ortboost.",
            )
        if updates:
            found[entry.name] = updates
    return found


def _chain(value: ir.Value, buffer: str) -> list[tuple[str, float]] | None:
    """The updates ``new = old m + batch (1 - m)`` from a buffer to a value, if it has this form."""
    if value.name == buffer:
        return []
    # The step states m only in its graph: the factor of the term that leads to the buffer.
    add = producer_of(value, "Add")
    for term in add.inputs if add is not None else ():
        mul = producer_of(term, "Mul")
        if mul is None:
            continue
        for old, factor in (mul.inputs, mul.inputs[::-1]):
            m = scalar(factor)
            before = None if old is None or m is None else _chain(old, buffer)
            if before is not None and m is not None:
                return [*before, (value.name or "", m)]
    return None
