r"""Which operators compute in a shorter number format, which stay in float32, and which follow their inputs.

The classes are those of automatic mixed precision as PyTorch documents them ("Autocast Op Reference" of
`torch.amp`: the lists "ops that can autocast to float16", "ops that autocast to float32" and the rest),
carried over to ONNX operators:

- ``low``: matrix products and convolutions. They take the time, hardware has units for them, and their sums
  are kept in float32 inside.
- ``wide``: sums over many elements, normalizations, exponentials, logarithms, powers and what has a pole
  (Reciprocal, Tan), losses. They overflow or lose digits in 16 bits.
- ``follow``: everything else, elementwise operators and data movement; see
  :mod:`ortboost.transforms.precision.cut` for how they are decided.

Two deviations, on the safe side: batch normalization is in float32 as a whole (PyTorch reads and writes float16
there and computes in float32), and so is GlobalAveragePool, a mean over many elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import onnx_ir as ir

from ortboost.core.errors import ConfigError
from ortboost.core.field_types import check_kinds

__all__ = [
    "BATCH_NORMS",
    "COMPUTE",
    "LOSSES",
    "LOW",
    "POLICIES",
    "WIDE",
    "Choice",
    "PrecisionConfig",
    "classify",
    "low_type",
]

Choice: TypeAlias = Literal["low", "wide", "follow"]

COMPUTE: Final[Mapping[str, ir.DataType | None]] = {
    "fp32": None,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}
"""Name of a precision to its element type."""

POLICIES: Final = ("autocast", "all")

_PRODUCTS = (
    "Attention",
    "Conv",
    "ConvTranspose",
    "DeformConv",
    "Einsum",
    "FusedConv",
    "FusedGemm",
    "FusedMatMul",
    "Gemm",
    "MatMul",
    "MultiHeadAttention",
)
LOW: Final[Mapping[str, str]] = dict.fromkeys(_PRODUCTS, "sums of products")
"""Operators that compute in the shorter format, with the reason."""

BATCH_NORMS: Final = ("BatchNormalization",)
_KEPT_NORMS = (*BATCH_NORMS, "LayerNormalization")
LOSSES: Final = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")

_REDUCTIONS = (
    "CumProd",
    "CumSum",
    "DFT",
    "Det",
    "GlobalAveragePool",
    "GlobalLpPool",
    "LpPool",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMean",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "STFT",
)
_NORMS = (
    *BATCH_NORMS,
    "GroupNorm",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LayerNormalization",
    "LpNormalization",
    "MeanVarianceNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
_RANGE = (
    "Acos",
    "Acosh",
    "Asin",
    "Atanh",
    "Cosh",
    "Exp",
    "Log",
    "Pow",
    "Reciprocal",
    "Sinh",
    "Softplus",
    "Sqrt",
    "Tan",
)
_RECURRENT = ("GRU", "LSTM", "RNN")
_GRIDS = ("AffineGrid", "GridSample", "NonMaxSuppression", "Range", "RoiAlign")
_QUANTIZERS = ("DequantizeLinear", "QuantizeLinear")
WIDE: Final[Mapping[str, str]] = {
    **dict.fromkeys(_REDUCTIONS, "a sum over many elements"),
    **dict.fromkeys(_NORMS, "a normalization"),
    **dict.fromkeys(("LogSoftmax", "Softmax", "Hardmax"), "exponentials and their sum"),
    **dict.fromkeys(_RANGE, "a wide range of values"),
    **dict.fromkeys(LOSSES, "a loss"),
    **dict.fromkeys(_RECURRENT, "it sums over the sequence"),
    **dict.fromkeys(_GRIDS, "coordinates need their digits"),
    **dict.fromkeys(_QUANTIZERS, "quantization scales"),
}
"""Operators that stay in float32, with the reason."""

_STAY = (*_GRIDS, *_QUANTIZERS)


@dataclass(frozen=True)
class PrecisionConfig:
    """In which number format the network computes; parameters and their updates stay in float32.

    Args:
        compute: ``fp32``, ``fp16`` or ``bf16``.
        policy: ``autocast`` by operator, see above; ``all`` puts everything but losses and (with
            ``keep_batchnorm``) normalizations in the shorter format, as MindSpore's levels O2 and O3 do.
        keep_batchnorm: With the policy ``all``, leave batch and layer normalization in float32.
        keep_fp32: What stays in float32 whatever the policy says: shell-style patterns, or regular
            expressions behind ``re:``, of the name of a node, of one of its outputs or weights, or of an operator.
        force_low: What computes in the shorter format whatever the policy says.
        emulate: Instead of using the shorter type, round every tensor that would have it, in float32: the
            numbers of the shorter format on every device, overflow and underflow included.
        keep_io_types: Leave inputs and outputs of the model in float32.

    Raises:
        ConfigError: A value that there is not.

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
        idle = [k for k in ("keep_fp32", "force_low", "emulate") if getattr(self, k)]
        if self.compute == "fp32" and idle:
            raise ConfigError(
                f"'{idle[0]}' is for a shorter precision, and this is fp32.",
                where=f"precision, {idle[0]}",
                fix="Choose fp16 or bf16, or leave it out.",
            )

    @property
    def low(self) -> ir.DataType | None:
        """Element type of the shorter format; ``None`` for fp32."""
        return COMPUTE[self.compute]


def low_type(config: PrecisionConfig) -> ir.DataType:
    """Element type of the shorter format.

    Raises:
        ConfigError: The configuration is fp32.
    """
    if config.low is None:
        raise ConfigError(
            "There is no shorter format in fp32.", where="precision", fix="Choose fp16 or bf16."
        )
    return config.low


def classify(
    op_type: str, policy: str = "autocast", keep_batchnorm: bool = True
) -> tuple[Choice, str]:
    """The class of an operator, and why.

    Example:
        >>> classify("Softmax")
        ('wide', 'exponentials and their sum')
    """
    if policy == "all":
        stays = op_type in LOSSES or op_type in _STAY or (op_type in _KEPT_NORMS and keep_batchnorm)
        return ("wide", WIDE[op_type]) if stays else ("low", "everything is")
    if op_type in LOW:
        return "low", LOW[op_type]
    if op_type in WIDE:
        return "wide", WIDE[op_type]
    return "follow", "it follows its neighbours"
