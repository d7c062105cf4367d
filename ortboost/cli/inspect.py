"""``ortboost inspect``: the contents of a file or program; with a second file, the differences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal as decimal_size

from ortboost.cli.command import option, verb
from ortboost.cli.console import Output, shape_text
from ortboost.cli.inspect_pair import show_pair
from ortboost.cli.options import Dim, Shape, refuse
from ortboost.core.printable import count_of

__all__ = ["inspect"]


@verb(
    "inspect",
    "Show the contents of a file or program, or compare two.",
    examples="""\b
Examples:
  ortboost inspect model.onnx --params
  ortboost inspect raw.onnx optimized.onnx
  ortboost inspect run model.opt.onnx --json
  ortboost inspect run --state --reports
  ortboost inspect run --precision
  ortboost inspect run --layers
  ortboost inspect run/step.onnx --json""",
)
def inspect(
    file: Annotated[Path, typer.Argument(help="ONNX file, step file or program folder.")],
    other: Annotated[
        Path | None, typer.Argument(help="A second model: show the differences, before and after.")
    ] = None,
    params: bool = option(
        "Show the role of each weight, and how it was determined.", "--params", default=False
    ),
    parameters: Path | None = option(
        "Count the tensors listed in a file as the parameters of a model, as --parameters of "
        "convert; --params shows them.",
        metavar="FILE",
    ),
    layers: bool = option(
        "The nodes with shapes; for a program, the cost of its boosts per layer.",
        "--layers",
        default=False,
    ),
    state: bool = option("The state catalogue of a program.", "--state", default=False),
    precision: bool = option(
        "The number format of each node, and why.", "--precision", default=False
    ),
    reports: bool = option("What the rewrites did.", "--reports", default=False),
    *,
    dim: Dim = None,
    shape: Shape = None,
    printer: Output,
) -> None:
    """Show the contents of a model file or a program folder, or compare two."""
    from ortboost.api import inspect as describe
    from ortboost.cli.parse import parse_inputs, parse_shapes
    from ortboost.core.report import Report
    from ortboost.program.parameter_list import read_parameters

    if other is not None:
        single = {"--layers": layers, "--state": state, "--reports": reports}
        single["--parameters"] = parameters is not None
        refuse({**single, "--precision": precision}, "to one file", "inspect")
        dims = parse_inputs([*(dim or ()), *parse_shapes(shape)], None, None).dims
        show_pair(printer, file, other, dims, names=params)
        return
    refuse({"--dim": dim, "--shape": shape}, "to two files", "inspect")
    data = describe(file, parameters=read_parameters(parameters) if parameters else None).to_dict()
    printer.result(data)
    if data["kind"] == "program":
        _program(printer, data)
    else:
        _model(printer, data)
    if params:
        _parameters(printer, data)
    if layers:
        _costs(printer, data) if data["kind"] == "program" else _layers(printer, data)
    if state:
        _states(printer, data)
    if precision:
        rows = [(p["node"], p["precision"], p["why"]) for p in data.get("precision", [])]
        if not rows and data["kind"] == "program":
            printer.line("\nevery node computes in fp32")
        else:
            _section(printer, ["node", "precision", "why"], rows)
    if reports:
        for report in data.get("reports", []):
            printer.line(f"\n{Report.from_dict(report)}")
        if data["kind"] != "program":
            printer.line("\nno reports to show: only a program keeps them")


def _parameters(printer: Output, data: dict[str, Any]) -> None:
    rows = [
        (
            p["name"],
            shape_text(p["shape"]),
            p["role"],
            _trained(p),
            p["reason"] + (f"; doubtful: {p['doubt']}" if p["doubt"] else ""),
        )
        for p in data.get("parameters", [])
    ]
    hint = ": a program lists them with --state" if data["kind"] == "program" else ""
    _section(printer, ["parameter", "shape", "role", "trained", "why"], rows, hint)


def _layers(printer: Output, data: dict[str, Any]) -> None:
    rows = [
        (layer["node"], layer["op"], out["name"], shape_text(out["shape"]))
        for layer in data.get("layers", [])
        for out in layer["outputs"]
    ]
    _section(printer, ["node", "op", "output", "shape"], rows)


def _states(printer: Output, data: dict[str, Any]) -> None:
    rows = [
        (s["name"], s["kind"], s["dtype"], shape_text(s["shape"]), "yes" if s["next"] else "no")
        for s in data.get("catalogue", {}).get("state", [])
    ]
    hint = ": a model lists its weights with --params" if data["kind"] == "model" else ""
    _section(printer, ["state", "kind", "dtype", "shape", "changes"], rows, hint)


def _model(printer: Output, data: dict[str, Any]) -> None:
    trained = [p for p in data["parameters"] if p["trainable"]]
    doubtful = sum(1 for p in data["parameters"] if p["doubt"])
    printer.pairs(
        [
            ("file", f"{data['path']} ({decimal_size(data['bytes'])})"),
            ("kind", data["kind"]),
            ("made by", data["producer"]),
            ("opset", ", ".join(f"{k} {v}" for k, v in data["domains"].items())),
            ("IR", data["ir_version"]),
            *(("input", _value(v)) for v in data["inputs"]),
            *(("output", _value(v)) for v in data["outputs"]),
            ("nodes", data["nodes"]),
            ("work", _work(data) if data.get("macs") != 0 and "macs" in data else None),
            (
                "weights",
                f"{count_of(len(trained), 'trainable tensor')}, {data['trainable_elements']:,} "
                f"elements, "
                f"{decimal_size(data['weight_bytes'])} in total",
            ),
            ("doubtful", f"{doubtful}, see --params" if doubtful else None),
            ("note", "weights are graph inputs too" if data["weights_are_inputs"] else None),
            *((key, value) for key, value in data["metadata"].items()),
        ]
    )
    printer.line()
    printer.table(["op", "count"], list(data["ops"].items()))


def _costs(printer: Output, data: dict[str, Any]) -> None:
    """Print the tables of the reports with their totals."""
    tables = [report for report in data["reports"] if report["table"]]
    for report in tables:
        first = next(iter(report["table"].values()))
        rows = [[name, *row.values()] for name, row in report["table"].items()]
        total: list[Any] = ["total"]
        for column in first:
            numbers = [row[column] for row in report["table"].values() if row[column] is not None]
            total.append("" if any(isinstance(n, str) for n in numbers) else sum(numbers))
        shown = [[_cell(value) for value in row] for row in [*rows, total]]
        printer.line(f"\n{report['rewrite']}")
        printer.table(["parameter", *(name.replace("_", " ") for name in first)], shown)
    if not tables:
        printer.line("\nno costs to show: no boost of this program reports costs per layer")


def _cell(value: str | int | None) -> str:
    return "?" if value is None else f"{value:,}" if isinstance(value, int) else value


def _trained(parameter: dict[str, Any]) -> str:
    return ("yes" if parameter["trainable"] else "no") + ("?" if parameter["doubt"] else "")


def _work(data: dict[str, Any]) -> str:
    """The multiply-accumulates as text, with the input shapes that they are counted for."""
    shapes = ", ".join(f"{name} {shape_text(s)}" for name, s in data["macs_for"].items())
    missing = len(data["macs_uncounted"])
    note = f"; {count_of(missing, 'node')} could not be counted" if missing else ""
    if data["macs"] is None:
        return f"unknown{note}"
    return f"{data['macs']:,} multiply-accumulates for {shapes or 'no inputs'}{note}"


def _program(printer: Output, data: dict[str, Any]) -> None:
    config, catalogue = data["config"], data["catalogue"]
    printer.pairs(
        [
            ("program", data["path"]),
            ("made from", data["source"]),
            ("engine", data["engine"]),
            ("loss", f"{config['loss']['name']}, {config['loss']['reduction']}"),
            ("optimizer", _with_settings(config["optimizer"], "name")),
            *(("boost", _with_settings(boost, "name")) for boost in config.get("boosts", ())),
            ("learning rate", config["learning_rate"]),
            ("weight decay", f"{config['weight_decay']} ({config['decay']})"),
            ("precision", _format(config)),
            ("loss scale", _with_settings(config["loss_scale"], "kind")),
            *(
                ("input", f"{s['name']} {s['dtype']} {shape_text(s['shape'])}")
                for s in catalogue["batch"]
            ),
            *(
                (
                    "state",
                    f"{kind}: {count_of(v['tensors'], 'tensor')}, "
                    f"{count_of(v['elements'], 'element')}",
                )
                for kind, v in data["state"].items()
            ),
            *(("nodes", f"{count} in {name}") for name, count in data["nodes"].items()),
            ("fingerprint", data["fingerprint"]),
        ]
    )


def _with_settings(settings: dict[str, Any], name: str) -> str:
    """``{"name": "momentum", "momentum": 0.9}`` as ``momentum (momentum 0.9)``."""
    shown = [
        f"{key} {value:.10g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in settings.items()
        if key != name and value is not None and value is not False
    ]
    return f"{settings[name]} ({', '.join(shown)})" if shown else str(settings[name])


def _format(config: dict[str, Any]) -> str:
    precision = config.get("precision", {"compute": "fp32", "policy": "", "emulate": False})
    if precision["compute"] == "fp32":
        return "fp32"
    how = ", emulated" if precision["emulate"] else ""
    return f"{precision['compute']}, policy {precision['policy']}{how}"


def _value(value: dict[str, Any]) -> str:
    return f"{value['name']} {value['dtype'] or '?'} {shape_text(value['shape'])}"


def _section(
    printer: Output, columns: list[str], rows: list[tuple[Any, ...]], hint: str = ""
) -> None:
    printer.line()
    printer.table(columns, rows) if rows else printer.line(f"no {columns[0]} to show{hint}")
