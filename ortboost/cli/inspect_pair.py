"""Output of ``ortboost inspect A B``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.filesize import decimal as decimal_size

from ortboost.cli.console import Output, shape_text
from ortboost.core.printable import count_of

__all__ = ["show_pair"]


def show_pair(
    printer: Output, before: Path, after: Path, dims: Mapping[str, int], *, names: bool
) -> None:
    """Compare two models or programs and print tables.

    The work is counted for the lengths ``dims`` of open dimensions. ``names`` also lists the
    weights that only one of the two has.
    """
    from ortboost.api.inspect_pair import inspect_pair

    data = inspect_pair(before, after, dims=dims).to_dict()
    printer.result(data)
    one, two = data["before"], data["after"]
    printer.pairs([("before", one["path"]), ("after", two["path"])])
    printer.line()
    heads = ["", "before", "after", "difference", "ratio"]
    printer.table(heads, _figures(data))
    printer.line()
    printer.table(["op", *heads[1:4], "work before", "work after"], _operators(data))
    if names:
        only = [("before only", n) for n in data["weights"]["only_before"]]
        only += [("after only", n) for n in data["weights"]["only_after"]]
        printer.line()
        if only:
            printer.table(["weight of", "name"], only)
        else:
            printer.line("Both have weights with the same names.")
    printer.line()
    for line in data["interface"]:
        printer.line(f"note: {line}")
    for side in (one, two):
        for node, why in list(side["uncounted"].items())[:1]:
            count = count_of(len(side["uncounted"]), "node")
            printer.line(f"note: {count} of {side['path']} could not be counted ({node}: {why})")
    shown_for = ", ".join(f"{n} {shape_text(s)}" for n, s in one["counted_for"].items())
    printer.line(
        "Work: multiply-accumulates of Conv, Gemm, MatMul and related operators for "
        f"{shown_for or 'no inputs'}; one multiply-accumulate is two floating-point operations. "
        "Other operators are not counted."
    )


def _figures(data: Mapping[str, Any]) -> list[list[str]]:
    titles: dict[str, tuple[str, Callable[[int], str]]] = {
        "bytes": ("file", decimal_size),
        "weight_bytes": ("weights", decimal_size),
        "weight_elements": ("weight elements", _thousands),
        "trainable_elements": ("trainable elements", _thousands),
        "tensors": ("weight tensors", _thousands),
        "nodes": ("nodes", _thousands),
        "macs": ("multiply-accumulates", _thousands),
        "flops": ("floating-point operations", _thousands),
    }
    rows = []
    for key, (title, shown) in titles.items():
        d = data["difference"][key]
        cells = ["-" if d[side] is None else shown(d[side]) for side in ("before", "after")]
        change = d["difference"]
        sign = "" if not change else "+" if change > 0 else "-"
        cells.append("-" if change is None else sign + shown(abs(change)))
        rows.append([title, *cells, "-" if d["ratio"] is None else f"{d['ratio']:.3g}"])
    return [*rows, ["opset", data["before"]["opset"], data["after"]["opset"], "", ""]]


def _operators(data: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for op, n in data["ops"].items():
        work = data["work"].get(op, {})
        change = f"{n['difference']:+d}" if n["difference"] else ""
        costs = [_thousands(work[side]) if work else "" for side in ("before", "after")]
        rows.append([op, n["before"], n["after"], change, *costs])
    return rows


def _thousands(number: int) -> str:
    return f"{number:,}"
