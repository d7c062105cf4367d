"""Run all rules over a model; findings are sorted by severity."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.shown import Shown
from ortboost.deploy.tensorrt.profiles import Profile
from ortboost.deploy.tensorrt.rules.registry import SEVERITIES, Context, Finding
from ortboost.deploy.tensorrt.table import Release, parse_release
from ortboost.graph.io import ModelSource, load_model
from ortboost.graph.shape_inference import infer_shapes

__all__ = ["TargetReport", "check_release", "check_tensorrt", "open_lazily", "sorted_findings"]


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


def check_release(source: ModelSource, target: str, profiles: Iterable[Profile]) -> TargetReport:
    """Parse the version and call :func:`check_tensorrt`; the checker of the target ``tensorrt``."""
    return check_tensorrt(source, parse_release(target), profiles=list(profiles) or None)


def check_tensorrt(
    source: ModelSource, target: Release, *, profiles: Iterable[Profile] | None = None
) -> TargetReport:
    """Find what TensorRT's parser would reject, without TensorRT.

    Args:
        source: The model. Of a file only the graph is read; weights are read if a rule needs them.
        target: The version to check for.
        profiles: Shape profiles; if given, dynamic inputs without one are errors.

    Raises:
        FileError: The file is not a readable model.

    Example:
        ::

            from ortboost.deploy.tensorrt.table import parse_release

            for finding in check_tensorrt("model.onnx", parse_release("tensorrt=11")).findings:
                print(finding.rule, finding.node, finding.reason)
    """
    # Importing the rules fills their registry.
    from ortboost.deploy.tensorrt.rules import RULES

    raw, path = open_lazily(source)
    model = raw.clone()
    if model.functions:
        common.InlinePass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer_shapes(model)
    named = None if profiles is None else {profile.name: profile for profile in profiles}
    context = Context(model, target, named, path, raw)
    found = [finding for entry in RULES.values() for finding in entry.check(context)]
    return TargetReport(
        str(target),
        f"onnx-tensorrt's table of operators for {target.release}",
        sorted_findings(found),
    )


def sorted_findings(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Deduplicate findings, and sort them by severity, rule and graph order."""
    once = dict.fromkeys(found)
    return tuple(sorted(once, key=lambda f: (SEVERITIES.index(f.severity), f.rule)))


def open_lazily(source: ModelSource) -> tuple[ir.Model, Path | None]:
    """Open a model without reading external weights, which may even be missing.

    Raises:
        FileError: The file is not a readable model.
    """
    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    return load_model(source, weights=False), path
