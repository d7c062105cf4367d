"""Values that are not finite: where they come from, and the errors that end a training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ortboost.core.errors import DivergedError, OrtBoostError
from ortboost.core.loss_scale import scale_text
from ortboost.core.printable import first_of
from ortboost.training.overflow import Diagnosable
from ortboost.training.protocols import Batch
from ortboost.training.run_state import RunState, step_seed
from ortboost.training.session import Recorder, Session

__all__ = ["Divergence", "nan_error", "overflow_error"]


@dataclass(frozen=True)
class Divergence:
    """Locates the overflow of a step, and ends a training that diverged.

    Args:
        record: Where it is recorded; its stepper repeats a step, whose state has not changed since.
    """

    record: Recorder

    def diagnose(self, s: Session, batch: Batch, rates: Mapping[str, float]) -> None:
        """Report where the step that was just skipped overflowed."""
        stepper, message = self.record.stepper, self.record.progress.message
        if not isinstance(stepper, Diagnosable):
            return
        try:
            found = stepper.diagnose(batch, rates, seed=self._seed(s))
        except OrtBoostError as error:  # a failed diagnosis must not end the training
            message(f"step {s.state.step}: overflow, no diagnosis: {error.what}")
            return
        self.record.event(s, "diagnosis", **found.to_dict())
        message(f"step {s.state.step}: overflow, {found}")

    def end(self, s: Session, batch: Batch, rates: Mapping[str, float]) -> NoReturn:
        """Save the state and raise the error of a run whose steps keep overflowing."""
        names = self.record.stepper.nonfinite(batch, rates, seed=self._seed(s))
        self.record.save(s)
        self.record.end(s, "diverged", nonfinite=names)
        raise overflow_error(s.state, s.rule.unrecoverable, names, self._best_step())

    def check(self, s: Session) -> None:
        """Raise if the validation loss or the mean training loss of an epoch is NaN."""
        names = [n for n in ("val_loss", "train_loss") if math.isnan(s.state.metrics.get(n, 0.0))]
        if names:
            self.record.end(s, "diverged")
            raise nan_error(s.state, names[0], self._best_step())

    def _seed(self, s: Session) -> int:
        """The seed of the last step, for the same dropout."""
        return step_seed(self.record.config.seed, s.state.step - 1)

    def _best_step(self) -> int | None:
        return None if self.record.store is None else self.record.store.best_step()


def overflow_error(
    state: RunState, skips: int, names: Sequence[str], best: int | None
) -> DivergedError:
    """The error after ``skips`` steps in a row that no smaller loss scale would have saved.

    ``names`` are the tensors of the last step that are not finite, ``best`` the step of the best
    checkpoint.
    """
    if math.isinf(state.loss_scale):
        return DivergedError(
            f"The loss scale grew to infinity; {skips} steps in a row were skipped.",
            where=f"step {state.step}",
            fix="Set an upper bound of the scale, max_scale.",
        )
    return DivergedError(
        f"Training diverged: {skips} steps in a row were not finite at the smallest loss scale "
        f"({scale_text(state.loss_scale)}).",
        where=f"step {state.step}; not finite, or too large: "
        f"{first_of(names, 8) or 'no tensor on this batch alone'}",
        fix=_advice(best),
    )


def nan_error(state: RunState, metric: str, best: int | None) -> DivergedError:
    """The error of a training at whose end a mean loss is NaN."""
    return DivergedError(
        f"Training diverged: at the end {metric} is nan.",
        where=f"step {state.step}; {state.total_skips} of {state.step} steps were skipped",
        fix=_advice(best),
    )


def _advice(best: int | None) -> str:
    return "Lower the learning rate, clip the gradients, or look for NaN in the data" + (
        f"; the best model so far is the checkpoint of step {best}." if best else "."
    )
