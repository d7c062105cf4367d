"""Every operator in difficult forms (tools/probe_cases.py) against central differences."""

from __future__ import annotations

import warnings

import pytest

from tests.autodiff.oracle import Case, cases, probe
from tests.support import native_only

native_only()


REFUSED = {
    "Ceil",
    "Det",
    "Floor",
    "GlobalLpPool",
    "Hardmax",
    "LpPool",
    "Mod",
    "ReverseSequence",
    "Round",
    "Sign",
}


def expected_status(case: Case) -> str:
    """``refused`` for forms without a correct gradient, else ``ok``."""
    attributes = case.attrs
    refused = (
        case.op in REFUSED
        or attributes.get("reduction") in ("mul", "max", "min")
        or "exponent trained" in case.note
        or (case.op in ("ReduceL2", "ReduceLogSumExp") and "noop" in case.note)
        or case.note in ("beta 0", "alpha 0", "training, mean used", "even size")
        or case.note.startswith("refused ")
    )
    return "refused" if refused else "ok"


CASES = [
    pytest.param(case, id=f"{number}-{case.op}-{case.note}".replace(" ", "_"))
    for number, case in enumerate(cases())
]


@pytest.mark.parametrize("case", CASES)
def test_gradient(case):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # the oracle overflows where the engine must not
        status, detail = probe(case, raw=False)
    assert status == expected_status(case), detail


def open_status(case: Case, symbolic: str) -> str:
    """The same with symbolic lengths: padding that depends on them is refused."""
    open_padding = "SAME" in case.note and case.attrs.get("strides") is not None
    open_ceil = case.op == "AveragePool" and "ceil" in case.note
    if symbolic == "all" and (open_padding or open_ceil):
        return "refused"
    return expected_status(case)


@pytest.mark.parametrize("symbolic", ["batch", "all"])
@pytest.mark.parametrize("case", [p for p in CASES if p.values[0].op in ("MaxPool", "AveragePool")])
def test_gradient_of_pools_of_unknown_lengths(case, symbolic):
    """Their gradient kernels take lengths from the file, where a symbolic one is 0."""
    status, detail = probe(case, raw=False, symbolic=symbolic)
    assert status == open_status(case, symbolic), detail
