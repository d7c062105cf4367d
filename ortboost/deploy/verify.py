"""Compare an exported file with the trained program, output by output, on data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.errors import ParityError
from ortboost.program.catalogue import TensorSpec

__all__ = ["Difference", "Parity", "compare", "seeded_batch"]


@dataclass(frozen=True)
class Difference:
    """How far one output is off.

    Args:
        output: Its name.
        max_abs: Largest absolute difference.
        max_rel: Largest absolute difference over the largest absolute value expected.
        within: Whether every element is within `atol + rtol |expected|`.
    """

    output: str
    max_abs: float
    max_rel: float
    within: bool


@dataclass(frozen=True)
class Parity:
    """The outcome of a comparison.

    Args:
        differences: One entry an output.
        samples: Number of samples compared.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """

    differences: tuple[Difference, ...]
    samples: int
    rtol: float
    atol: float

    @property
    def ok(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return all(difference.within for difference in self.differences)

    @property
    def worst(self) -> Difference:
        """The output that is off the most."""
        return max(self.differences, key=lambda difference: difference.max_rel)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "ok": self.ok,
            "samples": self.samples,
            "rtol": self.rtol,
            "atol": self.atol,
            "outputs": {
                d.output: {"max_abs": d.max_abs, "max_rel": d.max_rel, "within": d.within}
                for d in self.differences
            },
        }

    def require(self, where: str) -> None:
        """Raise if an output is beyond the tolerance.

        Raises:
            ParityError: It names the worst output.
        """
        if self.ok:
            return
        bad = next(d for d in sorted(self.differences, key=lambda d: -d.max_rel) if not d.within)
        raise ParityError(
            f"The exported graph answers differently: off by {bad.max_abs:.3g} "
            f"(relative {bad.max_rel:.3g}), beyond rtol {self.rtol:g}, atol {self.atol:g}.",
            where=f"{where}: output '{bad.output}', {self.samples} samples",
            fix="Nothing was written. Export with --no-optimize to find out whether a rewrite is "
            "guilty, or widen --rtol/--atol if this difference is acceptable.",
        )


def compare(
    expected: Iterable[Mapping[str, NDArray[Any]]],
    actual: Iterable[Mapping[str, NDArray[Any]]],
    outputs: Sequence[str],
    *,
    rtol: float = 1e-3,
    atol: float = 1e-4,
) -> Parity:
    """Compare two sequences of batches of outputs.

    NaN equals NaN and infinities equal themselves; everything else is held to `|a - e| <= atol + rtol |e|`.

    Args:
        expected: Batches of the reference.
        actual: Batches of the file under test.
        outputs: Names to compare.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """
    max_abs = dict.fromkeys(outputs, 0.0)
    scale = dict.fromkeys(outputs, 0.0)
    within = dict.fromkeys(outputs, True)
    samples = 0
    for want, have in zip(expected, actual, strict=True):
        first = np.asarray(want[outputs[0]])
        samples += len(first) if first.ndim else 1  # a scalar, as a loss, counts its batch as one
        for name in outputs:
            e, a = (np.asarray(side[name], np.float64) for side in (want, have))
            if e.shape != a.shape:
                within[name], max_abs[name] = False, float("inf")
                continue
            same = (e == a) | (np.isnan(e) & np.isnan(a))
            with np.errstate(invalid="ignore"):  # inf - inf, where they are the same
                off = np.where(same, 0.0, np.nan_to_num(np.abs(a - e), nan=np.inf))
            # An infinite value expected is met by itself only, not by an infinite tolerance.
            within[name] &= bool(np.all(same | (np.isfinite(e) & (off <= atol + rtol * np.abs(e)))))
            max_abs[name] = max(max_abs[name], float(off.max(initial=0.0)))
            finite = np.abs(e[np.isfinite(e)])
            scale[name] = max(scale[name], float(finite.max(initial=0.0)))
    return Parity(
        tuple(
            Difference(name, max_abs[name], max_abs[name] / (scale[name] or 1.0), within[name])
            for name in outputs
        ),
        samples,
        rtol,
        atol,
    )


def seeded_batch(inputs: Sequence[TensorSpec], *, seed: int = 0, batch: int = 4) -> dict[str, Any]:
    """Made-up inputs where no data are given: normal floats, and zeros and ones for integers.

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
        else:
            made[spec.name] = generator.integers(0, 2, shape).astype(spec.dtype)
    return made
