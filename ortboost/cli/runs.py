"""``ortboost runs``: compare runs, as a table, a plot or a CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortboost.cli.command import option, verb
from ortboost.cli.console import Output

if TYPE_CHECKING:
    from ortboost.api import RunInfo

__all__ = ["list_runs"]


@verb(
    "runs",
    file=False,
    examples="""\b
Examples:
  ortboost runs experiments
  ortboost runs run1 run2 --plot runs.png
  ortboost runs run --csv run.csv
  ortboost runs . --metric val_loss --json
\b
The best run comes first. Settings that all runs share are not shown.""",
)
def list_runs(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR|RUN]...", help="Program folders, or folders that contain some."
        ),
    ] = None,
    metric: str | None = option(
        "Metric to compare by: val_accuracy, val_loss, train_loss, ...", metavar="NAME"
    ),
    plot: Path | None = option("Plot the curves of all runs into one file.", metavar="FILE.png"),
    csv: Path | None = option("Write the logged values of all steps.", metavar="FILE.csv"),
    *,
    printer: Output,
) -> None:
    """Compare runs: a table, a plot, a CSV file."""
    from ortboost.api import runs

    found = runs(sources or ".", metric=metric, plot=plot, csv=csv)
    printer.result([run.to_dict() for run in found])
    name = next((run.metric for run in found if run.metric), "best")
    columns = ["run", name, "epochs", "steps", "skipped", "time", "status"]
    printer.table(columns, [_row(run) for run in found])
    differing = [(run.name, _settings(run.differs)) for run in found if run.differs]
    if differing:
        printer.line("\ndifferent settings")
        printer.pairs(differing)
    printer.pairs([("plot", plot), ("csv", csv)])


def _row(run: RunInfo) -> tuple[Any, ...]:
    again = f" ({run.sessions} sessions)" if run.sessions > 1 else ""
    return (
        run.name,
        "" if run.best is None else f"{run.best:.4f} (step {run.best_step})",
        f"{run.epochs}/{run.planned}" if run.planned else "",
        run.steps or "",
        run.skipped if run.steps else "",
        "" if run.seconds is None else f"{run.seconds:.3g} s{again}",
        run.status.partition(":")[0],
    )


def _settings(differs: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (_setting(key, value) for key, value in differs.items())))


def _setting(key: str, value: Any) -> str:
    """A setting as short text, empty if it is not set; a group of settings is shown by its kind."""
    name = key.replace("_", "-")
    if value is None:
        return ""
    if value is True:
        return name
    if isinstance(value, Mapping):
        words = [
            _setting("", v).strip() if k == "kind" else _setting(k, v) for k, v in value.items()
        ]
        inner = ", ".join(filter(None, words))
        return f"{name} ({inner})" if inner else ""
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, Mapping) for item in value):  # parameter groups
            return f"{name} ({'; '.join(_settings(item) for item in value)})"
        return f"{name} {','.join(map(str, value))}"
    return f"{name} {value:.10g}" if isinstance(value, float) else f"{name} {value}"
