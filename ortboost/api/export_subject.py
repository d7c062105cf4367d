"""The subject of an export, a trained program or a plain ONNX model, with reference outputs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.api.accuracies import Accuracies
from ortboost.api.file_labels import LABELS, file_labels, score_output
from ortboost.api.image_settings import images_note, images_of, trained_data
from ortboost.api.run_folder import load_run
from ortboost.api.stored_batches import Feeds, padded_batches, read_batches
from ortboost.core.errors import OrtBoostError
from ortboost.deploy.export import Exported, export_model, export_network, reference_path
from ortboost.deploy.intermediates import measure_ranges
from ortboost.deploy.session_inputs import fix_specs
from ortboost.deploy.synthetic_inputs import (
    accepted_feeds,
    input_ranges,
    sized_by_layers,
    synthetic_feeds,
)
from ortboost.deploy.verify import Parity
from ortboost.graph.io import ModelSource, load_model
from ortboost.graph.opsets.missing_kernels import runnable
from ortboost.graph.shapes.batch_axes import model_batch_axes
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.graph.weights.token_ids import token_inputs
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.evaluator import open_evaluator
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.runtime.session import resolve_device
from ortboost.training.data import batch_axes, open_source, static_batch
from ortboost.training.data.images import ImageConfig
from ortboost.training.data.like_training import check_like_training
from ortboost.training.label_rule import LabelRule

__all__ = [
    "Collected",
    "Subject",
    "WithConstants",
    "batched",
    "collect",
    "plain_subject",
    "trained_subject",
]


@dataclass(frozen=True)
class Subject:
    """The subject of an export.

    Args:
        evaluator: Computes the reference outputs.
        inputs: The inputs that data are bound to.
        export: Builds the inference graph.
        device: Where it runs.
        labels: The input, or key of the data, with class indices, if any.
        prediction: The output that the labels are compared with.
        classes: Whether it was trained on class indices.
        scored: Whether that output holds class scores, so that labels give an accuracy.
        step: Step of the checkpoint, if any.
        seed: Seed of synthetic inputs.
        images: What was done to images in its training.
        trained: The fingerprint of the data of its training, if known.
    """

    evaluator: Any
    inputs: Sequence[TensorSpec]
    export: Callable[..., Exported]
    device: str
    labels: str | None
    prediction: str | None
    classes: bool
    step: int | None = None
    seed: int = 0
    images: ImageConfig | None = None
    scored: bool = True
    trained: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rule(self) -> LabelRule:
        """How labels are compared with scores."""
        return LabelRule.of(self.inputs, self.labels or LABELS)

    def synthetic(self) -> Feeds:
        """Make a batch of synthetic inputs; see :mod:`ortboost.deploy.synthetic_inputs`."""
        graph = self.export(optimize=False).model
        ranges = input_ranges(graph)
        data = [spec for spec in self.evaluator.inputs if spec.name != self.labels]
        data = sized_by_layers(data, graph)
        labels = [spec for spec in self.evaluator.inputs if spec.name == self.labels]
        named = {dim for spec in data for dim in spec.shape if isinstance(dim, str)}
        for spec in self.evaluator.inputs:
            if spec.classes is not None:
                ranges[spec.name] = spec.classes
        # If the data fix the size of the labels, or the model reads them, they are drawn with them.
        read = {value.name for value in graph.graph.inputs}
        data += [
            spec
            for spec in labels
            if spec.name in read or all(isinstance(dim, int) or dim in named for dim in spec.shape)
        ]
        if len(data) == len(self.evaluator.inputs):
            return accepted_feeds(data, self.evaluator.evaluate, ranges=ranges, seed=self.seed)[0]
        # The labels have the size of the predictions, which only a run of the network shows.
        network = ModelEvaluator(graph, device=self.device)
        feeds, answers = accepted_feeds(data, network.evaluate, ranges=ranges, seed=self.seed)
        shape = list(np.shape(answers[self.prediction or next(iter(answers))]))
        for spec in labels:
            if spec.class_axis is not None and spec.classes is not None:
                del shape[spec.class_axis]
            sized = dataclasses.replace(spec, shape=tuple(shape))
            feeds |= synthetic_feeds([sized], ranges=ranges, seed=self.seed)
        return feeds

    def accuracies(
        self,
        data: Any,
        feeds: Sequence[Feeds],
        expected: Sequence[Feeds],
        lengths: Sequence[int | None],
    ) -> Accuracies:
        """The collector of the accuracy before and after; synthetic inputs have no labels."""
        labels = self.labels if self.scored and data is not None else None
        # Only that of the labels: without data, those of other inputs may be ambiguous.
        axis = batch_axes([s for s in self.inputs if s.name == labels]).get(labels or "", 0)
        return Accuracies(self.prediction, labels, feeds, expected, lengths, self.rule, axis)

    def ranges(self, feeds: Sequence[Feeds]) -> dict[str, float]:
        """The largest magnitude of every intermediate tensor; see :func:`measure_ranges`."""
        return measure_ranges(self.export(optimize=False).model, feeds, device=self.device)


class WithConstants:
    """An evaluator that supplies constant values for some inputs, and labels if there are none.

    Args:
        evaluator: The evaluator.
        config: The values, and lengths of open dimensions.
        labels: The input with the labels, on which only the loss depends.
    """

    def __init__(self, evaluator: Any, config: InputConfig, labels: str | None = None) -> None:
        self._evaluator = evaluator
        self.inputs, self.constants = fix_specs(evaluator.inputs, config)
        self._labels = next((spec for spec in self.inputs if spec.name == labels), None)

    @property
    def unlabelled(self) -> bool:
        """Whether batches may lack the labels: the other inputs determine their shape."""
        if self._labels is None:
            return False
        known = {dim for spec in self.inputs if spec is not self._labels for dim in spec.shape}
        return all(isinstance(dim, int) or dim in known - {None} for dim in self._labels.shape)

    def evaluate(self, feeds: Feeds) -> Feeds:
        """Compute the outputs for a batch of the other inputs; without labels, ignore the loss."""
        given = {**self.constants, **feeds}
        labels = self._labels
        if labels is not None and labels.name not in given:
            lengths = {
                dim: length
                for spec in self.inputs
                if spec is not labels
                for dim, length in zip(spec.shape, given[spec.name].shape, strict=True)
            }
            shape = [dim if isinstance(dim, int) else lengths[dim] for dim in labels.shape]
            given[labels.name] = np.zeros(shape, labels.dtype)
        found: Feeds = self._evaluator.evaluate(given)
        return found


def trained_subject(
    run: str | os.PathLike[str],
    checkpoint: str,
    device: str,
    config: InputConfig | None = None,
    *,
    refresh: Callable[..., dict[str, NDArray[Any]]] | None = None,
    images: ImageConfig | str | None = None,
) -> Subject:
    """Open a trained program.

    Args:
        run: The program folder.
        checkpoint: See :func:`ortboost.api.run_folder.load_run`.
        device: Where to run.
        config: Dimensions and inputs to fix in the export.
        refresh: Maps program and state to the state to use.
        images: How images become inputs; what the training did if not given.
    """
    config = config or InputConfig()
    program, state, found = load_run(run, checkpoint)
    pixels = images_of(found, images)
    if refresh is not None:
        state = refresh(program, state, images=pixels, trained=trained_data(found))
    opened = open_evaluator(program, state, device=device)
    evaluator = WithConstants(opened, config, program.labels)
    step = None if found is None else int(found.step)
    provenance = {"step": "initial" if step is None else str(step), **images_note(pixels)}
    loss = program.config.loss

    def export(**settings: Any) -> Exported:
        return export_model(program, state, inputs=config, provenance=provenance, **settings)

    return Subject(
        evaluator,
        evaluator.inputs,
        export,
        opened.device,
        program.labels,
        program.prediction,
        loss.name == "softmax-cross-entropy" and loss.sparse,
        step,
        program.config.seed,
        pixels,
        scored=loss.has_classes,
        trained=trained_data(found),
    )


def plain_subject(
    source: ModelSource,
    folder: Path,
    device: str,
    config: InputConfig | None = None,
    *,
    as_it_is: bool = False,
    images: ImageConfig | str | None = None,
) -> Subject:
    """Open a plain ONNX model.

    Args:
        source: The file, or a model in memory.
        folder: Where to write a reference file if the comparison needs one.
        device: Where to run.
        config: Dimensions and inputs to fix in the export, and batch axes.
        as_it_is: Run the file unchanged even if parts of it are in training mode.
        images: How images become inputs; what the training did if not given.
    """
    loaded = load_model(source)  # once: everything derived from it shares its tensors
    pixels = images_of(loaded, images)  # raises for a mistake, before what may take minutes
    plain = export_network(loaded, optimize=False)
    reference = runnable(source, loaded) if as_it_is else reference_path(source, plain, folder)
    device, config = resolve_device(device), config or InputConfig()
    network = ModelEvaluator(reference, device=device, token_rows=token_inputs(loaded))
    evaluator = WithConstants(network, config)

    def export(**settings: Any) -> Exported:
        note = images_note(pixels)
        return export_network(loaded, inputs=config, provenance=note, **settings)

    prediction = None
    try:
        prediction = score_output(loaded)
        labels = file_labels(loaded, prediction)
    except OrtBoostError:  # export it anyway; the accuracy is measured only if that is unambiguous
        labels = TensorSpec(LABELS, np.dtype(np.int64), (None,))
    evaluator.inputs = batched(loaded, evaluator.inputs, config)
    return Subject(
        evaluator,
        [*evaluator.inputs, labels],
        export,
        device,
        LABELS,
        prediction,
        classes=False,
        images=pixels,
    )


def batched(
    model: ir.Model,
    inputs: Sequence[TensorSpec],
    config: InputConfig,
    prediction: str | None = None,
) -> tuple[TensorSpec, ...]:
    """Add batch axes to the input specifications of a plain model."""
    shapes = {spec.name: spec.shape for spec in inputs}
    axes = model_batch_axes(model, config.batch_axes, inputs=shapes, prediction=prediction)
    return tuple(dataclasses.replace(spec, batch_axis=axes[spec.name]) for spec in inputs)


class Collected(NamedTuple):
    """Batches to compare on.

    Args:
        feeds: The batches.
        lengths: Number of real samples per batch if some are padding.
        notes: Why the labels of the data could not be used.
    """

    feeds: Sequence[Feeds]
    lengths: Sequence[int | None]
    notes: tuple[str, ...] = ()

    def counted(self, parity: Parity) -> Parity:
        """A comparison on these batches with its number of real samples, without the padding."""
        real = [length for length in self.lengths if length is not None]
        return dataclasses.replace(parity, samples=sum(real)) if real else parity


def collect(
    subject: Subject, data: Any, split: str, batch_size: int, mapping: Mapping[str, str] | None
) -> Collected:
    """Collect the batches to compare on; one of synthetic inputs if there are no data.

    If the subject fixes the batch size, batches are padded to it.
    """
    if data is None:
        return Collected([subject.synthetic()], [None])
    fixed = static_batch(subject.evaluator.inputs)
    if isinstance(data, Iterator):  # it may be read twice, with and without labels
        data = list(data)

    def read(inputs: Sequence[TensorSpec]) -> Sequence[Feeds]:
        source = open_source(
            data, inputs, split, fixed or batch_size, mapping, images=subject.images
        )
        check_like_training(subject.trained, source)
        return read_batches(source)

    notes: tuple[str, ...] = ()
    try:
        found = read(subject.inputs)
    except OrtBoostError as error:  # only the accuracy needs labels
        missing = error.what == f"No array feeds the input '{subject.labels}'."
        trained = subject.inputs == subject.evaluator.inputs
        # The labels of a program are specified: others are a mistake.
        if trained and not (missing and subject.evaluator.unlabelled):
            raise
        found = read([spec for spec in subject.inputs if spec.name != subject.labels])
        # Data without labels are common, and need no note.
        if not missing:
            notes = (f"no accuracy: the labels of the data do not fit. {error.what}",)
    return Collected(*padded_batches(found, subject.inputs, fixed), notes)
