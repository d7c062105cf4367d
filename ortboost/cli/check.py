"""``ortboost check``: what prevents training a model, or running it on a target; ``--fix``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ortboost.cli.command import Options, option, verb
from ortboost.cli.console import Output
from ortboost.cli.options import InputOptions, Map, given, refuse
from ortboost.cli.program_options import Engine, LossOptions, TrainedOptions, merge_config
from ortboost.core.errors import ModelError, OrtBoostError, UsageError
from ortboost.core.printable import count_of, first_of

if TYPE_CHECKING:
    from ortboost.program.config import ProgramConfig

__all__ = ["check"]

_MANY: Final = 4
"""Up to this many findings of one kind get a row each."""
_OF_COMPARISON: Final = ("--verify", "--rtol", "--atol", "--map")


@dataclass(frozen=True)
class TargetOptions(Options):
    """What to check for, and arguments of :func:`ortboost.api.check_target.fix_for`."""

    target: str = option(
        "train (default), onnxruntime, cuda, cuda=1.19.2, tensorrt or tensorrt=VERSION.",
        "--for",
        default="train",
    )
    shapes: list[str] | None = option(
        "TensorRT profile: x:1,8,32x3x224x224.", "--shape", metavar="INPUT:DIMS"
    )
    fix: bool = option(
        "Apply the fixes that preserve the outputs, compare, write --out.", "--fix", default=False
    )
    out: Path | None = option("File to write.", "--out", "-o")
    verify: Path | None = option("Data to compare on.")
    mapping: Map = None
    rtol: float = option("Relative tolerance.", default=1e-3, min=0)
    atol: float = option("Absolute tolerance.", default=1e-4, min=0)


@verb(
    "check",
    "Check whether a model can be trained, or run on a target.",
    examples="""\b
Examples:
  ortboost check model.onnx
  ortboost check model.onnx --freeze 'backbone.*' --json
  ortboost check model.onnx --for tensorrt=11 --shape x:1,8,32x3x224x224
  ortboost check model.onnx --for tensorrt=10 --fix -o fixed.onnx
  ortboost check run --for cuda
\b
Exit status 4 if the model cannot be trained, or cannot run on the target, as is.""",
)
def check(
    model: Annotated[
        Path, typer.Argument(help="ONNX file, or program folder (for training and --for cuda).")
    ],
    loss: LossOptions,
    inputs: InputOptions,
    trained: TrainedOptions,
    target: TargetOptions,
    engine: Engine = None,
    *,
    printer: Output,
) -> None:
    """List everything that prevents training a model, or running it on a target."""
    options = given({**loss.named(), **trained.named(), **inputs.named()})
    if target.target != "train":
        # The first option of training that was given, if any.
        refuse(dict.fromkeys(options.split()[:1], True), "to training", f"--for {target.target}")
        raise typer.Exit(_check_target(model, target, printer))
    for_target = target.changed("--fix", "--out", "--shape", *_OF_COMPARISON)
    refuse(for_target, "to a target", "check", "Add --for tensorrt=11.")
    chosen = {} if engine is None else {"engine": engine}
    settled = merge_config(None, inputs, loss.given(), {}, {**trained.given(), **chosen})
    report, settled = _check_training(model, settled, loss_given=loss.name is not None)
    printer.result(report.to_dict())
    if report.blockers:
        rows = [(b.node, b.op, b.reason, b.fix) for b in report.blockers]
        printer.table(["blocker", "op", "reason", "fix"], rows)
    if report.rewrites:
        rewritten = [(node, what) for r in report.rewrites for node, what in r.changed.items()]
        printer.table(
            ["will be rewritten", "how"], rewritten if printer.verbose else _folded(rewritten)
        )
    for note in report.notes:
        printer.line(f"note: {note}")
    if report.blockers or report.rewrites or report.notes:
        printer.line()
    if report.blockers:
        printer.line(f"{count_of(len(report.blockers), 'problem')} found for training.")
        raise typer.Exit(4)
    # The next command names the loss once, also if it was left to the default.
    options = options.replace(given({"--loss": loss.name}), "", 1)
    options = given({"--loss": settled.loss.name}) + options + given({"--engine": engine})
    printer.line(
        "This model can be trained."
        f"\nnext: ortboost convert {quote(str(model))} -o {'tuned' if model.is_dir() else 'run'}"
        f"{options}"
    )


def _check_training(
    model: Path, config: ProgramConfig, *, loss_given: bool
) -> tuple[Any, ProgramConfig]:
    """Check for training, by another loss if only the default one does not fit."""
    from ortboost.api import check

    try:
        return check(model, config), config
    except ModelError as error:
        if loss_given:
            raise
        try:
            other = dataclasses.replace(config.loss, name="mse")
            config = dataclasses.replace(config, loss=other)
            report = check(model, config)
        except OrtBoostError:
            raise error from None
        note = f"the default loss does not fit: {error.what} Choose another with --loss: mse for "
        note += "numbers, bce-with-logits for two classes."
        return dataclasses.replace(report, notes=(note, *report.notes)), config


def _folded(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Fold nodes that are rewritten in the same way into one row; ``-v`` lists each."""
    nodes: dict[str, list[str]] = {}
    for node, what in rows:
        nodes.setdefault(what, []).append(node)
    return [(first_of(found, 1), what) for what, found in nodes.items()]


