"""Errors of a training that diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortboost.core.errors import DivergedError
from ortboost.core.loss_scale import scale_text
from ortboost.training.run_state import RunState


def overflow_error(
    state: RunState, skips: int, names: Sequence[str], best: int | None
) -> DivergedError:
    """The error after ``skips`` steps in a row whose overflows no smaller loss scale prevents.

    ``names`` are the tensors of the last step that are not finite, ``best`` the step of the best
    checkpoint.
    """
    if math.isinf(state.loss_scale):
        return DivergedError(
            f"The loss scale grew to infinity; {skips} steps in a row were skipped.",
            where=f"step {state.step}",
            fix="Set an upper bound of the scale, max_scale.",
        )
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return DivergedError(
        f"Training diverged: {skips} steps in a row were not finite at the smallest loss scale "
        f"({scale_text(state.loss_scale)}).",
        where=f"step {state.step}; not finite, or too large: "
        f"{shown or 'no tensor on this batch alone'}",
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
