"""Compare an exported file with the trained program, output by output, on data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ParityError
from ortboost.deploy.tolerance import Tolerance

__all__ = ["Difference", "Parity", "compare"]

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """The difference of one output.

    Args:
        output: Name of the output.
        max_abs: Largest absolute difference.
        max_rel: Largest absolute difference divided by the largest expected magnitude.
        within: Whether every element is within the tolerance.
        sample: Index of the sample with the largest difference, counted over all batches.
        sqnr: Signal-to-noise ratio over all batches in dB,
            ``10 log10(sum e^2 / sum (a - e)^2)``; infinite without noise, ``None`` for outputs
            that are not float.
    """

    output: str
    max_abs: float
    max_rel: float
    within: bool
    sample: int = 0
    sqnr: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, without the name; infinities become ``None``."""
        found = dataclasses.asdict(self)
        del found["output"]
        return {**found, "sqnr": self.sqnr if math.isfinite(self.sqnr or 0.0) else None}


@dataclass(frozen=True)
class Parity:
    """The outcome of a comparison: the difference of each output, and the number of samples."""

    differences: tuple[Difference, ...]
    samples: int
    tolerance: Tolerance = field(default_factory=Tolerance)

    @property
    def ok(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return all(difference.within for difference in self.differences)

    @property
    def worst(self) -> Difference:
        """The output with the largest difference, preferring those beyond the tolerance."""
        return max(self.differences, key=lambda d: (not d.within, d.max_rel))

    def without(self, outputs: Collection[str]) -> Parity:
        """A copy in which these outputs count as correct, because they were judged separately."""
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
            "outputs": {d.output: d.to_dict() for d in self.differences},
        }

    @property
    def summary(self) -> str:
        """A short text on the worst output, for the metadata of the file."""
        bad = self.worst
        return f"max_abs {bad.max_abs:.3g}, max_rel {bad.max_rel:.3g}, {self.samples} samples"

    def require(
        self,
        where: str,
        cause: str | None = None,
        *,
        what: str = "The exported graph",
        fix: str | None = None,
    ) -> None:
        """Raise if an output is beyond the tolerance.

        Args:
            where: The file.
            cause: The cause of the difference, if known.
            what: The graph whose outputs differ, as the subject of the message.
            fix: Advice that replaces the one for exports.

        Raises:
            ParityError: An output is beyond the tolerance; the message names the worst.
        """
        if self.ok:
            return
        bad = self.worst
        because = f" The cause is {cause}." if cause else ""
        samples = f"sample {bad.sample} of {self.samples}"
        if self.tolerance.by_noise(bad.output):
            samples = f"{self.samples} samples"
            fix = (
                "Try another --calibration, more data in --calib, --skip for the affected layers, "
                "--verify data with labels, or a lower --min-sqnr."
            )
        elif fix is None:
            search = "Export with --no-optimize to see whether a rewrite is the cause, or widen"
            fix = (
                f"{'Widen' if cause else search} --rtol/--atol if this difference is acceptable; "
                "'ortboost compare --bisect' finds the first intermediate tensor that differs."
            )
        raise ParityError(
            f"{what} gives different outputs: {self._difference(bad)}.{because}",
            where=f"{where}: output '{bad.output}', {samples}",
            fix=f"Nothing was written. {fix}",
        )

    def _difference(self, bad: Difference) -> str:
        share = self.tolerance.share(bad.output)
        if bad.sqnr is None and share is not None:
            missed = "not all" if share == 1 else f"fewer than {share:.0%}"
            return f"{missed} of its elements are equal, off by up to {bad.max_abs:.3g}"
        if bad.sqnr is not None and self.tolerance.by_noise(bad.output):
            ratio, least = f"{bad.sqnr:.1f} dB", f"{self.tolerance.sqnr:g} dB"
            return f"its signal-to-quantization-noise ratio is {ratio}, below {least}"
        return f"off by {bad.max_abs:.3g} (relative {bad.max_rel:.3g}), beyond {self.tolerance}"


def compare(
    expected: Iterable[Mapping[str, NDArray[Any]]],
    actual: Iterable[Mapping[str, NDArray[Any]]],
    outputs: Sequence[str],
    *,
    tolerance: Tolerance | None = None,
) -> Parity:
    """Compare two sequences of batches of outputs.

    NaN equals NaN and infinities equal themselves; all other floats must satisfy
    ``|a - e| <= atol + rtol |e|``, or the output a signal-to-noise ratio. Integers, booleans and
    strings must be equal, or as many of them as the tolerance says. Sequences and maps are compared
    element by element.
    """
    tolerance = tolerance or Tolerance()
    seen = {name: _Seen(name, tolerance) for name in outputs}
    samples = 0
    for want, have in zip(expected, actual, strict=True):
        for name in outputs:
            seen[name].add(want[name], have[name], samples)
        lengths = [_length(want[name]) for name in outputs]
        samples += lengths[0] or max(lengths)  # the first may be empty: nothing was detected
    return Parity(tuple(one.difference() for one in seen.values()), samples, tolerance)


