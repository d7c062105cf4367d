"""Compare an exported file with the trained program, output by output, on data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ParityError, UsageError, nearest
from ortboost.program.catalogue import TensorSpec

__all__ = [
    "AGREEMENT",
    "SQNR",
    "Difference",
    "Parity",
    "Tolerance",
    "compare",
    "seeded_batch",
    "tolerance_for",
]

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


@dataclass(frozen=True)
class Difference:
    """How far one output is off.

    Args:
        output: Its name.
        max_abs: Largest absolute difference.
        max_rel: Largest absolute difference over the largest absolute value expected.
        within: Whether every element is within the tolerance.
        sample: Number of the sample with the largest difference, counted over all batches.
        sqnr: Ratio of signal to noise over all batches in dB, ``10 log10(sum e^2 / sum (a - e)^2)``; infinite
            if there is no noise, ``None`` for what is no float.
    """

    output: str
    max_abs: float
    max_rel: float
    within: bool
    sample: int = 0
    sqnr: float | None = None


@dataclass(frozen=True)
class Parity:
    """The outcome of a comparison.

    Args:
        differences: One entry an output.
        samples: Number of samples compared.
        tolerance: What was allowed.
    """

    differences: tuple[Difference, ...]
    samples: int
    tolerance: Tolerance = field(default_factory=Tolerance)

    @property
    def ok(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return all(difference.within for difference in self.differences)

    @property
    def worst(self) -> Difference:
        """The output that is off the most: those beyond the tolerance first."""
        return max(self.differences, key=lambda d: (not d.within, d.max_rel))

    def without(self, outputs: Collection[str]) -> Parity:
        """The same, with these outputs taken as right: something else has judged them."""
        judged = (
            dataclasses.replace(d, within=True) if d.output in outputs else d
            for d in self.differences
        )
        return dataclasses.replace(self, differences=tuple(judged))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "ok": self.ok,
            "samples": self.samples,
            "rtol": self.tolerance.rtol,
            "atol": self.tolerance.atol,
            "scaled": self.tolerance.scaled,
            "sqnr": self.tolerance.sqnr,
            "outputs": {
                d.output: {
                    "max_abs": d.max_abs,
                    "max_rel": d.max_rel,
                    "within": d.within,
                    "sample": d.sample,
                    "sqnr": d.sqnr if d.sqnr is not None and math.isfinite(d.sqnr) else None,
                }
                for d in self.differences
            },
        }

    def require(self, where: str, guilty: str | None = None) -> None:
        """Raise if an output is beyond the tolerance.

        Args:
            where: The file.
            guilty: What makes the difference, if that was found out.

        Raises:
            ParityError: It names the worst output.
        """
        if self.ok:
            return
        bad = self.worst
        if self.tolerance.by_noise(bad.output):
            raise ParityError(
                f"The exported graph answers differently: {self._noise(bad)}."
                + (f" It is {guilty} that does it." if guilty else ""),
                where=f"{where}: output '{bad.output}', {self.samples} samples",
                fix="Nothing was written. Try another --calibration, more data in --calib, --skip for the "
                "layers that suffer, --verify data with labels, or allow more with --min-sqnr.",
            )
        raise ParityError(
            f"The exported graph answers differently: off by {bad.max_abs:.3g} "
            f"(relative {bad.max_rel:.3g}), beyond {self.tolerance}."
            + (f" It is {guilty} that does it." if guilty else ""),
            where=f"{where}: output '{bad.output}', sample {bad.sample} of {self.samples}",
            fix="Nothing was written. "
            + (
                "Widen --rtol/--atol if this difference is acceptable"
                if guilty
                else "Export with --no-optimize to find out whether a rewrite is guilty, or widen "
                "--rtol/--atol if this difference is acceptable"
            )
            + "; 'ortboost compare --bisect' finds the first inner tensor that differs.",
        )

    def _noise(self, bad: Difference) -> str:
        if bad.sqnr is None:
            return f"fewer than {AGREEMENT:.0%} of its elements are the same"
        return f"its signal-to-quantization-noise ratio is {bad.sqnr:.1f} dB, below {self.tolerance.sqnr:g} dB"


def compare(
    expected: Iterable[Mapping[str, NDArray[Any]]],
    actual: Iterable[Mapping[str, NDArray[Any]]],
    outputs: Sequence[str],
    *,
    rtol: float = 1e-3,
    atol: float = 1e-4,
    tolerance: Tolerance | None = None,
) -> Parity:
    """Compare two sequences of batches of outputs.

    NaN equals NaN and infinities equal themselves; everything else is held to `|a - e| <= atol + rtol |e|`.
    Texts are the same or infinitely far apart; sequences and maps are compared piece by piece. Where the tolerance
    is a ratio of signal to noise, that decides.

    Args:
        expected: Batches of the reference.
        actual: Batches of the file under test.
        outputs: Names to compare.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        tolerance: Both and more, instead of them.
    """
    tolerance = tolerance or Tolerance(rtol, atol)
    max_abs = dict.fromkeys(outputs, 0.0)
    sample = dict.fromkeys(outputs, 0)
    scale = dict.fromkeys(outputs, 0.0)
    within = dict.fromkeys(outputs, True)
    noise = {name: _Noise() for name in outputs}
    samples = 0
    for want, have in zip(expected, actual, strict=True):
        for name in outputs:
            pieces = _pieces(want[name], have[name])
            if pieces is None:
                within[name], max_abs[name], sample[name] = False, float("inf"), samples
                noise[name].error = math.inf
                continue
            largest = max(
                (float(np.abs(e[np.isfinite(e)]).max(initial=0.0)) for e, _ in pieces), default=0.0
            )
            r, t = tolerance.of(name, largest)
            for e, a in pieces:
                held, off = _held(e, a, r, t)
                within[name] &= held
                noise[name].add(e, off)
                worst = float(off.max(initial=0.0))
                if worst > max_abs[name]:
                    max_abs[name] = worst
                    place = (
                        int(np.unravel_index(int(off.argmax()), off.shape)[0]) if off.ndim else 0
                    )
                    sample[name] = samples + place
            scale[name] = max(scale[name], largest)
            noise[name].floats &= _is_float(want[name])
        samples += _length(want[outputs[0]])
    return Parity(
        tuple(
            Difference(
                name,
                max_abs[name],
                max_abs[name] / (scale[name] or 1.0),
                noise[name].below(tolerance.sqnr)
                if tolerance.sqnr is not None and tolerance.by_noise(name)
                else within[name],
                sample[name],
                noise[name].ratio if noise[name].floats else None,
            )
            for name in outputs
        ),
        samples,
        tolerance,
    )


@dataclass
class _Noise:
    """Sums over all batches of an output."""

    signal: float = 0.0
    error: float = 0.0
    equal: int = 0
    count: int = 0
    floats: bool = True

    def add(self, e: NDArray[np.float64], off: NDArray[np.float64]) -> None:
        with np.errstate(over="ignore"):  # what is infinite, or not there
            self.signal += float(np.square(e[np.isfinite(e)]).sum())
            self.error += float(np.square(off).sum())
        self.equal += int((off == 0).sum())
        self.count += off.size

    @property
    def ratio(self) -> float:
        """In dB."""
        if self.error == 0:
            return math.inf
        share = self.signal / self.error
        return 10 * math.log10(share) if share > 0 else -math.inf

    def below(self, least: float) -> bool:
        """Whether there is no more noise than that."""
        if self.floats:
            return self.ratio >= least
        return self.error == 0 or self.equal >= AGREEMENT * self.count


def _held(
    e: NDArray[np.float64], a: NDArray[np.float64], rtol: float, atol: float
) -> tuple[bool, NDArray[np.float64]]:
    """Whether ``a`` is within the tolerance everywhere, and how far it is off."""
    same = (e == a) | (np.isnan(e) & np.isnan(a))
    with np.errstate(invalid="ignore"):  # inf - inf, where they are the same
        off = np.where(same, 0.0, np.nan_to_num(np.abs(a - e), nan=np.inf))
        # An infinite value expected is met by itself only, not by an infinite tolerance.
        held = same | (np.isfinite(e) & (off <= atol + rtol * np.abs(e)))
    return bool(np.all(held)), off


def _length(answer: Any) -> int:
    """Samples of an output; a scalar, as a loss, or a sequence counts its batch as one."""
    return 1 if isinstance(answer, (list, dict)) or not np.ndim(answer) else len(answer)


def _is_float(answer: Any) -> bool:
    """Whether all numbers of an output are floats."""
    if isinstance(answer, dict):
        return all(_is_float(value) for value in answer.values())
    if isinstance(answer, list):
        return all(_is_float(value) for value in answer)
    return np.asarray(answer).dtype.kind not in "iubOUS"


def _pieces(want: Any, have: Any) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]] | None:
    """The arrays of an output and those to compare them with; ``None`` where these do not correspond."""
    if isinstance(want, dict) and isinstance(have, dict):
        if list(want) != list(have):
            return None
        want, have = list(want.values()), list(have.values())
    if isinstance(want, list) and isinstance(have, list):
        if len(want) != len(have):
            return None
        found = [_pieces(e, a) for e, a in zip(want, have, strict=True)]
        return None if None in found else [pair for pairs in found if pairs for pair in pairs]
    e, a = np.asarray(want), np.asarray(have)
    if e.shape != a.shape:
        return None
    if "O" in (e.dtype.kind, a.dtype.kind) or "U" in (e.dtype.kind, a.dtype.kind):
        return [(np.zeros(e.shape), np.where(e == a, 0.0, np.inf))]
    return [(e.astype(np.float64), a.astype(np.float64))]


def seeded_batch(inputs: Sequence[TensorSpec], *, seed: int = 0, batch: int = 4) -> dict[str, Any]:
    """Made-up inputs where no data are given: normal floats, zeros and ones for integers, words for texts.

    Args:
        inputs: What the graph takes; unknown dimensions are set to ``batch``.
        seed: Seed.
        batch: Length of unknown dimensions.
    """
    generator = np.random.default_rng(seed)
    made = {}
    for spec in inputs:
        shape = tuple(dim if isinstance(dim, int) else batch for dim in spec.shape)
        if spec.dtype.kind == "f":
            made[spec.name] = generator.standard_normal(shape).astype(spec.dtype)
        elif spec.dtype.kind == "O":  # texts
            made[spec.name] = generator.choice(["good", "very bad", ""], shape).astype(object)
        else:
            made[spec.name] = generator.integers(0, 2, shape).astype(spec.dtype)
    return made
