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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.autodiff.check import TrainabilityReport, check_trainable
from ortboost.autodiff.engine import get_engine
from ortboost.deploy.export import Exported, export_model, write_verified
from ortboost.deploy.verify import Parity, seeded_batch
from ortboost.errors import UsageError
from ortboost.graph.io import ModelSource, load_model
from ortboost.program.build import build_program
from ortboost.program.catalogue import TensorSpec
from ortboost.program.config import ProgramConfig
from ortboost.program.forward import prepare_forward
from ortboost.program.program import EVAL, MANIFEST, STATE, STEP, Program
from ortboost.run_folder import CHECKPOINTS, LOG, PLOT, alone_in, load_run
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.runtime.stepper import Stepper
from ortboost.training import (
    BestModel,
    Callback,
    CheckpointStore,
    EarlyStopping,
    EventLog,
    Goal,
    Reporter,
    Source,
    TrainConfig,
    Trainer,
    TrainSummary,
    get_metric,
    parse_schedule,
)
from ortboost.training import evaluate as evaluate_source
from ortboost.training.data import open_source, pad_batch, static_batch

__all__ = [
    "CHECKPOINTS",
    "LOG",
    "PLOT",
    "Data",
    "ExportResult",
    "check",
    "convert",
    "evaluate",
    "export",
    "load_run",
    "train",
]

_CONSUMED = (CHECKPOINTS, LOG, PLOT)
_ANY_STEPS = 1 << 40  # more than any warm-up

Data: TypeAlias = "str | os.PathLike[str] | Mapping[str, NDArray[Any]] | Source | Any"
"""A data file or folder, arrays by name, a source, or any iterable of batches."""


def convert(
    model: ModelSource,
    out: str | os.PathLike[str],
    config: ProgramConfig | None = None,
    *,
    overwrite: bool = False,
) -> Program:
    """Turn a model into a training program and write it as a folder.

    Args:
        model: The model.
        out: The folder to make.
        config: How; the defaults if not given.
        overwrite: Replace a program that is there, with its checkpoints and logs.

    Raises:
        UsageError: The folder holds a program already, or other files.
        ModelError: The model cannot be trained.
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
    program = build_program(model, config)
    _schedules(program.config, None, _ANY_STEPS)  # a misspelt one is found here, not in training
    for name in _CONSUMED if occupied else ():
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    program.save(folder)
    return program


def check(model: ModelSource, config: ProgramConfig | None = None) -> TrainabilityReport:
    """List everything that stands in the way of training a model, and what would be rewritten.

    Args:
        model: The model.
        config: The configuration it would be converted with.

    Raises:
        FileError: The file is not a readable model.
    """
    config = config or ProgramConfig()
    engine = get_engine(config.engine)
    forward = prepare_forward(load_model(model), config, engine)
    wrt = [parameter.name for parameter in forward.trained]
    found = check_trainable(forward.model, wrt=wrt, loss=forward.loss.objective, engine=engine)
    return dataclasses.replace(found, notes=(*forward.notes, *found.notes))


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
    callbacks: Sequence[Callback] = (),
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
        callbacks: Further callbacks.
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
    folder = Path(run)
    program = Program.load(folder)
    if early_stop is not None and validation is None:
        raise UsageError(
            "Stopping early needs validation data.", where="early_stop", fix="Give --val DATA."
        )
    stepper = Stepper(program, device=device, threads=threads)
    base = dataclasses.replace(config or TrainConfig(), **settings)
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
        callbacks=[*best, *callbacks],
        log=EventLog(folder / LOG),
        progress=progress,
        program=program.fingerprint,
        plot=folder / PLOT,
    )
    with alone_in(folder):
        return trainer.fit(source, held_out, resume=resume)


def evaluate(
    target: str | os.PathLike[str],
    data: Data,
    *,
    batch_size: int = 64,
    metrics: Sequence[str] | None = None,
    checkpoint: str = "best",
    mapping: Mapping[str, str] | None = None,
    output: str | None = None,
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
        split: Which part of a file with several: ``train`` or ``test``.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Threads within an operator.

    Returns:
        Metric name to value.
    """
    labels = "labels"
    if Path(target).is_dir():
        program, state, _ = load_run(target, checkpoint)
        stepper = Stepper(program, device=device, threads=threads)
        stepper.load_state(state)
        evaluator: Any = stepper.evaluator()
        inputs: Sequence[TensorSpec] = evaluator.inputs
        labels = program.labels or labels
        output = output or (program.prediction if program.labels else None)
        if metrics is None and program.config.loss.name != "softmax-cross-entropy":
            metrics = ()
    else:
        load_model(target)  # its errors are clearer than the runtime's
        evaluator = ModelEvaluator(target, device=device, threads=threads)
        inputs = [*evaluator.inputs, TensorSpec("labels", np.dtype(np.int64), (None,))]
    source = open_source(data, inputs, split, static_batch(inputs) or batch_size, mapping)
    found = evaluate_source(
        evaluator,
        source,
        [get_metric(name) for name in (("accuracy",) if metrics is None else metrics)],
        labels=labels,
        output=output,
        batch_size=static_batch(inputs),
    )
    return found or {}


