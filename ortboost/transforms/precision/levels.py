"""MindSpore's levels of mixed precision as policies.

- ``O0``: float32.
- ``O1``: the operators of a list in float16, the rest in float32: the policy ``autocast``.
- ``O2``: the network in float16 but for batch normalization and the loss; dynamic loss scale.
- ``O3``: batch normalization in float16 too; no loss scale of its own.
- ``auto``: what is recommended for the device, ``O2`` on a GPU; the same on a CPU here, where MindSpore has no
  recommendation.

``keep_batchnorm_fp32`` overrules the level. Source: the documentation of `mindspore.train.Model` and
`mindspore.amp.build_train_network`.
"""

from __future__ import annotations

from typing import Final

from ortboost.errors import ConfigError, nearest
from ortboost.transforms.precision.policy import PrecisionConfig

__all__ = ["LEVELS", "precision_for_level"]

LEVELS: Final = ("O0", "O1", "O2", "O3", "auto")


def precision_for_level(level: str, keep_batchnorm_fp32: bool | None = None) -> PrecisionConfig:
    """The policy of a level.

    Args:
        level: One of :data:`LEVELS`.
        keep_batchnorm_fp32: Overrules what the level says of batch normalization.

    Raises:
        ConfigError: There is no such level.

    Example:
        >>> precision_for_level("O2").policy
        'all'
    """
    if level not in LEVELS:
        raise ConfigError(
            f"There is no mixed-precision level '{level}'.",
            where="level",
            fix=nearest(str(level), LEVELS),
        )
    if level == "O0":
        return PrecisionConfig()
    keep = level != "O3" if keep_batchnorm_fp32 is None else keep_batchnorm_fp32
    if level == "O1":
        return PrecisionConfig("fp16", keep_batchnorm=keep)
    return PrecisionConfig("fp16", policy="all", keep_batchnorm=keep)
