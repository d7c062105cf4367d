"""``ortboost export`` as a function: write the inference graph of a program or a model."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ortboost.api.export_comparison import ExportComparison
from ortboost.api.export_subject import collect, plain_subject, trained_subject
from ortboost.api.run_folder import check_output, refuse_for_model
from ortboost.api.running_statistics import updated_bn
from ortboost.api.stored_batches import Data, Feeds, refuse_unread
from ortboost.core.arguments import checked
from ortboost.core.errors import UsageError
from ortboost.core.field_types import Range
from ortboost.core.shown import Shown
from ortboost.deploy.export import Exported
from ortboost.deploy.int8.config import Int8Config
from ortboost.deploy.int8.pays_off import not_faster
from ortboost.deploy.low_precision import LowPrecision
from ortboost.deploy.synthetic_inputs import sizes_text
from ortboost.deploy.targets import get_target
from ortboost.deploy.tolerance import precision_of, tolerance_for
from ortboost.deploy.verify import Parity
from ortboost.deploy.write_verified import write_verified
from ortboost.graph.io import ModelSource, external_files, is_folder
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.training.data.images import ImageConfig
from ortboost.training.label_rule import LabelRule

__all__ = ["ExportResult", "export"]


@dataclass(frozen=True, repr=False)
class ExportResult(Shown):
    """The result of :func:`export`.

    Args:
        path: The file.
        bytes: Its size, including external data.
        parity: The comparison with the trained program, or with the original model.
        synthetic: Whether the comparison used synthetic inputs because no data were given.
        exported: The graph and the reports.
        step: Step of the checkpoint; ``None`` for the initial weights.
        classes: Whether the model was trained on class indices.
        rule: How labels are compared with the scores.
        metrics: Metric name to its value before and after, if the data have labels.
        notes: Further remarks.

    Example:
        >>> import ortboost as ob
        >>> result = ob.export("models/mlp.onnx", "mlp.opt.onnx")
        >>> result.parity.ok, result.synthetic, result.step
        (True, True, None)
    """

    path: Path
    bytes: int
    parity: Parity
    synthetic: bool
    exported: Exported = field(repr=False)
    step: int | None
    classes: bool = True
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rule: LabelRule = field(default_factory=LabelRule)

    def _facts(self) -> dict[str, object]:
        found = (f"{name} {a:.4g} before, {b:.4g} after" for name, (a, b) in self.metrics.items())
        return {
            "path": self.path,
            "bytes": f"{self.bytes:,}",
            "target": self.exported.target.name,
            "precision": self.exported.precision,
            "compared": self.parity.summary + (" (synthetic inputs)" if self.synthetic else ""),
            "metrics": "; ".join(found),
            "notes": "; ".join(self.notes),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "path": str(self.path),
            "bytes": self.bytes,
            "step": self.step,
            "target": self.exported.target.name,
            "precision": self.exported.precision,
            "opset": self.exported.model.opset_imports.get(""),
            "parity": self.parity.to_dict(),
            "verified_on": "synthetic inputs" if self.synthetic else "data",
            "metrics": {
                name: {"before": before, "after": after}
                for name, (before, after) in self.metrics.items()
            },
            "nodes": len(self.exported.model.graph),
            "notes": list(self.notes),
            "reports": [report.to_dict() for report in self.exported.reports],
        }


@checked
def export(
    run: ModelSource,
    out: str | os.PathLike[str],
    *,
    verify: Data | None = None,
    checkpoint: str = "best",
    mapping: Mapping[str, str] | None = None,
    split: str = "test",
    batch_size: Annotated[int, Range(1)] = 64,
    update_bn: Data | None = None,
    optimize: bool = True,
    opset: int | None = None,
    target: str = "onnxruntime",
    precision: str = "fp32",
    keep_io_types: bool = True,
    calibration: Data | None = None,
    int8: Int8Config | None = None,
    max_drop: Annotated[float, Range(0)] = 0.01,
    min_sqnr: Annotated[float, Range()] | None = None,
    slim: bool = False,
    inputs: InputConfig | None = None,
    outputs: Sequence[str] = (),
    images: ImageConfig | str | None = None,
    rtol: Annotated[float, Range(0)] | None = None,
    atol: Annotated[float, Range(0)] | None = None,
    rtols: Mapping[str, float] | None = None,
    atols: Mapping[str, float] | None = None,
    device: str = "auto",
) -> ExportResult:
    """Write the optimized, verified inference graph of a trained program or a plain ONNX model.

    Args:
        run: A program folder, compared with the program itself; or an ONNX file or a model in
            memory, compared with it as it is.
        out: The file to write.
        verify: Data to compare on; if not given, the calibration data for int8, else synthetic
            inputs.
        checkpoint: See :func:`load_run`.
        mapping: Input name to the key of its array.
        split: The split of a data file that has several.
        batch_size: Samples per run of the comparison.
        update_bn: For a program: training data to re-estimate its running statistics from, for this
            file; see :mod:`ortboost.runtime.update_bn`.
        optimize: Run the pipeline of rewrites; see :mod:`ortboost.deploy.pipeline`.
        opset: Opset of the file; if not given, that of the model, or a newer one that the target
            supports and that has an operator which saves nodes.
        target: See :data:`ortboost.deploy.targets.TARGETS`.
        precision: ``fp32``, ``fp16``, ``bf16`` or ``int8``.
        keep_io_types: In a lower precision, keep inputs and outputs in float32.
        calibration: Data to measure the ranges of intermediate tensors on; tensors out of the range
            of float16 stay in float32. Required for int8.
        int8: How to quantize; the target's defaults if not given. For the form of the target with
            other settings: ``Int8Config.for_target("tensorrt", calibration="entropy")``.
        max_drop: For int8, the allowed loss of accuracy if ``verify`` has class labels. The
            accuracy then judges the scores, unless ``rtol`` or ``atol`` are given.
        min_sqnr: For int8, the minimum signal-to-quantization-noise ratio of every other float
            output, in dB; :data:`ortboost.deploy.tolerance.SQNR` if not given.
        slim: Run onnxslim too, if it is installed.
        inputs: Dimensions and inputs to fix in the file, and batch axes of the data to compare on.
        outputs: The outputs to keep, if not all; inputs that only the others read are left out,
            too: labels, where the model computes its loss.
        images: How images of the data become inputs; what the training did if not given, see
            :func:`ortboost.train`. It is written into the file.
        rtol: Relative tolerance; that of the precision if not given.
        atol: Absolute tolerance; that of the precision if not given.
        rtols: Output name to its own relative tolerance.
        atols: Output name to its own absolute tolerance.
        device: Where to run the comparison.

    Raises:
        ParityError: The file gives different outputs; nothing was written. The message names the
            rewrite that is the cause.
        UsageError: The file would overwrite the program or the model, or does not end in ``.onnx``;
            target, precision and opset are not compatible; or a setting does not apply.
        FileError: A file cannot be read or written, or the checkpoint cannot be used.
        ModelError: The opset cannot be converted, or the runtime rejects the model.
        DependencyError: The device is not available, or onnxslim is not installed.

    Example:
        >>> import ortboost as ob
        >>> result = ob.export("models/lenet5.onnx", "runs/example/lenet5.opt.onnx")
        >>> result.parity.ok
        True
    """
    wanted = get_target(target)
    wanted.require(precision, opset)
    _check_settings(run, out, precision, min_sqnr, int8, calibration)
    refuse_unread(mapping, split, verify, calibration, update_bn)
    on_calibration = precision == "int8" and verify is None and calibration is not None
    if on_calibration:  # synthetic inputs have other ranges: the comparison would be meaningless
        verify, split = calibration, "train"
    refresh = None
    if not is_folder(run):
        refuse_for_model(run, checkpoint, update_bn)
    elif update_bn is not None:
        refresh = partial(
            updated_bn, data=update_bn, batch_size=batch_size, mapping=mapping, device=device
        )
    # Compute the reference, lower the precision, export, compare, and write if all is well.
    with tempfile.TemporaryDirectory(prefix="ortboost-") as folder:
        subject = (
            trained_subject(run, checkpoint, device, inputs, refresh=refresh, images=images)
            if is_folder(run)
            else plain_subject(run, Path(folder), device, inputs, images=images)
        )
        collected = collect(subject, verify, split, batch_size, mapping)
        expected = [subject.evaluator.evaluate(batch) for batch in collected.feeds]
        batches: Sequence[Feeds] = ()
        if calibration is not None:
            batches = collect(subject, calibration, "train", batch_size, mapping).feeds
        low_precision = None
        if precision != "fp32":
            ranges = subject.ranges(batches) if batches and precision != "int8" else {}
            low_precision = LowPrecision(precision, keep_io_types, ranges, batches, int8)
        # The reference session is no longer needed; for a large model it takes gigabytes.
        subject = dataclasses.replace(subject, evaluator=None)
        exported = subject.export(
            optimize=optimize,
            opset=opset,
            target=wanted,
            low_precision=low_precision,
            slim=slim,
            outputs=outputs,
        )
        tolerance = tolerance_for(
            precision if precision != "fp32" else precision_of(exported.model),
            rtol=rtol,
            atol=atol,
            rtols=rtols,
            atols=atols,
            sqnr=min_sqnr,
        )
        kept = not outputs or subject.prediction in (None, *outputs)
        labelled = verify if kept else None
        scores = subject.accuracies(labelled, collected.feeds, expected, collected.lengths)
        compared = ExportComparison(subject, collected, expected, exported, scores, tolerance)
        parity = write_verified(
            exported,
            out,
            expected=expected,
            feeds=collected.feeds,
            device=subject.device,
            tolerance=tolerance,
            watch=scores.add,
            judge=partial(compared.judge, max_drop=max_drop, where=str(out)),
        )
    notes = compared.notes(plain=not is_folder(run), refreshed=update_bn is not None)
    if precision == "int8" and wanted.cpu and subject.device == "cpu" and exported.base:
        slow = not_faster(exported.base, out, collected.feeds[0])
        notes += [slow] if slow else []
    if on_calibration:
        notes.append("Compared on the calibration data: give --verify for unseen data.")
    if min_sqnr is not None and scores.judged:
        notes.append(f"For '{scores.judged[0]}', the accuracy was checked instead of --min-sqnr.")
    if verify is None and any(not isinstance(d, int) for s in subject.inputs for d in s.shape):
        sizes = sizes_text(collected.feeds[0])
        notes.append(f"Synthetic inputs: {sizes}; --dim NAME=LENGTH sets other sizes.")
    return ExportResult(
        Path(out),
        _size(Path(out)),
        parity,
        verify is None,
        exported,
        subject.step,
        subject.classes,
        scores.found(),
        tuple(notes),
        subject.rule,
    )


def _check_settings(
    run: ModelSource,
    out: str | os.PathLike[str],
    precision: str,
    min_sqnr: float | None,
    int8: Int8Config | None,
    calibration: Data | None,
) -> None:
    """Refuse what does not go together, before anything is loaded."""
    if min_sqnr is not None and precision != "int8":
        raise UsageError(
            "The signal-to-quantization-noise ratio is only for int8.",
            where="--min-sqnr",
            fix="Give --precision int8 too, or --rtol and --atol instead.",
        )
    if int8 is not None and precision != "int8":
        raise UsageError(
            f"Settings of int8 are given, but the precision is {precision}.",
            where="int8",
            fix="Give --precision int8 too, or leave them out.",
        )
    if calibration is not None and precision == "fp32":
        raise UsageError(
            "Calibration data are only for a lower precision.",
            where="--calib",
            fix="Give --precision fp16 too, or leave --calib out.",
        )
    check_output(out, ".onnx")
    if isinstance(run, str | os.PathLike) and Path(out).resolve() == Path(run).resolve():
        raise UsageError(
            "The export would overwrite the model it is compared with.",
            where=str(out),
            fix="Give the inference graph another name.",
        )


def _size(path: Path) -> int:
    """Size of the file including external data, in bytes."""
    return sum(file.stat().st_size for file in (path, *external_files(path)))
