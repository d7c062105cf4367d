"""The configuration of the training loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError, nearest
from ortboost.core.field_types import Range, check_kinds

__all__ = ["IGNORED", "LOSSES", "LossConfig"]

IGNORED: Final = -100
"""PyTorch's default ``ignore_index``; used here with ``shift_labels``."""


LOSSES = ("softmax-cross-entropy", "mse", "bce-with-logits", "l1", "huber", "output")
"""Names of the losses."""

_OTHER_NAMES: Final[Mapping[str, str]] = {
    "softmax-cross-entropy": "ce nll cross-entropy categorical-crossentropy "
    "sparse-categorical-crossentropy negative-log-likelihood",
    "bce-with-logits": "bce binary-crossentropy binary-cross-entropy sigmoid-cross-entropy",
    "mse": "l2 mean-squared-error squared-error",
    "l1": "mae mean-absolute-error absolute-error",
    "huber": "smooth-l1 smoothl1",
}
"""What other libraries call a loss, in lower case and without "loss" at the end."""

_APPLIES_TO = {
    "ignore_index": ("softmax-cross-entropy with sparse labels",),
    "shift_labels": ("softmax-cross-entropy with sparse labels",),
    "class_axis": ("softmax-cross-entropy",),
    "from_logits": ("softmax-cross-entropy", "bce-with-logits"),
    "label_smoothing": ("softmax-cross-entropy",),
    "weight": ("softmax-cross-entropy", "bce-with-logits"),
    "pos_weight": ("bce-with-logits",),
    "delta": ("huber",),
}