@dataclass
class _Seen:
    """Running statistics of one output over all batches."""

    name: str
    tolerance: Tolerance
    max_abs: float = 0.0
    scale: float = 0.0
    within: bool = True
    sample: int = 0
    signal: float = 0.0
    error: float = 0.0
    equal: int = 0
    count: int = 0
    floats: bool = True
    fits: bool = True

    def add(self, want: Any, have: Any, samples: int) -> None:
        """Add one batch; ``samples`` is the number of samples before it."""
        pieces = _pieces(want, have)
        if pieces is None:  # another structure, shape or kind
            self.fits, self.max_abs, self.error, self.sample = False, math.inf, math.inf, samples
            return
        # The scale of a tolerance is that of this batch; that of the report is over all of them.
        finite = (np.abs(e[np.isfinite(e)]) for e, _, _ in pieces)
        largest = max((float(e.max(initial=0.0)) for e in finite), default=0.0)
        for e, a, is_float in pieces:
            within, off = _within(e, a, *self.tolerance.of(self.name, largest))
            self.within &= within
            with np.errstate(over="ignore"):  # an infinite difference
                self.signal += float(np.square(e[np.isfinite(e)]).sum())
                self.error += float(np.square(off).sum())
            self.equal += int((off == 0).sum())
            self.count += off.size
            worst = float(off.max(initial=0.0))
            if worst > self.max_abs:  # the first axis counts samples
                place = np.unravel_index(int(off.argmax()), off.shape) if off.ndim else (0,)
                self.max_abs, self.sample = worst, samples + int(place[0])
            self.floats &= is_float
        self.scale = max(self.scale, largest)

    def difference(self) -> Difference:
        """The result for this output."""
        ratio = self.signal / self.error if self.error else math.inf
        sqnr = 10 * math.log10(ratio) if ratio > 0 else -math.inf
        share, within = self.tolerance.share(self.name), self.fits and self.within
        if not self.floats and share is not None:
            within = self.fits and self.equal >= share * self.count
        elif self.floats and self.tolerance.by_noise(self.name):
            within = self.fits and sqnr >= (self.tolerance.sqnr or 0.0)
        relative = self.max_abs / (self.scale or 1.0)
        noise = sqnr if self.floats else None
        return Difference(self.name, self.max_abs, relative, within, self.sample, noise)


def _within(e: Array, a: Array, rtol: float, atol: float) -> tuple[bool, Array]:
    """Whether all of ``a`` is within the tolerance, and the absolute differences."""
    same = (e == a) | (np.isnan(e) & np.isnan(a))
    with np.errstate(invalid="ignore"):  # inf - inf, where both are equal
        off = np.where(same, 0.0, np.nan_to_num(np.abs(a - e), nan=np.inf))
        # An expected infinity matches only itself, although its tolerance would be infinite.
        within = same | (np.isfinite(e) & (off <= atol + rtol * np.abs(e)))
    return bool(np.all(within)), off


def _length(answer: Any) -> int:
    """Number of samples of an output; 1 for a scalar (a loss), a sequence or a map."""
    return 1 if isinstance(answer, (list, dict)) or not np.ndim(answer) else len(answer)


def _kind(array: NDArray[Any]) -> str:
    kinds = {"i": "int", "u": "int", "b": "bool", "O": "text", "U": "text", "S": "text"}
    return kinds.get(array.dtype.kind, "float")


def _pieces(want: Any, have: Any) -> list[tuple[Array, Array, bool]] | None:
    """Pair the arrays of two outputs, and say which are floats.

    Returns:
        ``None`` if the structures, shapes or kinds of the outputs differ.
    """
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
    if e.shape != a.shape or _kind(e) != _kind(a):
        return None
    if _kind(e) == "text":  # as numbers: 0 where equal, else infinitely far apart
        return [(np.zeros(e.shape), np.where(e == a, 0.0, np.inf), False)]
    one, other = e.astype(np.float64), a.astype(np.float64)
    # Integers beyond 2^53 may be equal in float64 only.
    return [(one, np.where((one == other) & (e != a), np.inf, other), _kind(e) == "float")]
