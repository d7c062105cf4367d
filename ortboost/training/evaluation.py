"""Evaluate a model on a source: mean loss and metrics, counting each sample once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ortboost.core.errors import UsageError, nearest
from ortboost.training.data.batches import Axes, batch_length, pad_batch, rows_of
from ortboost.training.data.sources import Source
from ortboost.training.label_rule import LabelRule
from ortboost.training.metrics import Metric, get_metric
from ortboost.training.protocols import Array, Batch, Evaluator

__all__ = ["by_sample", "evaluate"]

_LOSS = "loss"


def evaluate(
    evaluator: Evaluator,
    source: Source,
    metrics: Sequence[Metric] = (),
    *,
    labels: str = "labels",
    output: str | None = None,
    batch_size: int | None = None,
    rule: LabelRule | None = None,
    axes: Axes | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Run the model over one epoch of a source.

    Args:
        evaluator: The model in evaluation mode. Its loss is a scalar or has one value per sample.
        source: The data; its epoch 0 is used.
        metrics: What to compute besides ``loss``, which is included if the model has one.
        labels: The input with the labels, for the metrics.
        output: The output with the scores; None for the first output other than the loss.
        batch_size: The fixed batch size of the graph, if it has one; shorter batches are padded,
            and the padding is excluded from the metrics and the loss.
        rule: How labels are compared with scores. If it ignores a label, the means are over
            all labels of all batches that are not ignored.
        axes: Batch axes of the inputs, see :func:`~ortboost.training.data.batches.batch_axes`.
        stop: Called after each batch; if it returns True, the evaluation ends without a result.

    Returns:
        Metric name to value, ``loss`` first; None if it was stopped.

    Raises:
        UsageError: The source is empty, all its labels are ignored, or ``labels`` or ``output``
            does not exist.
    """
    rule = rule or LabelRule()
    of_scores = [metric for metric in metrics if metric.batch is not None]
    parts: dict[str, list[Any]] = {}
    axis = 0 if axes is None else axes.get(labels, 0)
    for batch in source.epoch(0):
        length = batch_length(batch, axes=axes)
        # A graph with a fixed size needs full batches; the padding must not count.
        padding = 0 if batch_size is None else batch_size - length
        if batch_size is not None and length < batch_size:
            outputs, found = _padded(evaluator, batch, length, batch_size, rule, labels, axes)
        else:
            outputs = evaluator.evaluate(batch)
            found = _loss(outputs, None, length, rule.counted(batch, labels))
        if found is not None:
            loss, weight = found
            parts.setdefault(_LOSS, []).extend([(loss * weight, weight)] if weight else [])
        for metric in of_scores:
            scores = np.asarray(_scores(outputs, output))
            known = _labels(batch, labels, metric.name)
            real = slice(length) if padding > 0 else slice(None)
            scores, known = by_sample(scores, known, rule, axis, real)
            parts.setdefault(metric.name, [])
            if len(scores):
                parts[metric.name].append(metric.contribution(scores, known))
        if stop():
            return None
    if not parts:
        raise UsageError(
            "The evaluation has no results.",
            where="validation data",
            fix="The data must have at least one batch, and the model a loss or metrics.",
        )
    if rule.ignored is not None and not all(parts.values()):
        raise UsageError(
            f"No label of the data counts: all of '{labels}' are {rule.ignored}, which is ignored.",
            where=f"input '{labels}'",
            fix="Give data with labels, or set another label to ignore (--ignore-index).",
        )
    listed = [get_metric(_LOSS), *metrics] if _LOSS in parts else metrics
    return {m.name: m.result(parts.get(m.name if m.batch else _LOSS, [])) for m in listed}


