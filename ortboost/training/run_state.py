"""The host-side state of a run, as saved in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ortboost.core.field_types import read_config, write_config
from ortboost.core.step_result import StepResult
from ortboost.training.metrics import Mean
from ortboost.training.overflow import SkipHistory

__all__ = ["RunState", "step_seed"]


def step_seed(seed: int, step: int) -> int:
    """The random seed of a step, in ``[0, 2**63)``, derived from the run seed and the step.

    ``SeedSequence`` hashes the pair, so the seeds of neighbouring steps are unrelated.
    """
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass
class RunState:
    """Counters and partial sums of a run.

    Args:
        epoch: The current epoch, from 0.
        batch: Batches of this epoch done so far.
        step: Steps done in all epochs, including skipped ones.
        applied_steps: Updates applied.
        total_skips: Steps skipped.
        loss_scale: The scale after the last step.
        validated_step: The step of the last validation, -1 for none.
        sums: Means over the epoch so far, by name (``loss``, step metrics).
        metrics: The newest values by name (``train_loss``, ``val_loss``, ...).
        skips: When steps were skipped.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    applied_steps: int = 0
    total_skips: int = 0
    loss_scale: float = 1.0
    validated_step: int = -1
    sums: dict[str, Mean] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    skips: SkipHistory = field(default_factory=SkipHistory)

    def add(self, result: StepResult, samples: int) -> None:
        """Count a step on a number of samples; non-finite values are excluded from the means.

        The loss and metrics of a result are means over its labels, if it counts them.
        """
        number = samples if result.labels is None else result.labels
        self.batch += 1
        self.step += 1
        self.applied_steps = int(result.applied_steps)
        self.total_skips = int(result.total_skips)
        self.loss_scale = float(result.loss_scale)
        self.skips.add(self.step, bool(result.overflow))
        for name, value in {"loss": result.loss, **result.metrics}.items():
            weight = result.label_weight if name == "loss" else None
            if np.isfinite(value):
                mean = self.sums.setdefault(name, Mean())
                mean.add(float(value), number if weight is None else weight)

    def end_epoch(self) -> dict[str, float]:
        """Move on to the next epoch; returns the means of this one as ``train_...``."""
        # If all labels of the epoch are ignored, the loss is 0, as it is for such a batch.
        sums = self.sums.items()
        means = {f"train_{name}": mean.value if mean.count else 0.0 for name, mean in sums}
        means.setdefault("train_loss", float("nan"))
        self.metrics.update(means)
        self.epoch, self.batch, self.sums = self.epoch + 1, 0, {}
        return means

    def forget_validation(self) -> bool:
        """Drop the metrics of earlier validations; returns whether there were any."""
        count = len(self.metrics)
        self.metrics = {n: v for n, v in self.metrics.items() if not n.startswith("val_")}
        return len(self.metrics) < count

    def line(self) -> str:
        """The newest metrics as one line.

        Example:
            >>> RunState(metrics={"val_loss": 0.5}, total_skips=2).line()
            'val_loss 0.5000  skipped 2'
        """
        parts = [
            f"{name} {value:.4f}" if abs(value) < 1e5 else f"{name} {value:.3g}"
            for name, value in self.metrics.items()
        ]
        return "  ".join([*parts, *([f"skipped {self.total_skips}"] if self.total_skips else [])])

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON data; floats are preserved exactly."""
        sums = {name: [mean.total, mean.count] for name, mean in self.sums.items()}
        return {**write_config(self), "sums": sums}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunState:
        """Rebuild the state from :meth:`to_dict`; other keys are ignored."""
        # Checkpoints of older versions lack some fields.
        known = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        known["sums"] = {name: Mean(*pair) for name, pair in data["sums"].items()}
        return read_config(cls, known, "checkpoint")
