"""Run all rules over a model."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_ir.passes import common

from ortboost.deploy.findings import TargetReport
from ortboost.deploy.tensorrt.profiles import Profile
from ortboost.deploy.tensorrt.rules import RULES, Context
from ortboost.deploy.tensorrt.table import Release, parse_release
from ortboost.graph.io import ModelSource, load_model
from ortboost.graph.shapes.shape_inference import infer_shapes

__all__ = ["check_tensorrt"]


def check_tensorrt(
    source: ModelSource, target: str | Release = "tensorrt", profiles: Sequence[Profile] = ()
) -> TargetReport:
    """Find what TensorRT's parser would reject, without TensorRT.

    Args:
        source: The model. Of a file only the graph is read, also if its external weights are
            missing; weights are read if a rule needs them.
        target: The version to check for, such as ``tensorrt=11``.
        profiles: Shape profiles; if given, dynamic inputs without one are errors.

    Raises:
        FileError: The file is not a readable model.
        UsageError: The version is unknown.

    Example:
        ::

            for finding in check_tensorrt("model.onnx", "tensorrt=11").findings:
                print(finding.rule, finding.node, finding.reason)
    """
    release = parse_release(target) if isinstance(target, str) else target
    original = load_model(source, weights=False)
    model = original.clone()
    if model.functions:
        common.InlinePass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer_shapes(model)
    context = Context(model, original, release, profiles)
    return TargetReport.of(
        str(release),
        f"onnx-tensorrt's table of operators for {release.release}",
        (finding for entry in RULES.values() for finding in entry.check(context)),
    )
