"""How far the outputs of an exported file may be off, by its number format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ortboost.core.errors import UsageError, nearest

__all__ = ["AGREEMENT", "SQNR", "Tolerance", "tolerance_for"]

SQNR: Final = 15.0
"""Least ratio of signal to quantization noise of an output in int8, in dB: noise of 18 % (rms)."""

AGREEMENT: Final = 0.95
"""Least share of elements of a whole-number or text output, as a class number, that int8 must keep."""


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be off: ``|actual - expected| <= atol + rtol |expected|``, everywhere.

    Args:
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        scaled: Take ``atol`` times the largest expected value of the output in the batch: what rounding
            every operator to a short format does is in proportion to that, not to each element.
        rtols: Output name to a relative tolerance of its own.
        atols: Output name to an absolute tolerance of its own; never scaled.
        sqnr: Instead of both, the least ratio of signal to noise of a float output, over all batches, in dB;
            of other outputs a share of :data:`AGREEMENT` has to be the same. Does not hold for outputs that
            have a tolerance of their own.

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

    def by_noise(self, output: str) -> bool:
        """Whether the noise in an output is what counts, not its largest difference."""
        return self.sqnr is not None and output not in self.rtols and output not in self.atols

    def of(self, output: str, scale: float) -> tuple[float, float]:
        """Both tolerances of an output whose largest expected value is ``scale``."""
        general = self.atol * max(scale, 1e-30) if self.scaled else self.atol
        return self.rtols.get(output, self.rtol), self.atols.get(output, general)

    def check(self, outputs: Sequence[str]) -> None:
        """Refuse a tolerance for an output that does not exist.

        Raises:
            UsageError: It names the nearest output.
        """
        for name in (*self.rtols, *self.atols):
            if name not in outputs:
                raise UsageError(
                    f"A tolerance is given for '{name}', and the model has no such output.",
                    where="--rtol, --atol",
                    fix=nearest(name, outputs),
                )

    def __str__(self) -> str:
        if self.sqnr is not None:
            return f"SQNR {self.sqnr:g} dB"
        text = f"rtol {self.rtol:g}, atol {self.atol:g}"
        return f"{text} of the largest value" if self.scaled else text


_BY_PRECISION = {
    "fp32": Tolerance(),
    "fp16": Tolerance(1e-2, 1e-2, scaled=True),
    "bf16": Tolerance(4e-2, 4e-2, scaled=True),
    "int8": Tolerance(1e-1, 1.5e-1, scaled=True, sqnr=SQNR),
}


def tolerance_for(
    precision: str = "fp32",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    rtols: Mapping[str, float] | None = None,
    atols: Mapping[str, float] | None = None,
    sqnr: float | None = None,
) -> Tolerance:
    """The tolerance of a precision, overruled by what is given.

    Args:
        precision: ``fp32``, ``fp16``, ``bf16`` or ``int8``. In 16 bits the absolute part is compared
            with the largest expected value of an output: 1 % and 4 %. In int8 a ratio of signal to noise
            decides, :data:`SQNR`, unless ``rtol`` or ``atol`` are given.
        rtol: Relative tolerance.
        atol: Absolute tolerance, as it is.
        rtols: By output.
        atols: By output.
        sqnr: The ratio of signal to noise, in dB.
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
    )
