"""``ortboost convert`` and ``ortboost check``: from the options to a program configuration.

What takes time to import is imported inside the verbs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ortboost.cli.console import Output
from ortboost.cli.options import BatchAxis, Dim, Input, Json, Map, Quiet, Verbose

__all__ = ["VERBS", "check", "convert"]

_Model = Annotated[Path, typer.Argument(help="ONNX file.")]
_Loss = Annotated[
    str | None,
    typer.Option(
        help="softmax-cross-entropy (default), mse, bce-with-logits, l1, or output: the model "
        "computes its own loss."
    ),
]
_OutputName = Annotated[
    str | None, typer.Option("--output", help="Output that the loss is taken of.")
]
_ClassAxis = Annotated[
    int | None,
    typer.Option(
        help="Axis of the output that counts the classes: 1, or -1 for [batch, sequence, classes]."
    ),
]
_ShiftLabels = Annotated[
    bool | None,
    typer.Option(
        "--shift-labels", help="Causal language model: compare each position with the next label."
    ),
]
_Patterns = list[str] | None
_Freeze = Annotated[
    _Patterns, typer.Option(metavar="PATTERN", help="Do not train these (repeatable).")
]
_Trainable = Annotated[
    _Patterns, typer.Option(metavar="PATTERN", help="Train only these (repeatable).")
]


_Parameters = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="List of what is trained: a name, or 'name true|false', on each line.",
    ),
]


def convert(
    model: _Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="Program folder to make.")],
    loss: _Loss = None,
    reduction: Annotated[str | None, typer.Option(help="mean (default), sum or none.")] = None,
    dense_labels: Annotated[
        bool | None,
        typer.Option("--dense-labels", help="Cross entropy against rows of probabilities."),
    ] = None,
    output: _OutputName = None,
    labels: Annotated[str | None, typer.Option(help="Name of the new label input.")] = None,
    ignore_index: Annotated[
        int | None, typer.Option(help="Label that does not count, as -100 in PyTorch.")
    ] = None,
    class_axis: _ClassAxis = None,
    shift_labels: _ShiftLabels = None,
    dim: Dim = None,
    fixed: Input = None,
    batch_axis: BatchAxis = None,
    optimizer: Annotated[
        str | None, typer.Option(help="momentum (default), sgd, adam, adamw or lars.")
    ] = None,
    optimizer_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Hyper-parameter of the optimizer (repeatable)."),
    ] = None,
    lr: Annotated[
        str | None,
        typer.Option(
            "--lr", help="Default schedule: 0.05, cosine:0.1,warmup=50, step:0.1,every=500,..."
        ),
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(min=0, help="Coefficient.")] = None,
    decay: Annotated[
        str | None, typer.Option(help="What decays: no-norm (default), weights or all.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:PATTERN:lr=X", help="Parameters with a rate or decay of their own."
        ),
    ] = None,
    loss_scale: Annotated[
        str | None,
        typer.Option(
            help="dynamic (default), dynamic:init=4096,window=1000,hysteresis=2, fixed:1024, "
            "grouped:4096,groups=4 or off."
        ),
    ] = None,
    clip: Annotated[
        str | None, typer.Option(help="value:C, norm:C (each tensor) or global-norm:C.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="fp32 (default), fp16 or bf16: how the network computes; parameters stay in float32. "
            "fp16:policy=all for all operators but losses and normalizations."
        ),
    ] = None,
    keep_fp32: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave these nodes in float32: node, output, weight or operator; re:REGEX (repeatable).",
        ),
    ] = None,
    force_low: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Compute these in the short format (repeatable)."),
    ] = None,
    emulate: Annotated[
        bool | None,
        typer.Option(
            "--emulate",
            help="Write a float32 step that rounds as fp16 or bf16 would, for any device.",
        ),
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option(min=1, help="Micro-batches an update (gradient accumulation).")
    ] = None,
    freeze: _Freeze = None,
    trainable: _Trainable = None,
    parameters: _Parameters = None,
    new_head: Annotated[
        int | None, typer.Option(min=1, help="Fresh last layer with so many outputs.")
    ] = None,
    frozen_bn: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave these BatchNormalizations in inference mode."),
    ] = None,
    running_variance: Annotated[
        str | None, typer.Option(help="unbiased (default, as PyTorch and MindSpore) or onnx.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="auto (default), portable or native.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of a new head.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="JSON file with the configuration; options overrule it.")
    ] = None,
    boost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:KEY=VALUE|LEVEL",
            help="A boost with its settings, as grad-freeze:p=0.4,by=cost (see 'ortboost list'), or a "
            "level, O0, O1 or O2: a set of them (repeatable).",
        ),
    ] = None,
    boost_config: Annotated[
        Path | None, typer.Option(help="JSON file with settings of the boosts.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="One setting of a boost or of the configuration (repeatable).",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a program that is there.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what every rewrite did, and why not.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do it all, say what came of it, write nothing.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Turn a model into a training program."""
    from ortboost.api import verbs as api
    from ortboost.cli.parse import (
        parse_clip,
        parse_group,
        parse_inputs,
        parse_precision,
        parse_settings,
    )
    from ortboost.cli.parse_scale import parse_loss_scale
    from ortboost.program.boosted import split_settings, with_settings
    from ortboost.program.choose_trainable import CHOOSE_TRAINABLE

    printer = Output(json, quiet, verbose)
    settled = _config(
        config,
        loss={
            "name": loss,
            "reduction": reduction,
            "sparse": None if dense_labels is None else not dense_labels,
            "output": output,
            "labels": labels,
            "ignore_index": ignore_index,
            "class_axis": class_axis,
            "shift_labels": shift_labels,
        },
        inputs=parse_inputs(dim, fixed, batch_axis),
        precision={
            **({} if precision is None else parse_precision(precision)),
            "keep_fp32": None if keep_fp32 is None else tuple(keep_fp32),
            "force_low": None if force_low is None else tuple(force_low),
            "emulate": emulate,
        },
        optimizer=_optimizer(optimizer, optimizer_arg),
        learning_rate=lr,
        weight_decay=weight_decay,
        decay=decay,
        groups=None if group is None else tuple(parse_group(text) for text in group),
        loss_scale=None if loss_scale is None else parse_loss_scale(loss_scale),
        clip=None if clip is None else parse_clip(clip),
        accumulate=accumulate,
        freeze=freeze,
        trainable=trainable,
        parameters=_listed(parameters),
        new_head=new_head,
        frozen_norm=frozen_bn,
        running_variance=running_variance,
        engine=engine,
        seed=seed,
    )
    boost_sets, own_sets = split_settings(parse_settings(settings or []))
    level, chosen = _split_boosts(boost or [])
    settled = with_settings(settled, own_sets).with_boosts(*chosen)
    boosts = _boosts(level, boost_config, boost_sets)
    program = api.convert(model, out, settled, boost=boosts, overwrite=overwrite, dry_run=dry_run)
    counted = next(r.notes[0] for r in program.reports if r.rewrite == CHOOSE_TRAINABLE)
    printer.result({"path": str(out), "dry_run": dry_run, **program.manifest()})
    printer.pairs(
        [
            ("program", f"{out} (not written)" if dry_run else out),
            ("boosts", ", ".join(b.name for b in program.config.enabled_boosts)),
            ("engine", program.engine),
            ("trained", counted.removeprefix("trains ")),
            ("loss", _loss(program)),
            ("precision", _precision(program)),
            ("inputs", ", ".join(f"{s.name} {_dims(s.shape)}" for s in program.catalogue.batch)),
            ("rewrites", ", ".join(dict.fromkeys(r.rewrite for r in program.reports if r.changed))),
        ]
    )
    if explain:
        for report in program.reports:
            printer.line(f"\n{report}")
    else:
        for report in program.reports:
            if report.rewrite == "auto_boost":  # what was asked for and is not done
                for name, why in report.kept.items():
                    printer.line(f"note: {name}: {why}")
            for note in (note for note in report.notes if note != counted):
                printer.line(f"note: {note}")
    printer.line(
        "\nnext: the same without --dry-run"
        if dry_run
        else f"\nnext: ortboost train {quote(str(out))} --data DATA --val DATA"
    )