@dataclass(frozen=True)
class LossConfig(Configuration):
    """The loss, the output that it is computed from, and the form of the labels.

    Args:
        name: One of :data:`LOSSES`, or the path of an ONNX file with a user-defined loss, see
            :mod:`ortboost.transforms.own_loss`.
        reduction: ``mean``, ``sum`` or ``none``; for a file: whether it returns a mean or a sum.
        sparse: For cross entropy: labels are class indices (int64), not rows of probabilities.
        output: Name of the model output that the loss is computed from; optional if the model has
            one output.
        labels: Name of the new input.
        label_shape: Shape of the labels; inferred from the output if not given.
        ignore_index: For sparse cross entropy: labels with this value are ignored; the default is
            :data:`IGNORED` with ``shift_labels``, otherwise none.
        class_axis: For cross entropy: the class axis of the output, -1 for the last; inferred if
            not given, see :mod:`ortboost.transforms.class_axis`.
        shift_labels: For sparse cross entropy: compare each position with the next label.
        from_logits: For cross entropy and ``bce-with-logits``: whether the output holds logits, or
            probabilities; the loss is then computed from the input of the final Softmax or Sigmoid.
            If not given, it holds probabilities if it comes from such an activation.
        label_smoothing: For cross entropy: the share of a label that is spread over all classes.
        broadcast: Whether labels may broadcast against the output, as in MindSpore.
        weight: For cross entropy: weight of each class; with sparse labels, a mean is divided by
            the sum of the weights of the labels. For ``bce-with-logits``: weight of each element,
            broadcast against the output.
        pos_weight: For ``bce-with-logits``: weight of the positive term, broadcast likewise.
        delta: For ``huber``: the error from which on the loss grows linearly; 1 if not given.

    Raises:
        ConfigError: An unknown name or reduction, or a setting that the loss does not have.

    Example:
        >>> LossConfig("bce-with-logits", reduction="sum").name
        'bce-with-logits'
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "class_weights": "Write weight=[1.0, 2.5], one number for each class.",
    }

    name: str = "softmax-cross-entropy"
    reduction: Literal["mean", "sum", "none"] = "mean"
    sparse: bool = True
    output: str | None = None
    labels: str = "labels"
    label_shape: tuple[Annotated[int, Range(1)] | str | None, ...] | None = None
    ignore_index: int | None = None
    class_axis: int | None = None
    shift_labels: bool = False
    from_logits: bool | None = None
    label_smoothing: Annotated[float, Range(0, below=1)] | None = None
    broadcast: bool = False
    weight: Any = field(default=None, compare=False)
    # `==` leaves both weights out: that of arrays has no single truth value.
    pos_weight: Any = field(default=None, compare=False)
    delta: Annotated[float, Range(above=0)] | None = None

    def __post_init__(self) -> None:
        check_kinds(self, "loss")
        if self.name not in LOSSES and not self.is_file:
            raise ConfigError(
                f"Unknown loss '{self.name}'.",
                where="loss",
                fix=f"{_suggestion(self.name)}; or an .onnx file with your own loss",
            )
        if self.is_file and self.reduction == "none":
            raise ConfigError(
                "A loss from a file returns a scalar.",
                where=f"loss '{self.name}', reduction 'none'",
                fix="Set it to 'mean' or 'sum', whichever the loss computes over the samples.",
            )
        if not self.labels:
            raise ConfigError(
                "The input for the labels has no name.",
                where="loss, labels",
                fix="Give it one, or omit it: 'labels'.",
            )
        this = self.name
        if this == "softmax-cross-entropy":
            this += " with sparse labels" if self.sparse else " with dense labels"
        for key, losses in _APPLIES_TO.items():
            value = getattr(self, key)
            # Not `if not value`: 0 is a label and an axis.
            if value is None or (value is False and key == "shift_labels"):
                continue
            if not this.startswith(losses):
                shown = "--class-weights" if key == "weight" else f"'{key}'"
                raise ConfigError(
                    f"{shown} has no effect for {this}.",
                    where=f"loss, {key}",
                    fix=f"Omit it; it applies to {' and '.join(losses)}.",
                )
            if not _is_finite(value):
                raise ConfigError(
                    f"'{key}' does not hold finite numbers.",
                    where=f"loss, {key}",
                    fix="Give a number, or an array that broadcasts to the output.",
                )
        if self.class_weights and min(self.class_weights) <= 0:
            raise ConfigError(
                f"A class has the weight {min(self.class_weights):g}.",
                where="--class-weights",
                fix="Give a positive number for each class; labels of a class to leave out can be "
                "ignored (--ignore-index).",
            )

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """The weights of the classes of a cross entropy, in the order of the classes.

        Raises:
            ConfigError: They are not a list of numbers.
        """
        if self.name != "softmax-cross-entropy" or self.weight is None:
            return None
        weights = np.asarray(self.weight, np.float64)
        if weights.ndim != 1 or not weights.size:
            raise ConfigError(
                f"Class weights have the shape {list(weights.shape)}, not [classes].",
                where="--class-weights",
                fix="Give a list with one number for each class.",
            )
        return tuple(weights.tolist())

    @property
    def has_classes(self) -> bool:
        """Whether predictions and labels are classes, so that there is an accuracy."""
        return self.name in ("softmax-cross-entropy", "bce-with-logits")

    @property
    def wants_probabilities(self) -> bool:
        """Whether labels are probabilities, not classes or numbers."""
        return self.has_classes and (self.name == "bce-with-logits" or not self.sparse)

    @property
    def is_file(self) -> bool:
        """Whether the loss is a user-defined one in a file."""
        return self.name.lower().endswith(".onnx")


def _suggestion(name: str) -> str:
    """The losses to choose from, and the one that other libraries know by this name."""
    plain = name.lower().replace("_", "").replace("-", "").removesuffix("loss")
    for loss in LOSSES:
        if plain in f"{loss} {_OTHER_NAMES.get(loss, '')}".replace("-", "").split():
            return nearest(loss, LOSSES)
    return nearest(name, LOSSES)


def _is_finite(value: object) -> bool:
    try:
        # A number beyond float32 becomes inf, and is refused as such.
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(value, np.float32)).all())
    except (TypeError, ValueError, OverflowError):
        return False
