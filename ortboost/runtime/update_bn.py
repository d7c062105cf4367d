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
with ``old = 0``, which leaves ``(1 - m) batch``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import DivergedError, ModelError, UsageError
from ortboost.graph.patterns import Op, matches
from ortboost.graph.query import scalar
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
        self._shares = {name: 1.0 - m for name, m in momenta(program).items() if m < 1}
        if not self._shares:
            raise UsageError(
                "There are no running statistics to re-estimate.",
                where="--update-bn",
                fix="Leave it out: no BatchNormalization of this program is trained.",
            )
        model = slice_step(program.step, [f"{RAW}{name}" for name in self._shares])
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

        Args:
            batches: Shuffled data, preferably in the batch size of training.
            state: State name to value; not modified.

        Returns:
            Name of each running mean and variance to its new value.

        Raises:
            DivergedError: A statistic is not finite.
            UsageError: There are no batches, or one does not fit.
        """
        # With an old value of 0, the raw next one is `(1 - m) batch`.
        fixed = {name: state[self._evaluated.get(name, name)] for name in self._read}
        fixed |= {name: np.zeros_like(state[name]) for name in self._shares if name in self._read}
        sums = {name: np.zeros(state[name].shape, np.float64) for name in self._shares}
        count = 0
        outputs = [f"{RAW}{name}" for name in self._shares]
        for given in batches:
            batch = check_batch(given, self.inputs, broadcast=False)
            try:
                with drawing(None if self._seed is None else self._seed + count):
                    raw = self._session.run(outputs, {**fixed, **batch})
            except Exception as error:  # the bindings raise bare exceptions of many kinds
                raise refused_batch(error, batch) from error
            for (name, share), value in zip(self._shares.items(), raw, strict=True):
                sums[name] += np.asarray(value, np.float64) / share
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
    """The factor `m` of each updated running statistic, by name.

    Raises:
        ModelError: The update of a statistic has an unknown form.
    """
    made = {v.name: v for node in program.step.graph for v in node.outputs}
    names = [entry.name for entry in program.catalogue.entries("buffer")]
    return {name: _momentum(made[RAW + name], name) for name in names if RAW + name in made}


def _momentum(raw: ir.Value, buffer: str) -> float:
    """The factor of the old value in ``raw = old m + batch (1 - m)``."""
    # The step states it only in its graph: the term whose product reads the old value.
    for found in matches(raw, Op("Add", Op("Mul", "old", "factor"), "batch")):
        factor = scalar(found["factor"])
        if found["old"].name == buffer and factor is not None:
            return factor
    raise ModelError(
        f"The update rule of the statistic '{buffer}' is unknown.",
        where=f"step graph, '{raw.name}'",
        fix="Convert the model again with this version of ortboost.",
    )
