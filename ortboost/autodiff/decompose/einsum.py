"""Einsum as sums, transpositions and one matrix product per pair of operands."""

from __future__ import annotations

import string
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.sizes import Size, joined, length, product
from ortboost.graph.query import known_shape
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []


@dataclass(frozen=True)
class _Term:
    """A tensor and the letters of its axes."""

    value: ir.Value
    letters: str


@decomposes("Einsum")
def _einsum(site: Site) -> list[ir.Value | None]:
    """Multiply operands from left to right; sum over a letter once no later operand has it."""
    terms, result = _parse(site)
    sizes = _sizes(site, terms)
    # Sum as early as possible: a letter that only one operand has need not enter a product.
    current = _summed(site, terms[0], set("".join(t.letters for t in terms[1:])) | set(result))
    for position in range(1, len(terms)):
        needed = set("".join(t.letters for t in terms[position + 1 :])) | set(result)
        following = _summed(site, terms[position], needed | set(current.letters))
        current = _summed(site, current, needed | set(following.letters))
        current = _product(site, current, following, needed, sizes)
    current = _summed(site, current, set(result))
    final = _permuted(site, current, result).value
    if final is site.input(0):
        final = site.op("Identity", final)
    return [final]


def _parse(site: Site) -> tuple[list[_Term], str]:
    """Operands with their letters, and the letters of the result; ellipses become letters."""
    equation = site.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    names = left.split(",")
    # An ellipsis stands for several axes, of a different number in each operand.
    free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in equation]
    widths = [
        site.rank(index) - len(name.replace("...", ""))
        for index, name in enumerate(names)
        if "..." in name
    ]
    width = max(widths, default=0)
    dots = "".join(free[:width])
    terms = []
    # The axes of an ellipsis are aligned at the end, as in broadcasting.
    for index, name in enumerate(names):
        rank = site.rank(index)
        own = rank - len(name.replace("...", "")) if "..." in name else 0
        letters = name.replace("...", dots[width - own :] if own else "")
        if len(letters) != rank:
            raise Refusal(
                f"'{equation}' does not fit its operand {index} of rank {rank}: "
                "the file is not valid, export it again"
            )
        terms.append(_diagonal(site, _Term(site.input(index), letters)))
    if arrow:
        result = right.replace("...", dots)
    else:  # implicit: the letters that occur once, in alphabetical order
        result = dots + "".join(c for c in sorted(set(left) - set(".,")) if left.count(c) == 1)
    return terms, result


def _diagonal(site: Site, term: _Term) -> _Term:
    """Where letters occur twice, keep the diagonal: the rest is masked, then summed away."""
    while repeated := next((c for c in term.letters if term.letters.count(c) > 1), None):
        first = term.letters.index(repeated)
        last = term.letters.rindex(repeated)
        size = (known_shape(term.value) or ())[first]
        if not isinstance(size, int):
            raise Refusal(f"it extracts the diagonal of axis '{repeated}', of unknown length")
        dims = [size if axis in (first, last) else 1 for axis in range(len(term.letters))]
        mask = site.const(np.eye(size, dtype=bool).reshape(dims), ir.DataType.BOOL)
        zero = site.const(0.0, term.value.dtype or site.dtype)
        kept = site.op("Where", mask, term.value, zero)
        kept.shape = term.value.shape
        value = site.op("ReduceSum", kept, site.ints(last), keepdims=0)
        shape = list(known_shape(term.value) or ())
        value.shape = ir.Shape(shape[:last] + shape[last + 1 :])
        term = _Term(value, term.letters[:last] + term.letters[last + 1 :])
    return term


def _sizes(site: Site, terms: list[_Term]) -> dict[str, Size]:
    """Letter to its size; raises :class:`Refusal` if a letter is broadcast."""
    sizes: dict[str, Size] = {}
    fixed: dict[str, int] = {}
    for term in terms:
        for axis, (letter, dim) in enumerate(
            zip(term.letters, known_shape(term.value) or (), strict=True)
        ):
            if isinstance(dim, int):
                if fixed.setdefault(letter, dim) != dim:
                    raise Refusal(f"axis '{letter}' is broadcast")
                sizes[letter] = dim
            elif letter not in sizes:
                sizes[letter] = length(site, term.value, axis)
    return sizes


def _summed(site: Site, term: _Term, needed: set[str]) -> _Term:
    """Sum over the letters that are not needed any more."""
    axes = [axis for axis, letter in enumerate(term.letters) if letter not in needed]
    if not axes:
        return term
    value = site.op("ReduceSum", term.value, site.ints(*axes), keepdims=0)
    return _Term(value, "".join(letter for letter in term.letters if letter in needed))


def _permuted(site: Site, term: _Term, letters: str) -> _Term:
    if term.letters == letters:
        return term
    order = [term.letters.index(letter) for letter in letters]
    return _Term(site.op("Transpose", term.value, perm=order), letters)


def _product(
    site: Site, left: _Term, right: _Term, needed: set[str], sizes: dict[str, Size]
) -> _Term:
    """``[batch, rows, inner] @ [batch, inner, columns]``."""
    # A shared letter that is needed later is a batch axis; else the product sums over it.
    shared = [letter for letter in left.letters if letter in right.letters]
    batch = "".join(letter for letter in shared if letter in needed)
    inner = "".join(letter for letter in shared if letter not in needed)
    rows = "".join(letter for letter in left.letters if letter not in shared)
    columns = "".join(letter for letter in right.letters if letter not in shared)
    a = _matrix(site, left, batch, rows, inner, sizes)
    b = _matrix(site, right, batch, inner, columns, sizes)
    result = site.op("MatMul", a, b)  # [batch..., rows, columns], one axis each
    letters = batch + rows + columns
    if len(rows) == 1 and len(columns) == 1:
        return _Term(result, letters)
    if len(rows) <= 1 and len(columns) <= 1:  # only axes of length 1 were added
        gone = [len(batch)] * (not rows) + [len(batch) + 1] * (not columns)
        return _Term(site.op("Squeeze", result, site.ints(*gone)), letters)
    shape = joined(site, [sizes[letter] for letter in letters])  # each letter an axis again
    return _Term(site.op("Reshape", result, shape), letters)


def _matrix(
    site: Site, term: _Term, batch: str, first: str, second: str, sizes: dict[str, Size]
) -> ir.Value:
    """Reshape the tensor to ``[batch..., first, second]``, where the last two are one axis each."""
    value = _permuted(site, term, batch + first + second).value
    if len(first) == 1 and len(second) == 1:
        return value
    if len(first) <= 1 and len(second) <= 1:
        missing = [len(batch)] * (not first) + [len(batch) + 1] * (not second)
        return site.op("Unsqueeze", value, site.ints(*missing))
    parts = [sizes[letter] for letter in batch]
    parts += [product(site, [sizes[letter] for letter in group]) for group in (first, second)]
    return site.op("Reshape", value, joined(site, parts))
