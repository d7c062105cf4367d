"""The configuration of the training loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from ortboost.core.errors import ConfigError, nearest
from ortboost.core.field_types import check_kinds

__all__ = ["IGNORED", "LOSSES", "LossConfig"]

IGNORED: Final = -100
"""PyTorch's default ``ignore_index``; used here with ``shift_labels``."""


LOSSES = ("softmax-cross-entropy", "mse", "bce-with-logits", "l1", "output")
"""Names of the losses."""


@dataclass(frozen=True)
class LossConfig:
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
        broadcast: Whether labels may broadcast against the output, as in MindSpore.
        weight: For ``bce-with-logits``: weight of each element, broadcast against the output.
        pos_weight: For ``bce-with-logits``: weight of the positive term, broadcast likewise.

    Raises:
        ConfigError: An unknown name or reduction, or a setting that the loss does not have.

    Example:
        >>> LossConfig("bce-with-logits", reduction="sum").name
        'bce-with-logits'
    """

    name: str = "softmax-cross-entropy"
    reduction: Literal["mean", "sum", "none"] = "mean"
    sparse: bool = True
    output: str | None = None
    labels: str = "labels"
    label_shape: tuple[int | str | None, ...] | None = None
    ignore_index: int | None = None
    class_axis: int | None = None
    shift_labels: bool = False
    broadcast: bool = False
    weight: Any = field(default=None, compare=False)
    pos_weight: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_kinds(self, "loss")
        if self.name not in LOSSES and not self.is_file:
            raise ConfigError(
                f"Unknown loss '{self.name}'.",
                where="loss",
                fix=f"{nearest(self.name, LOSSES)}; or an .onnx file with your own loss",
            )
        if self.is_file and self.reduction == "none":
            raise ConfigError(
                "A loss from a file returns a scalar.",
                where=f"loss '{self.name}', reduction 'none'",
                fix="Set it to 'mean' or 'sum', whichever the loss computes over the samples.",
            )
        sparse = self.name == "softmax-cross-entropy" and self.sparse
        for key in ("ignore_index", "shift_labels"):
            value = getattr(self, key)
            if value is not None and value is not False and not sparse:  # 0 is a label
                raise ConfigError(
                    f"'{key}' has no effect for {self.name}"
                    f"{'' if self.name != 'softmax-cross-entropy' else ' with dense labels'}.",
                    where=f"loss, {key}",
                    fix="Omit it; it applies to softmax-cross-entropy with sparse labels.",
                )
        if self.class_axis is not None and self.name != "softmax-cross-entropy":
            raise ConfigError(
                f"'class_axis' has no effect for {self.name}.",
                where="loss, class_axis",
                fix="Omit it; it applies to softmax-cross-entropy.",
            )
        for key in ("weight", "pos_weight"):
            if getattr(self, key) is not None:
                self._check_factors(key)

    @property
    def is_file(self) -> bool:
        """Whether the loss is a user-defined one in a file."""
        return self.name.lower().endswith(".onnx")

    def _check_factors(self, key: str) -> None:
        """Check that a weight is finite and that the loss uses it."""
        if self.name != "bce-with-logits":
            raise ConfigError(
                f"'{key}' has no effect for {self.name}.",
                where=f"loss, {key}",
                fix="Omit it; it applies to bce-with-logits.",
            )
        try:
            good = bool(np.isfinite(np.asarray(getattr(self, key), np.float32)).all())
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise ConfigError(
                f"'{key}' does not hold finite numbers.",
                where=f"loss, {key}",
                fix="Give a number, or an array that broadcasts to the output.",
            )
