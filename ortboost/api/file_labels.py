"""The scores of a plain model, and the labels that they are compared with."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import UsageError, require_known
from ortboost.graph.io import is_map
from ortboost.graph.query import FLOAT_TYPES, known_shape
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.source import source_name
from ortboost.program.catalogue import TensorSpec
from ortboost.transforms.attach_loss import IGNORED
from ortboost.transforms.class_axis import find_class_axis
from ortboost.transforms.final_activation import decision_threshold

__all__ = ["LABELS", "file_labels", "score_output"]

LABELS = "labels"
"""Key of the labels in the data of a plain model."""


def score_output(model: ir.Model, output: str | None = None) -> str:
    """Find the output of a plain model with the scores.

    If none is named, it is the first float output: the first output of scikit-learn's classifiers
    has the class labels.

    Raises:
        UsageError: The output is unknown, or not float.
    """
    outputs = {value.name or "": value for value in model.graph.outputs}
    scores = [name for name, v in outputs.items() if v.dtype in FLOAT_TYPES]
    # If there is no float output, one of unknown type.
    scores = scores or [name for name, v in outputs.items() if v.dtype is None and not is_map(v)]
    if output is None and scores:
        return scores[0]
    name = output or next(iter(outputs), "")
    require_known(name, outputs, f"The model has no output '{name}'.", source_name(model))
    if name not in scores:
        raise UsageError(
            f"The output '{name}' is {outputs[name].dtype}: class indices, not scores.",
            where=source_name(model),
            fix=f"Measure on {' or '.join(scores)} (--output)."
            if scores
            else "Export the model with an output of scores.",
        )
    return name


def file_labels(
    model: ir.Model,
    output: str | None = None,
    *,
    class_axis: int | None = None,
    ignored: int | None = None,
    shifted: bool = False,
    elementwise: bool = False,
) -> TensorSpec:
    """Specify the labels that the scores of a plain model are compared with.

    The arguments are those of :func:`ortboost.evaluate`; ``elementwise`` means that each score
    has a label, instead of each sample a class.

    Raises:
        UsageError: The output or axis does not exist.
        ModelError: The class axis is ambiguous.
    """
    name = score_output(model, output)
    outputs = {value.name or "": value for value in model.graph.outputs}
    infer_shapes(model)
    shape = known_shape(outputs[name]) or ()
    axis, rest = 1, shape if elementwise else shape[:1]
    if len(shape) > 1 and not elementwise:
        given = -1 if shifted and class_axis is None else class_axis
        axis = find_class_axis(model, outputs[name], given)
        rest = tuple(dim for i, dim in enumerate(shape) if i != axis)
    wanted = tuple(dim if isinstance(dim, int) else None for dim in rest) or (None,)
    if shifted and ignored is None:
        ignored = IGNORED
    return TensorSpec(
        LABELS,
        np.dtype(np.float32 if elementwise else np.int64),
        wanted,
        ignored=ignored,
        class_axis=axis,
        shifted=shifted,
        threshold=decision_threshold(outputs[name]),
    )
