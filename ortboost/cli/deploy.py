"""``ortboost export`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ortboost.cli.console import Output, human_bytes
from ortboost.cli.options import (
    BatchAxis,
    BatchSize,
    Checkpoint,
    Device,
    Dim,
    Input,
    Json,
    Map,
    Quiet,
    Verbose,
)

__all__ = ["VERBS", "compare", "export"]

_SPLIT = "Part of a file with several: train or test."
_RTOL = "Relative tolerance, for all outputs or for one (OUTPUT:1e-4); repeatable."
_ATOL = "Absolute tolerance, in the same way."


def export(
    source: Annotated[
        Path, typer.Argument(help="Program folder made by 'ortboost convert', or an ONNX file.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    verify: Annotated[Path | None, typer.Option(help="Data to compare on.")] = None,
    checkpoint: Checkpoint = "best",
    split: Annotated[str, typer.Option(help=_SPLIT)] = "test",
    target: Annotated[
        str,
        typer.Option(help="onnxruntime, onnxruntime-gpu, tensorrt, tensorrt=10 or generic."),
    ] = "onnxruntime",
    precision: Annotated[str, typer.Option(help="fp32, fp16, bf16 or int8.")] = "fp32",
    keep_io_types: Annotated[
        bool, typer.Option(help="In a shorter precision, leave inputs and outputs in float32.")
    ] = True,
    calib: Annotated[
        Path | None,
        typer.Option(
            help="Data to measure ranges on: what float16 cannot hold stays float32; for int8."
        ),
    ] = None,
    calibration: Annotated[
        str, typer.Option(help="Ranges of int8: minmax, percentile, percentile:99.9 or entropy.")
    ] = "minmax",
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Nodes or weights not to quantize; repeatable."),
    ] = None,
    full_range: Annotated[
        bool,
        typer.Option(
            "--full-range",
            help="int8 weights of 8 bits, not 7: x86 processors without VNNI answer differently.",
        ),
    ] = False,
    max_drop: Annotated[
        float, typer.Option(min=0, help="Accuracy that int8 may lose, where data have labels.")
    ] = 0.01,
    min_sqnr: Annotated[
        float | None,
        typer.Option(help="Least signal-to-noise ratio of int8 without labels, in dB [15]."),
    ] = None,
    calib_samples: Annotated[
        int, typer.Option(min=1, help="Samples of --calib that int8 is calibrated on.")
    ] = 512,
    build_engine: Annotated[
        bool, typer.Option("--build-engine", help="Build a TensorRT engine of the file too.")
    ] = False,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="INPUT:DIMS", help="Profile of the engine: x:1,8,32x3x224x224."),
    ] = None,
    workspace: Annotated[
        int | None, typer.Option(min=1, help="MiB of scratch memory for the engine.")
    ] = None,
    timing_cache: Annotated[
        Path | None, typer.Option(help="File with timings for the engine, read and written.")
    ] = None,
    optimize: Annotated[bool, typer.Option(help="Run the rewrites.")] = True,
    slim: Annotated[bool, typer.Option("--slim", help="Run onnxslim too.")] = False,
    opset: Annotated[int | None, typer.Option(help="Opset of the file.")] = None,
    rtol: Annotated[list[str] | None, typer.Option(metavar="TOL", help=_RTOL)] = None,
    atol: Annotated[list[str] | None, typer.Option(metavar="TOL", help=_ATOL)] = None,
    dim: Dim = None,
    fixed: Input = None,
    batch_axis: BatchAxis = None,
    batch_size: BatchSize = 64,
    mapping: Map = None,
    device: Device = "auto",
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what every rewrite did, and why not.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write an optimized inference graph, checked against the trained program or the model."""
    from ortboost import api
    from ortboost.cli.engine import EngineOptions, build
    from ortboost.cli.parse import parse_inputs, parse_int8, parse_mapping, parse_tolerances

    printer = Output(json, quiet, verbose)
    relative, relatives = parse_tolerances(rtol or [], "--rtol")
    absolute, absolutes = parse_tolerances(atol or [], "--atol")
    engine = EngineOptions(build_engine, tuple(shape or ()), workspace, timing_cache)
    engine.require(target)
    result = api.export(
        source,
        out,
        verify=verify,
        checkpoint=checkpoint,
        mapping=parse_mapping(mapping or []),
        split=split,
        batch_size=batch_size,
        optimize=optimize,
        opset=opset,
        target=target,
        precision=precision,
        keep_io_types=keep_io_types,
        calibration=calib,
        int8=parse_int8(target, calibration, skip or [], full_range, calib_samples)
        if precision == "int8"
        else None,
        max_drop=max_drop,
        min_sqnr=min_sqnr,
        slim=slim,
        inputs=parse_inputs(dim, fixed, batch_axis),
        rtol=relative,
        atol=absolute,
        rtols=relatives,
        atols=absolutes,
        device=device,
    )
    built = build(result, engine, verify, split, parse_mapping(mapping or []))
    printer.result({**result.to_dict(), **({} if built is None else {"engine": built.to_dict()})})
    worst = result.parity.worst
    where = "made-up inputs; give --verify DATA for real ones" if result.made_up else "data"
    weights = "as converted" if result.step is None else f"of step {result.step}"
    printer.pairs(
        [
            ("file", f"{result.path} ({human_bytes(result.bytes)})"),
            ("weights", weights if source.is_dir() else ""),
            ("target", f"{result.exported.target.name}, {result.exported.precision}"),
            ("nodes", _nodes(result)),
            ("opset", result.exported.model.opset_imports.get("")),
            (
                "parity",
                f"max difference {worst.max_abs:.2g} over {result.parity.samples} samples ({where})",
            ),
            ("noise", _noise(result) if precision == "int8" else ""),
            *(
                (name, f"{before:.4f} before, {after:.4f} after")
                for name, (before, after) in result.metrics.items()
            ),
            ("engine", "" if built is None else f"{built.path} ({human_bytes(built.bytes)})"),
            *(("note", note) for note in result.notes),
        ]
    )
    if explain:
        for report in result.exported.reports:
            printer.line(f"\n{report}")
    printer.line(
        f"\nnext: ortboost eval {quote(str(out))} --data {quote(str(verify or 'DATA'))}"
        + _labels(result)
        + "".join(f" --map {quote(text)}" for text in mapping or ())
        if result.classes
        else f"\nnext: ortboost inspect {quote(str(out))}"
    )


