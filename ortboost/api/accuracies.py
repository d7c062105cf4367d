"""The accuracy of a model before and after its export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ortboost.api.stored_batches import Feeds
from ortboost.core.errors import OrtBoostError, ParityError, UsageError
from ortboost.deploy.verify import Parity
from ortboost.training import get_metric
from ortboost.training.data.batches import rows_of
from ortboost.training.evaluation import by_sample
from ortboost.training.label_rule import LabelRule
from ortboost.training.metrics import strict

__all__ = ["Accuracies"]


@dataclass
class Accuracies:
    """Accuracy before and after, accumulated over the batches.

    Args:
        output: The output with the class scores; the first if not given.
        labels: Key of the class indices in the batches.
        feeds: The batches.
        expected: The outputs before.
        lengths: Number of real samples per batch; the rest is padding.
        rule: How labels are compared with scores.
        axis: Batch axis of the labels.
    """

    output: str | None
    labels: str | None
    feeds: Sequence[Feeds]
    expected: Sequence[Feeds]
    lengths: Sequence[int | None]
    rule: LabelRule
    axis: int | None
    judged: tuple[str, ...] = ()
    """The output that the accuracy is measured on, if any."""

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        """Why no accuracy could be measured, if so."""
        self._parts: dict[str, list[object]] = {"before": [], "after": []}
        self._accuracy = strict(get_metric("accuracy", self.rule.threshold))
        self._wanted = bool(self.feeds) and self.labels in self.feeds[0]

    def add(self, number: int, answers: Feeds) -> None:
        """Add the outputs of one batch of the exported file."""
        if not self._wanted:
            return
        output = self.output or next(iter(answers))
        assert self.labels is not None
        real = slice(self.lengths[number])
        try:
            labels = rows_of(np.asarray(self.feeds[number][self.labels]), real, self.axis)
            for side, found in (("before", self.expected[number]), ("after", answers)):
                # The predicted class of a classifier, or a map from class to score.
                if np.asarray(found[output]).dtype.kind in "iubO":
                    raise UsageError(f"The output '{output}' does not contain scores.")
                scores = np.asarray(found[output], np.float32)
                rows = by_sample(scores, labels, self.rule, self.axis, real)
                self._parts[side].append(self._accuracy.contribution(*rows))
            self.judged = (output,)
        except (OrtBoostError, ValueError, IndexError, KeyError) as error:
            self._wanted, self.judged = False, ()
            why = error.what if isinstance(error, OrtBoostError) else "they do not fit the scores."
            self.notes.append(f"no accuracy was measured with the labels of the data: {why}")

    def require(self, most: float, where: str, parity: Parity) -> None:
        """Require that the accuracy fell by at most ``most``.

        Raises:
            ParityError: It fell by more.
        """
        for name, (before, after) in self.found().items():
            if before - after > most + 1e-9:  # 0.98 - 0.97 is a little more than 0.01
                noise = ", ".join(
                    f"'{d.output}' {d.sqnr:.1f} dB"
                    for d in parity.differences
                    if d.sqnr is not None
                )
                raise ParityError(
                    f"The {name} fell from {before:.4f} to {after:.4f}, by more than {most:g}.",
                    where=f"{where}: signal-to-quantization-noise ratio {noise}",
                    fix="Nothing was written. Try another --calibration, more data in --calib, "
                    "--skip for the affected layers, or allow more with --max-drop.",
                )

    def found(self) -> dict[str, tuple[float, float]]:
        """``accuracy`` before and after; empty if the data have no class indices."""
        if not self._wanted or not self._parts["before"]:
            return {}
        before, after = (self._accuracy.result(self._parts[s]) for s in ("before", "after"))
        return {"accuracy": (before, after)}
