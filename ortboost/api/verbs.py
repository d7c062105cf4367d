"""The verbs as functions: convert, train, evaluate, export, check. The command line only calls these.

Example:
    ::

        import ortboost as ob

        ob.convert("models/lenet5.onnx", "run", ob.ProgramConfig(learning_rate="0.05"))
        summary = ob.train("run", "models/digits.npz", "models/digits.npz", epochs=20)
        ob.export("run", "lenet5.opt.onnx", verify="models/digits.npz")
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortboost.api.compare import Comparison, compare
from ortboost.api.export import ExportResult, export
from ortboost.api.export_subject import Data, WithConstants, batched, file_labels
from ortboost.api.run_folder import CHECKPOINTS, LOG, PLOT, alone_in, load_run
from ortboost.autodiff.check import TrainabilityReport
from ortboost.core.arguments import checked
from ortboost.core.errors import UsageError
from ortboost.core.report import Report
from ortboost.deploy.evaluation import AutoProcessed, network_auto_process_eval
from ortboost.graph.input_config import InputConfig
from ortboost.graph.io import ModelSource, load_model
from ortboost.program.boost_config import BoostConfig, resolve_boost
from ortboost.program.boosted import boosted
from ortboost.program.build import build_program
from ortboost.program.catalogue import TensorSpec
from ortboost.program.choose_engine import choose_engine
from ortboost.program.config import ProgramConfig
from ortboost.program.program import MANIFEST, Program
from ortboost.runtime.evaluator import open_evaluator
from ortboost.runtime.model_evaluator import ModelEvaluator
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
    get_metric,
    parse_schedule,
)
from ortboost.training import evaluate as evaluate_source
from ortboost.training.data import batch_axes, open_source, static_batch
from ortboost.training.label_rule import LabelRule
from ortboost.training.metrics import strict

__all__ = [
    "CHECKPOINTS",
    "LOG",
    "PLOT",
    "AutoProcessed",
    "Comparison",
    "Data",
    "ExportResult",
    "check",
    "compare",
    "convert",
    "evaluate",
    "export",
    "load_run",
    "network_auto_process_eval",
    "train",
]

_CONSUMED = (CHECKPOINTS, LOG, PLOT)
_ANY_STEPS = 1 << 40  # more than any warm-up


@checked
def convert(
    model: ModelSource,
    out: str | os.PathLike[str],
    config: ProgramConfig | None = None,
    *,
    boost: str | BoostConfig | None = None,
    boost_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> Program:
    """Turn a model into a training program and write it as a folder.

    Args:
        model: The model.
        out: The folder to make.
        config: How; the defaults if not given.
        boost: A boost level, ``O0``, ``O1`` or ``O2``, whose boosts are added to the configuration; or a
            resolved :class:`~ortboost.program.boost_config.BoostConfig`.
        boost_config: Settings of the boosts, a dictionary or a JSON file, see
            :mod:`ortboost.program.boost_config`; only with a level, ``O0`` if none is given.
        overwrite: Replace a program that is there, with its checkpoints and logs.
        dry_run: Do it all and write nothing.

    Raises:
        UsageError: The folder holds a program already, or other files.
        ModelError: The model cannot be trained.
        ConfigError: An unknown boost or setting, or one that makes no sense.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "The output of a conversion is a folder.",
            where=f"{folder} is a file",
            fix="Give the name of a new folder.",
        )
    occupied = folder.is_dir() and any(folder.iterdir())
    if occupied and not (folder / MANIFEST).is_file():
        raise UsageError(
            "The output folder is not empty, and is no program of ortboost.",
            where=str(folder),
            fix="Give the name of a new folder.",
        )
    if occupied and not overwrite:
        raise UsageError(
            "The output folder holds a program already.",
            where=str(folder),
            fix="Give another folder, or --overwrite to replace it with its checkpoints.",
        )
    reports: list[Report] = []
    if boost is not None or boost_config is not None:
        if not isinstance(boost, BoostConfig):
            boost = resolve_boost("O0" if boost is None else boost, boost_config)
        config, report = boosted(config or ProgramConfig(), boost)
        reports.append(report)
    program = build_program(model, config)
    program = dataclasses.replace(program, reports=(*reports, *program.reports))
    _schedules(program.config, None, _ANY_STEPS)  # a misspelt one is found here, not in training
    if dry_run:
        return program
    for name in _CONSUMED if occupied else ():
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    program.save(folder)
    return program


