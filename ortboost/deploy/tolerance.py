"""The allowed difference of the outputs of an exported file, by precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx_ir as ir

from ortboost.core.errors import require_known
from ortboost.runtime.peepholes import short_types

__all__ = ["AGREEMENT", "ROUNDING", "SQNR", "Tolerance", "precision_of", "tolerance_for"]

SQNR: Final = 15.0
"""Minimum signal-to-quantization-noise ratio of an int8 output in dB: 18 % noise (rms)."""

ROUNDING: Final = 1e-5
"""Allowed difference in float32 as a share of the largest value of an output: sums of large terms
that nearly cancel are rounded like the terms."""

AGREEMENT: Final = 0.95
"""Minimum share of equal elements of an output that is not float (class numbers) below 32 bits."""


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference of an output: ``|actual - expected| <= atol + rtol |expected|``.

    Args:
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        scaled: Multiply ``atol`` by the largest expected value of the output in the batch: the
            error of rounding in every operator is proportional to that, not to each element.
        rounding: At least this times the largest expected value is allowed, unless ``scaled``.
        rtols: Output name to its own relative tolerance.
        atols: Output name to its own absolute tolerance, which is never scaled.
        sqnr: Replaces both: the minimum signal-to-noise ratio of a float output over all batches,
            in dB. Outputs with their own tolerance are exempt.
        agreement: Replaces them for integers, booleans and strings, which are class numbers and
            indices: the share of elements that must be equal. ``None``: ``rtol`` and ``atol``.

    Example:
        >>> Tolerance(1e-3, 1e-4, atols={"boxes": 0.5}).of("boxes", 100.0)
        (0.001, 0.5)
    """

    rtol: float = 1e-3
    atol: float = 1e-4
    scaled: bool = False
    rtols: Mapping[str, float] = field(default_factory=dict)
    atols: Mapping[str, float] = field(default_factory=dict)
    sqnr: float | None = None
    agreement: float | None = 1.0
    rounding: float = 0.0

    def by_noise(self, output: str) -> bool:
        """Whether a float output is judged by its noise, not by its largest difference."""
        return self.sqnr is not None and output not in self.rtols and output not in self.atols

    def share(self, output: str) -> float | None:
        """The share of equal elements that an output needs if it is not float."""
        return None if output in self.rtols or output in self.atols else self.agreement

    def of(self, output: str, scale: float) -> tuple[float, float]:
        """``(rtol, atol)`` of an output with the largest expected value ``scale``."""
        if self.scaled:
            general = self.atol * max(scale, 1e-30)  # above 0 for zeros
        else:
            general = max(self.atol, 0.0 if output in self.rtols else self.rounding * scale)
        return self.rtols.get(output, self.rtol), self.atols.get(output, general)

    def check(self, outputs: Sequence[str]) -> None:
        """Refuse tolerances for unknown outputs.

        Raises:
            UsageError: An output is unknown; the message suggests the nearest.
        """
        for name in (*self.rtols, *self.atols):
            what = f"A tolerance is given for '{name}', but the model has no such output."
            require_known(name, outputs, what, "--rtol, --atol")

    def __str__(self) -> str:
        if self.sqnr is not None:
            return f"SQNR {self.sqnr:g} dB"
        text = f"rtol {self.rtol:g}, atol {self.atol:g}"
        if self.rounding:
            text = f"{text} or {self.rounding:g}"
        return f"{text} of the largest value" if self.scaled or self.rounding else text


_BY_PRECISION = {
    "fp32": Tolerance(rounding=ROUNDING),
    "fp16": Tolerance(1e-2, 1e-2, scaled=True, agreement=AGREEMENT),
    "bf16": Tolerance(4e-2, 4e-2, scaled=True, agreement=AGREEMENT),
    "int8": Tolerance(1e-1, 1.5e-1, scaled=True, sqnr=SQNR, agreement=AGREEMENT),
}


def precision_of(model: ir.Model) -> str:
    """``fp32``, or the precision of the 16-bit nodes that the model itself has.

    Runtimes round such nodes in different places, so their outputs differ as those of an export in
    16 bits do.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float16[N,2] x) => (float16[N,2] y) { y = Relu(x) }''')
        >>> precision_of(model)
        'fp16'
    """
    short = short_types(model)
    if not short:
        return "fp32"
    return "bf16" if ir.DataType.BFLOAT16 in short else "fp16"


def tolerance_for(
    precision: str = "fp32",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    rtols: Mapping[str, float] | None = None,
    atols: Mapping[str, float] | None = None,
    sqnr: float | None = None,
) -> Tolerance:
    """The default tolerance of a precision, overridden by the arguments that are given.

    Args:
        precision: ``fp32``, ``fp16``, ``bf16`` or ``int8``. In 16 bits the absolute tolerance is
            relative to the largest expected value of an output: 1 % for fp16, 4 % for bf16; in
            float32 :data:`ROUNDING` of it is allowed, unless a tolerance is given. In int8
            the signal-to-noise ratio decides (:data:`SQNR`), unless ``rtol`` or ``atol`` are given.
        rtol: Relative tolerance, for integers too.
        atol: Absolute tolerance, not scaled, for integers too.
        rtols: Relative tolerances by output.
        atols: Absolute tolerances by output.
        sqnr: Minimum signal-to-noise ratio, in dB.
    """
    base = _BY_PRECISION[precision]
    least = base.sqnr if sqnr is None and rtol is None and atol is None else sqnr
    return Tolerance(
        base.rtol if rtol is None else rtol,
        base.atol if atol is None else atol,
        base.scaled and atol is None,
        dict(rtols or {}),
        dict(atols or {}),
        least,
        base.agreement if least is not None or rtol is atol is None else None,
        base.rounding if rtol is atol is None else 0.0,
    )
