"""``ortboost doctor``: what this machine and environment lack."""

from __future__ import annotations

import typer

from ortboost.cli.command import verb
from ortboost.cli.console import Output

__all__ = ["doctor"]


@verb(
    "doctor",
    "Check this machine and environment, and suggest fixes.",
    file=False,
    examples="""\b
Example:
  ortboost doctor --json
\b
Exit status 7 if a requirement for training is missing.""",
)
def doctor(*, printer: Output) -> None:
    """Check this machine and environment, and suggest fixes for what is missing."""
    from ortboost.api import doctor as diagnose

    findings = diagnose()
    printer.result({"ok": findings.ok, "findings": [vars(finding) for finding in findings]})
    printer.table(
        ["", "what", "found", "fix"],
        [
            ({"ok": "ok", "note": "-", "fail": "FAIL"}[f.status], f.name, f.detail, f.fix)
            for f in findings
        ],
    )
    bad = sum(finding.status == "fail" for finding in findings)
    printer.line(f"\n{bad} to fix before training." if bad else "\nReady to train.")
    raise typer.Exit(7 if bad else 0)
