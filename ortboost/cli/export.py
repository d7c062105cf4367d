"""``ortboost export``: write and verify an inference graph; its size, parity and accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal as decimal_size

from ortboost.cli.build_engine import EngineOptions, build
from ortboost.cli.command import option, verb
from ortboost.cli.console import Output
from ortboost.cli.options import (
    Checkpoint,
    DataOptions,
    Device,
    InputOptions,
    Split,
    Tolerances,
    UpdateBn,
    changed,
    given,
    refuse,
)
from ortboost.core.printable import count_of

if TYPE_CHECKING:
    from ortboost.api import ExportResult

__all__ = ["export"]


@dataclass(frozen=True)
class PrecisionOptions:
    """The number format of the exported file."""

    precision: str = option("fp32, fp16, bf16 or int8.", default="fp32")
    keep_io_types: bool = option(
        "In reduced precision, leave inputs and outputs in float32.", default=True
    )
    calib: Path | None = option(
        "Calibration data: ranges for int8; nodes that overflow in fp16 stay in float32."
    )
    calibration: str = option(
        "Ranges of int8: minmax, percentile, percentile:99.9 or entropy.", default="minmax"
    )
    skip: list[str] | None = option(
        "Nodes or weights not to quantize (repeatable).", metavar="PATTERN"
    )
    full_range: bool = option(
        "int8 weights of 8 bits, not 7: may saturate on x86 processors without VNNI.",
        "--full-range",
        default=False,
    )
    max_drop: float = option(
        "Largest loss of accuracy for int8, if the data have labels.", default=0.01, min=0
    )
    min_sqnr: float | None = option(
        "Minimum signal-to-noise ratio for int8 without labels, in dB [15]."
    )
    calib_samples: int = option("Samples of --calib used to calibrate int8.", default=512, min=1)

    def arguments(self, target: str) -> dict[str, Any]:
        """The arguments for ``api.export``."""
        from ortboost.cli.parse import parse_int8

        quantized = self.precision == "int8"
        if not quantized:
            refuse(
                changed(self, "calibration", "skip", "full_range", "max_drop", "calib_samples"),
                "to int8",
                f"export --precision {self.precision}",
                "Add --precision int8.",
            )
        how = (self.calibration, self.skip or [], self.full_range, self.calib_samples)
        return {
            "precision": self.precision,
            "keep_io_types": self.keep_io_types,
            "calibration": self.calib,
            "int8": parse_int8(target, *how) if quantized else None,
            "max_drop": self.max_drop,
            "min_sqnr": self.min_sqnr,
        }


@verb(
    "export",
    "Write an optimized and verified inference graph.",
    examples="""\b
Examples:
  ortboost export run -o model.opt.onnx --verify val.npz
  ortboost export model.onnx -o model.opt.onnx --target tensorrt=10
  ortboost export vad.onnx -o vad.opt.onnx --dim batch=1 --dim sequence=512 --input sr=16000
  ortboost export run -o model.fp16.onnx --precision fp16 --calib train.npz --verify val.npz
  ortboost export run -o model.int8.onnx --precision int8 --calib train.npz --verify val.npz
  ortboost export run -o model.onnx --target tensorrt --build-engine --shape x:1,8,32x3x224x224
  ortboost export run -o model.onnx --checkpoint last --no-optimize --rtol logits:1e-4
