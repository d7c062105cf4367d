"""Find what prevents a model from running in ONNX Runtime, by opening it in that runtime."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.deploy.findings import Finding, TargetReport, error, warn
from ortboost.deploy.int8.saturation import saturating_weights
from ortboost.deploy.tensorrt.profiles import Profile, refuse_profiles
from ortboost.deploy.tensorrt.rules import RULES, Context
from ortboost.deploy.tensorrt.table import parse_release
from ortboost.graph.io import ModelSource, load_model
from ortboost.graph.query import all_tensors
from ortboost.runtime.session import open_session, runtime

__all__ = ["check_onnxruntime"]

_PROTO_LIMIT = (1 << 31) - (1 << 20)  # bytes of weights: 2 GiB less some room for the graph
# Rules about the file and about training apply to every runtime.
_SHARED = {"TRT001": "ORT003", "TRT052": "ORT004", "TRT054": "ORT005"}


def check_onnxruntime(
    source: ModelSource, target: str = "onnxruntime", profiles: Sequence[Profile] = ()
) -> TargetReport:
    """Check a model with ONNX's checker and the installed ONNX Runtime.

    Args:
        source: The model.
        target: Name of the target; the installed runtime is used, whatever its version.
        profiles: Must be empty: this target has no shape profiles.

    Returns:
        Findings of the rules ``ORT001`` to ``ORT006``.

    Raises:
        FileError: The file is not a readable model.
        DependencyError: ONNX Runtime is not installed.
        UsageError: A shape profile was given.
    """
    refuse_profiles(profiles)
    version = f"onnxruntime {runtime().__version__}"
    raw = load_model(source, weights=False)
    # The shared rules take a target, but do not use it.
    context = Context(raw, raw, parse_release("tensorrt"))
    shared = [
        dataclasses.replace(
            finding,
            rule=ours,
            # The runtime runs nodes in training mode, but with training semantics.
            severity="warn" if ours == "ORT003" else finding.severity,
            fixable=False,
            fix="ortboost export MODEL -o OUT fixes it." if "--fix" in finding.fix else finding.fix,
        )
        for theirs, ours in _SHARED.items()
        for finding in RULES[theirs].check(context)
    ]
    found = []
    if not any(finding.rule == "ORT004" for finding in shared):  # else weights are missing
        model = load_model(source)
        opened = source if isinstance(source, (str, os.PathLike)) else model
        found = [*_spec(model), *_saturation(model), *_session(opened, version)]
    return TargetReport.of(version, "", [*found, *shared])


def _session(source: str | os.PathLike[str] | ir.Model, version: str) -> Iterator[Finding]:
    try:
        open_session(source, device="cpu")
    except ModelError as refused:
        about = refused.where or "model", "model"
        yield error(about, f"{version}: {refused.what}", refused.fix, rule="ORT001")


def _spec(model: ir.Model) -> Iterator[Finding]:
    if sum(tensor.nbytes for _, tensor in all_tensors(model)) > _PROTO_LIMIT:
        return  # ONNX's checker needs a single protobuf
    try:
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
    except Exception as refused:  # the checker raises errors of several kinds
        lines = [line for line in str(refused).splitlines() if line.strip()]
        found = lines[0].strip() if lines else type(refused).__name__
        fix = "Export the model again; other runtimes may reject it."
        yield warn(("model", "model"), f"ONNX's checker reports: {found}", fix, rule="ORT002")


def _saturation(model: ir.Model) -> Iterator[Finding]:
    for name, node in saturating_weights(model).items():
        yield warn(
            (node, "int8"),
            f"products with '{name}' can saturate on x86 processors without VNNI: outputs are "
            "inaccurate there",
            "ortboost export --precision int8 of the float model writes 7-bit weights.",
            rule="ORT006",
        )
