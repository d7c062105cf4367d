"""Evaluating a model on a source: losses and metrics over all samples, each counted once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ortboost.errors import UsageError, nearest
from ortboost.training.data.batches import batch_length, pad_batch
from ortboost.training.data.sources import Source
from ortboost.training.metrics import Mean, Metric
from ortboost.training.protocols import Array, Batch, Evaluator

__all__ = ["evaluate", "ignored_label"]

_LOSS = "loss"


def evaluate(
    evaluator: Evaluator,
    source: Source,
    metrics: Sequence[Metric] = (),
    *,
    labels: str = "labels",
    output: str | None = None,
    batch_size: int | None = None,
    ignored: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Run the model over one epoch of a source.

    Args:
        evaluator: The model in evaluation mode. Its loss is one number, or one a sample.
        source: The data; its epoch 0 is used.
        metrics: What to compute besides ``loss``, which is included when the model gives one.
        labels: The input that the metrics compare with.
        output: The output that holds the scores; None takes the first one that is not the loss.
        batch_size: The size that the graph is fixed to, if it is; short batches are padded, and
            the padding counts neither in the metrics nor in the loss.
        ignored: A label that does not count in the metrics, as it does not in the loss.
        stop: Asked after each batch; when it says True the evaluation ends without a result.

    Returns:
        Metric name to mean over the samples, ``loss`` first; None if it was stopped.

    Raises:
        UsageError: The source is empty, or ``labels`` or ``output`` is not there.
    """
    means: dict[str, Mean] = {}
    for batch in source.epoch(0):
        length = batch_length(batch)
        if batch_size is not None and length < batch_size:
            outputs, loss = _padded(evaluator, batch, length, batch_size)
        else:
            outputs = evaluator.evaluate(batch)
            loss = _loss(outputs, length)
        if loss is not None:
            means.setdefault(_LOSS, Mean()).add(loss, length)
        for metric in metrics:
            if metric.function is None:
                continue
            scores = np.asarray(_scores(outputs, output))[:length]
            known = _labels(batch, labels, metric.name)
            if ignored is not None:
                scores, known = _counted(scores, known, ignored)
            values = metric.function(scores, known) if len(scores) else np.zeros(0)
            means.setdefault(metric.name, Mean()).add_sum(float(values.sum()), len(scores))
        if stop():
            return None
    if not means:
        raise UsageError(
            "The evaluation gave nothing to report.",
            where="validation data",
            fix="The data must have at least one batch, and the model a loss or metrics.",
        )
    return {name: mean.value for name, mean in means.items()}


def ignored_label(inputs: Sequence[object], labels: str) -> int | None:
    """The label that does not count, where the specification of the labels input names one."""
    for spec in inputs:
        if getattr(spec, "name", None) == labels:
            found: int | None = getattr(spec, "ignored", None)
            return found
    return None


def _padded(
    evaluator: Evaluator, batch: Batch, length: int, size: int
) -> tuple[Mapping[str, Array], float | None]:
    """Outputs of a short batch, and the loss that it would have without the padding.

    The padding repeats the last sample, so with L the loss of the padded batch and a that of a
    batch of nothing but the last sample, (size L - (size - length) a) / length is the mean over
    the real samples. For a summed loss it is that sum scaled to a full batch.
    """
    padded, valid = pad_batch(batch, size)
    outputs = evaluator.evaluate(padded)
    if np.ndim(outputs.get(_LOSS, ())) > 0:  # none, or one value a sample: nothing to take apart
        return outputs, _loss(outputs, length)
    last = {name: np.repeat(array[-1:], size, axis=0) for name, array in batch.items()}
    alone = float(evaluator.evaluate(last)[_LOSS])
    padding = size - int(valid.sum())
    return outputs, (size * float(outputs[_LOSS]) - padding * alone) / length


def _loss(outputs: Mapping[str, Array], length: int) -> float | None:
    """The loss of a batch; the mean over its real samples if there is one value a sample."""
    if _LOSS not in outputs:
        return None
    loss = np.asarray(outputs[_LOSS])
    return float(loss if loss.ndim == 0 else loss[:length].mean(dtype=np.float64))


def _scores(outputs: Mapping[str, Array], output: str | None) -> Array:
    names = [name for name in outputs if name != _LOSS]
    if output is None and names:
        return outputs[names[0]]
    if output is None or output not in outputs:
        raise UsageError(
            f"The model has no output '{output}'."
            if output
            else "The model has no output but its loss.",
            where="output of the metrics",
            fix=nearest(output or "", names) if names else "Turn the metrics off.",
        )
    return outputs[output]


def _counted(scores: Array, labels: Array, ignored: int) -> tuple[Array, Array]:
    """Scores ``[n, C]`` and labels ``[n]`` of the ``n`` positions whose label counts."""
    if scores.ndim < 2 or labels.size * scores.shape[1] != scores.size:
        return scores, labels  # no class numbers; the metric says so
    rows, flat = np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1]), labels.reshape(-1)
    return rows[flat != ignored], flat[flat != ignored]


def _labels(batch: Batch, labels: str, metric: str) -> Array:
    if labels not in batch:
        raise UsageError(
            f"The metric '{metric}' needs labels, and the data has no '{labels}'.",
            where=f"inputs {', '.join(batch)}",
            fix="Name the labels input, or turn the metric off.",
        )
    return batch[labels]
