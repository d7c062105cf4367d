"""The summary of a finished run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ortboost.core.loss_scale import scale_text
from ortboost.core.shown import Shown
from ortboost.training.callbacks import BestModel, EarlyStopping
from ortboost.training.logs import finite_or_none
from ortboost.training.run_state import RunState
from ortboost.training.session import Recorder, Session

__all__ = ["TrainSummary", "health", "summarize"]

_MANY_SKIPS = 0.05
_ADVICE = "lower the learning rate, clip gradients, or see --debug-overflow"
_MOST_WARM = 40  # halvings from the largest sensible float32 scale to the smallest


@dataclass(frozen=True, repr=False)
class TrainSummary(Shown):
    """The result of a training session.

    Args:
        reason: Why the session ended ("all epochs done", "max_steps reached", "early stop: ...").
        epochs: Complete epochs since the start of the run.
        steps: Steps since the start of the run, including skipped ones.
        applied_steps: Updates applied.
        skipped_steps: Steps skipped because a gradient was not finite.
        session_steps: Steps of this session (after a resume, fewer than ``steps``).
        seconds: Wall-clock seconds of this session, including validation and saving.
        steps_per_second: ``session_steps / seconds``.
        loss_scale: The scale at the end.
        metrics: The newest value of each metric.
        best: Monitored metric to ``{"value": ..., "step": ...}``.
        healthy: Whether few steps were skipped and the newest metrics are finite.
        health: The reasons for that verdict, in one line.
        checkpoint: The last checkpoint.
        best_checkpoint: The best one.
        log: The event log.
        plot: The plot of the curves.
        notes: Further remarks.
        class_counts: Number of training labels of each class, if the labels are class indices.
        data_wait: Fraction of this session's step time that was spent waiting for data.

    Example:
        >>> import ortboost as ob
        >>> program = ob.convert("models/mlp.onnx", "runs/example/summary", overwrite=True)
        >>> data = "models/digits.npz"
        >>> summary = ob.train("runs/example/summary", data, max_steps=5, progress=None)
        >>> summary.reason, summary.steps, summary.healthy
        ('max_steps reached', 5, True)
    """

    reason: str
    epochs: int
    steps: int
    applied_steps: int
    skipped_steps: int
    session_steps: int
    seconds: float
    steps_per_second: float
    loss_scale: float
    metrics: dict[str, float] = field(default_factory=dict)
    best: dict[str, dict[str, float]] = field(default_factory=dict)
    healthy: bool = True
    health: str = ""
    checkpoint: Path | None = None
    best_checkpoint: Path | None = None
    log: Path | None = None
    plot: Path | None = None
    notes: tuple[str, ...] = ()
    class_counts: tuple[int, ...] = ()
    data_wait: float = 0.0

    def _facts(self) -> dict[str, object]:
        best = (
            f"{name} {at['value']:.4g} at step {at['step']:.0f}" for name, at in self.best.items()
        )
        return {
            "ended": self.reason,
            "epochs": self.epochs,
            "steps": f"{self.steps}, {self.skipped_steps} skipped",
            "time": f"{self.seconds:.1f} s, {self.steps_per_second:.1f} steps a second",
            "waited for data": f"{self.data_wait:.1%} of the time of steps",
            **{name: f"{value:.4g}" for name, value in self.metrics.items()},
            "best": ", ".join(best),
            "health": self.health,
            "checkpoint": self.checkpoint,
        }

    def to_dict(self) -> dict[str, Any]:
        """The summary as JSON data; paths as text, non-finite numbers as None."""
        data = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}
        result: dict[str, Any] = finite_or_none(data)
        return result


def health(state: RunState, *, dynamic: bool = True) -> tuple[bool, str]:
    """Whether the run is healthy, and one line that explains why.

    Skips at the start, before 20 consecutive steps were applied, are expected while a dynamic scale
    settles. Later skips are healthy as long as they are few (5 %) and do not become much more
    frequent. A run is not healthy if most of its steps were skipped, or if its newest metrics are
    not finite.

    Example:
        >>> state = RunState(step=1000, applied_steps=997, total_skips=3, loss_scale=1024.0)
        >>> for step in range(1, 1001):
        ...     state.skips.add(step, step <= 3)
        >>> health(state)[1].split(",")[0]
        'healthy: 3 of 1000 steps skipped (0.3 %)'
    """
    stray = [name for name, value in state.metrics.items() if not math.isfinite(value)]
    if stray:
        return False, f"not healthy: {stray[0]} is {state.metrics[stray[0]]}; {_ADVICE}"
    if not state.total_skips:
        return True, f"healthy: no step was skipped; scale {scale_text(state.loss_scale)}"
    share = _percent(state.total_skips, state.step)
    text = f"{state.total_skips} of {state.step} steps skipped ({share})"
    well, tail = _judge(state) if dynamic else _judge_fixed(state)
    if well and 2 * state.total_skips > state.step:
        well, tail = False, ": most of them changed nothing"
    advice = "" if well else f"; {_ADVICE}"
    kind = "healthy" if well else "not healthy"
    return well, f"{kind}: {text}{tail}{advice}; scale {scale_text(state.loss_scale)}"


def _judge(state: RunState) -> tuple[bool, str]:
    """Whether the skips are acceptable, and a comment on them."""
    skips = state.skips
    if skips.total != state.total_skips:  # a run that began with an older version
        share = state.total_skips / state.step
        few = share <= _MANY_SKIPS or state.total_skips <= min(24, state.applied_steps)
        return few and state.applied_steps > 0, "" if few else ", which is many"
    if skips.warm:
        well = state.applied_steps > 0 and state.total_skips <= _MOST_WARM
        return well, (
            ", while the scale is settling"
            if well
            else ": no scale has been found at which steps succeed"
        )
    since = state.step - skips.warm_steps  # steps after the scale had settled
    early = f"within the first {skips.warm_steps}, while the scale settled"
    if not skips.later:
        return skips.warm_skips <= _MOST_WARM, f", all {early}"
    parts = f", {skips.warm_skips} {early}, {skips.later} after" if skips.warm_skips else ""
    if skips.growing(state.step):
        return False, f"{parts}, increasingly often of late"
    if skips.later / since > _MANY_SKIPS:
        return False, f"{parts}, which is many ({_percent(skips.later, since)})"
    return True, f"{parts}, which is normal as the scale tries larger values"


def _judge_fixed(state: RunState) -> tuple[bool, str]:
    share = state.total_skips / state.step
    if state.skips.growing(state.step):
        return False, ", increasingly often of late"
    return share <= _MANY_SKIPS, "" if share <= _MANY_SKIPS else ", and this scale cannot shrink"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}".replace("%", " %")


def summarize(
    s: Session, record: Recorder, first: int, seconds: float, plot: Path | None
) -> TrainSummary:
    """The summary of a session that began after the step ``first`` and has ended normally."""
    state, steps = s.state, s.state.step - first
    healthy, line = health(state, dynamic=s.rule.dynamic)
    store, log = record.store, record.log
    best = None if store is None else store.best_step()
    return TrainSummary(
        reason=s.view.stop_reason or "",
        epochs=state.epoch,
        steps=state.step,
        applied_steps=state.applied_steps,
        skipped_steps=state.total_skips,
        session_steps=steps,
        seconds=seconds,
        steps_per_second=steps / seconds,
        loss_scale=state.loss_scale,
        metrics=dict(state.metrics),
        best={
            callback.goal.monitor: {"value": callback.best, "step": float(callback.best_step)}
            for callback in record.callbacks
            if isinstance(callback, BestModel | EarlyStopping) and callback.best is not None
        },
        healthy=healthy,
        health=line,
        checkpoint=s.saved,
        best_checkpoint=None if store is None or best is None else store.path(best),
        log=None if log is None else log.path,
        plot=plot,
        data_wait=s.data_wait,
    )