def by_sample(
    scores: Array, labels: Array, rule: LabelRule, axis: int | None, real: slice = slice(None)
) -> tuple[Array, Array]:
    """Scores and labels with one row for each sample, or position, that counts.

    Args:
        scores: The scores, of all rows of the graph.
        labels: The labels, without those of the padding.
        rule: How the two are compared, see :meth:`LabelRule.aligned`.
        axis: Batch axis of the labels.
        real: The rows of the scores that are not padding.
    """
    # Metrics average over axis 0, and batches differ in length: move the batch axis there.
    if axis and 1 < scores.ndim <= labels.ndim + 1 and axis < labels.ndim:
        classes = rule.class_axis % scores.ndim
        # Unless the labels are dense, the class axis is one more axis of the scores.
        place = axis + (scores.ndim > labels.ndim and classes <= axis)
        rule = dataclasses.replace(rule, class_axis=classes + (classes < place))
        scores, labels = np.moveaxis(scores, place, 0), np.moveaxis(labels, axis, 0)
    if axis is not None and scores.ndim:
        scores = scores[real]
    return rule.aligned(scores, labels)


def _padded(
    evaluator: Evaluator,
    batch: Batch,
    length: int,
    size: int,
    rule: LabelRule,
    labels: str,
    axes: Axes | None,
) -> tuple[Mapping[str, Array], tuple[float, float] | None]:
    """Outputs of a short batch, and the loss that it would have without the padding.

    The padding repeats the last sample. Let L be the loss of the padded batch and a that of a batch
    that only repeats the last sample. Let W, A and w be the weights (samples, or labels that are
    not ignored) of the padded batch, of the repeated one and of the real samples. The mean over the
    real samples is (W L - (size - length) / size A a) / w. A summed loss is scaled to a full batch.
    The loss of a batch without any label that counts is 0 / 0, and its product with 0 labels is 0.
    """
    padded, valid = pad_batch(batch, size, axes=axes)
    outputs = evaluator.evaluate(padded)
    # One value per sample, or no loss at all (the default has one axis): nothing to correct.
    if np.ndim(outputs.get(_LOSS, ())) > 0:
        return outputs, _loss(outputs, slice(length), length, rule.counted(batch, labels))
    ends = {
        name: rows_of(array, slice(length - 1, length), 0 if axes is None else axes.get(name, 0))
        for name, array in batch.items()
    }
    last, _ = pad_batch(ends, size, axes=axes)
    alone = float(evaluator.evaluate(last)[_LOSS])
    padding = (size - int(valid.sum())) / size
    # Without an ignored label they are None: every sample has the weight 1.
    counts = [rule.counted(given, labels) for given in (padded, last, batch)]
    whole, others, real = [size, size, length] if None in counts else [c or 0 for c in counts]
    total = whole * float(outputs[_LOSS]) if whole else 0.0
    total -= padding * others * alone if others else 0.0
    return outputs, (total / real if real else 0.0, real)


def _loss(
    outputs: Mapping[str, Array], real: slice | None, length: int, counted: float | None
) -> tuple[float, float] | None:
    """The mean loss over the real samples of a batch, and its weight."""
    if _LOSS not in outputs:
        return None
    loss, weight = np.asarray(outputs[_LOSS]), length if counted is None else counted
    if loss.ndim == 0:
        return float(loss) if weight else 0.0, weight  # without labels it is 0 / 0
    loss = loss if real is None else loss[real]
    total = float(loss.sum(dtype=np.float64))
    return total / ((loss.size if counted is None else counted) or 1), weight


def _scores(outputs: Mapping[str, Array], output: str | None) -> Array:
    names = [name for name in outputs if name != _LOSS]
    if output is None and names:
        return outputs[names[0]]
    if output is None or output not in outputs:
        raise UsageError(
            f"The model has no output '{output}'."
            if output
            else "The model has no output other than its loss.",
            where="output of the metrics",
            fix=nearest(output or "", names) if names else "Turn the metrics off.",
        )
    if not np.ndim(outputs[output]):
        raise UsageError(
            f"The output '{output}' is a single number, not scores.",
            where="output of the metrics",
            fix="Name the output with the scores, or leave the metrics out.",
        )
    return outputs[output]


def _labels(batch: Batch, labels: str, metric: str) -> Array:
    if labels not in batch:
        raise UsageError(
            f"The metric '{metric}' needs labels, and the data has no '{labels}'.",
            where=f"inputs {', '.join(batch)}",
            fix="Name the labels input, or turn the metric off.",
        )
    return batch[labels]
