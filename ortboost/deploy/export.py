"""Export: strip, rewrite, stamp, verify, write. A file that fails the check is not written."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import FileError, ModelError, ParityError
from ortboost.core.report import Report
from ortboost.core.version import __version__
from ortboost.deploy.bisect import guilty_step
from ortboost.deploy.drop_exporter_notes import drop_exporter_notes
from ortboost.deploy.pipeline import Step, optimize
from ortboost.deploy.precise import Precise, precision_step
from ortboost.deploy.strip import inference_model
from ortboost.deploy.targets import GENERIC, Target, ir_version_for
from ortboost.deploy.verify import Parity, Tolerance, compare
from ortboost.graph.fix_inputs import fix_inputs
from ortboost.graph.input_config import InputConfig
from ortboost.graph.io import ModelSource, load_model, save_model, source_name
from ortboost.graph.normalize import convert_opset, infer_shapes, normalize
from ortboost.program.program import Program
from ortboost.runtime.session import TooNewError, open_session
from ortboost.transforms.inference_norm import to_inference
from ortboost.transforms.precision import emulate_precision

__all__ = ["Exported", "export_model", "export_network", "optimize_inference", "write_verified"]

_BASE = "the graph before any rewrite"
_OLDEST = 13  # older opsets say in attributes what the rewrites read from inputs


@dataclass(frozen=True)
class Exported:
    """An inference graph and how it was made.

    Args:
        model: The graph.
        reports: What the rewrites did.
        base: The graph before the pipeline; the rewrites can be run on it again, one by one.
        steps: What the pipeline did, in order.
        target: What it is for.
        precision: Its number format.
    """

    model: ir.Model
    reports: tuple[Report, ...]
    base: ir.Model | None = field(default=None, repr=False)
    steps: tuple[Step, ...] = field(default=(), repr=False)
    target: Target = GENERIC
    precision: str = "fp32"


def export_model(
    program: Program,
    state: Mapping[str, NDArray[Any]],
    *,
    optimize: bool = True,
    opset: int | None = None,
    target: Target = GENERIC,
    precise: Precise | None = None,
    slim: bool = False,
    inputs: InputConfig | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Exported:
    """Make the inference graph of a trained program.

    Args:
        program: The program.
        state: The trained state.
        optimize: Run the pipeline; without it only the training parts are stripped.
        opset: Convert to this opset; that of the program if not given, or a newer one that the target
            likes better.
        target: What the graph is for.
        precise: Its number format, if not float32.
        slim: Run onnxslim too.
        inputs: Lengths and inputs to fix.
        provenance: Further entries for the model's ``metadata_props``, under ``ortboost.``.

    Raises:
        ModelError: The opset conversion is not possible.
        UsageError: Target, precision and opset do not go together.
    """
    model, stripped = inference_model(program, state)
    reports = [stripped, *_fixed(model, inputs)]
    config = json.dumps(program.config.to_dict(), sort_keys=True)
    stamp = {
        "source": Path(program.source).name,
        "program": program.fingerprint,
        "config": hashlib.sha256(config.encode()).hexdigest()[:16],
        **(provenance or {}),
    }
    return _finish(model, reports, optimize, opset, target, precise, slim, stamp)


def export_network(
    source: ModelSource,
    *,
    optimize: bool = True,
    opset: int | None = None,
    target: Target = GENERIC,
    precise: Precise | None = None,
    slim: bool = False,
    inputs: InputConfig | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Exported:
    """Make an optimized inference graph of an ONNX model that needs no training.

    Nodes in training mode are put in inference mode first; that is what the comparison is with, too.

    Args:
        source: The model; see :func:`ortboost.graph.io.load_model`.
        optimize: Run the pipeline.
        opset: Convert to this opset.
        target: What the graph is for.
        precise: Its number format, if not float32.
        slim: Run onnxslim too.
        inputs: Lengths and inputs to fix.
        provenance: Further entries for the model's ``metadata_props``, under ``ortboost.``.

    Raises:
        FileError: The file is no model.
        ModelError: The opset conversion is not possible.
        UsageError: Target, precision and opset do not go together.
    """
    model = load_model(source)
    fixed = _fixed(model, inputs)
    version = model.opset_imports.get("", 0)
    opsets = (
        range(version, version + 1) if version >= _OLDEST or not optimize else range(_OLDEST, 22)
    )
    reports = [*fixed, *normalize(model, opsets=opsets, ir_version=model.ir_version)]
    reports.append(to_inference(model))
    stamp = {"source": Path(source_name(model)).name, **(provenance or {})}
    return _finish(model, reports, optimize, opset, target, precise, slim, stamp)


def _fixed(model: ir.Model, inputs: InputConfig | None) -> list[Report]:
    """Fix dimensions and inputs, and infer the shapes that follow."""
    if inputs is None or not (inputs.dims or inputs.values):
        return []
    report = fix_inputs(model, inputs)
    infer_shapes(model)
    return [report]


def _finish(
    model: ir.Model,
    reports: list[Report],
    wanted: bool,
    opset: int | None,
    target: Target,
    precise: Precise | None,
    slim: bool,
    stamp: Mapping[str, str],
) -> Exported:
    """Everything that a program and a plain model have in common."""
    precision = precise.precision if precise is not None else "fp32"
    target.require(precision, opset)
    present = model.opset_imports.get("", 0)
    if opset is not None:
        reports.append(convert_opset(model, range(opset, opset + 1)))
    elif present not in target.opsets:
        try:
            reports.append(convert_opset(model, target.opsets))
        except ModelError as error:
            raise ModelError(
                f"The target '{target.name}' reads opset {target.opsets[0]} to "
                f"{target.opsets[-1]}, and the model has {present}.",
                where=error.where,
                fix=error.fix,
            ) from error
    _fit_ir_version(model, target)
    base = model.clone()
    steps: list[Step] = []
    if wanted:
        found, steps = optimize(model, target, lift=opset is None)
        reports += found
    if slim:
        from ortboost.deploy.slim import slim_step

        _add(slim_step(), model, steps, reports)
    if precise is not None and precision != "fp32":
        for step in precision_step(precise, target):
            _add(step, model, steps, reports)
    _fit_ir_version(model, target)
    if wanted:
        reports.append(drop_exporter_notes(model))
    entries = {
        "version": __version__,
        **stamp,
        "target": target.name,
        "precision": precision,
        "rewrites": ", ".join(report.rewrite for report in reports if report.changed),
    }
    model.metadata_props.update({f"ortboost.{key}": value for key, value in entries.items()})
    kept = tuple(report for report in reports if report.changed or report.kept or report.notes)
    return Exported(model, kept, base, tuple(steps), target, precision)


def _add(step: Step, model: ir.Model, steps: list[Step], reports: list[Report]) -> None:
    reports.append(step.apply(model))
    steps.append(step)


def _fit_ir_version(model: ir.Model, target: Target) -> None:
    model.ir_version = ir_version_for(model.opset_imports.get("", 0), model.ir_version or 8, target)


def optimize_inference(model: ir.Model, target: Target = GENERIC) -> list[Report]:
    """Run the pipeline of inference rewrites, in place; see :mod:`ortboost.deploy.pipeline`."""
    return optimize(model, target)[0]


def write_verified(
    exported: Exported,
    path: str | os.PathLike[str],
    *,
    expected: Sequence[Mapping[str, NDArray[Any]]],
    feeds: Iterable[Mapping[str, NDArray[Any]]],
    device: str = "cpu",
    rtol: float = 1e-3,
    atol: float = 1e-4,
    tolerance: Tolerance | None = None,
    watch: Callable[[int, Mapping[str, NDArray[Any]]], None] | None = None,
    judge: Callable[[Parity], Parity] | None = None,
) -> Parity:
    """Write the graph, run the written file, compare, and only then put it in place.

    Args:
        exported: The graph.
        path: The target file.
        expected: Outputs of the trained program, one mapping a batch.
        feeds: The inputs they were computed from.
        device: Where to run the file.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        tolerance: Both and more, instead of them.
        watch: Called with the number of each batch and the outputs of the written file.
        judge: Called with the comparison before it decides; it may take outputs as right that it judges in
            its own way, or raise to refuse the file.

    Returns:
        The comparison; it is also recorded in the file's ``metadata_props``.

    Raises:
        ParityError: An output is beyond the tolerance; ``path`` keeps what it had. The rewrite that does
            it is named.
        FileError: The folder cannot be written.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileError(
            "The folder to export to does not exist.",
            where=str(target.parent),
            fix="Create it, or give another path.",
        )
    tolerance = tolerance or Tolerance(rtol, atol)
    outputs = [value.name or "" for value in exported.model.graph.outputs]
    tolerance.check(outputs)
    batches = list(feeds)
    with tempfile.TemporaryDirectory(prefix=".ortboost-", dir=target.parent) as workshop:
        trial = Path(workshop) / target.name
        # Bytes for a GPU are multiplied as the standard says: the kernels of a CPU may saturate.
        exact = exported.precision == "int8" and not exported.target.cpu
        rounded = _runner(exported.precision, trial, outputs, device, exact)
        plain = _runner("fp32", trial, outputs, device)
        # In fp16 on a CPU what is compared is not the file itself: first that it is accepted and right, too.
        both = exported.precision == "fp16" and device == "cpu"
        trials = [(plain, 1), (rounded, len(batches))] if both else [(rounded, len(batches))]
        for run, length in trials:
            last = run is trials[-1][0]
            parity = _compared(
                exported, run, expected[:length], batches[:length], outputs, tolerance,
                watch if last else None, judge if last else None, str(target),
            )  # fmt: skip
    worst = parity.worst
    exported.model.metadata_props["ortboost.parity"] = (
        f"max_abs {worst.max_abs:.3g}, max_rel {worst.max_rel:.3g}, {parity.samples} samples"
    )
    save_model(exported.model, target)
    return parity


