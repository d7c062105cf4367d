"""Export: strip, fold, clean up, stamp, verify, write. A file that fails the check is not written."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common
from onnxscript import optimizer

import ortboost
from ortboost.deploy.fold_bn import fold_bn
from ortboost.deploy.strip import inference_model
from ortboost.deploy.verify import Parity, compare
from ortboost.errors import FileError, ParityError
from ortboost.graph.io import save_model
from ortboost.graph.normalize import convert_opset, infer_shapes
from ortboost.program.program import Program
from ortboost.report import Report
from ortboost.runtime.session import open_session

__all__ = ["Exported", "export_model", "optimize_inference", "write_verified"]

_FOLD_INPUT = 1 << 20
_FOLD_OUTPUT = 1 << 20


@dataclass(frozen=True)
class Exported:
    """An inference graph and how it was made.

    Args:
        model: The graph.
        reports: What the rewrites did.
    """

    model: ir.Model
    reports: tuple[Report, ...]


def export_model(
    program: Program,
    state: Mapping[str, NDArray[Any]],
    *,
    optimize: bool = True,
    opset: int | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Exported:
    """Make the inference graph of a trained program.

    Args:
        program: The program.
        state: The trained state.
        optimize: Fold and clean up; without it only the training parts are stripped.
        opset: Convert to this opset; that of the program if not given.
        provenance: Further entries for the model's ``metadata_props``, under ``ortboost.``.

    Raises:
        ModelError: The opset conversion is not possible.
    """
    model, stripped = inference_model(program, state)
    reports = [stripped]
    if optimize:
        reports += optimize_inference(model)
    if opset is not None:
        reports.append(convert_opset(model, range(opset, opset + 1)))
        needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
        model.ir_version = max(model.ir_version, needed)
    config = json.dumps(program.config.to_dict(), sort_keys=True)
    stamp = {
        "version": ortboost.__version__,
        "source": Path(program.source).name,
        "program": program.fingerprint,
        "config": hashlib.sha256(config.encode()).hexdigest()[:16],
        "rewrites": ", ".join(report.rewrite for report in reports if report.changed),
        **(provenance or {}),
    }
    model.metadata_props.update({f"ortboost.{key}": value for key, value in stamp.items()})
    return Exported(model, tuple(report for report in reports if report.changed or report.kept))


def optimize_inference(model: ir.Model) -> list[Report]:
    """Fold BatchNormalization and constants and remove what does nothing, in place.

    What a runtime fuses by itself better (activations into convolutions, attention) is left alone.
    """
    reports = [fold_bn(model)]
    before = _ops(model)
    optimizer.optimize_ir(
        model,
        num_iterations=2,
        onnx_shape_inference=False,
        input_size_limit=_FOLD_INPUT,
        output_size_limit=_FOLD_OUTPUT,
    )
    common.IdentityEliminationPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    infer_shapes(model)
    report = Report("fold_constants")
    after = _ops(model)
    for op in sorted(before):
        if before[op] > after.get(op, 0):
            report.changed[op] = f"{before[op]} -> {after.get(op, 0)}"
    return [*reports, report]


def write_verified(
    exported: Exported,
    path: str | os.PathLike[str],
    *,
    expected: Sequence[Mapping[str, NDArray[Any]]],
    feeds: Iterable[Mapping[str, NDArray[Any]]],
    device: str = "cpu",
    rtol: float = 1e-3,
    atol: float = 1e-4,
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

    Returns:
        The comparison; it is also recorded in the file's ``metadata_props``.

    Raises:
        ParityError: An output is beyond the tolerance; ``path`` keeps what it had.
        FileError: The folder cannot be written.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileError(
            "The folder to export to does not exist.",
            where=str(target.parent),
            fix="Create it, or give another path.",
        )
    outputs = [value.name or "" for value in exported.model.graph.outputs]
    with tempfile.TemporaryDirectory(prefix=".ortboost-", dir=target.parent) as workshop:
        trial = Path(workshop) / target.name
        save_model(exported.model, trial)
        session = open_session(trial, device=device)
        taken = {value.name for value in session.get_inputs()}
        actual = (
            dict(
                zip(
                    outputs,
                    session.run(outputs, {k: v for k, v in f.items() if k in taken}),
                    strict=True,
                )
            )
            for f in feeds
        )
        parity = compare(expected, actual, outputs, rtol=rtol, atol=atol)
    if not parity.samples:
        raise ParityError(
            "There was no data to compare the export with.",
            where=str(target),
            fix="Give data with --verify, at least one sample.",
        )
    parity.require(str(target))
    worst = parity.worst
    exported.model.metadata_props["ortboost.parity"] = (
        f"max_abs {worst.max_abs:.3g}, max_rel {worst.max_rel:.3g}, {parity.samples} samples"
    )
    save_model(exported.model, target)
    return parity


def _ops(model: ir.Model) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in model.graph.all_nodes():
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts
