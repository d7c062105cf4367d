"""``ortboost runs`` and ``watch`` as functions: compare runs, and follow one in progress."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ortboost.api.run_folder import LOG, check_output, in_training
from ortboost.core.arguments import checked
from ortboost.core.errors import FileError, require_known
from ortboost.core.files import read_json
from ortboost.core.shown import Shown
from ortboost.program.program import MANIFEST
from ortboost.training import Goal, RunHistory
from ortboost.training.history import write_csv
from ortboost.training.logs import LogFollower, finite_or_none
from ortboost.training.plot import plot_runs

__all__ = ["RunInfo", "follow", "runs"]

_DEEP: Final = 3  # levels of folders to search below the given one
_STOPPED: Final = "stopped: no process trains it"
_TRAIN_SETTINGS: Final = ("batch_size", "seed", "processes", "device", "learning_rate")


@dataclass(frozen=True, repr=False)
class RunInfo(Shown):
    """Summary of one run.

    Args:
        name: Its folder, relative to the searched folder.
        path: The folder.
        engine: The engine that computes its gradients.
        source: The model that it was converted from.
        differs: Settings that are not the same in all runs, with the values of this run.
        status: ``running``, ``not trained``, ``stopped`` (killed), the reason why it ended, or
            ``damaged program.json``.
        epochs: Completed epochs.
        planned: Requested epochs.
        steps: Completed steps.
        skipped: Skipped steps.
        metric: The metric that the runs are compared by; ``None`` if it was not measured.
        best: Best value of the metric.
        best_step: Step of the best value.
        seconds: Duration of all sessions; ``None`` if the last was killed or is still running.
        sessions: Number of times that it was started or resumed.
        about: Description of the run in its log.
    """

    name: str
    path: Path
    engine: str = ""
    source: str = ""
    differs: Mapping[str, Any] = field(default_factory=dict)
    status: str = "not trained"
    epochs: int = 0
    planned: int = 0
    steps: int = 0
    skipped: int = 0
    metric: str | None = None
    best: float | None = None
    best_step: int | None = None
    seconds: float | None = None
    sessions: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)

    def _facts(self) -> dict[str, object]:
        best = None if self.best is None else f"{self.best:.4g} at step {self.best_step}"
        return {
            "name": self.name,
            "of": self.source,
            "status": self.status,
            self.metric or "best": best,
            "epochs": f"{self.epochs} of {self.planned}" if self.planned else None,
            "steps": self.steps or None,
            "skipped": self.skipped or None,
        }

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON data."""
        data: dict[str, Any] = finite_or_none({**asdict(self), "path": str(self.path)})
        return data


@checked
def runs(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ".",
    *,
    metric: str | None = None,
    plot: str | os.PathLike[str] | None = None,
    csv: str | os.PathLike[str] | None = None,
) -> list[RunInfo]:
    """Compare runs; the best one comes first.

    Args:
        sources: One or several program folders, or folders with program folders up to three levels
            below.
        metric: Metric to compare by; default: the validation metric that most runs monitor.
        plot: PNG file to plot the curves of all runs into.
        csv: CSV file for the values of all steps; see
            :func:`ortboost.training.history.write_csv`.

    Raises:
        FileError: No runs were found, none of their manifests can be read, a log cannot be read, or
            a file cannot be written.
        UsageError: No run has the metric, there is nothing to plot, or a file to write has another
            suffix.
        DependencyError: Plotting needs matplotlib.

    Example:
        >>> runs("experiments", metric="val_loss")[0].name  # doctest: +SKIP
        'less-bn'
    """
    if csv is not None:
        check_output(csv, ".csv")
    if plot is not None:
        check_output(plot, ".png")
    folders = _find([sources] if isinstance(sources, str | os.PathLike) else sources)
    manifests = _manifests(folders)
    settings = {name: _settings(manifest) for name, manifest in manifests.items()}
    histories: dict[str, RunHistory] = {}
    for name in manifests:
        folder = folders[name]
        if (folder / LOG).is_file():
            histories[name] = RunHistory.read(folder / LOG)
            histories[name].name = name
            about = histories[name].about
            settings[name] |= {key: about[key] for key in _TRAIN_SETTINGS if key in about}
    if metric is None:
        found = Counter(run.monitored for run in histories.values() if run.curves)
        metric = found.most_common(1)[0][0] if found else "val_loss"
    else:
        measured = sorted({curve for run in histories.values() for curve in run.curves})
        require_known(metric, measured, f"No run has a metric '{metric}'.", "metric")
    differs = _differences(settings)
    listed = [
        _info(name, folder, manifests[name], differs[name], histories.get(name), metric)
        if name in manifests
        else RunInfo(name, folder, status=f"damaged {MANIFEST}")
        for name, folder in folders.items()
    ]
    if csv is not None:
        write_csv(histories.values(), csv)
    if plot is not None:
        plot_runs(list(histories.values()), plot)
    goals = (run.goal(metric) for run in histories.values() if metric in run.curves)
    sign = -1 if next(goals, Goal(metric)).rising else 1
    # Without the metric: trained ones, then the others.
    return sorted(
        listed,
        key=lambda run: (run.best is None, not run.steps, sign * (run.best or 0.0), run.name),
    )