def _compared(
    exported: Exported,
    run: _Run,
    expected: Sequence[Mapping[str, NDArray[Any]]],
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    outputs: Sequence[str],
    tolerance: Tolerance,
    watch: Callable[[int, Mapping[str, NDArray[Any]]], None] | None,
    judge: Callable[[Parity], Parity] | None,
    where: str,
) -> Parity:
    """Run and compare.

    Raises:
        ParityError: An output is beyond the tolerance, or a rewrite made what the runtime refuses.
    """

    def watched() -> Iterable[Mapping[str, NDArray[Any]]]:
        for number, answer in enumerate(run(exported.model, feeds)):
            if watch is not None:
                watch(number, answer)
            yield answer

    try:
        parity = compare(expected, watched(), outputs, tolerance=tolerance)
    except TooNewError:
        raise
    except ModelError as error:
        guilty = _guilty(exported, run, expected, feeds, outputs, tolerance)
        if guilty is None or guilty == _BASE:
            raise
        raise ParityError(
            f"The exported graph cannot be run. It is {guilty} that does it.",
            where=f"{where}: {error.where}",
            fix="Nothing was written. Export with --no-optimize, and report it.",
        ) from error
    if not parity.samples:
        raise ParityError(
            "There was no data to compare the export with.",
            where=where,
            fix="Give data with --verify, at least one sample.",
        )
    if judge is not None:
        parity = judge(parity)
    if not parity.ok:
        parity.require(where, _guilty(exported, run, expected, feeds, outputs, tolerance))
    return parity


