"""Every operator, in its difficult forms, against central differences (cases of tools/probe_cases.py)."""

from __future__ import annotations

import warnings

import pytest

from tests.autodiff.oracle import Case, cases, probe
from tests.support import native_only

native_only()


REFUSED = {
    "Ceil",
    "Floor",
    "GlobalLpPool",
    "Hardmax",
    "LpPool",
    "Mod",
    "Round",
    "Sign",
}


def expected_status(case: Case) -> str:
    """``refused`` for forms that have no right gradient, else ``ok``."""
    attributes = case.attrs
    refused = (
        case.op in REFUSED
        or attributes.get("reduction") in ("mul", "max", "min")
        or "exponent trained" in case.note
        or (case.op in ("ReduceL2", "ReduceLogSumExp") and "noop" in case.note)
        or case.note in ("beta 0", "alpha 0", "training, mean used", "even size")
        or attributes.get("equation") == "ii->i"
        or case.note.startswith("refused ")
        or (case.op == "AveragePool" and "3d" in case.note and "ceil" in case.note)
    )
    return "refused" if refused else "ok"


CASES = [
    pytest.param(case, id=f"{number}-{case.op}-{case.note}".replace(" ", "_"))
    for number, case in enumerate(cases())
]


@pytest.mark.parametrize("case", CASES)
def test_gradient(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the oracle overflows where we must not
        status, detail = probe(case, raw=False)
    assert status == expected_status(case), detail