def _labels(result: object) -> str:
    """Options with which the file is evaluated as the program was."""
    from ortboost.api import ExportResult

    assert isinstance(result, ExportResult)
    rule = result.rule
    return (
        (f" --class-axis {rule.class_axis}" if rule.class_axis != 1 and not rule.shifted else "")
        + (f" --ignore-index {rule.ignored}" if rule.ignored is not None else "")
        + (" --shift-labels" if rule.shifted else "")
    )


def _noise(result: object) -> str:
    """The ratio of signal to noise of each output."""
    from ortboost.api import ExportResult

    assert isinstance(result, ExportResult)
    return ", ".join(
        f"{d.output} {d.sqnr:.1f} dB" for d in result.parity.differences if d.sqnr is not None
    )


def _nodes(result: object) -> str:
    from ortboost.api import ExportResult

    assert isinstance(result, ExportResult)
    base, now = result.exported.base, len(result.exported.model.graph)
    return str(now) if base is None or len(base.graph) == now else f"{len(base.graph)} -> {now}"


def compare(
    one: Annotated[Path, typer.Argument(help="ONNX file or program folder: the reference.")],
    other: Annotated[Path, typer.Argument(help="ONNX file to compare with it.")],
    data: Annotated[
        Path | None, typer.Option(help="Data to compare on; made-up inputs if not given.")
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Find the first inner tensor that differs, by name.")
    ] = False,
    checkpoint: Checkpoint = "best",
    split: Annotated[str, typer.Option(help=_SPLIT)] = "test",
    rtol: Annotated[list[str] | None, typer.Option(metavar="TOL", help=_RTOL)] = None,
    atol: Annotated[list[str] | None, typer.Option(metavar="TOL", help=_ATOL)] = None,
    dim: Dim = None,
    fixed: Input = None,
    batch_axis: BatchAxis = None,
    batch_size: BatchSize = 64,
    mapping: Map = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Compare the outputs of two models on the same inputs.

    Without --rtol and --atol a file that was exported in fp16, bf16 or int8 may differ as far as
    its export allowed.
    """
    from ortboost import api
    from ortboost.cli.parse import parse_inputs, parse_mapping, parse_tolerances

    printer = Output(json, quiet, verbose)
    relative, relatives = parse_tolerances(rtol or [], "--rtol")
    absolute, absolutes = parse_tolerances(atol or [], "--atol")
    found = api.compare(
        one,
        other,
        data=data,
        bisect=bisect,
        checkpoint=checkpoint,
        mapping=parse_mapping(mapping or []),
        split=split,
        batch_size=batch_size,
        inputs=parse_inputs(dim, fixed, batch_axis),
        rtol=relative,
        atol=absolute,
        rtols=relatives,
        atols=absolutes,
        device=device,
    )
    printer.result(found.to_dict())
    printer.table(
        ["output", "max difference", "relative", "worst sample", "within"],
        [
            (
                d.output,
                f"{d.max_abs:.3g}",
                f"{d.max_rel:.3g}",
                d.sample,
                "yes" if d.within else "NO",
            )
            for d in found.parity.differences
        ],
    )
    where = "made-up inputs" if found.made_up else "data"
    printer.line(f"\n{found.parity.samples} samples of {where}, {found.parity.tolerance}")
    for name, (before, after) in found.metrics.items():
        printer.line(f"{name}: {before:.4f} and {after:.4f}")
    if bisect:
        printer.line(found.first_text())
    if not found.parity.ok:
        raise typer.Exit(5)


VERBS = (
    (
        "export",
        export,
        """\b
Examples:
  ortboost export run -o model.opt.onnx --verify val.npz
  ortboost export model.onnx -o model.opt.onnx --target tensorrt=10
  ortboost export vad.onnx -o vad.opt.onnx --dim batch=1 --dim sequence=512 --input sr=16000
  ortboost export run -o model.fp16.onnx --precision fp16 --calib train.npz --verify val.npz
  ortboost export run -o model.int8.onnx --precision int8 --calib train.npz --verify val.npz
  ortboost export run -o model.onnx --target tensorrt --build-engine --shape x:1,8,32x3x224x224
  ortboost export run -o model.onnx --checkpoint last --no-optimize --rtol logits:1e-4
\b
Exit status 5 if the file answers differently; then nothing is written, and the rewrite that
does it is named.""",
    ),
    (
        "compare",
        compare,
        """\b
Examples:
  ortboost compare model.onnx model.opt.onnx --data val.npz
  ortboost compare run model.opt.onnx --data val.npz --rtol 1e-3 --atol logits:1e-5
  ortboost compare a.onnx b.onnx --bisect --json
\b
Exit status 5 if an output is beyond the tolerance.""",
    ),
)
"""Verb, function, examples."""