def _answers(
    model: ir.Model,
    path: Path,
    feeds: Iterable[Mapping[str, NDArray[Any]]],
    outputs: Sequence[str],
    device: str,
    exact: bool = False,
) -> Iterable[dict[str, NDArray[Any]]]:
    """Save a graph and run it; the file is read by the runtime itself, whatever its size."""
    save_model(model, path)
    session = open_session(path, device=device, fuse_quantized=not exact)
    short = {v.name for v in session.get_inputs() if v.type == "tensor(float16)"}
    taken = {value.name for value in session.get_inputs()}

    def run(feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        given = {
            name: array.astype(np.float16) if name in short else array
            for name, array in feed.items()
            if name in taken
        }
        try:
            return dict(zip(outputs, session.run(list(outputs), given), strict=True))
        except Exception as error:  # the bindings raise bare exceptions of many kinds
            raise ModelError(
                "onnxruntime cannot run the exported graph.",
                where=str(error).strip().splitlines()[0],
                fix="Export with --no-optimize to find out whether a rewrite is guilty.",
            ) from error

    return (run(feed) for feed in feeds)


_Run: TypeAlias = Callable[
    [ir.Model, Iterable[Mapping[str, NDArray[Any]]]], Iterable[Mapping[str, NDArray[Any]]]
]


def _runner(
    precision: str, path: Path, outputs: Sequence[str], device: str, exact: bool = False
) -> _Run:
    """How a graph is run to be compared.

    The CPU computes 16 bits in float32 and does not round in between: an overflow would not show. There the
    graph is run with every short tensor rounded explicitly.
    """
    low = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}.get(precision)

    def run(
        model: ir.Model, feeds: Iterable[Mapping[str, NDArray[Any]]]
    ) -> Iterable[Mapping[str, NDArray[Any]]]:
        if low is not None and device == "cpu":
            model = model.clone()
            emulate_precision(model, low)
        return _answers(model, path, feeds, outputs, device, exact)

    return run


def _guilty(
    exported: Exported,
    run: _Run,
    expected: Sequence[Mapping[str, NDArray[Any]]],
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    outputs: Sequence[str],
    tolerance: Tolerance,
) -> str | None:
    """Whose fault it is, in words; ``None`` if that cannot be told."""
    if exported.base is None or not exported.steps:
        return None

    def passes(model: ir.Model) -> bool:
        return compare(expected, run(model, feeds), outputs, tolerance=tolerance).ok

    found = guilty_step(exported.base, exported.steps, passes)
    return f"the rewrite '{found}'" if found else _BASE
