r"""The precision of operators: low precision (16 bits), float32, or free.

The classes follow PyTorch's automatic mixed precision ("Autocast Op Reference" of `torch.amp`: the
lists "ops that can autocast to float16", "ops that autocast to float32" and the rest), applied to
ONNX operators:

- ``low``: matrix products and convolutions. They take most of the time, and hardware has units for
  them, which accumulate in float32.
- ``fp32``: sums over many elements and the squares that they sum, normalizations, exponentials,
  logarithms, powers, functions with a pole (Reciprocal, Tan) and losses. They overflow or lose
  accuracy in 16 bits.
- ``free``: everything else, elementwise operators and data movement;
  :mod:`ortboost.transforms.precision.min_cut` chooses their precision.

There are two conservative deviations: batch normalization is entirely in float32 (PyTorch reads and
writes float16 and computes in float32), and so is GlobalAveragePool, a mean over many elements.

MindSpore's levels are such policies, too:

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import onnx_ir as ir

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError, require_known
from ortboost.core.field_types import check_kinds

__all__ = [
    "COMPUTE",
    "FP32_OPERATORS",
    "LEVELS",
    "LOSSES",
    "LOW_PRECISION_OPERATORS",
    "Choice",
    "PrecisionConfig",
    "classify",
    "precision_for_level",
]

Choice: TypeAlias = Literal["low", "fp32", "free"]

COMPUTE: Final[Mapping[str, ir.DataType | None]] = {
    "fp32": None,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}
"""Name of a precision to its element type."""

_PRODUCTS = (
    *("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "FusedConv", "FusedGemm"),
    *("FusedMatMul", "Gemm", "MatMul", "MultiHeadAttention"),
)
LOW_PRECISION_OPERATORS: Final[Mapping[str, str]] = dict.fromkeys(_PRODUCTS, "sums of products")
"""Operators that compute in low precision, with the reason."""

_KEPT_NORMS = ("BatchNormalization", "LayerNormalization")
LOSSES: Final = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")

_REDUCTIONS = (
    *("CumProd", "CumSum", "DFT", "Det", "GlobalAveragePool", "GlobalLpPool", "LpPool"),
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd"),
    *("ReduceSum", "ReduceSumSquare", "STFT"),
)
_NORMS = (
    *("BatchNormalization", "GroupNorm", "GroupNormalization", "InstanceNormalization", "LRN"),
    *("LayerNormalization", "LpNormalization", "MeanVarianceNormalization", "RMSNormalization"),
    *("SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
)
_RANGE = (
    *("Acos", "Acosh", "Asin", "Atanh", "Cosh", "Exp", "Log", "Pow", "Reciprocal", "Sinh"),
    *("Softplus", "Sqrt", "Tan"),
)
_RECURRENT = ("GRU", "LSTM", "RNN")
_GRIDS = ("AffineGrid", "GridSample", "NonMaxSuppression", "Range", "RoiAlign")
_QUANTIZERS = ("DequantizeLinear", "QuantizeLinear")
FP32_OPERATORS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_REDUCTIONS, "a sum over many elements"),
    **dict.fromkeys(_NORMS, "a normalization"),
    **dict.fromkeys(("LogSoftmax", "Softmax", "Hardmax"), "exponentials and their sum"),
    **dict.fromkeys(_RANGE, "a wide range of values"),
    **dict.fromkeys(LOSSES, "a loss"),
    **dict.fromkeys(_RECURRENT, "it sums over the sequence"),
    **dict.fromkeys(_GRIDS, "coordinates need full precision"),
    **dict.fromkeys(_QUANTIZERS, "quantization scales"),
}
"""Operators that stay in float32, with the reason."""

_STAY = (*_GRIDS, *_QUANTIZERS)

LEVELS: Final = ("O0", "O1", "O2", "O3", "auto")
"""MindSpore's levels of mixed precision."""


@dataclass(frozen=True)
class PrecisionConfig(Configuration):
    """The numeric format of the network; parameters and their updates stay in float32.

    Args:
        compute: ``fp32``, ``fp16`` or ``bf16``.
        policy: ``autocast`` decides by operator, see the module docstring; ``all`` computes
            everything except losses and (with ``keep_batchnorm``) normalizations in low precision,
            as MindSpore's levels O2 and O3 do.
        keep_batchnorm: With the policy ``all``, leave batch and layer normalization in float32.
        keep_fp32: Patterns of nodes that stay in float32 whatever the policy: shell-style patterns,
            or regular expressions prefixed with ``re:``, that match the name of a node, of one of
            its outputs or weights, or of an operator.
        force_low: Patterns of nodes that compute in low precision whatever the policy.
        emulate: Instead of using the 16-bit type, store low-precision tensors in float32 and round
            them: the same results on every device, including overflow and underflow.
        keep_io_types: Leave inputs and outputs of the model in float32.

    Raises:
        ConfigError: An unknown format or policy, or a setting that has no effect in fp32.

    Example:
        >>> PrecisionConfig("fp16", keep_fp32=("head.*",)).low
        FLOAT16
    """

    compute: Literal["fp32", "fp16", "bf16"] = "fp32"
    policy: Literal["autocast", "all"] = "autocast"
    keep_batchnorm: bool = True
    keep_fp32: tuple[str, ...] = ()
    force_low: tuple[str, ...] = ()
    emulate: bool = False
    keep_io_types: bool = True

    def __post_init__(self) -> None:
        check_kinds(self, "precision")
        given = {"keep-fp32": self.keep_fp32, "force-low": self.force_low, "emulate": self.emulate}
        unused = [f"--{option}" for option, value in given.items() if value]
        if self.compute == "fp32" and unused:
            raise ConfigError(
                f"{unused[0]} has no effect in fp32.",
                where="precision",
                fix="Choose --precision fp16 or bf16, or omit it.",
            )

    @property
    def low(self) -> ir.DataType | None:
        """Element type of the low-precision format; ``None`` for fp32."""
        return COMPUTE[self.compute]


def classify(
    op_type: str, policy: str = "autocast", keep_batchnorm: bool = True
) -> tuple[Choice, str]:
    """The class of an operator, and the reason; see :class:`PrecisionConfig` for the policies.

    Example:
        >>> classify("Softmax")
        ('fp32', 'exponentials and their sum')
    """
    if policy == "all":
        stays = op_type in LOSSES or op_type in _STAY or (op_type in _KEPT_NORMS and keep_batchnorm)
        return ("fp32", FP32_OPERATORS[op_type]) if stays else ("low", "the policy 'all'")
    if op_type in LOW_PRECISION_OPERATORS:
        return "low", LOW_PRECISION_OPERATORS[op_type]
    if op_type in FP32_OPERATORS:
        return "fp32", FP32_OPERATORS[op_type]
    return "free", "to minimize the number of casts"


def precision_for_level(
    level: str, keep_batchnorm_fp32: bool | None = None, compute: Literal["fp16", "bf16"] = "fp16"
) -> PrecisionConfig:
    """The policy of one of the :data:`LEVELS`, with this low-precision format.

    Raises:
        ConfigError: The level is unknown.

    Example:
        >>> precision_for_level("O2").policy
        'all'
    """
    require_known(level, LEVELS, f"Unknown mixed-precision level '{level}'.", "level", ConfigError)
    if level == "O0":
        return PrecisionConfig()
    if level in ("O1", "auto"):
        return PrecisionConfig(compute)
    keep = level == "O2" if keep_batchnorm_fp32 is None else keep_batchnorm_fp32
    return PrecisionConfig(compute, policy="all", keep_batchnorm=keep)
