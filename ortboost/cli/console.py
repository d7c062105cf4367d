"""Output of the command line: results to stdout, everything else to stderr, JSON on request."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ortboost.cli.command import option
from ortboost.core.printable import one_line, printable

__all__ = ["Output", "number_text", "shape_text"]


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.levelname.lower()}: {super().format(record)}")


@dataclass(frozen=True)
class Output:
    """The options that define how a command prints, and the printing itself."""

    json: bool = option("Print one JSON object on stdout.", "--json", default=False)
    quiet: bool = option("Print nothing but errors and warnings.", "--quiet", "-q", default=False)
    verbose: int = option(
        "Log more; twice for tracebacks.", "--verbose", "-v", default=0, count=True
    )

    def __post_init__(self) -> None:
        level = logging.WARNING if self.verbose == 0 else logging.INFO
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Printable())
        logging.basicConfig(level=level, handlers=[handler])
        for library in ("onnxscript", "onnx_ir", "matplotlib"):  # their warnings are handled here
            logging.getLogger(library).setLevel(logging.INFO if self.verbose else logging.ERROR)

    @property
    def human_readable(self) -> bool:
        """Whether to print human-readable tables and lines on stdout."""
        return not self.json and not self.quiet

    def result(self, data: Any) -> None:
        """Print the result if JSON was requested; values that are not finite become null."""
        if self.json:
            from ortboost.training.logs import finite_or_none  # JSON has no NaN or infinity

            print(json.dumps(finite_or_none(data), indent=2, default=str, allow_nan=False))

    def line(self, text: str = "") -> None:
        """Print a human-readable line."""
        if self.human_readable:
            print(printable(text))

    def pairs(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Print one line per name and value, aligned; empty values are left out."""
        shown = [(name, value) for name, value in rows if value not in (None, "")]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.line(f"{name:<{width}}  {one_line(str(value))}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table; rows wrap on a terminal and are one line each otherwise."""
        if not self.human_readable:
            return
        terminal = sys.stdout.isatty()
        table = Table(box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold", no_wrap=not terminal)
        for row in rows:
            table.add_row(*(one_line(str(cell)) for cell in row))
        console = Console(width=None if terminal else 100_000, highlight=False, markup=False)
        with console.capture() as capture:
            console.print(table)
        for text in capture.get().rstrip("\n").splitlines():
            print(text.rstrip())


def number_text(value: Any) -> str:
    """Format a metric or another value of a result.

    Example:
        >>> number_text(0.5), number_text(3)
        ('0.5000', '3')
    """
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def shape_text(shape: Sequence[Any] | None) -> str:
    """Format a shape; ``?`` for unknown dimensions.

    Example:
        >>> shape_text(["batch", 3, None])
        '[batch, 3, ?]'
    """
    from ortboost.graph.query import format_shape  # slow to import: not for --help

    return "?" if shape is None else format_shape(shape)
