"""Findings of the checks for a target, and the report that lists them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import onnx_ir as ir

from ortboost.core.shown import Shown
from ortboost.graph.query import label

__all__ = ["SEVERITIES", "About", "Finding", "TargetReport", "error", "info", "warn"]

SEVERITIES: Final = ("error", "warn", "info")

About: TypeAlias = ir.Node | ir.Value | tuple[str, str]
"""Subject of a finding: a node, a stored tensor, or a name and its kind (``input``, ``model``)."""


@dataclass(frozen=True)
class Finding:
    """One row of the checker.

    Args:
        rule: Id of the rule.
        severity: ``error``: it will not build or run; ``warn``: it may not, or results may differ;
            ``info``: worth knowing.
        node: The node, tensor, input or file it is about.
        op: Operator, or ``tensor``, ``input``, ``model``.
        reason: What is wrong, in one sentence.
        fix: What to do about it.
        fixable: Whether ``--fix`` does it.
    """

    rule: str
    severity: str
    node: str
    op: str
    reason: str
    fix: str
    fixable: bool = False


def _finding(
    severity: str, about: About, reason: str, fix: str, *, fixable: bool = False, rule: str = ""
) -> Finding:
    """A finding; a registered rule fills in its id."""
    if isinstance(about, ir.Node):
        about = label(about), about.op_type
    elif isinstance(about, ir.Value):
        about = about.name or "?", "tensor"
    return Finding(rule, severity, *about, reason, fix, fixable)


error = functools.partial(_finding, "error")
"""A finding that rules out the target."""
warn = functools.partial(_finding, "warn")
"""A finding that may rule out the target or change results."""
info = functools.partial(_finding, "info")
"""A finding that is worth knowing."""


@dataclass(frozen=True, repr=False)
class TargetReport(Shown):
    """The findings of a check for a target.

    Args:
        target: Display name of the target.
        source: Source of its table; empty if the target itself was run.
        findings: The most severe first.

    Example:
        >>> import ortboost as ob
        >>> report = ob.check("models/lenet5.onnx", target="tensorrt=11")
        >>> report.ok, [finding.severity for finding in report.findings]
        (True, ['warn'])
    """

    target: str
    source: str
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, target: str, source: str, found: Iterable[Finding]) -> TargetReport:
        """Deduplicate findings, and sort them by severity, rule and graph order."""
        once = dict.fromkeys(found)
        order = sorted(once, key=lambda f: (SEVERITIES.index(f.severity), f.rule))
        return cls(target, source, tuple(order))

    def _facts(self) -> dict[str, object]:
        rules: dict[str, list[Finding]] = {}
        for finding in self.findings:
            rules.setdefault(f"{finding.severity} {finding.rule}", []).append(finding)
        found = {rule: f"({len(of)}) {of[0].reason}" for rule, of in rules.items()}
        return {"target": self.target, "ok": self.ok, **found}

    @property
    def errors(self) -> int:
        """Number of findings that rule out the target."""
        return sum(finding.severity == "error" for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether no finding rules out the target."""
        return not self.errors

    @property
    def fixable(self) -> int:
        """Number of findings that ``--fix`` fixes."""
        return sum(finding.fixable for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        counts = {s: sum(f.severity == s for f in self.findings) for s in SEVERITIES}
        return {
            "target": self.target,
            "source": self.source,
            "ok": self.ok,
            "counts": counts,
            "findings": [vars(finding) for finding in self.findings],
        }
