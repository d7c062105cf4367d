"""MindSpore's levels of mixed precision as policies.

- ``O0``: float32.
- ``O1``: a list of operators in float16, the rest in float32: the policy ``autocast``.
- ``O2``: everything in float16 except batch and layer normalization and the loss; dynamic loss
  scale.
- ``O3``: normalizations in float16 too; no default loss scale.
- ``auto``: lists of operators for float16 and float32, the others follow their inputs: the policy
  ``autocast``.

``keep_batchnorm_fp32`` overrides how O2 and O3 treat normalizations. Source: the documentation
of `mindspore.amp.auto_mixed_precision` and `mindspore.amp.build_train_network`, 2.10.
"""

from __future__ import annotations

from typing import Final, Literal

from ortboost.core.errors import ConfigError, nearest
from ortboost.transforms.precision.policy import PrecisionConfig

__all__ = ["LEVELS", "precision_for_level"]

LEVELS: Final = ("O0", "O1", "O2", "O3", "auto")


def precision_for_level(
    level: str, keep_batchnorm_fp32: bool | None = None, compute: Literal["fp16", "bf16"] = "fp16"
) -> PrecisionConfig:
    """The policy of a level.

    Args:
        level: One of :data:`LEVELS`.
        keep_batchnorm_fp32: Overrides how the level treats normalizations.
        compute: The low-precision format.

    Raises:
        ConfigError: The level is unknown.

    Example:
        >>> precision_for_level("O2").policy
        'all'
    """
    if level not in LEVELS:
        raise ConfigError(
            f"Unknown mixed-precision level '{level}'.",
            where="level",
            fix=nearest(str(level), LEVELS),
        )
    if level == "O0":
        return PrecisionConfig()
    if level in ("O1", "auto"):
        return PrecisionConfig(compute)
    keep = level == "O2" if keep_batchnorm_fp32 is None else keep_batchnorm_fp32
    return PrecisionConfig(compute, policy="all", keep_batchnorm=keep)