def _check_target(model: Path, options: TargetOptions, printer: Output) -> int:
    """Check, fix if requested, print the result; returns the exit status."""
    from ortboost.api import check
    from ortboost.api.check_target import fix_for

    if options.fix != (options.out is not None):
        raise UsageError(
            "--fix and --out must be given together.",
            where="check",
            fix="Use --fix -o fixed.onnx; the original is never overwritten.",
        )
    if not options.fix:
        compared = options.changed(*_OF_COMPARISON)
        refuse(compared, "with --fix", "check", "Add --fix -o fixed.onnx.")
        report = check(model, target=options.target, shapes=options.shapes or ())
        printer.result(report.to_dict())
        _table(printer, report)
        printer.line(_verdict(report))
        if report.fixable:
            again = f"ortboost check {quote(str(model))} --for {options.target}"
            printer.line(f"next: {again} --fix -o fixed.onnx")
        return 4 if report.errors else 0
    fixed = fix_for(model, **{k: value for k, value in options.given().items() if k != "fix"})
    printer.result(fixed.to_dict())
    worst = fixed.parity.worst
    reference = "the original without its training parts" if fixed.stripped else "the original"
    where = "synthetic inputs" if options.verify is None else "data"
    printer.pairs(
        [
            ("file", fixed.path),
            ("fixes", ", ".join(report.rewrite for report in fixed.reports) or "none were needed"),
            ("findings", f"{len(fixed.before.findings)} -> {len(fixed.after.findings)}"),
            (
                "parity",
                f"max difference {worst.max_abs:.2g} from {reference}, "
                f"{count_of(fixed.parity.samples, 'sample')} ({where})",
            ),
        ]
    )
    printer.line()
    _table(printer, fixed.after)
    printer.line(_verdict(fixed.after))
    return 4 if fixed.after.errors else 0


def _table(printer: Output, report: Any) -> None:
    """Print one row per finding; without ``-v``, many of one kind fold into the first."""
    kinds: dict[tuple[Any, ...], list[Any]] = {}
    for f in report.findings:
        kinds.setdefault((f.severity, f.rule, f.op, f.fix, f.fixable), []).append(f)
    rows, folded = [], False
    for found in kinds.values():
        fold = len(found) > _MANY and not printer.verbose
        folded |= fold
        for f in found[:1] if fold else found:
            where = f"{f.node} and {len(found) - 1} more" if fold else f.node
            fixable = "yes" if f.fixable else ""
            rows.append((f.severity, f.rule, where, f.op, f.reason, f.fix, fixable))
    if rows:
        printer.table(["", "rule", "where", "op", "reason", "fix", "--fix"], rows)
        printer.line("-v lists every finding.\n" if folded else "")


def _verdict(report: Any) -> str:
    if report.errors:
        return f"{count_of(report.errors, 'problem')} found for {report.target}."
    return f"No problems found for {report.target}" + (
        f", according to {report.source}." if report.source else "."
    )