@dataclass(frozen=True)
class ExportResult:
    """What :func:`export` did.

    Args:
        path: The file.
        bytes: Its size.
        parity: The comparison with the trained program.
        made_up: Whether the comparison ran on made-up inputs because no data were given.
        exported: The graph and the reports.
        step: Step of the checkpoint; ``None`` for the initial weights.
        classes: Whether the model was trained with class numbers, so that its accuracy can be measured.
    """

    path: Path
    bytes: int
    parity: Parity
    made_up: bool
    exported: Exported = field(repr=False)
    step: int | None
    classes: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "path": str(self.path),
            "bytes": self.bytes,
            "step": self.step,
            "parity": self.parity.to_dict(),
            "verified_on": "made-up inputs" if self.made_up else "data",
            "nodes": len(self.exported.model.graph),
            "reports": [report.to_dict() for report in self.exported.reports],
        }


def export(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    verify: Data | None = None,
    checkpoint: str = "best",
    mapping: Mapping[str, str] | None = None,
    split: str = "test",
    batch_size: int = 64,
    optimize: bool = True,
    opset: int | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-4,
    device: str = "auto",
) -> ExportResult:
    """Write the inference graph of a trained program, checked against the program itself.

    Args:
        run: The program folder.
        out: The file to write.
        verify: Data to compare on; made-up inputs if not given.
        checkpoint: See :func:`load_run`.
        mapping: Input name to the key of its array.
        split: Which part of a data file with several.
        batch_size: Samples a run of the comparison.
        optimize: Fold and clean up.
        opset: Opset of the file; that of the program if not given.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        device: Where to compare.

    Raises:
        ParityError: The file answers differently; nothing was written.
        UsageError: The file is one of the program itself.
    """
    if Path(out).resolve() in {
        (Path(run) / name).resolve() for name in (STEP, EVAL, STATE, MANIFEST)
    }:
        raise UsageError(
            "The export would overwrite the program itself.",
            where=str(out),
            fix="Give the inference graph another name.",
        )
    program, state, found = load_run(run, checkpoint)
    stepper = Stepper(program, device=device)
    stepper.load_state(state)
    evaluator = stepper.evaluator()
    fixed = static_batch(evaluator.inputs)
    if verify is None:
        feeds = [seeded_batch(evaluator.inputs, seed=program.config.seed, batch=fixed or 4)]
    else:
        samples = open_source(verify, evaluator.inputs, split, fixed or batch_size, mapping).epoch(
            0
        )
        feeds = [batch if fixed is None else pad_batch(batch, fixed)[0] for batch in samples]
    expected = [evaluator.evaluate(batch) for batch in feeds]
    step = None if found is None else int(found.step)
    exported = export_model(
        program,
        state,
        optimize=optimize,
        opset=opset,
        provenance={"step": "initial" if step is None else str(step)},
    )
    parity = write_verified(
        exported, out, expected=expected, feeds=feeds, device=stepper.device, rtol=rtol, atol=atol
    )
    path = Path(out)
    loss = program.config.loss
    classes = loss.name == "softmax-cross-entropy" and loss.sparse
    return ExportResult(path, path.stat().st_size, parity, verify is None, exported, step, classes)


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
