"""``ortboost export``: write and verify an inference graph; its size, parity and accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal as decimal_size

from ortboost.cli.command import Options, option, verb
from ortboost.cli.console import Output
from ortboost.cli.options import (
    Checkpoint,
    DataOptions,
    Device,
    InputOptions,
    Split,
    Tolerances,
    UpdateBn,
    given,
    refuse,
)
from ortboost.core.errors import UsageError
from ortboost.core.printable import count_of

if TYPE_CHECKING:
    from ortboost.api import ExportResult
    from ortboost.deploy.tensorrt.build_engine import EngineFile

__all__ = ["export"]


@dataclass(frozen=True)
class ExportOptions(Options):
    """Arguments of :func:`ortboost.export`."""

    verify: Path | None = option("Data to compare on; synthetic inputs if not given.")
    checkpoint: Checkpoint = "best"
    split: Split = "test"
    update_bn: UpdateBn = None
    target: str = option(
        "onnxruntime, onnxruntime-gpu, tensorrt (11), tensorrt=10 or generic.",
        default="onnxruntime",
    )
    optimize: bool = option("Run the optimizing rewrites.", default=True)
    slim: bool = option("Also run onnxslim.", "--slim", default=False)
    opset: int | None = option("Opset of the file.")
    outputs: list[str] | None = option(
        "Output to keep, if not all (repeatable); inputs that only others read are left out, too.",
        "--output",
        metavar="NAME",
    )
    device: Device = "auto"


@dataclass(frozen=True)
class PrecisionOptions(Options):
    """Arguments of :func:`ortboost.export` and of an :class:`~ortboost.Int8Config`."""

    precision: str = option("fp32, fp16, bf16 or int8.", default="fp32")
    keep_io_types: bool = option(
        "In reduced precision, leave inputs and outputs in float32.", default=True
    )
    calibration: Path | None = option(
        "Calibration data: ranges for int8; nodes that overflow in fp16 stay in float32.",
        "--calib",
    )
    ranges: str = option(
        "Ranges of int8: minmax, percentile, percentile:99.9 or entropy.",
        "--calibration",
        default="minmax",
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
    samples: int = option(
        "Samples of --calib used to calibrate int8.", "--calib-samples", default=512, min=1
    )

    def arguments(self, target: str) -> dict[str, Any]:
        """The arguments for ``api.export``."""
        from ortboost.cli.parse import parse_int8

        found = self.given()
        own = ("ranges", "skip", "full_range", "samples")
        int8 = {name: found.pop(name) for name in own if name in found}
        if self.precision == "int8":
            return {**found, "int8": parse_int8(target, **int8)}
        options = ("--calibration", "--skip", "--full-range", "--max-drop", "--calib-samples")
        where = f"export --precision {self.precision}"
        refuse(self.changed(*options), "to int8", where, "Add --precision int8.")
        return found


@dataclass(frozen=True)
class EngineOptions(Options):
    """The options of ``export`` that concern a TensorRT engine."""

    build_engine: bool = option(
        "Also build a TensorRT engine from the file.", "--build-engine", default=False
    )
    shapes: list[str] | None = option(
        "Minimum, optimal and maximum batch size, then the other axes: x:1,8,32x3x224x224.",
        "--shape",
        metavar="INPUT:DIMS",
    )
    workspace: int | None = option(
        "MiB of scratch memory for the engine.", min=1, read=lambda mebibytes: mebibytes << 20
    )
    timing_cache: Path | None = option("TensorRT timing cache, read and updated.")

    def require(self, target: str) -> None:
        """Reject invalid combinations of options before anything is exported."""
        from ortboost.api.check_target import read_shapes

        if self.build_engine and not target.startswith(("tensorrt", "trt")):
            raise UsageError(
                "Only TensorRT has engines.",
                where=f"--build-engine --target {target}",
                fix="Add --target tensorrt.",
            )
        if not self.build_engine and (self.shapes or self.workspace or self.timing_cache):
            raise UsageError(
                "--shape, --workspace and --timing-cache are options of an engine.",
                where="export",
                fix="Add --build-engine.",
            )
        if self.build_engine:
            read_shapes(self.shapes or ())


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
  ortboost export detector.run -o detector.onnx --output scores --output boxes
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
    options: ExportOptions,
    *,
    precision: PrecisionOptions,
    engine: EngineOptions,
    tolerances: Tolerances,
    inputs: InputOptions,
    reading: DataOptions,
    explain: bool = option(
        "Report what each rewrite did, and what it left alone and why.", "--explain", default=False
    ),
    printer: Output,
) -> None:
    """Write an optimized inference graph, verified against the trained program or the model."""
    from ortboost import api

    engine.require(options.target)  # before an export that may take minutes
    result = api.export(
        source,
        out,
        inputs=inputs.config(),
        **options.given(),
        **precision.arguments(options.target),
        **tolerances.given(),
        **reading.given(),
    )
    built = _build(result, engine, options, reading)
    printer.result({**result.to_dict(), **({} if built is None else {"engine": built.to_dict()})})
    file = "" if built is None else f"{built.path} ({decimal_size(built.bytes)})"
    _show(printer, result, trained=source.is_dir(), engine=file)
    for report in result.exported.reports if explain else ():
        printer.line(f"\n{report}")
    # Without labels, or where the CPU has no kernels, there is nothing to evaluate.
    runs = options.device not in ("auto", "cpu") or not _needs_gpu(result)
    scored = result.classes and runs and (result.synthetic or bool(result.metrics))
    printer.line(
        f"\nnext: ortboost eval {quote(str(out))} --data {quote(str(options.verify or 'DATA'))}"
        + _labels(result)
        + given({"--map": reading.mapping})
        if scored
        else f"\nnext: ortboost inspect {quote(str(out))}"
    )


def _build(
    result: ExportResult, engine: EngineOptions, options: ExportOptions, reading: DataOptions
) -> EngineFile | None:
    """Build the engine of an exported file; ``None`` if not requested."""
    from ortboost.api.check_target import build_engine

    settings = engine.given()
    if not settings.pop("build_engine"):
        return None
    return build_engine(
        result.path,
        result.path.with_suffix(".engine"),
        target=result.exported.target.name,
        precision=result.exported.precision,
        verify=options.verify,
        split=options.split,
        mapping=reading.given().get("mapping"),
        **settings,
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
    return given(
        {"--class-axis": axis, "--ignore-index": rule.ignored, "--shift-labels": rule.shifted}
    )


def _noise(result: ExportResult) -> str:
    """The signal-to-noise ratio of each output."""
    return ", ".join(
        f"{d.output} {d.sqnr:.1f} dB" for d in result.parity.differences if d.sqnr is not None
    )


def _nodes(result: ExportResult) -> str:
    base, now = result.exported.base, len(result.exported.model.graph)
    return str(now) if base is None or len(base.graph) == now else f"{len(base.graph)} -> {now}"
