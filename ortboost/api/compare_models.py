"""``ortboost compare`` as a function: two models on the same inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ortboost.api.export_subject import collect, plain_subject, trained_subject
from ortboost.api.run_folder import refuse_for_model
from ortboost.api.stored_batches import Data, Feeds, map_batches, refuse_unread
from ortboost.core.arguments import checked
from ortboost.core.arrays import matches
from ortboost.core.errors import UsageError
from ortboost.core.field_types import Range
from ortboost.core.shown import Shown
from ortboost.deploy.intermediates import IntermediateDifference, first_difference
from ortboost.deploy.targets import PRECISIONS
from ortboost.deploy.tolerance import Tolerance, precision_of, tolerance_for
from ortboost.deploy.verify import Parity
from ortboost.deploy.verify import compare as compare_outputs
from ortboost.graph.io import ModelSource, is_folder, load_model, name_of
from ortboost.graph.opsets.missing_kernels import runnable
from ortboost.graph.query import format_shape
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.training.data.images import ImageConfig

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The result of :func:`compare`.

    Args:
        parity: The comparison of each output.
        synthetic: Whether the inputs were synthetic.
        metrics: Metric name to its values in both models, if the data have labels.
        first: The first intermediate tensor that differs, if requested and found.
        searched: Whether it was requested.
        notes: Further remarks.

    Example:
        >>> import ortboost as ob
        >>> found = ob.compare("models/mlp.onnx", "models/mlp.onnx")
        >>> found.parity.ok, found.synthetic  # no data were given
        (True, True)
    """

    parity: Parity
    synthetic: bool
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    first: IntermediateDifference | None = None
    searched: bool = False
    notes: tuple[str, ...] = ()

    def _facts(self) -> dict[str, object]:
        found = (f"{name} {a:.4g} and {b:.4g}" for name, (a, b) in self.metrics.items())
        return {
            "alike": self.parity.ok,
            "compared": self.parity.summary + (" (synthetic inputs)" if self.synthetic else ""),
            "metrics": "; ".join(found),
            "first difference": self.first_text() if self.searched else None,
            "notes": "; ".join(self.notes),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            **self.parity.to_dict(),
            "compared_on": "synthetic inputs" if self.synthetic else "data",
            "metrics": {name: list(values) for name, values in self.metrics.items()},
            "notes": list(self.notes),
            **({"first": self.first.to_dict() if self.first else None} if self.searched else {}),
        }

    def first_text(self) -> str:
        """The result of the search as a sentence."""
        if self.first is None:
            return "No intermediate tensor that both models have, by name, differs."
        found = self.first
        agree = (
            "All outputs agree; inside, tensors may differ by intent, as where a rewrite merged "
            "or replaced nodes. "
        )
        return (agree if self.parity.ok else "") + (
            f"First difference: '{found.difference.output}' of {found.op_type} '{found.node}', off "
            f"by {found.difference.max_abs:.3g} (relative {found.difference.max_rel:.3g}); it "
            f"reads {', '.join(found.inputs)}; tensor {found.compared} of those in both models."
        )


def _worst_batch(
    expected: Sequence[Feeds], answers: Sequence[Feeds], output: str, tolerance: Tolerance
) -> int:
    """The batch in which an output differs most."""
    pairs = zip(expected, answers, strict=True)
    found = [compare_outputs([e], [a], [output], tolerance=tolerance) for e, a in pairs]
    return int(np.argmax([one.worst.max_abs for one in found]))


def _check_inputs(
    inputs: Sequence[TensorSpec],
    batch: Feeds,
    one: str,
    other: str,
) -> None:
    """Refuse a second model that does not take a batch of the first."""
    missing = [spec.name for spec in inputs if spec.name not in batch]
    if missing:
        raise UsageError(
            f"The second model has the input '{missing[0]}', but the first does not.",
            where=other,
            fix="Compare models with the same inputs.",
        )
    for spec in inputs:
        shape = np.shape(batch[spec.name])
        if not matches(shape, spec.shape):
            raise UsageError(
                f"The models need '{spec.name}' in different shapes.",
                where=f"{one}: {list(shape)}; {other}: {format_shape(spec.shape)}",
                fix="Compare models with the same inputs, or fix an open dimension with --dim.",
            )


