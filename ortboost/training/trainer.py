"""The training loop: steps, validation, checkpoints, and an orderly exit."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortboost.core.errors import DivergedError, OrtBoostError, UsageError
from ortboost.training.callbacks import Callback
from ortboost.training.checkpoints import CheckpointStore
from ortboost.training.config import TrainConfig
from ortboost.training.data.batches import batch_axes, batch_length, static_batch
from ortboost.training.data.iterables import IterableSource
from ortboost.training.data.prefetch import prefetch, work_ahead
from ortboost.training.data.sources import ParallelSource, Source
from ortboost.training.divergence import Divergence
from ortboost.training.evaluation import evaluate
from ortboost.training.label_rule import LabelRule
from ortboost.training.logs import EventLog
from ortboost.training.metrics import get_metrics
from ortboost.training.overflow import Diagnosable, diagnosis_due, first_scale
from ortboost.training.progress import QuietProgress, Reporter
from ortboost.training.protocols import Batch, Evaluator, Stepper
from ortboost.training.resume import check_fresh
from ortboost.training.run_state import step_seed
from ortboost.training.session import Recorder, Session
from ortboost.training.signals import SignalGuard
from ortboost.training.stop_rule import StopRule
from ortboost.training.summary import TrainSummary, summarize

__all__ = ["Trainer"]


class Trainer:
    """Trains a compiled step on data.

    Args:
        stepper: The training step with its state.
        evaluator: The model in evaluation mode, for validation; None for no validation.
        config: The configuration of the run.
        store: The folder of checkpoints; None saves none.
        callbacks: Callbacks, in the order in which they are called; their names must differ.
        log: The event log; None for no log.
        progress: Where to show the run; None shows nothing.
        program: Fingerprint of the program; saved in checkpoints and verified when resuming.
        plot: Path of a PNG with the curves of the log, drawn at the end; None for none.
        about: Metadata of the run, for the log and the callbacks.
        launch: What identifies the launch of several processes, for the log.
        signals: Factory of the guard that catches requests to stop.

    Raises:
        UsageError: Two callbacks have the same name, a metric is unknown, or ``debug_overflow`` is
            set and the stepper cannot diagnose overflows.
        ConfigError: The schedules do not match the stepper's learning-rate groups.

    Example:
        >>> trainer = Trainer(stepper, evaluator, TrainConfig(epochs=2))  # doctest: +SKIP
        >>> trainer.fit(ArraySource(arrays, 64, shuffle=True)).steps  # doctest: +SKIP
        100
    """

    def __init__(
        self,
        stepper: Stepper,
        evaluator: Evaluator | None,
        config: TrainConfig,
        *,
        store: CheckpointStore | None = None,
        callbacks: Sequence[Callback] = (),
        log: EventLog | None = None,
        progress: Reporter | None = None,
        program: str = "",
        plot: str | os.PathLike[str] | None = None,
        about: Mapping[str, Any] | None = None,
        launch: Mapping[str, object] | None = None,
        signals: Callable[[], SignalGuard] = SignalGuard,
    ) -> None:
        self.stepper, self.evaluator, self.config = stepper, evaluator, config
        self.store, self.log = store, log
        self.callbacks = list(callbacks)
        self.progress: Reporter = progress or QuietProgress()
        self.record = Recorder(stepper, config, self.callbacks, store, log, self.progress, program)
        self.divergence = Divergence(self.record)
        self.plot = None if plot is None else Path(plot)
        self.about, self._launch = dict(about or {}), dict(launch or {})
        self._signals = signals
        self._schedules = config.schedules(stepper.groups)
        self._rule = LabelRule.of(stepper.inputs, config.labels)
        self._metrics = get_metrics(config.metrics, self._rule.threshold)
        if config.debug_overflow and not isinstance(stepper, Diagnosable):
            raise UsageError(
                "This stepper cannot diagnose overflows.",
                where="debug_overflow",
                fix="Add the methods 'watch' and 'diagnose' to it, or leave debug_overflow at 0.",
            )
        names = [callback.name for callback in self.callbacks]
        if len(set(names)) < len(names):
            raise UsageError(
                "Two callbacks have the same name.",
                where=", ".join(names),
                fix="Give each its own `name`, the key of its state in a checkpoint.",
            )

    def fit(
        self, train: Source, validation: Source | None = None, *, resume: bool = False
    ) -> TrainSummary:
        """Train until all epochs are done or a stop is requested.

        Args:
            train: The training data.
            validation: Data to validate on after each epoch (and every ``validate_every`` steps).
            resume: Continue from the newest valid checkpoint, even in the middle of an epoch. The
                result is bit-identical to that of an uninterrupted run. If there is no checkpoint,
                start from the beginning.

        Raises:
            Interrupted: Ctrl-C (exit status 130); the step was finished and the state saved.
            Terminated: The same for SIGTERM (143).
            DivergedError: Steps kept overflowing at the smallest scale (the tensors that are not
                finite are named), or the loss is NaN at the end; the state was saved.
            UsageError: The folder has another run; or, when resuming, the seed or data changed.
            FileError: When resuming, none of the checkpoints can be used.
        """
        with contextlib.ExitStack() as stack:
            signals = stack.enter_context(self._signals())
            stack.callback(self.progress.close)
            if self.log is not None:
                stack.callback(self.log.close)
            s = Session(train, validation, signals, StopRule(self.config))
            s.view.about = self.about
            self._begin(s, resume, stack)
            first = s.state.step
            try:
                self._loop(s)
                self.divergence.check(s)
            except DivergedError:
                self._draw()  # a diverged run needs its curves most
                raise
            seconds = self.record.end(s, s.view.stop_reason, data_wait=s.data_wait)
        return summarize(s, self.record, first, seconds, self._draw())

    def _begin(self, s: Session, resume: bool, stack: contextlib.ExitStack) -> None:
        """Load a checkpoint or start over; push what has to be closed onto the stack."""
        # The loss scale: from the configuration, or from the checkpoint that is restored.
        s.state.loss_scale = first_scale(self.config.loss_scale)
        position = self.record.restore(s) if resume else 0
        if self.config.debug_overflow and isinstance(self.stepper, Diagnosable):
            self.stepper.watch()
        if self.store is not None and not resume:
            s.stale = check_fresh(self.store, self.config.overwrite)
        if resume and s.resumed is None:
            self.progress.message("nothing to resume: starting from the beginning")
        if s.validation is None and s.state.forget_validation():
            self.progress.message(
                "warning: this session has no validation data: the best model stays the one found "
                "before"
            )
        if isinstance(s.validation, IterableSource):
            s.validation.look()
        if self.log is not None and s.stale:
            self.log.hold()
        elif self.log is not None:
            self.log.rewind(position)
        per_epoch = s.train.steps_per_epoch
        total = None if per_epoch is None else per_epoch * self.config.epochs
        limits = [n for n in (total, self.config.max_steps) if n is not None]
        self.record.start(s, min(limits, default=None), self.about, self._launch)
        s.view.epochs, s.view.steps_per_epoch = self.config.epochs, per_epoch
        s.refresh_view()
        for callback in self.callbacks:
            callback.on_train_begin(s.view)
            # Only what has begun is closed.
            stack.callback(callback.on_close, s.view)

    def _loop(self, s: Session) -> None:
        while s.state.epoch < self.config.epochs and not self._at_limit(s):
            if not self._epoch(s):
                break
        if s.view.stop_reason is None:
            s.view.stop("all epochs done")
        self._discard_stale(s)  # here if a callback stopped the run before its first step
        if s.saved_step != s.state.step:
            self.record.save(s)
        if s.state.validated_step != s.state.step and s.state.step:
            # A run that stops within an epoch is validated once more for its summary. The
            # checkpoint was saved before that and is not updated, so that a longer run that resumes
            # from it decides as if it had never stopped. Pinning it as the best does not change it.
            self._validate(s)
            if s.view.keep_best and self.store is not None:
                self.store.pin_best(s.saved_step)
        for callback in self.callbacks:
            callback.on_train_end(s.view)

    def _at_limit(self, s: Session) -> bool:
        if self.config.max_steps is not None and s.state.step >= self.config.max_steps:
            s.view.stop("max_steps reached")
        return s.view.stop_reason is not None

    def _epoch(self, s: Session) -> bool:
        """Run the rest of an epoch; returns False if it stopped before the end."""
        for callback in self.callbacks:
            callback.on_epoch_begin(s.view)
        with contextlib.closing(self._read_ahead(s)) as stream:
            done = time.perf_counter()
            for batch in self._reading(s, stream):
                got = time.perf_counter()
                s.waited += got - done
                self._step(s, batch)
                done = time.perf_counter()
                s.stepped += done - got
                # A limit that coincides with the end of the epoch still ends it properly.
                if self._at_limit(s) and s.state.batch != s.train.steps_per_epoch:
                    return False
        if s.state.batch == 0:
            raise UsageError(
                "The training data has no batches.",
                where=f"epoch {s.state.epoch}",
                fix="Use more samples or a smaller batch size.",
            )
        # The updates of the epoch are complete before it is validated: what is left of a window of
        # gradient accumulation is applied.
        if self.config.flush and self.stepper.flush(self._rates(s)):
            s.state.applied_steps += 1
        if s.state.validated_step != s.state.step:
            self._validate(s)
        epoch = s.state.epoch
        means = s.state.end_epoch()
        s.refresh_view()
        self._call(s, "on_epoch_end", means)
        self.record.event(s, "epoch", epoch=epoch, **means)
        self.progress.result(f"epoch {epoch + 1}/{self.config.epochs}  {s.state.line()}")
        # After the callbacks: their states are saved, and BestModel decides in on_epoch_end.
        self._settle(s, due=True)
        return True

    @contextlib.contextmanager
    def _rescuing(self, s: Session) -> Iterator[None]:
        """Save the steps so far if code of the user (data, callbacks) raises any exception."""
        try:
            yield
        except Exception as error:
            if not self._launch:  # of several processes, the others may wait for this one
                self._rescue(s, error, "")
            raise

    def _reading(self, s: Session, stream: Iterator[Batch]) -> Iterator[Batch]:
        with self._rescuing(s):
            yield from stream

    def _call(self, s: Session, event: str, *arguments: object) -> None:
        """Call a method of all callbacks."""
        for callback in self.callbacks:
            with self._rescuing(s):
                getattr(callback, event)(s.view, *arguments)

    def _rescue(self, s: Session, error: Exception, advice: str) -> None:
        """Save the run before an error of the data or of a callback ends it."""
        if s.rule.unrecoverable:  # the weights may be NaN
            return
        if s.state.step and s.saved_step != s.state.step and self.store is not None:
            self._settle(s, due=True)
            saved = f"The training is saved at step {s.state.step}{advice}."
            if isinstance(error, OrtBoostError):
                error.fix += f" {saved}"
            else:
                self.progress.message(saved)

    def _read_ahead(self, s: Session) -> Generator[Batch, None, None]:
        """The batches of the rest of an epoch, read in threads."""
        where, depth = (s.state.epoch, s.state.batch), self.config.prefetch
        if isinstance(s.train, ParallelSource):
            workers = self.config.workers or s.train.threads
            return work_ahead(s.train.tasks(*where), workers, depth)
        return prefetch(s.train.epoch(*where), depth)

    def _rates(self, s: Session) -> dict[str, float]:
        """The learning rates of the next update."""
        return {name: float(rate(s.state.applied_steps)) for name, rate in self._schedules.items()}

    def _step(self, s: Session, batch: Batch) -> None:
        config, state = self.config, s.state
        # Run the step.
        self._call(s, "on_step_begin")
        hyper, scale = self._rates(s), state.loss_scale
        s.view.learning_rates = hyper
        result = self.stepper.step(batch, hyper, seed=step_seed(config.seed, state.step))
        self._discard_stale(s)  # the step works, so the old run may go
        # Count it, log it and show it.
        state.add(result, batch_length(batch, axes=batch_axes(self.stepper.inputs)))
        warning = s.rule.observe(state.step, result)
        self.record.step(s, result, hyper, scale)
        if warning is not None:
            self.record.warn(s, warning)
        if result.overflow and diagnosis_due(state.total_skips, config.debug_overflow):
            self.divergence.diagnose(s, batch, hyper)
        # Let the callbacks, the stop rule and the schedule of checkpoints decide what follows.
        s.refresh_view()
        self._call(s, "on_step_end", result)
        if s.rule.diverged:
            self.divergence.end(s, batch, hyper)
        if config.validate_every and state.step % config.validate_every == 0:
            self._validate(s)
        due = config.checkpoint_every and state.step % config.checkpoint_every == 0
        self._settle(s, due=bool(due))
        if s.signals.received is not None:
            self._interrupt(s)

    def _discard_stale(self, s: Session) -> None:
        """Remove the run that ``overwrite`` replaces, after a first step has succeeded."""
        if s.stale and self.store is not None:
            self.store.clear()
            if self.log is not None:
                self.log.replace()
            s.stale = False

    def _validate(self, s: Session) -> None:
        if s.validation is None or self.evaluator is None:
            return
        try:
            found = evaluate(
                self.evaluator,
                s.validation,
                self._metrics,
                labels=self.config.labels,
                output=self.config.output,
                batch_size=static_batch(self.stepper.inputs),
                axes=batch_axes(self.stepper.inputs),
                rule=self._rule,
                stop=lambda: s.signals.received is not None,
            )
        except OrtBoostError as error:  # bad validation data must not lose the epoch
            self._rescue(s, error, ": continue with --resume")
            raise
        if found is None:
            self._interrupt(s)
            return
        s.state.validated_step = s.state.step
        metrics = {f"val_{name}": value for name, value in found.items()}
        s.state.metrics.update(metrics)
        s.refresh_view()
        self.record.event(s, "validation", epoch=s.state.epoch, **metrics)
        self._call(s, "on_validation_end", metrics)

    def _settle(self, s: Session, *, due: bool) -> None:
        """Save if a checkpoint is due, or if a callback has set ``keep_best``."""
        if due or s.view.keep_best:
            best, s.view.keep_best = s.view.keep_best, False
            self.record.save(s, best=best)

    def _interrupt(self, s: Session) -> None:
        if s.saved_step != s.state.step:
            self.record.save(s)
        self.record.end(s, "interrupted")
        raise s.signals.error(s.state.step, None if s.saved is None else str(s.saved))

    def _draw(self) -> Path | None:
        if self.plot is None or self.log is None:
            return None
        from ortboost.training.plot import plot_log  # matplotlib is optional and slow to import

        try:
            return plot_log(self.log.path, self.plot)
        except OrtBoostError as error:
            # A failed plot must not fail a finished training.
            self.progress.message(f"no plot: {error.what} {error.fix}")
        except Exception as error:  # various types, if the log is damaged
            self.progress.message(f"no plot: {self.log.path} cannot be drawn: {error}")
        return None