def check(
    model: _Model,
    loss: _Loss = None,
    output: _OutputName = None,
    class_axis: _ClassAxis = None,
    shift_labels: _ShiftLabels = None,
    dim: Dim = None,
    fixed: Input = None,
    freeze: _Freeze = None,
    trainable: _Trainable = None,
    parameters: _Parameters = None,
    engine: Annotated[str | None, typer.Option(help="auto (default), portable or native.")] = None,
    target: Annotated[
        str,
        typer.Option("--for", help="train (default), onnxruntime, tensorrt or tensorrt=VERSION."),
    ] = "train",
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="INPUT:DIMS", help="TensorRT profile: x:1,8,32x3x224x224."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what keeps the answers, compare, write --out.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write.")] = None,
    verify: Annotated[Path | None, typer.Option(help="Data to compare on.")] = None,
    mapping: Map = None,
    rtol: Annotated[float, typer.Option(min=0, help="Relative tolerance.")] = 1e-3,
    atol: Annotated[float, typer.Option(min=0, help="Absolute tolerance.")] = 1e-4,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """List what stands in the way of training a model, or of a target, all at once."""
    from ortboost.api import verbs as api
    from ortboost.cli.check_target import TargetOptions, refuse_training_options, run_check
    from ortboost.cli.parse import parse_inputs

    printer = Output(json, quiet, verbose)
    options = TargetOptions(
        target, fix, out, tuple(shape or ()), verify, tuple(mapping or ()), rtol, atol
    )
    if target != "train":
        refuse_training_options(
            target,
            {
                "--loss": loss,
                "--output": output,
                "--class-axis": class_axis,
                "--shift-labels": shift_labels,
                "--dim": dim,
                "--input": fixed,
                "--freeze": freeze,
                "--trainable": trainable,
                "--parameters": parameters,
            },
        )
        raise typer.Exit(run_check(model, options, printer))
    options.refuse_without_target()
    settled = _config(
        None,
        loss={
            "name": loss,
            "output": output,
            "class_axis": class_axis,
            "shift_labels": shift_labels,
        },
        inputs=parse_inputs(dim, fixed, None),
        freeze=freeze,
        trainable=trainable,
        parameters=_listed(parameters),
        engine=engine,
    )
    report = api.check(model, settled)
    printer.result(report.to_dict())
    if report.blockers:
        rows = [(b.node, b.op, b.reason, b.fix) for b in report.blockers]
        printer.table(["blocker", "op", "reason", "fix"], rows)
    if report.rewrites:
        rewritten = [(node, what) for r in report.rewrites for node, what in r.changed.items()]
        printer.table(["will be rewritten", "how"], rewritten if verbose else _folded(rewritten))
    for note in report.notes:
        printer.line(f"note: {note}")
    if report.blockers or report.rewrites or report.notes:
        printer.line()
    count = len(report.blockers)
    printer.line(
        f"{count} {'thing stands' if count == 1 else 'things stand'} in the way of training."
        if count
        else "This model can be trained."
        f"\nnext: ortboost convert {quote(str(model))} -o run --loss {settled.loss.name}"
        + (f" --output {quote(output)}" if output else "")
        + (f" --class-axis {class_axis}" if class_axis is not None else "")
        + (" --shift-labels" if shift_labels else "")
        + "".join(f" --dim {quote(text)}" for text in dim or ())
        + "".join(f" --input {quote(text)}" for text in fixed or ())
        + "".join(f" --freeze {quote(pattern)}" for pattern in freeze or ())
        + "".join(f" --trainable {quote(pattern)}" for pattern in trainable or ())
        + (f" --parameters {quote(str(parameters))}" if parameters else "")
        + (f" --engine {engine}" if engine else "")
    )
    raise typer.Exit(4 if count else 0)


def _folded(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """One row for all nodes with which the same is done; ``-v`` lists each."""
    nodes: dict[str, list[str]] = {}
    for node, what in rows:
        nodes.setdefault(what, []).append(node)
    return [
        (found[0] if len(found) == 1 else f"{found[0]} and {len(found) - 1} more", what)
        for what, found in nodes.items()
    ]


def _listed(path: Path | None) -> dict[str, bool] | None:
    from ortboost.program.parameter_list import read_parameters

    return None if path is None else read_parameters(path)


def _optimizer(name: str | None, arguments: list[str] | None) -> Any:
    from ortboost.cli.parse import parse_pairs
    from ortboost.optimizers import optimizer_from_dict

    if name is None and not arguments:
        return None
    pairs = parse_pairs(arguments or [], "--optimizer-arg")
    return optimizer_from_dict({"name": name or "momentum", **pairs})


def _split_boosts(texts: list[str]) -> tuple[str | None, list[Any]]:
    """The level, if one is given, and the boosts."""
    from ortboost.cli.parse import parse_boost
    from ortboost.core.errors import UsageError

    levels = [text for text in texts if re.fullmatch(r"[oO]\d*", text)]
    if len(levels) > 1:
        raise UsageError(
            f"There are {len(levels)} boost levels.", where="--boost", fix="Give one of them."
        )
    chosen = [parse_boost(text) for text in texts if text not in levels]
    return (levels[0] if levels else None), chosen


def _boosts(level: str | None, path: Path | None, settings: list[tuple[str, Any]]) -> Any:
    """The boosts that the options ask for; ``None`` if they ask for nothing."""
    from ortboost.program.boost_config import resolve_boost

    if level is None and path is None and not settings:
        return None
    return resolve_boost(level or "O0", path, settings)


def _config(
    path: Path | None,
    *,
    loss: dict[str, Any],
    inputs: Any,
    precision: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The configuration: defaults, then the file, then the options that were given."""
    from ortboost.core.errors import ConfigError
    from ortboost.core.files import read_json
    from ortboost.program.config import ProgramConfig

    base = ProgramConfig()
    if path is not None:
        data = read_json(path)
        if not isinstance(data, dict):
            raise ConfigError(
                "The configuration file holds no JSON object.",
                where=str(path),
                fix="Write keys and values, as in the 'config' of a program.json.",
            )
        base = ProgramConfig.from_dict(data.get("config", data))
    given = {key: value for key, value in loss.items() if value is not None}
    low = {key: value for key, value in (precision or {}).items() if value is not None}
    options["inputs"] = dataclasses.replace(
        base.inputs,
        dims={**base.inputs.dims, **inputs.dims},
        values={**base.inputs.values, **inputs.values},
        batch_axes={**base.inputs.batch_axes, **inputs.batch_axes},
    )
    if low:
        options["precision"] = dataclasses.replace(base.precision, **low)
    changes: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in options.items()
        if value is not None
    }
    settled = dataclasses.replace(base, loss=dataclasses.replace(base.loss, **given), **changes)
    if settled.loss.name == "softmax-cross-entropy" and settled.loss.sparse and path is None:
        settled = dataclasses.replace(settled, metrics=("accuracy",))
    return settled


def _loss(program: Any) -> str | None:
    """What was attached to which output."""
    for report in program.reports:
        if report.rewrite == "attach_loss":
            return "; ".join(f"{what}, output '{name}'" for name, what in report.changed.items())
    return None


def _precision(program: Any) -> str | None:
    """How many nodes compute in which format; nothing for float32."""
    config = program.config.precision
    for report in program.reports:
        if report.rewrite == "place_precision":
            how = ", emulated" if config.emulate else ""
            low, kept = len(report.changed), len(report.kept)
            return f"{config.compute}{how}: {low} nodes, {kept} in float32"
    return None


def _dims(shape: Any) -> str:
    from ortboost.cli.console import shape_text

    return shape_text(shape)


VERBS = (
    (
        "check",
        check,
        """\b
Examples:
  ortboost check model.onnx
  ortboost check model.onnx --freeze 'backbone.*' --json
  ortboost check model.onnx --for tensorrt=11 --shape x:1,8,32x3x224x224
  ortboost check model.onnx --for tensorrt=10 --fix -o mended.onnx
\b
Exit status 4 if the model cannot be trained, or not run by the target, as it is.""",
    ),
    (
        "convert",
        convert,
        """\b
Examples:
  ortboost convert model.onnx -o run --lr cosine:0.05 --weight-decay 1e-4
  ortboost convert model.onnx -o run --optimizer adamw --lr 1e-3 --clip global-norm:1
  ortboost convert model.onnx -o run --loss mse --loss-scale fixed:1024
  ortboost convert detector.onnx -o run --dim height=640 --dim width=640 --input scale=1.0
  ortboost convert gpt.onnx -o run --shift-labels --optimizer adamw --lr 3e-4
  ortboost convert model.onnx -o run --precision fp16 --keep-fp32 'head*'
  ortboost convert model.onnx -o tuned --new-head 5 --trainable 'fc.*'
  ortboost convert model.onnx -o run --parameters model.txt
  ortboost convert model.onnx -o run --boost less-bn --boost grad-freeze:p=0.4,by=cost
  ortboost convert model.onnx -o fast --boost O1 --set grad_freeze.param_groups=4 --explain
  ortboost convert model.onnx -o run --group 'head:fc*:lr=0.1,weight_decay=0'""",
    ),
)
"""Verb, function, examples."""