@checked
def compare(
    one: ModelSource,
    other: ModelSource,
    *,
    data: Data | None = None,
    bisect: bool = False,
    checkpoint: str = "best",
    mapping: Mapping[str, str] | None = None,
    split: str = "test",
    batch_size: Annotated[int, Range(1)] = 64,
    inputs: InputConfig | None = None,
    images: ImageConfig | str | None = None,
    rtol: Annotated[float, Range(0)] | None = None,
    atol: Annotated[float, Range(0)] | None = None,
    rtols: Mapping[str, float] | None = None,
    atols: Mapping[str, float] | None = None,
    device: str = "auto",
) -> Comparison:
    """Compare the outputs of two models on the same inputs.

    Args:
        one: The reference: an ONNX file or model, or a program folder.
        other: What to compare with it, in the same forms.
        data: Data to compare on; synthetic inputs if not given.
        bisect: Find the first intermediate tensor, among those in both by name, that differs.
        checkpoint: The one of each folder; see :func:`load_run`.
        mapping: Input name to the key of its array.
        split: The split of a data file that has several.
        batch_size: Samples per run.
        inputs: Lengths of synthetic inputs, values of constant inputs, and batch axes.
        images: How images become inputs; by default as in the training of the reference.
        rtol: Relative tolerance; the default is that of the precision in which ``other`` was
            exported, 1e-3 for fp32.
        atol: Absolute tolerance; the default likewise, 1e-4 for fp32.
        rtols: Output name to its own relative tolerance.
        atols: Output name to its own absolute tolerance.
        device: Where to run.

    Raises:
        UsageError: The models have no output in common, or have different inputs; or a mapping or
            a split is given without data.
        FileError: A file cannot be read, or the checkpoint cannot be used.
        ModelError: The runtime rejects a model.

    Example:
        >>> import ortboost as ob
        >>> ob.compare("models/mlp.onnx", "models/mlp.onnx").parity.ok
        True
    """
    refuse_unread(mapping, split, data)
    if not is_folder(one) and not is_folder(other):
        refuse_for_model(one, checkpoint)
    with tempfile.TemporaryDirectory(prefix="ortboost-") as folder:
        subject = (
            trained_subject(one, checkpoint, device, inputs, images=images)
            if is_folder(one)
            else plain_subject(one, Path(folder), device, inputs, as_it_is=True, images=images)
        )
        second = name_of(other)
        if is_folder(other):
            run = trained_subject(other, checkpoint, device, images=images)
            other = run.export(optimize=False).model
        loaded = load_model(other)  # its errors are clearer than the runtime's
        precision = loaded.metadata_props.get("ortboost.precision", "fp32")
        if precision == "fp32":
            precision = precision_of(loaded)
        tolerance = tolerance_for(
            precision if precision in PRECISIONS else "fp32",
            rtol=rtol,
            atol=atol,
            rtols=rtols,
            atols=atols,
        )
        challenger = ModelEvaluator(runnable(other, loaded), device=device)
        collected = collect(subject, data, split, batch_size, mapping)
        feeds, lengths, unused = collected
        # Both get the same inputs: also those that are fixed for the first.
        constants = subject.evaluator.constants
        feeds = map_batches(lambda batch: {**constants, **batch}, feeds)
        if feeds:
            _check_inputs(challenger.inputs, feeds[0], name_of(one), second)
        expected = [subject.evaluator.evaluate(batch) for batch in feeds]
        if not expected:
            raise UsageError("The data have no samples.", where="data", fix="Give data with some.")
        outputs = [name for name in challenger.outputs if name in expected[0]]
        if not outputs:
            raise UsageError(
                "The models have no output in common.",
                where=f"{name_of(one)}: {', '.join(expected[0])}; "
                f"{second}: {', '.join(challenger.outputs)}",
                fix="Outputs are matched by name: give both models the same output names, for "
                "example with output_names= of torch.onnx.export.",
            )
        tolerance.check(outputs)
        answers = [challenger.evaluate(batch) for batch in feeds]
        scores = subject.accuracies(data, feeds, expected, lengths)
        for number, answer in enumerate(answers):
            scores.add(number, answer)
        parity = collected.counted(compare_outputs(expected, answers, outputs, tolerance=tolerance))
        first = None
        if bisect:
            worst = _worst_batch(expected, answers, parity.worst.output, tolerance)
            first = first_difference(
                # As run above: converting a model to its inference form would hide a difference.
                subject.export(optimize=False).model if is_folder(one) else load_model(one),
                load_model(other),
                feeds[worst],
                tolerance,
                device=subject.device,
            )
    notes = (*unused, *scores.notes)
    return Comparison(parity, data is None, scores.found(), first, bisect, notes)