@checked
def check(model: ModelSource, config: ProgramConfig | None = None) -> TrainabilityReport:
    """List everything that stands in the way of training a model, and what would be rewritten.

    Args:
        model: The model.
        config: The configuration it would be converted with.

    Raises:
        FileError: The file is not a readable model.
    """
    config = config or ProgramConfig()
    chosen = choose_engine(model, config)
    forward = chosen.forward
    trained = {parameter.name for parameter in forward.trained}
    parameters = tuple(
        {**parameter.to_dict(), "trained": parameter.name in trained}
        for parameter in forward.parameters.values()
    )
    notes = (*forward.notes, *chosen.found.notes)
    return dataclasses.replace(chosen.found, notes=notes, parameters=parameters)


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
    stepper = Stepper(program, device=device, threads=threads)
    base = (config or TrainConfig()).with_settings(settings)
    drop_last = static_batch(stepper.inputs) is not None
    source = open_source(
        data,
        stepper.inputs,
        "train",
        batch_size,
        mapping,
        shuffle=True,
        seed=base.seed,
        drop_last=drop_last,
    )
    held_out = None
    if validation is not None:
        held_out = open_source(validation, stepper.inputs, "test", batch_size, mapping)
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
        learning_rate=_schedules(program.config, learning_rate, total),
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


@checked
def evaluate(
    target: str | os.PathLike[str],
    data: Data,
    *,
    batch_size: int = 64,
    metrics: Sequence[str] | None = None,
    checkpoint: str = "best",
    mapping: Mapping[str, str] | None = None,
    output: str | None = None,
    class_axis: int | None = None,
    ignore_index: int | None = None,
    shift_labels: bool = False,
    inputs: InputConfig | None = None,
    split: str = "test",
    device: str = "auto",
    threads: int | None = None,
) -> dict[str, float]:
    """Measure a program folder or an ONNX file on data.

    Args:
        target: A program folder (loss and metrics) or an ONNX file (metrics).
        data: The data, with labels.
        batch_size: Samples a run; changes no result.
        metrics: Names of metrics; accuracy for classifiers if not given.
        checkpoint: See :func:`load_run`.
        mapping: Input name to the key of its array; the labels of a file are called ``labels``.
        output: The output that holds the scores; that of the loss, or the first.
        class_axis: Of a file: the axis of the scores that counts the classes; found if not given, see
            :mod:`ortboost.transforms.class_axis`. A program knows it.
        ignore_index: Of a file: the label that does not count.
        shift_labels: Of a file: compare each position with the next label.
        inputs: Of a file: values of inputs that are no data, and batch axes.
        split: Which part of a file with several: ``train`` or ``test``.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Threads within an operator.

    Returns:
        Metric name to value.

    Raises:
        UsageError: A setting of a file was given for a program.
        ModelError: The class axis of a file is not certain.
    """
    labels, bare = "labels", not Path(target).is_dir()
    if not bare:
        if class_axis is not None or ignore_index is not None or shift_labels or inputs:
            raise UsageError(
                "A program knows how its inputs and labels are read.",
                where=f"{target}: class_axis, ignore_index, shift_labels, inputs",
                fix="Leave them out; they are for ONNX files. Convert again to change them.",
            )
        program, state, _ = load_run(target, checkpoint)
        evaluator: Any = open_evaluator(program, state, device=device, threads=threads)
        specs: Sequence[TensorSpec] = evaluator.inputs
        labels = program.labels or labels
        output = output or (program.prediction if program.labels else None)
        if metrics is None and program.config.loss.name != "softmax-cross-entropy":
            metrics = ()
    else:
        model, config = load_model(target), inputs or InputConfig()
        known = file_labels(
            model,
            output,
            class_axis=class_axis,
            ignored=ignore_index,
            shifted=shift_labels,
        )
        evaluator = WithConstants(ModelEvaluator(target, device=device, threads=threads), config)
        specs = [*batched(model, evaluator.inputs, config, output), known]
    source = open_source(data, specs, split, static_batch(specs) or batch_size, mapping)
    wanted = [get_metric(name) for name in (("accuracy",) if metrics is None else metrics)]
    found = evaluate_source(
        evaluator,
        source,
        [strict(metric) for metric in wanted] if bare else wanted,
        labels=labels,
        output=output,
        batch_size=static_batch(specs),
        rule=LabelRule.of(specs, labels),
        axes=batch_axes(specs),
    )
    return found or {}


def _updates(steps: int, config: TrainConfig, window: int) -> int:
    """Updates of a run of so many steps an epoch; schedules count those."""
    if config.flush:  # a window that is not full counts too, once an epoch
        return -(-steps // window) * config.epochs
    return max(1, steps * config.epochs // window)


def _schedules(config: ProgramConfig, learning_rate: str | None, total: int | None) -> Any:
    """One schedule for each learning-rate input."""
    common = parse_schedule(learning_rate or config.learning_rate, total_steps=total)
    named = {
        f"learning_rate/{group.name}": parse_schedule(group.learning_rate, total_steps=total)
        for group in config.groups
        if group.learning_rate is not None
    }
    return {"learning_rate": common, **named} if named else common
