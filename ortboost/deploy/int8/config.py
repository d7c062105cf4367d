"""The configuration of int8 quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, cast, get_args

from ortboost.core.arguments import Configuration
from ortboost.core.field_types import Range, check_kinds
from ortboost.deploy.targets import get_target

__all__ = ["CALIBRATIONS", "Int8Config"]

Calibration: TypeAlias = Literal["minmax", "percentile", "entropy"]
_Host: TypeAlias = Literal["Conv", "ConvTranspose", "Gemm", "LSTM", "MatMul"]
CALIBRATIONS: Final[tuple[Calibration, ...]] = get_args(Calibration)
"""Methods to find the range of an activation."""

_HOSTS: Final[tuple[_Host, ...]] = get_args(_Host)


@dataclass(frozen=True)
class Int8Config(Configuration):
    """How a model is quantized.

    Args:
        calibration: ``minmax``: the full observed range; ``percentile``: without outliers;
            ``entropy``: the range that preserves the distribution best (minimum
            Kullback-Leibler divergence).
        percentile: Share of the absolute values that ``percentile`` keeps, in percent.
        samples: Number of calibration samples, evenly distributed over the data; more change the
            ranges little.
        symmetric: Activations as int8 with zero point 0, as TensorRT requires; else uint8 with a
            zero point, which is faster on x86 processors.
        per_channel: One scale for each output channel of a weight.
        outputs: Also quantize the results and the operators that join them (Add, pooling), which
            ONNX Runtime needs to run a convolution in int8. TensorRT fuses from the inputs alone.
        residual: Quantize the shortcut of a residual Add, so that TensorRT fuses the Add into the
            convolution.
        quantize_bias: Biases as int32 pairs, which ONNX Runtime's kernels need and TensorRT
            rejects.
        recurrent: LSTM as DynamicQuantizeLSTM, an operator of ONNX Runtime for the CPU.
        reduce_range: Weights of 7 bits, -64 to 64. With more, two products of unsigned by signed
            bytes may not fit into the 16 bits that x86 processors without VNNI sum them in, and the
            results differ there; see :mod:`ortboost.deploy.int8.saturation`.
        ops: Operators to quantize.
        skip: Name patterns of nodes or of their weights to leave in FLOAT.

    Raises:
        ConfigError: A value is invalid.

    Example:
        >>> Int8Config.for_target("tensorrt", calibration="entropy").symmetric
        True
    """

    calibration: Calibration = "minmax"
    percentile: Annotated[float, Range(above=50, most=100)] = 99.99
    symmetric: bool = True
    per_channel: bool = True
    outputs: bool = False
    residual: bool = False
    quantize_bias: bool = False
    recurrent: bool = False
    reduce_range: bool = True
    ops: tuple[_Host, ...] = _HOSTS
    skip: tuple[str, ...] = ()
    samples: Annotated[int, Range(1)] = 512

    def __post_init__(self) -> None:
        check_kinds(self, "int8")

    @classmethod
    def for_target(
        cls,
        target: str,
        *,
        calibration: str = "minmax",
        percentile: float = 99.99,
        skip: tuple[str, ...] = (),
        full_range: bool = False,
        samples: int = 512,
    ) -> Int8Config:
        """The form that runs fastest on a target with equal results on all of its processors.

        ``full_range`` gives weights of 8 bits where they would have 7: for processors that are
        known to have VNNI, or are not x86. A GPU always gets 8.

        Raises:
            UsageError: Unknown target.
        """
        form: dict[str, Any] = dict(get_target(target).int8)
        if full_range:
            form["reduce_range"] = False
        return cls(cast("Calibration", calibration), percentile, skip=skip, samples=samples, **form)
