"""Compare an exported file with the trained program, output by output, on data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ParityError
from ortboost.deploy.tolerance import AGREEMENT, Tolerance

__all__ = ["Difference", "Parity", "compare"]


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

    @property
    def summary(self) -> str:
        """The worst output in a few words, as it is recorded in a file."""
        bad = self.worst
        return f"max_abs {bad.max_abs:.3g}, max_rel {bad.max_rel:.3g}, {self.samples} samples"

    def require(
        self,
        where: str,
        guilty: str | None = None,
        *,
        what: str = "The exported graph",
        fix: str | None = None,
    ) -> None:
        """Raise if an output is beyond the tolerance.

        Args:
            where: The file.
            guilty: What makes the difference, if that was found out.
            what: What answers differently.
            fix: What to do about it, if not what helps with an export.

        Raises:
            ParityError: It names the worst output.
        """
        if self.ok:
            return
        bad = self.worst
        who = f" The cause is {guilty}." if guilty else ""
        if self.tolerance.by_noise(bad.output):
            raise ParityError(
                f"{what} answers differently: {self._noise(bad)}.{who}",
                where=f"{where}: output '{bad.output}', {self.samples} samples",
                fix="Nothing was written. Try another --calibration, more data in --calib, --skip for the "
                "layers that suffer, --verify data with labels, or allow more with --min-sqnr.",
            )
        widen = "iden --rtol/--atol if this difference is acceptable"
        help_ = (
            f"W{widen}"
            if guilty
            else f"Export with --no-optimize to find out whether a rewrite is the cause, or w{widen}"
        )
        raise ParityError(
            f"{what} answers differently: off by {bad.max_abs:.3g} "
            f"(relative {bad.max_rel:.3g}), beyond {self.tolerance}.{who}",
            where=f"{where}: output '{bad.output}', sample {bad.sample} of {self.samples}",
            fix="Nothing was written. "
            + (
                fix
                or f"{help_}; 'ortboost compare --bisect' finds the first inner tensor that differs."
            ),
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
    seen = {name: _Seen() for name in outputs}
    samples = 0
    for want, have in zip(expected, actual, strict=True):
        for name in outputs:
            seen[name].add(name, want[name], have[name], samples, tolerance)
        samples += _length(want[outputs[0]])
    found = tuple(seen[name].difference(name, tolerance) for name in outputs)
    return Parity(found, samples, tolerance)


@dataclass
class _Seen:
    """What was seen of an output over all batches."""

    max_abs: float = 0.0
    scale: float = 0.0
    within: bool = True
    sample: int = 0
    signal: float = 0.0
    error: float = 0.0
    equal: int = 0
    count: int = 0
    floats: bool = True

    def add(self, name: str, want: Any, have: Any, samples: int, tolerance: Tolerance) -> None:
        """One batch, after so many samples."""
        pieces = _pieces(want, have)
        if pieces is None:
            self.within, self.max_abs, self.error, self.sample = False, math.inf, math.inf, samples
            return
        finite = (np.abs(e[np.isfinite(e)]) for e, _ in pieces)
        largest = max((float(e.max(initial=0.0)) for e in finite), default=0.0)
        for e, a in pieces:
            held, off = _held(e, a, *tolerance.of(name, largest))
            self.within &= held
            with np.errstate(over="ignore"):  # what is infinite, or not there
                self.signal += float(np.square(e[np.isfinite(e)]).sum())
                self.error += float(np.square(off).sum())
            self.equal += int((off == 0).sum())
            self.count += off.size
            worst = float(off.max(initial=0.0))
            if worst > self.max_abs:
                place = np.unravel_index(int(off.argmax()), off.shape) if off.ndim else (0,)
                self.max_abs, self.sample = worst, samples + int(place[0])
        self.scale = max(self.scale, largest)
        self.floats &= _is_float(want)

    def difference(self, name: str, tolerance: Tolerance) -> Difference:
        """The account of it."""
        by_noise = tolerance.sqnr is not None and tolerance.by_noise(name)
        return Difference(
            name,
            self.max_abs,
            self.max_abs / (self.scale or 1.0),
            self._quiet(tolerance.sqnr or 0.0) if by_noise else self.within,
            self.sample,
            self._ratio if self.floats else None,
        )

    @property
    def _ratio(self) -> float:
        """Of signal to noise, in dB."""
        if self.error == 0:
            return math.inf
        share = self.signal / self.error
        return 10 * math.log10(share) if share > 0 else -math.inf

    def _quiet(self, least: float) -> bool:
        """Whether there is no more noise than that."""
        if self.floats:
            return self._ratio >= least
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
