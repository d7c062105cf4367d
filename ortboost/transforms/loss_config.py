"""Which loss a program is trained with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from ortboost.core.errors import ConfigError, nearest
from ortboost.core.field_types import check_kinds

__all__ = ["IGNORED", "LOSSES", "LossConfig"]

IGNORED: Final = -100
"""The label that does not count in PyTorch unless another is named; here with ``shift_labels``."""


LOSSES = ("softmax-cross-entropy", "mse", "bce-with-logits", "l1", "output")
"""Names of the losses."""


@dataclass(frozen=True)
class LossConfig:
    """Which loss, over which output, against labels of which form.

    Args:
        name: One of :data:`LOSSES`, or the path of an ONNX file with a loss of your own, see
            :mod:`ortboost.transforms.own_loss`.
        reduction: ``mean``, ``sum`` or ``none``; of a file: whether it answers a mean or a sum.
        sparse: For cross entropy: labels are class numbers (int64), not one row of
            probabilities a sample.
        output: Name of the model's output that the loss is taken of; may stay out if the model has
            one output.
        labels: Name of the new input.
        label_shape: Shape of the labels; follows from the output if not given.
        ignore_index: For sparse cross entropy: labels with this value do not count; :data:`IGNORED`
            with ``shift_labels`` if not given.
        class_axis: For cross entropy: axis of the output that counts the classes, -1 for the last;
            found if not given, see :mod:`ortboost.transforms.class_axis`.
        shift_labels: For sparse cross entropy: compare each position with the next label.
        broadcast: Labels may broadcast against the output, as in MindSpore; refused otherwise.
        weight: For ``bce-with-logits``: factor of each element, broadcast against the output.
        pos_weight: For ``bce-with-logits``: factor of the positive part, broadcast likewise.

    Raises:
        ConfigError: An unknown name or reduction, or a setting of another loss.

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
                fix=f"{nearest(self.name, LOSSES)}; or an .onnx file with a loss of your own",
            )
        if self.is_file and self.reduction == "none":
            raise ConfigError(
                "A loss from a file answers one number.",
                where=f"loss '{self.name}', reduction 'none'",
                fix="Say whether it is the 'mean' or the 'sum' over the samples.",
            )
        sparse = self.name == "softmax-cross-entropy" and self.sparse
        for key in ("ignore_index", "shift_labels"):
            value = getattr(self, key)
            if value is not None and value is not False and not sparse:  # 0 is a label
                raise ConfigError(
                    f"'{key}' means nothing to {self.name}"
                    f"{'' if self.name != 'softmax-cross-entropy' else ' with dense labels'}.",
                    where=f"loss, {key}",
                    fix="Leave it out; it is for softmax-cross-entropy with sparse labels.",
                )
        if self.class_axis is not None and self.name != "softmax-cross-entropy":
            raise ConfigError(
                f"'class_axis' means nothing to {self.name}.",
                where="loss, class_axis",
                fix="Leave it out; it is for softmax-cross-entropy.",
            )
        for key in ("weight", "pos_weight"):
            if getattr(self, key) is not None:
                self._check_factors(key)

    @property
    def is_file(self) -> bool:
        """Whether the loss is in a file of the user's."""
        return self.name.lower().endswith(".onnx")

    def _check_factors(self, key: str) -> None:
        """Factors are numbers, and there is one loss that reads them."""
        if self.name != "bce-with-logits":
            raise ConfigError(
                f"'{key}' means nothing to {self.name}.",
                where=f"loss, {key}",
                fix="Leave it out; it is for bce-with-logits.",
            )
        try:
            good = bool(np.isfinite(np.asarray(getattr(self, key), np.float32)).all())
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise ConfigError(
                f"'{key}' does not hold finite numbers.",
                where=f"loss, {key}",
                fix="Give one number, or numbers in a shape that fits the output.",
            )
