"""``ortboost train`` as a function: train a program folder on data."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from ortboost.api.image_settings import as_images, former_images
from ortboost.api.processes import SharedSignals, continues, launch, own_threads, processes
from ortboost.api.run_folder import CHECKPOINTS, LOG, PLOT, alone_in, checkpoints_of, require_same
from ortboost.api.stored_batches import Data
from ortboost.api.train_settings import (
    best_callbacks,
    check_shared,
    check_validation,
    settle,
    warn_of_single_samples,
    with_settings,
)
from ortboost.core.arguments import checked
from ortboost.core.errors import UsageError
from ortboost.core.field_types import Range
from ortboost.deploy.session_inputs import with_batch_axes
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.program import Program
from ortboost.runtime.process_group import ProcessGroup, WireType
from ortboost.runtime.stepper import Stepper
from ortboost.runtime.update_bn import momenta
from ortboost.training import (
    Adaptable,
    Callback,
    EventLog,
    Reporter,
    Source,
    TrainConfig,
    Trainer,
    TrainSummary,
    as_callbacks,
)
from ortboost.training.data import ArraySource, open_source, static_batch
from ortboost.training.data.images import AugmentConfig, ImageConfig, parse_augment
from ortboost.training.data.like_training import check_like_training
from ortboost.training.progress import Mode, make_progress, session_progress
from ortboost.training.signals import SignalGuard
from ortboost.training.tensorboard import TensorBoard

__all__ = ["train"]

_LAG = 0.01  # remaining share of the initial running statistics that deserves a note


@checked
def train(
    run: str | os.PathLike[str],
    data: Data,
    validation: Data | None = None,
    *,
    batch_size: Annotated[int, Range(1)] = 64,
    learning_rate: str | float | None = None,
    resume: bool = False,
    mapping: Mapping[str, str] | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    device: str = "auto",
    threads: Annotated[int, Range(1)] | None = None,
    cuda_graph: bool = True,
    keep: Annotated[int, Range(1)] = 3,
    early_stop: Annotated[int, Range(1)] | None = None,
    val_split: float | None = None,
    images: ImageConfig | str | None = None,
    augment: AugmentConfig | str | None = None,
    callbacks: Sequence[Callback | Adaptable] = (),
    progress: Reporter | Mode | None = "auto",
    config: TrainConfig | None = None,
    exchange_dtype: WireType = "float32",
    check_sync: Annotated[int, Range(0)] = 0,
    segments: Annotated[int, Range(1)] | None = None,
    timeout: Annotated[float, Range(1)] = 600.0,
    tensorboard: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> TrainSummary:
    """Train a program folder.

    Processes started by ``torchrun`` train it together: each processes a part of every batch, and
    the first one writes. The results are those of a single process except for the order of sums
    (and BatchNormalization and dropout, see ``docs/scale.md``). Restarted processes resume from the
    newest checkpoint.

    Args:
        run: The folder written by :func:`convert`.
        data: Training data: a file or folder, ``(x, y)`` or arrays or tensors by name, a table of
            columns such as a pandas DataFrame (see
            :func:`ortboost.training.data.given.given_arrays`), an iterable of batches, or a source.
        validation: Validation data in the same forms; the best model by accuracy (or loss) is kept.
        batch_size: Samples per step, over all processes; batches (a ``DataLoader``) keep their own.
        learning_rate: A number, or a schedule as text; that of the program if not given.
        resume: Continue from the newest checkpoint.
        mapping: Input name to the key of its array, if the names differ.
        batch_axes: Input name to the axis of its arrays that counts the samples, ``None`` if it is
            constant over all samples; those of the program if not given.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Intra-op threads.
        cuda_graph: On CUDA, capture steps and replay them where that is possible. It costs memory,
            see ``docs/cuda.md``.
        keep: Number of checkpoints to keep.
        early_stop: Stop after this many validations without improvement.
        val_split: Instead of ``validation``: share of the training data to hold out for it, drawn
            with the seed.
        images: How images become inputs, as settings or text
            (``"resize=256,normalize=imagenet"``, see
            :func:`~ortboost.training.data.images.parse_images`). Kept in checkpoints and exported
            files, so that their evaluation does the same.
        augment: How training images are augmented, as settings or text (``"flip,crop=4"``, see
            :func:`~ortboost.training.data.images.parse_augment`): it depends only on seed,
            epoch and sample.
        callbacks: Further callbacks, see :mod:`ortboost.training.callbacks`, including MindSpore's
            unless they need parts of ``Model``.
        progress: How to show progress: ``auto`` is a bar in terminals and notebooks, elsewhere only
            warnings; ``bar``, ``plain`` or ``off`` as on the command line; ``None`` for nothing.
        config: Settings of the trainer; single arguments override it. The learning rate is that of
            the program if it has none; labels, output and loss scale are always the program's.
        exchange_dtype: Type of exchanged gradients: ``float32``, ``float16`` or ``bfloat16``.
        check_sync: Compare the parameters of all processes every this many steps; 0 for never.
        segments: Number of segments that the backward pass is cut into, so that the gradients of
            one are exchanged while the next runs; by default one on a single machine and four
            between machines.
        timeout: Seconds that a process waits for the others.
        tensorboard: Write TensorBoard event files below this folder, by the name of the run.
        **settings: Fields of :class:`~ortboost.training.TrainConfig`, such as ``epochs=10``.

    Returns:
        The summary.

    Raises:
        UsageError: Another process is training this folder or replacing its program, a metric does
            not apply to the loss, or ``early_stop`` is given without validation data.
        OrtBoostError: See :meth:`ortboost.training.Trainer.fit`.

    Example:
        >>> import ortboost as ob
        >>> program = ob.convert("models/mlp.onnx", "runs/example/train", overwrite=True)
        >>> digits = "models/digits.npz"
        >>> summary = ob.train("runs/example/train", digits, digits, epochs=2, progress=None)
        >>> summary.steps, summary.skipped_steps
        (46, 0)
    """
    folder, listeners = Path(run), as_callbacks(callbacks)
    shown = session_progress() if progress == "auto" else progress
    shown = make_progress(shown) if isinstance(shown, str) else shown
    program = Program.load(folder)
    check_validation(validation, val_split, early_stop, settings)
    base = with_settings(config, settings, resume, _ARGUMENTS)
    resume = resume or continues(folder / LOG)
    pixels = as_images(images)
    varied = parse_augment(augment) if isinstance(augment, str) else augment
    if resume:
        pixels, varied = former_images(folder, pixels, varied)
    with processes(timeout) as group:
        rank, size = (0, 1) if group is None else (group.rank, group.size)
        first = rank == 0
        given = {
            "--exchange-dtype": exchange_dtype,
            "--check-sync": check_sync,
            "--segments": segments,
        }
        check_shared(group, given, batch_axes)
        stepper = Stepper(
            program,
            device=device,
            threads=own_threads(group, threads),
            group=group,
            wire=exchange_dtype,
            check_sync=check_sync,
            segments=segments,
            cuda_graph=cuda_graph,
        )
        inputs = with_batch_axes(stepper.inputs, InputConfig(batch_axes=batch_axes or {}))
        read = partial(open_source, inputs=inputs, batch_size=batch_size, mapping=mapping)
        source = read(
            data,
            split="train",
            seed=base.seed,
            part=(rank, size),
            what="training data",
            shuffle=True,
            drop_last=static_batch(inputs) is not None,
            images=pixels,
            augment=varied,
        )
        source, held_out = _held_out(source, validation, val_split, read, pixels)
        # What program and data determine: schedules, metrics, the goal of the best model.
        settled = settle(base, program, source.steps_per_epoch, learning_rate, settings)
        warn_of_single_samples(program, source, size)
        if tensorboard is not None and first:
            listeners.append(TensorBoard(Path(tensorboard) / folder.resolve().name))
        # Only from here on is the folder locked, by the process that writes.
        with alone_in(folder) if first else contextlib.nullcontext():
            if first:
                require_same(folder, program)
            store = checkpoints_of(program, folder / CHECKPOINTS, keep, writes=first)
            if group is not None:
                begins = store.steps()[-1:] if resume else "from scratch"
                _agree(group, source, held_out, settled.describe(stepper.groups), begins)
            elif shown is not None and "adasum" in [b.name for b in program.config.enabled_boosts]:
                shown.message("adasum has no effect: it combines the updates of several processes")
            trainer = Trainer(
                stepper,
                stepper.evaluator(),
                settled,
                store=store,
                callbacks=[*best_callbacks(settled, held_out, early_stop), *listeners],
                log=EventLog(folder / LOG) if first else None,
                progress=shown if first else None,
                program=program.fingerprint,
                plot=folder / PLOT if first else None,
                about=_about(
                    folder,
                    stepper,
                    settled,
                    getattr(source, "batch_size", None),  # of batches, their own
                    size,
                    base.learning_rate if learning_rate is None else learning_rate,
                ),
                launch=launch(),
                signals=SignalGuard
                if stepper.shared is None
                else partial(SharedSignals, stepper.shared),
            )
            summary = trainer.fit(source, held_out, resume=resume)
            return dataclasses.replace(
                summary,
                notes=_notes(program, summary, source, held_out),
                class_counts=_class_counts(program, source),
            )


def _agree(
    group: ProcessGroup, source: Source, held_out: Source | None, run: Any, begins: Any
) -> None:
    """Refuse processes that differ: they would not end, as each would wait for another."""
    facts = {
        "the training data": source.fingerprint(),
        "the validation data": None if held_out is None else held_out.fingerprint(),
        "the run": run,
        "where it begins": begins,
    }
    group.agree(facts, fix="Give all processes the same command, files and folder.")


def _about(
    folder: Path,
    stepper: Stepper,
    settled: TrainConfig,
    batch_size: int | None,
    processes: int,
    learning_rate: object,
) -> dict[str, Any]:
    """The metadata of a run, for the log and the callbacks."""
    program, config = stepper.program, stepper.program.config
    boosts = [boost.name for boost in config.enabled_boosts if boost is not config.scaler]
    return {
        "run": folder.resolve().name,
        "source": program.source,
        "engine": program.engine,
        "loss": config.loss.name,
        "optimizer": config.optimizer.name,
        "learning_rate": str(config.learning_rate if learning_rate is None else learning_rate),
        "boosts": ", ".join(boosts),
        "loss_scale": config.scaler.name if config.scaler else "off",
        "fingerprint": program.fingerprint,
        **({} if batch_size is None else {"batch_size": batch_size}),
        "epochs": settled.epochs,
        "seed": settled.seed,
        "device": stepper.device,
        "processes": processes,
    }


def _held_out(
    source: Source,
    validation: Data | None,
    share: float | None,
    read: Callable[..., Source],
    images: ImageConfig | None,
) -> tuple[Source, Source | None]:
    """The training data, and the validation data: given, or a share of the former."""
    if validation is not None:
        images = source.images if isinstance(source, ArraySource) else images
        held_out = read(validation, split="test", what="validation data", images=images)
        check_like_training(source.fingerprint(), held_out, "validation data")
        return source, held_out
    if share is None:
        return source, None
    if not isinstance(source, ArraySource):
        raise UsageError(
            "Only files and arrays can be split.",
            where=f"--val-split, data: {type(source).__name__}",
            fix="Give separate validation data.",
        )
    return source.split(share)


def _class_counts(program: Program, source: Source) -> tuple[int, ...]:
    """Number of training samples (or positions) per class; empty if unknown."""
    spec = next((s for s in program.catalogue.batch if s.name == program.labels), None)
    if spec is None or spec.classes is None or not isinstance(source, ArraySource):
        return ()
    return source.counts(spec.name, spec.classes)


def _notes(
    program: Program, summary: TrainSummary, source: Source, validation: Source | None
) -> tuple[str, ...]:
    """Notes on bytes taken as pixels, and on running statistics that lag behind the weights."""
    scaled = source.scaled if isinstance(source, ArraySource) else ()
    notes = [
        f"the bytes of '{name}' were divided by 255, as pixels: do the same before the exported "
        "model, or save the array with another dtype to train on its numbers"
        for name in scaled
    ]
    updates = summary.steps - summary.skipped_steps
    # running = momentum running + (1 - momentum) batch, so momentum^n of the first value is left
    left = max((m**updates for m in momenta(program).values()), default=0.0)
    if validation is not None and left >= _LAG:
        notes.append(
            f"after {updates} updates the running statistics of BatchNormalization still contain "
            f"{left:.0%} of their initial values, and validation uses them: train longer, or let "
            "eval and export re-estimate them with --update-bn DATA"
        )
    return tuple(notes)


_ARGUMENTS: Final = [name for name in inspect.signature(train).parameters if name != "settings"]
