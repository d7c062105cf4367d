"""``check --fix``: fix a model, compare it with the original, and only then write it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortboost.core.errors import ModelError, UsageError
from ortboost.core.files import temporary_folder
from ortboost.core.report import Report
from ortboost.deploy.findings import TargetReport
from ortboost.deploy.synthetic_inputs import accepted_feeds, seeded_batch
from ortboost.deploy.tensorrt.checker import check_tensorrt
from ortboost.deploy.tensorrt.fixes import (
    apply_fixes,
    lower_ir_version,
    strip_training_mode,
    unique_names,
)
from ortboost.deploy.tensorrt.profiles import Profile
from ortboost.deploy.tensorrt.table import Release
from ortboost.deploy.tolerance import Tolerance
from ortboost.deploy.verify import Parity, compare
from ortboost.graph.io import ModelSource, load_model, save_model
from ortboost.runtime.model_evaluator import ModelEvaluator

__all__ = ["FixedModel", "fix_for_tensorrt"]

# Every supported ONNX Runtime reads this version; it does not affect results, so the comparison
# lowers it.
_RUNNABLE_IR = 10


@dataclass(frozen=True)
class FixedModel:
    """What :func:`fix_for_tensorrt` did: findings before and after, changes, the comparison.

    ``stripped`` says whether the original was compared without its training parts, which are random
    or depend on the batch.
    """

    path: Path
    before: TargetReport
    after: TargetReport
    reports: tuple[Report, ...]
    parity: Parity
    stripped: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "path": str(self.path),
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "fixes": [report.to_dict() for report in self.reports],
            "parity": self.parity.to_dict(),
            "compared_with": "the original without training parts"
            if self.stripped
            else "the original",
        }


def fix_for_tensorrt(
    source: ModelSource,
    out: str | os.PathLike[str],
    target: Release,
    *,
    profiles: Sequence[Profile] = (),
    feeds: Sequence[Mapping[str, NDArray[Any]]] | None = None,
    tolerance: Tolerance | None = None,
) -> FixedModel:
    """Apply the fixes, compare with ONNX Runtime, and write.

    See :func:`ortboost.api.check_target.fix_for`. The optimum of the shape profiles is the shape of
    synthetic inputs.

    Raises:
        ModelError: The runtime cannot run the original or the fixed model, so they cannot be
            compared.
        FileError: The model cannot be read or the folder not written.
    """
    path = Path(out)
    if isinstance(source, (str, os.PathLike)) and path.resolve() == Path(source).resolve():
        raise UsageError(
            "The fixed model would overwrite the original.",
            where=str(path),
            fix="Give another file with --out.",
        )
    before = check_tensorrt(source, target, profiles)
    # These two change the reference itself: dropout is random, and reports need names.
    original = load_model(source)
    first = [unique_names(original), strip_training_mode(original)]
    fixed = original.clone()
    reports = apply_fixes(fixed, target)
    if not path.parent.is_dir():
        save_model(fixed, path)  # raises the error for a missing folder
    # In the folder of the result, which has room for files of its size.
    with temporary_folder(path.parent) as scratch:
        files = [scratch / name for name in ("original.onnx", path.name)]
        for model, file in zip((original.clone(), fixed.clone()), files, strict=True):
            lower_ir_version(model, _RUNNABLE_IR)
            save_model(model, file)
        parity = _compare(files[0], files[1], feeds, profiles, tolerance)
        fixes = ", ".join(report.rewrite for report in reports)
        fix = "Fix the findings in the model itself, or widen --rtol/--atol."
        parity.require(f"{path}; fixes: {fixes}", what="The fixed model", fix=fix)
    fixed.metadata_props["ortboost.tensorrt"] = str(target)
    fixed.metadata_props["ortboost.parity"] = parity.summary
    save_model(fixed, path)
    after = check_tensorrt(path, target, profiles)
    changed = [report for report in (*first, *reports) if report.changed]
    return FixedModel(path, before, after, tuple(changed), parity, first[1].modified)


def _compare(
    one: Path,
    other: Path,
    feeds: Sequence[Mapping[str, NDArray[Any]]] | None,
    profiles: Sequence[Profile],
    tolerance: Tolerance | None,
) -> Parity:
    sides = [ModelEvaluator(file, device="cpu") for file in (one, other)]
    if feeds is None:
        shapes = {profile.name: profile.optimum for profile in profiles}
        feeds = [
            seeded_batch(sides[0].inputs, shapes)
            if shapes
            else accepted_feeds(sides[0].inputs, sides[0].evaluate)[0]
        ]
    outputs = [name for name in sides[1].outputs if name in sides[0].outputs]
    if not outputs:
        raise ModelError(
            "The fixed model has no output of the original, so nothing can be compared.",
            where=", ".join(sides[0].outputs),
            fix="Export the model for inference.",
        )
    answers = [[side.evaluate(batch) for batch in feeds] for side in sides]
    return compare(answers[0], answers[1], outputs, tolerance=tolerance)