\b
Exit status 5 if the outputs of the file differ; then nothing is written, and the rewrite that
causes the difference is named.""",
)
def export(
    source: Annotated[
        Path, typer.Argument(help="Program folder made by 'ortboost convert', or an ONNX file.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    verify: Path | None = option("Data to compare on; synthetic inputs if not given."),
    checkpoint: Checkpoint = "best",
    split: Split = "test",
    update_bn: UpdateBn = None,
    target: str = option(
        "onnxruntime, onnxruntime-gpu, tensorrt (11), tensorrt=10 or generic.",
        default="onnxruntime",
    ),
    *,
    precision: PrecisionOptions,
    engine: EngineOptions,
    optimize: bool = option("Run the optimizing rewrites.", default=True),
    slim: bool = option("Also run onnxslim.", "--slim", default=False),
    opset: int | None = option("Opset of the file."),
    tolerances: Tolerances,
    inputs: InputOptions,
    reading: DataOptions,
    device: Device = "auto",
    explain: bool = option(
        "Report what each rewrite did, and what it left alone and why.", "--explain", default=False
    ),
    printer: Output,
) -> None:
    """Write an optimized inference graph, verified against the trained program or the model."""
    from ortboost import api

    tolerance = tolerances.arguments()
    # Before an export that may take minutes.
    engine.require(target)
    arguments = reading.arguments()
    result = api.export(
        source,
        out,
        verify=verify,
        checkpoint=checkpoint,
        split=split,
        update_bn=update_bn,
        optimize=optimize,
        opset=opset,
        target=target,
        slim=slim,
        inputs=inputs.config(),
        device=device,
        **precision.arguments(target),
        **tolerance,
        **arguments,
    )
    built = build(result, engine, verify, split, arguments["mapping"])
    printer.result({**result.to_dict(), **({} if built is None else {"engine": built.to_dict()})})
    file = "" if built is None else f"{built.path} ({decimal_size(built.bytes)})"
    _show(printer, result, trained=source.is_dir(), engine=file)
    for report in result.exported.reports if explain else ():
        printer.line(f"\n{report}")
    # Without labels, or where the CPU has no kernels, there is nothing to evaluate.
    runs = device not in ("auto", "cpu") or not _needs_gpu(result)
    scored = result.classes and runs and (result.synthetic or bool(result.metrics))
    printer.line(
        f"\nnext: ortboost eval {quote(str(out))} --data {quote(str(verify or 'DATA'))}"
        + _labels(result)
        + given(map=reading.mapping)
        if scored
        else f"\nnext: ortboost inspect {quote(str(out))}"
    )


def _needs_gpu(result: ExportResult) -> bool:
    """Whether the file computes in bfloat16, for which the CPU has no kernels."""
    types = (out.dtype for node in result.exported.model.graph for out in node.outputs)
    return any(str(dtype) == "BFLOAT16" for dtype in types)


def _show(printer: Output, result: ExportResult, *, trained: bool, engine: str) -> None:
    worst = result.parity.worst
    where = "synthetic inputs; use --verify DATA for real ones" if result.synthetic else "data"
    weights = "as converted" if result.step is None else f"of step {result.step}"
    precision = result.exported.precision
    printer.pairs(
        [
            ("file", f"{result.path} ({decimal_size(result.bytes)})"),
            ("weights", weights if trained else ""),
            ("target", f"{result.exported.target.name}, {precision}"),
            ("nodes", _nodes(result)),
            ("opset", result.exported.model.opset_imports.get("")),
            (
                "parity",
                f"max difference {worst.max_abs:.2g} over "
                f"{count_of(result.parity.samples, 'sample')} ({where})",
            ),
            ("noise", _noise(result) if precision == "int8" else ""),
            *(
                (name, f"{before:.4f} before, {after:.4f} after")
                for name, (before, after) in result.metrics.items()
            ),
            ("engine", engine),
            *(("note", note) for note in result.notes),
        ]
    )


def _labels(result: ExportResult) -> str:
    """The options of ``eval`` that treat labels as the program does."""
    rule = result.rule
    axis = rule.class_axis if rule.class_axis != 1 and not rule.shifted else None
    return given(class_axis=axis, ignore_index=rule.ignored, shift_labels=rule.shifted)


def _noise(result: ExportResult) -> str:
    """The signal-to-noise ratio of each output."""
    return ", ".join(
        f"{d.output} {d.sqnr:.1f} dB" for d in result.parity.differences if d.sqnr is not None
    )


def _nodes(result: ExportResult) -> str:
    base, now = result.exported.base, len(result.exported.model.graph)
    return str(now) if base is None or len(base.graph) == now else f"{len(base.graph)} -> {now}"