def follow(
    run: str | os.PathLike[str],
    *,
    seconds: float = 0.5,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[RunHistory, Sequence[Mapping[str, Any]]]]:
    """Follow a run through its log: yield its history whenever something happened, until it ends.

    A run that is not in progress is yielded once. If it has not started, or its folder does not
    exist yet, wait for it. When a run starts over, a new history is yielded.

    Args:
        run: The program folder.
        seconds: Seconds between reads of the log.
        wait: Called with ``seconds`` to wait.

    Yields:
        The history of the run, and the events since the last yield.

    Raises:
        FileError: The log cannot be read, or holds no event.

    Example:
        >>> for history, events in follow("run"):  # doctest: +SKIP
        ...     print(history.step, history.latest["loss"])
    """
    folder = Path(run)
    follower = LogFollower(folder / LOG)
    history, under_way, begun, unread = RunHistory(folder.name), False, False, 0
    while True:
        trained = in_training(folder)  # checked before reading, so that no events are missed
        restarted, events = follower.read()
        if restarted:
            history = RunHistory(folder.name)
        for event in events:
            history.add(event)
        if events or restarted or not begun:
            yield history, events
        begun = True
        # A run that had ended before may have been resumed by a process that has not logged yet.
        if history.step + history.sessions and (not trained or (under_way and history.reason)):
            if history.reason is None:  # killed: it could not log its end
                stopped = {"event": "end", "step": history.step, "reason": _STOPPED}
                history.add(stopped)
                yield history, [stopped]
            return
        under_way = history.sessions > 0 and history.reason is None
        # Twice, because a process may be writing its first line.
        unread = unread + 1 if not trained and _has_no_event(folder / LOG, history) else 0
        if unread > 1:
            raise FileError(
                "The log has no event that can be read, and no process trains the run.",
                where=str(folder / LOG),
                fix="Train it again, with --resume if it has checkpoints.",
            )
        wait(seconds)


def _has_no_event(log: Path, history: RunHistory) -> bool:
    return not (history.step or history.sessions) and log.is_file() and log.stat().st_size > 0


def _find(sources: Sequence[str | os.PathLike[str]]) -> dict[str, Path]:
    """Find program folders, by name."""
    found: dict[str, Path] = {}
    for source in map(Path, sources):
        patterns = ["*/" * depth + MANIFEST for depth in range(_DEEP + 1)]
        inside = [file.parent for pattern in patterns for file in source.glob(pattern)]
        for folder in sorted(inside):
            name = str(folder.relative_to(source)) if folder != source else source.resolve().name
            found[str(folder) if name in found else name] = folder
        if not inside:
            readable = source.is_dir() and os.access(source, os.R_OK)
            folders = [source, *(source.iterdir() if readable else ())]
            closed = [f for f in folders if f.is_dir() and not os.access(f, os.R_OK | os.X_OK)]
            hidden = f"; '{closed[0]}' cannot be read by this user" if closed else ""
            raise FileError(
                "No runs found.",
                where=f"{source}: no folder with a {MANIFEST}, {_DEEP} levels down{hidden}",
                fix="Give program folders, or a folder that contains some.",
            )
    return found


def _manifests(folders: Mapping[str, Path]) -> dict[str, Mapping[str, Any]]:
    """The manifests that can be read; an error if none can."""
    found, faults = {}, list[FileError]()
    for name, folder in folders.items():
        try:
            found[name] = _manifest(folder)
        except FileError as error:
            faults.append(error)
    if faults and not found:
        raise faults[0]
    return found


def _manifest(folder: Path) -> Mapping[str, Any]:
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("config"), dict):
        raise FileError(
            "The manifest of the program is damaged.",
            where=str(folder / MANIFEST),
            fix="Convert the model again.",
        )
    return manifest


def _settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The settings to compare, with the listed boosts keyed by name."""
    config = dict(manifest["config"])
    boosts = config.pop("boosts", None) or ()
    named = {str(b["name"]): b for b in boosts if isinstance(b, dict) and "name" in b}
    origin = {"source": manifest.get("source"), "engine": manifest.get("engine")}
    return {**config, **named, **origin}


def _differences(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each run, its values of the settings that are not the same in all runs."""
    found: dict[str, dict[str, Any]] = {name: {} for name in settings}
    for key in dict.fromkeys(key for one in settings.values() for key in one):
        values = {name: one.get(key) for name, one in settings.items()}
        first = next(iter(values.values()))
        if all(value == first for value in values.values()):
            continue
        groups = [value for value in values.values() if isinstance(value, Mapping)]
        for name, value in values.items():
            if isinstance(value, Mapping) and any(value.values()):
                found[name][key] = _part(value, groups)
            elif value not in (None, False, [], ()) and not isinstance(value, Mapping):
                found[name][key] = value
    return found


def _part(group: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> Any:
    """The kind of a settings group if kinds differ, and its settings that differ within a kind."""
    tag = next((tag for tag in ("kind", "name", "compute") if tag in group), "kind")
    kinds = [other.get(tag) for other in groups]
    alike = [other for other in groups if other.get(tag) == group.get(tag)]
    kind = {} if kinds.count(kinds[0]) == len(kinds) else {"kind": group.get(tag)}
    other = {
        k: v for k, v in group.items() if v not in ({}, []) and any(o.get(k) != v for o in alike)
    }
    return {**kind, **other} or True


def _info(
    name: str,
    folder: Path,
    manifest: Mapping[str, Any],
    differs: Mapping[str, Any],
    history: RunHistory | None,
    metric: str,
) -> RunInfo:
    found = RunInfo(
        name,
        folder,
        engine=str(manifest.get("engine", "")),
        source=str(manifest.get("source", "")),
        differs=differs,
        status="running" if in_training(folder) else "not trained",
    )
    if history is None:
        return found
    step, best = history.best(metric) or (None, None)
    return dataclasses.replace(
        found,
        status=history.reason or (found.status if found.status == "running" else "stopped"),
        epochs=history.epoch,
        planned=history.epochs,
        steps=history.step,
        skipped=history.skips,
        metric=metric if best is not None else None,
        best=best,
        best_step=step,
        seconds=history.seconds,
        sessions=history.sessions,
        about=history.about,
    )
