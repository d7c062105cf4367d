"""``ortboost train`` as a function: a program folder and data to a trained program."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortboost.api.export_subject import Data
from ortboost.api.learning_rates import schedules
from ortboost.api.run_folder import CHECKPOINTS, LOG, PLOT, alone_in
from ortboost.core.arguments import checked
from ortboost.core.errors import UsageError
from ortboost.deploy.fixed_inputs import with_batch_axes
from ortboost.graph.input_config import InputConfig
from ortboost.program.program import Program
from ortboost.runtime.stepper import Stepper
from ortboost.training import (
    Adaptable,
    BestModel,
    Callback,
    CheckpointStore,
    EarlyStopping,
    EventLog,
    Goal,
    Reporter,
    TrainConfig,
    Trainer,
    TrainSummary,
    as_callbacks,
)
from ortboost.training.data import open_source, static_batch

__all__ = ["train"]


@checked
def train(
    run: str | os.PathLike[str],
    data: Data,
    validation: Data | None = None,
    *,
    batch_size: int = 64,
    learning_rate: str | None = None,
    resume: bool = False,
    mapping: Mapping[str, str] | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    device: str = "auto",
    threads: int | None = None,
    keep: int = 3,
    early_stop: int | None = None,
    callbacks: Sequence[Callback | Adaptable] = (),
    progress: Reporter | None = None,
    config: TrainConfig | None = None,
    **settings: Any,
) -> TrainSummary:
    """Train a program folder.

    Args:
        run: The folder that :func:`convert` made.
        data: Training data.
        validation: Validation data; the best model by its accuracy (or loss) is kept.
        batch_size: Samples a step.
        learning_rate: Schedule as text; that of the program if not given.
        resume: Go on from the newest checkpoint.
        mapping: Input name to the key of its array, where names do not tell.
        batch_axes: Input to the axis of its arrays that counts the samples, ``None`` for the same in all;
            those of the program if not given.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Threads within an operator.
        keep: Number of checkpoints to keep.
        early_stop: Stop after so many validations without a gain.
        callbacks: Further callbacks, see :mod:`ortboost.training.callbacks`; those with MindSpore's names
            too, where they can do without the parts of ``Model``.
        progress: Where to show the run.
        config: Settings of the trainer; what the program decides is filled in.
        **settings: Fields of :class:`~ortboost.training.TrainConfig`, as ``epochs=10``.

    Returns:
        The summary.

    Raises:
        UsageError: Another process trains this folder; metrics that the loss has no use for; or
            ``early_stop`` without validation data.
        OrtBoostError: See :meth:`ortboost.training.Trainer.fit`.
    """
    folder, listeners = Path(run), as_callbacks(callbacks)
    program = Program.load(folder)
    if early_stop is not None and validation is None:
        raise UsageError(
            "Stopping early needs validation data.", where="early_stop", fix="Give --val DATA."
        )
    base = (config or TrainConfig()).with_settings(settings)
    if resume and base.overwrite:
        raise UsageError(
            "A run cannot go on and start anew.",
            where="--resume and --overwrite",
            fix="Give --resume to go on, or --overwrite to remove the checkpoints that are there.",
        )
    stepper = Stepper(program, device=device, threads=threads)
    inputs = with_batch_axes(stepper.inputs, InputConfig(batch_axes=batch_axes or {}))
    drop_last = static_batch(inputs) is not None
    source = open_source(
        data,
        inputs,
        "train",
        batch_size,
        mapping,
        shuffle=True,
        seed=base.seed,
        drop_last=drop_last,
    )
    held_out = None
    if validation is not None:
        held_out = open_source(validation, inputs, "test", batch_size, mapping)
    steps = source.steps_per_epoch
    total = None if steps is None else _updates(steps, base, program.config.accumulate)
    classes = program.config.loss.name == "softmax-cross-entropy"
    asked = tuple(settings.get("metrics") or ())
    if asked and program.config.loss.name not in ("softmax-cross-entropy", "bce-with-logits"):
        raise UsageError(
            f"The metric '{asked[0]}' needs classes, and the loss of this program has none.",
            where=f"loss '{program.config.loss.name}'",
            fix="Leave --metric out: the loss itself is reported.",
        )
    settled = dataclasses.replace(
        base,
        learning_rate=schedules(program.config, learning_rate, total),
        labels=program.labels or base.labels,
        output=program.prediction if program.labels else None,
        metrics=base.metrics if classes else asked,
        loss_scale=program.config.loss_scale,
    )
    goal = Goal(f"val_{settled.metrics[0]}" if settled.metrics else "val_loss")
    best: list[Callback] = [BestModel(goal)] if held_out is not None else []
    if early_stop is not None:
        best.append(EarlyStopping(goal, patience=early_stop))
    trainer = Trainer(
        stepper,
        stepper.evaluator(),
        settled,
        store=CheckpointStore(folder / CHECKPOINTS, keep=keep),
        callbacks=[*best, *listeners],
        log=EventLog(folder / LOG),
        progress=progress,
        program=program.fingerprint,
        plot=folder / PLOT,
    )
    with alone_in(folder):
        return trainer.fit(source, held_out, resume=resume)


def _updates(steps: int, config: TrainConfig, window: int) -> int:
    """Updates of a run of so many steps an epoch; schedules count those."""
    if config.flush:  # a window that is not full counts too, once an epoch
        return -(-steps // window) * config.epochs
    return max(1, steps * config.epochs // window)
