"""Build an inference graph: strip the training parts, rewrite, add metadata.

:mod:`ortboost.deploy.write_verified` compares and writes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.core.version import __version__
from ortboost.deploy.drop_exporter_notes import drop_exporter_notes
from ortboost.deploy.keep_outputs import keep_outputs
from ortboost.deploy.low_precision import LowPrecision, precision_steps
from ortboost.deploy.pipeline import Step, optimize
from ortboost.deploy.slim import slim_step
from ortboost.deploy.strip import inference_model
from ortboost.deploy.targets import GENERIC, Target, ir_version_for
from ortboost.graph.io import ModelSource, load_model, save_model
from ortboost.graph.normal_form.guard_pads import GUARDING_OPSET, guard_pads, needs_guard
from ortboost.graph.normalize import normalize
from ortboost.graph.opsets.convert_opset import convert_opset
from ortboost.graph.shapes.declared_shapes import restore_read
from ortboost.graph.shapes.fix_inputs import fix_inputs
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.source import source_name
from ortboost.program.program import Program
from ortboost.transforms.inference_norm import to_inference

__all__ = ["ExportSettings", "Exported", "export_model", "export_network", "reference_path"]

_OLDEST = 13  # older opsets have attributes where the rewrites expect inputs


@dataclass(frozen=True)
class Exported:
    """An inference graph and how it was made.

    Args:
        model: The graph.
        reports: What the rewrites did.
        base: The graph before the pipeline; the rewrites can be applied to it again, one by one.
        steps: The steps of the pipeline, in order.
        target: The target it was made for.
        precision: Its precision, such as ``fp32``.

    A pickled one has neither ``base`` nor ``steps``, which serve the search for a wrong rewrite.
    """

    model: ir.Model
    reports: tuple[Report, ...]
    base: ir.Model | None = field(default=None, repr=False)
    steps: tuple[Step, ...] = field(default=(), repr=False)
    target: Target = GENERIC
    precision: str = "fp32"

    def __reduce__(self) -> tuple[type[Exported], tuple[Any, ...]]:
        return Exported, (self.model, self.reports, None, (), self.target, self.precision)


@dataclass(frozen=True)
class ExportSettings:
    """What an export does.

    Args:
        optimize: Run the pipeline; without it only the training parts are stripped.
        opset: Convert to this opset; if not given, that of the model, or a newer one that the
            target prefers.
        target: The target of the graph.
        low_precision: The reduced precision, if not float32.
        slim: Run onnxslim too.
        inputs: Dimensions and inputs to fix.
        outputs: The outputs to keep; all if empty.
        provenance: Further entries for the model's ``metadata_props``, under ``ortboost.``.
    """

    optimize: bool = True
    opset: int | None = None
    target: Target = GENERIC
    low_precision: LowPrecision | None = None
    slim: bool = False
    inputs: InputConfig = field(default_factory=InputConfig)
    outputs: Sequence[str] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)


def export_model(program: Program, state: Mapping[str, NDArray[Any]], **settings: Any) -> Exported:
    """Build the inference graph of a trained program; ``settings``: :class:`ExportSettings`.

    Raises:
        ModelError: The opset conversion is not possible.
        UsageError: Target, precision and opset are not compatible.
    """
    chosen = ExportSettings(**settings)
    model, stripped = inference_model(program, state)
    reports = [stripped, *_fixed(model, chosen)]
    config = json.dumps(program.config.to_dict(), sort_keys=True)
    stamp = {
        "source": Path(program.source).name,
        "program": program.fingerprint,
        "config": hashlib.sha256(config.encode()).hexdigest()[:16],
    }
    return _finish(model, reports, stamp, chosen)


def export_network(source: ModelSource, **settings: Any) -> Exported:
    """Build an optimized inference graph of an ONNX model that needs no training.

    Nodes in training mode are switched to inference mode first, also in the reference that the
    result is compared with. ``source`` is what :func:`ortboost.graph.io.load_model` accepts,
    ``settings`` are those of :class:`ExportSettings`.

    Raises:
        FileError: The file is not a model.
        ModelError: The opset conversion is not possible.
        UsageError: Target, precision and opset are not compatible.
    """
    chosen, model = ExportSettings(**settings), load_model(source)
    fixed = _fixed(model, chosen)
    # The opset is kept here if the rewrites can work with it; `_finish` fits it to the target.
    version = model.opset_imports.get("", 0)
    keep_fused = chosen.target.keeps_fused or not chosen.optimize
    opsets = range(version, version + 1)
    if chosen.optimize:
        opsets = range(max(version, _OLDEST), max(version + 1, 22))
    normalized = normalize(model, opsets=opsets, ir_version=model.ir_version, keep_fused=keep_fused)
    reports = [*fixed, *normalized, to_inference(model)]
    return _finish(model, reports, {"source": Path(source_name(model)).name}, chosen)


def _fixed(model: ir.Model, settings: ExportSettings) -> list[Report]:
    """Fix dimensions and inputs, infer the resulting shapes, and leave outputs out."""
    inputs, reports = settings.inputs, list[Report]()
    if inputs.dims or inputs.values:
        reports.append(fix_inputs(model, inputs))
        infer_shapes(model)
    if settings.outputs:
        reports.append(keep_outputs(model, settings.outputs))
    return reports


def _finish(
    model: ir.Model, reports: list[Report], stamp: Mapping[str, str], settings: ExportSettings
) -> Exported:
    """The steps shared by programs and plain models."""
    target, opset, low_precision = settings.target, settings.opset, settings.low_precision
    # The opset: the requested one, else the present one if the target supports that.
    precision = low_precision.precision if low_precision is not None else "fp32"
    target.require(precision, opset)
    present = model.opset_imports.get("", 0)
    last: list[Step] = []
    if opset is not None:
        wanted = partial(convert_opset, opsets=range(opset, opset + 1))
        if opset < _OLDEST:
            last.append(Step("convert_opset", wanted))
        else:
            reports.append(wanted(model))
    elif target.guards_pads and present < GUARDING_OPSET and any(map(needs_guard, model.graph)):
        # An older opset has no guard against the wrong fusion.
        reports.append(convert_opset(model, range(GUARDING_OPSET, GUARDING_OPSET + 1)))
    elif present not in target.opsets:
        try:
            reports.append(convert_opset(model, target.opsets))
        except ModelError as error:
            raise ModelError(
                f"The target '{target.name}' supports opset {target.opsets[0]} to "
                f"{target.opsets[-1]}; the model has {present}.",
                where=error.where,
                fix=error.fix,
            ) from error
    _fit_ir_version(model, target)
    # The rewrites, with the steps to replay on `base` if the comparison looks for a faulty one.
    base = model.clone()
    steps: list[Step] = []
    if settings.optimize:
        found, steps = optimize(model, target, lift=opset is None)
        reports += found
    later = [slim_step()] if settings.slim else []  # for what our own rewrites left
    if low_precision is not None and precision != "fp32":
        later += precision_steps(low_precision, target)
    later += last
    for step in later:
        reports.append(step.apply(model))
    steps += later
    if target.guards_pads:
        reports.append(guard_pads(model))
    reports.append(restore_read(model))
    _fit_ir_version(model, target)  # again: a step may have raised the opset
    if settings.optimize:
        reports.append(drop_exporter_notes(model))
    entries = {
        "version": __version__,
        **stamp,
        **settings.provenance,
        "target": target.name,
        "precision": precision,
        "rewrites": ", ".join(report.rewrite for report in reports if report.changed),
    }
    model.metadata_props.update({f"ortboost.{key}": value for key, value in entries.items()})
    kept = tuple(report for report in reports if report.changed or report.kept or report.notes)
    return Exported(model, kept, base, tuple(steps), target, precision)


def _fit_ir_version(model: ir.Model, target: Target) -> None:
    opset = model.opset_imports.get("", 0)
    model.ir_version = ir_version_for(opset, model.ir_version or 8, target.ir_version)


def reference_path(source: ModelSource, exported: Exported, folder: Path) -> str:
    """The reference file of an export: the model itself, or its inference form in ``folder``."""
    # The inference form, if the runtime does not support the model's opset or biases, or would
    # inline its branches wrongly.
    rewrites = ("to_inference", "convert_opset", "inline_branches", "drop_flat_biases")
    changed = any(r.rewrite in rewrites and r.changed for r in exported.reports)
    if isinstance(source, (str, os.PathLike)) and not changed:
        return os.fspath(source)
    base = exported.base if exported.base is not None else load_model(source)
    path = folder / "reference.onnx"
    save_model(base, path)
    return str(path)
