"""What the command line prints: results to stdout, everything else to stderr, JSON on request."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ortboost.core.printable import printable

__all__ = ["Output", "human_bytes", "in_the_way", "shape_text"]


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@dataclass(frozen=True)
class Output:
    """How one command prints.

    Args:
        json: One JSON object on stdout and nothing else there.
        quiet: No tables, no progress.
        verbose: 0, 1 (log of what happens) or 2 (tracebacks too).
    """

    json: bool = False
    quiet: bool = False
    verbose: int = 0

    def __post_init__(self) -> None:
        level = logging.WARNING if self.verbose == 0 else logging.INFO
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Printable("%(levelname)s %(message)s"))
        logging.basicConfig(level=level, handlers=[handler])
        for library in ("onnxscript", "onnx_ir", "matplotlib"):  # they warn of what is handled here
            logging.getLogger(library).setLevel(logging.INFO if self.verbose else logging.ERROR)

    @property
    def people(self) -> bool:
        """Whether tables and lines for people are wanted on stdout."""
        return not self.json and not self.quiet

    def result(self, data: Any) -> None:
        """Print the result as JSON if that was asked for; null for what is not finite."""
        if self.json:
            from ortboost.training.logs import finite_or_none  # JSON knows no NaN and no infinity

            print(json.dumps(finite_or_none(data), indent=2, default=str, allow_nan=False))

    def line(self, text: str = "") -> None:
        """Print a line for people."""
        if self.people:
            print(printable(text))

    def pairs(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Print aligned name and value lines."""
        shown = [(name, value) for name, value in rows if value not in (None, "")]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.line(f"{name:<{width}}  {value}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
        """Print a table; it wraps on a terminal and is one line a row otherwise."""
        if not self.people:
            return
        terminal = sys.stdout.isatty()
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold", no_wrap=not terminal)
        for row in rows:
            table.add_row(*(printable(str(cell)) for cell in row))
        console = Console(width=None if terminal else 100_000, highlight=False, markup=False)
        with console.capture() as capture:
            console.print(table)
        for text in capture.get().rstrip("\n").splitlines():
            print(text.rstrip())


def in_the_way(count: int, what: str) -> str:
    """How many things stand in the way of something.

    Example:
        >>> in_the_way(1, "training")
        '1 thing stands in the way of training.'
    """
    return f"{count} {'thing stands' if count == 1 else 'things stand'} in the way of {what}."


def human_bytes(count: int) -> str:
    """A size for people.

    Example:
        >>> human_bytes(1_500_000)
        '1.5 MB'
    """
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def shape_text(shape: Sequence[Any] | None) -> str:
    """A shape for people.

    Example:
        >>> shape_text(["batch", 3, None])
        '[batch, 3, ?]'
    """
    if shape is None:
        return "?"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
