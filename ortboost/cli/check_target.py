"""``ortboost check --for TARGET``: the findings as a table, and ``--fix``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final

from ortboost.cli.command import Options, option
from ortboost.cli.console import Output
from ortboost.cli.options import Map, refuse
from ortboost.core.errors import UsageError
from ortboost.core.printable import count_of

__all__ = ["TargetOptions", "run_check"]

_MANY: Final = 4
"""Up to this many findings of one kind get a row each."""
_OF_COMPARISON: Final = ("--verify", "--rtol", "--atol", "--map")


@dataclass(frozen=True)
class TargetOptions(Options):
    """The options of ``check`` that concern a target."""

    target: str = option(
        "train (default), onnxruntime, cuda, cuda=1.19.2, tensorrt or tensorrt=VERSION.",
        "--for",
        default="train",
    )
    shape: list[str] | None = option("TensorRT profile: x:1,8,32x3x224x224.", metavar="INPUT:DIMS")
    fix: bool = option(
        "Apply the fixes that preserve the outputs, compare, write --out.", "--fix", default=False
    )
    out: Path | None = option("File to write.", "--out", "-o")
    verify: Path | None = option("Data to compare on.")
    mapping: Map = None
    rtol: float = option("Relative tolerance.", default=1e-3, min=0)
    atol: float = option("Absolute tolerance.", default=1e-4, min=0)

    def refuse_without_target(self) -> None:
        """Reject target options when checking for training."""
        options = self.changed("--fix", "--out", "--shape", *_OF_COMPARISON)
        refuse(options, "to a target", "check", "Add --for tensorrt=11.")

    def refuse_without_fix(self) -> None:
        """Reject options of the comparison that ``--fix`` makes, if nothing is fixed."""
        if not self.fix:
            options = self.changed(*_OF_COMPARISON)
            refuse(options, "with --fix", "check", "Add --fix -o fixed.onnx.")


def run_check(model: Path, options: TargetOptions, printer: Output) -> int:
    """Check, fix if requested, print the result; returns the exit status."""
    from ortboost.api import check
    from ortboost.api import check_target as targets
    from ortboost.cli.parse import parse_mapping

    if options.fix != (options.out is not None):
        raise UsageError(
            "--fix and --out must be given together.",
            where="check",
            fix="Use --fix -o fixed.onnx; the original is never overwritten.",
        )
    options.refuse_without_fix()
    if not options.fix:
        report = check(model, target=options.target, shapes=options.shape or ())
        printer.result(report.to_dict())
        _table(printer, report)
        printer.line(_verdict(report))
        if report.fixable:
            again = f"ortboost check {quote(str(model))} --for {options.target}"
            printer.line(f"next: {again} --fix -o fixed.onnx")
        return 4 if report.errors else 0
    fixed = targets.fix_for(
        model,
        options.out or model,  # never the model: --fix needs --out
        options.target,
        shapes=options.shape or (),
        verify=options.verify,
        mapping=parse_mapping(options.mapping or []),
        rtol=options.rtol,
        atol=options.atol,
    )
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
