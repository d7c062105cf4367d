"""Evaluation in several processes: each runs a part of every batch, and all get all outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.program import names
from ortboost.runtime.evaluator import Evaluator
from ortboost.runtime.feeds import arrays_of
from ortboost.runtime.part_weights import count_samples
from ortboost.runtime.shared_step import SharedStep

__all__ = ["SharedEvaluator"]


class SharedEvaluator:
    """An evaluator that all processes call with the same batch.

    Running statistics are averaged first if steps have changed them. Every process evaluates the
    whole batch if it cannot be divided: it has fewer samples than there are processes, or the graph
    has a fixed batch size.
    """

    def __init__(self, alone: Evaluator, shared: SharedStep) -> None:
        self._alone, self._shared, self.inputs = alone, shared, alone.inputs
        self._fixed = any(
            isinstance(spec.batch_axis, int) and isinstance(spec.shape[spec.batch_axis], int)
            for spec in self.inputs
        )
        labels = next((s for s in self.inputs if s.name == shared.program.labels), None)
        self._axis = labels.batch_axis if labels and isinstance(labels.batch_axis, int) else None

    def evaluate(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The prediction and ``loss`` of one whole batch; see :class:`Evaluator`."""
        group = self._shared.group
        self._shared.state.average()
        feeds = arrays_of(feeds, self.inputs)
        number, _, total = count_samples(self.inputs, feeds)
        if self._fixed or self._axis is None or number < group.size:
            return self._alone.evaluate(feeds)
        # This process's samples: parts differ by one sample at most, and none is empty.
        rows = slice(number * group.rank // group.size, number * (group.rank + 1) // group.size)
        part = {
            spec.name: feeds[spec.name][(slice(None),) * spec.batch_axis + (rows,)]
            if isinstance(spec.batch_axis, int)
            else feeds[spec.name]
            for spec in self.inputs
            if spec.name in feeds
        }
        outputs = self._alone.evaluate(part)
        # Each process adds its part of the whole: its rows among zeros, or its share of a mean.
        found = {}
        prediction = self._shared.program.prediction
        for name in (prediction, names.LOSS):
            if name not in outputs:
                continue
            value, axis = outputs[name], self._axis if name == prediction else 0
            if value.ndim:
                place = (slice(None),) * axis + (rows,)
                shape = (*value.shape[:axis], number, *value.shape[axis + 1 :])
                whole = np.zeros(shape, value.dtype)
                whole[place] = value
            else:  # a part whose labels are all ignored has the loss 0 / 0, and the weight 0
                counted = count_samples(self.inputs, part).terms
                mean = self._shared.program.config.loss.reduction != "sum"
                weight = counted / total if mean and total else float(counted > 0)
                whole = np.asarray(weight * float(value) if weight else 0.0, np.float64)
            found[name] = group.sum(whole)
        return found
