"""``ortboost eval`` as a function: evaluate a program or an ONNX file on data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.api.export_subject import WithConstants, batched
from ortboost.api.file_labels import LABELS, file_labels, score_output
from ortboost.api.image_settings import images_of, trained_data
from ortboost.api.run_folder import load_run, refuse_for_model
from ortboost.api.running_statistics import updated_bn
from ortboost.api.stored_batches import Data
from ortboost.api.train_settings import check_perplexity
from ortboost.core.arguments import checked
from ortboost.core.errors import UsageError
from ortboost.core.field_types import Range
from ortboost.graph.io import ModelSource, is_folder, load_model, name_of
from ortboost.graph.opsets.missing_kernels import runnable
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.graph.weights.token_ids import token_inputs
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.evaluator import open_evaluator
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.training import evaluate as evaluate_source
from ortboost.training import get_metric
from ortboost.training.data import batch_axes, open_source, static_batch
from ortboost.training.data.images import ImageConfig
from ortboost.training.data.like_training import check_like_training
from ortboost.training.label_rule import LabelRule
from ortboost.training.metrics import Metric, get_metrics, perplexity_of_scores, strict
from ortboost.transforms.final_activation import decision_threshold, holds_probabilities

__all__ = ["evaluate"]


@checked
def evaluate(
    target: ModelSource,
    data: Data,
    *,
    batch_size: Annotated[int, Range(1)] = 64,
    metrics: Sequence[str | Metric] | None = None,
    checkpoint: str = "best",
    mapping: Mapping[str, str] | None = None,
    output: str | None = None,
    class_axis: int | None = None,
    ignore_index: int | None = None,
    shift_labels: bool = False,
    inputs: InputConfig | None = None,
    images: ImageConfig | str | None = None,
    split: str = "test",
    update_bn: Data | None = None,
    device: str = "auto",
    threads: Annotated[int, Range(1)] | None = None,
) -> dict[str, float]:
    """Evaluate a program folder or an ONNX file on data.

    Args:
        target: A program folder (loss and metrics) or an ONNX file or model (metrics).
        data: The data, with labels.
        batch_size: Samples per run; does not affect the result.
        metrics: Names of metrics (:data:`ortboost.training.metrics.METRICS`) or metrics of your
            own; accuracy for classifiers if not given.
        checkpoint: See :func:`load_run`.
        mapping: Input name to the key of its array; the labels of a file are named ``labels``.
        output: The output with the scores; by default that of the loss, or the first float output.
            For a file that computes its own loss, ``loss``.
        class_axis: For a file: the class axis of the scores, inferred if not given (see
            :mod:`ortboost.transforms.class_axis`). A program stores it.
        ignore_index: For a file: the label to ignore.
        shift_labels: For a file: compare each position with the next label.
        inputs: For a file: values of constant inputs, and batch axes.
        images: How images become inputs; by default as in the training, see :func:`ortboost.train`.
        split: The split of a data file that has several: ``train`` or ``test``.
        update_bn: For a program: training data to re-estimate its running statistics from, only for
            this evaluation; see :mod:`ortboost.runtime.update_bn`.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Intra-op threads.

    Returns:
        Metric name to value.

    Raises:
        UsageError: A setting of a file was given for a program, or one of a program for a file; the
            file is a graph of a program; or a program was trained on bytes, which are divided by
            255, and the data are numbers of another range, or the reverse.
        FileError: A file cannot be read, or the checkpoint cannot be used.
        ModelError: The class axis of a file is ambiguous, or the runtime rejects it.

    Example:
        >>> import ortboost as ob
        >>> program = ob.convert("models/mlp.onnx", "runs/example/evaluate", overwrite=True)
        >>> sorted(ob.evaluate("runs/example/evaluate", "models/digits.npz", checkpoint="initial"))
        ['accuracy', 'loss']
    """
    bare = not is_folder(target)
    if bare:
        refuse_for_model(target, checkpoint, update_bn)
        labels = partial(
            file_labels, class_axis=class_axis, ignored=ignore_index, shifted=shift_labels
        )
        config = inputs or InputConfig()
        found = _of_file(target, metrics, output, labels, config, images, device, threads)
    else:
        if class_axis is not None or ignore_index is not None or shift_labels or inputs:
            raise UsageError(
                "A program defines how its inputs and labels are read.",
                where=f"{target}: class_axis, ignore_index, shift_labels, inputs",
                fix="Leave them out; they are for ONNX files. Convert again to change them.",
            )
        options: dict[str, Any] = {"device": device, "threads": threads}
        refresh = None
        if update_bn is not None:
            refresh = partial(
                updated_bn, data=update_bn, batch_size=batch_size, mapping=mapping, **options
            )
        found = _of_program(target, checkpoint, metrics, output, images, refresh, options)
    fixed = static_batch(found.inputs)
    source = open_source(
        data, found.inputs, split, fixed or batch_size, mapping, images=found.images
    )
    check_like_training(found.trained, source)
    rule = LabelRule.of(found.inputs, found.labels)
    chosen = get_metrics(found.metrics, rule.threshold)
    measured = evaluate_source(
        found.evaluator,
        source,
        [strict(metric) for metric in chosen] if bare else chosen,
        labels=found.labels,
        output=found.output,
        batch_size=fixed,
        rule=rule,
        axes=batch_axes(found.inputs),
    )
    return measured or {}


class _Found(NamedTuple):
    """What is evaluated.

    Args:
        evaluator: The opened model.
        inputs: The inputs that data are read for, with the labels.
        labels: Name of the labels.
        output: The output with the scores; ``None`` for the first.
        metrics: Names of the metrics.
        images: How images become inputs.
        trained: What the program was trained on.
    """

    evaluator: Any
    inputs: Sequence[TensorSpec]
    labels: str
    output: str | None
    metrics: Sequence[str | Metric]
    images: ImageConfig | None
    trained: Mapping[str, Any]


def _of_program(
    run: Any,
    checkpoint: str,
    metrics: Sequence[str | Metric] | None,
    output: str | None,
    images: ImageConfig | str | None,
    refresh: Callable[..., dict[str, NDArray[Any]]] | None,
    options: Mapping[str, Any],
) -> _Found:
    """Open a program, which stores its labels, the output of its loss and its image settings."""
    program, state, found = load_run(run, checkpoint)
    pixels, trained = images_of(found, images), trained_data(found)
    if refresh is not None:
        state = refresh(program, state, images=pixels, trained=trained)
    evaluator = open_evaluator(program, state, **options)
    check_perplexity(metrics or (), program.config.loss)
    if metrics is None:
        classifies = program.config.loss.name == "softmax-cross-entropy"
        metrics = ("accuracy",) if classifies and output != "loss" else ()
    labels = program.counted_labels or LABELS
    inputs: Sequence[TensorSpec] = evaluator.inputs
    # The labels have the threshold of the prediction; another output may hold its logits.
    other = next((v for v in program.evaluation.graph.outputs if v.name == output), None)
    if other is not None and output != program.prediction:
        threshold = decision_threshold(other)
        inputs = [replace(s, threshold=threshold) if s.name == labels else s for s in inputs]
    output = output or (program.prediction if program.labels else None)
    return _Found(evaluator, inputs, labels, output, metrics, pixels, trained)


def _of_file(
    target: ModelSource,
    metrics: Sequence[str | Metric] | None,
    output: str | None,
    labels: Callable[..., TensorSpec],
    config: InputConfig,
    images: ImageConfig | str | None,
    device: str,
    threads: int | None,
) -> _Found:
    """Open a file, whose scores and class axis have to be found."""
    model = load_model(target)
    _check_file(model, target, metrics or ())
    pixels = images_of(model, images)
    output = score_output(model, output)
    metrics = metrics if metrics is None else _without_loss(model, output, metrics)
    if metrics is None:  # a model may compute its own loss
        metrics = ("loss",) if output == "loss" else ("accuracy",)
    opened = ModelEvaluator(
        runnable(target, model), device=device, threads=threads, token_rows=token_inputs(model)
    )
    evaluator = WithConstants(opened, config)
    inputs: Sequence[TensorSpec] = batched(model, evaluator.inputs, config, output)
    if any(get_metric(metric).batch for metric in metrics):
        inputs = [*inputs, labels(model, output, elementwise=_are_elementwise(metrics))]
    return _Found(evaluator, inputs, LABELS, output, metrics, pixels, {})


def _without_loss(
    model: ir.Model, output: str, metrics: Sequence[str | Metric]
) -> list[str | Metric]:
    """The metrics, with the perplexity from the scores if the model does not compute its loss."""
    outputs = {value.name: value for value in model.graph.outputs}
    if "loss" in outputs:
        return list(metrics)
    probabilities = holds_probabilities(outputs[output])
    of_scores = perplexity_of_scores(probabilities=probabilities)
    return [of_scores if metric == of_scores.name else metric for metric in metrics]


def _are_elementwise(metrics: Sequence[str | Metric]) -> bool:
    """Whether the metrics need a label for each score, and not one class for each sample."""
    kinds = {m.name: m.labels for m in map(get_metric, metrics) if m.labels is not None}
    if len({*kinds.values()}) > 1:
        raise UsageError(
            "The metrics need different labels: one class for each sample, and a label for each "
            "score.",
            where=f"metrics {', '.join(kinds)}",
            fix="Evaluate them one after the other, each with its labels.",
        )
    return "scores" in kinds.values()


def _check_file(model: ir.Model, target: ModelSource, metrics: Sequence[str | Metric]) -> None:
    """Refuse to evaluate a graph of a program by itself, and metrics that a file does not have."""
    kind = model.metadata_props.get("ortboost.kind")
    if kind is not None:
        raise UsageError(
            f"This is the {kind} graph of a program: its weights are inputs.",
            where=name_of(target),
            fix="Give the program folder, or export it.",
        )
    # The perplexity can be computed from the scores.
    others = (get_metric(metric) for metric in metrics if metric != "perplexity")
    of_loss = next((metric.name for metric in others if metric.batch is None), None)
    if of_loss and all(value.name != "loss" for value in model.graph.outputs):
        raise UsageError(
            "An ONNX file has no loss; only a program has.",
            where=f"{name_of(target)}: metric '{of_loss}'",
            fix="Give the program folder, or another metric.",
        )
