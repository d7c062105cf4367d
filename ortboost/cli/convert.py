"""``ortboost convert``: turn a model into a training program.

Slow imports are inside functions, so that ``--help`` is fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ortboost.cli.command import option, verb
from ortboost.cli.console import Output, shape_text
from ortboost.cli.options import Checkpoint, InputOptions
from ortboost.cli.program_options import (
    BoostOptions,
    LabelOptions,
    LossOptions,
    NetworkOptions,
    PrecisionOptions,
    TrainedOptions,
    UpdateOptions,
    merge_config,
    read_program_config,
)

if TYPE_CHECKING:
    from ortboost.core.report import Report
    from ortboost.program.program import Program

__all__ = ["convert"]


@verb(
    "convert",
    also=" Or a JSON file with a program configuration.",
    examples="""\b
Examples:
  ortboost convert model.onnx -o run --lr cosine:0.05 --weight-decay 1e-4
  ortboost convert model.onnx -o run --optimizer adamw --lr 1e-3 --clip global-norm:1
  ortboost convert model.onnx -o run --loss mse --loss-scale fixed:1024
  ortboost convert detector.onnx -o run --dim height=640 --dim width=640 --input scale=1.0
  ortboost convert gpt.onnx -o run --shift-labels --optimizer adamw --lr 3e-4
  ortboost convert model.onnx -o run --precision fp16 --keep-fp32 'head*'
  ortboost convert model.onnx -o tuned --new-head 5 --trainable 'fc.*'
  ortboost convert run -o tuned --new-head 5 --freeze 'conv?.*'
  ortboost convert model.onnx -o run --parameters model.txt
  ortboost convert model.onnx -o run --boost less-bn --boost grad-freeze:p=0.4,by=cost
  ortboost convert model.onnx -o fast --boost O1 --set grad_freeze.param_groups=4 --explain
  ortboost convert model.onnx -o run --group 'head:fc*:lr=0.1,weight_decay=0'
  ortboost convert model.onnx -o run --lr 0.1 --print-config > run.toml
  ortboost convert --config run.toml --overwrite""",
)
def convert(
    model: Annotated[
        Path,
        typer.Argument(help="ONNX file, or a trained program folder to continue from its weights."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Program folder to create.")],
    loss: LossOptions,
    labels: LabelOptions,
    inputs: InputOptions,
    update: UpdateOptions,
    precision: PrecisionOptions,
    trained: TrainedOptions,
    network: NetworkOptions,
    boosts: BoostOptions,
    checkpoint: Checkpoint = "best",
    overwrite: bool = option("Replace an existing program.", "--overwrite", default=False),
    explain: bool = option(
        "Report what each rewrite did, and what it left alone and why.", "--explain", default=False
    ),
    dry_run: bool = option("Convert and report, but write nothing.", "--dry-run", default=False),
    *,
    printer: Output,
    config: Path | None,
) -> None:
    """Turn a model into a training program."""
    from ortboost import api

    base = read_program_config(config)
    settled = merge_config(
        base,
        inputs,
        {**loss.given(), **labels.given()},
        precision.given(),
        {**update.given(), **trained.given(), **network.given()},
    )
    settled, boost = boosts.apply(settled, base)
    program = api.convert(
        model,
        out,
        settled,
        boost=boost,
        checkpoint=checkpoint,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    if printer.json:  # the manifest takes a third of the time of the conversion
        printer.result({"path": str(out), "dry_run": dry_run, **program.manifest()})
    _show(printer, program, f"{out} (not written)" if dry_run else str(out))
    for line in map(str, program.reports) if explain else _notes(program):
        printer.line(f"\n{line}" if explain else f"note: {line}")
    printer.line(
        "\nnext: run the same command without --dry-run"
        if dry_run
        else f"\nnext: ortboost train {quote(str(out))} --data DATA --val DATA"
    )


def _show(printer: Output, program: Program, path: str) -> None:
    config, loss = program.config, _report(program, "attach_loss")
    attached = () if loss is None else loss.changed.items()
    low, precision = _report(program, "place_precision"), ""
    if low is not None:
        how = config.precision.compute + (", emulated" if config.precision.emulate else "")
        precision = f"{how}: {len(low.changed)} nodes, {len(low.kept)} in float32"
    inputs = (f"{spec.name} {shape_text(spec.shape)}" for spec in program.catalogue.batch)
    printer.pairs(
        [
            ("program", path),
            ("boosts", ", ".join(boost.name for boost in config.enabled_boosts)),
            ("engine", program.engine),
            ("trained", _counted(program).removeprefix("trains ")),
            ("loss", "; ".join(f"{what}, output '{name}'" for name, what in attached)),
            ("optimizer", f"{config.optimizer.name}, learning rate {config.learning_rate}"),
            ("precision", precision),
            ("inputs", ", ".join(inputs)),
            ("rewrites", ", ".join(dict.fromkeys(r.rewrite for r in program.reports if r.changed))),
        ]
    )


def _counted(program: Program) -> str:
    """The note on how many parameters are trained."""
    from ortboost.program.choose_trainable import CHOOSE_TRAINABLE

    report = _report(program, CHOOSE_TRAINABLE)
    assert report is not None
    return report.notes[0]


def _report(program: Program, rewrite: str) -> Report | None:
    return next((report for report in program.reports if report.rewrite == rewrite), None)


def _notes(program: Program) -> Iterator[str]:
    """The notes of the rewrites, and the boosts that a level requests but cannot apply."""
    for report in program.reports:
        if report.rewrite == "auto_boost":
            yield from (f"{name}: {why}" for name, why in report.kept.items())
        yield from (note for note in report.notes if note != _counted(program))
