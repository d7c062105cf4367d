"""What the devices do with 16-bit numbers, and that the doctor says so."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from ortboost.api import doctor as diagnose
from ortboost.runtime import number_formats
from ortboost.runtime.number_formats import FORMATS, FormatSupport, probe_format


class Session:
    """A runtime that answers what it is told."""

    def __init__(self, answer):
        self.answer = answer

    def run(self, names, feeds):
        if isinstance(self.answer, Exception):
            raise self.answer
        return [np.full((1, 1), self.answer, np.float32)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (0.0, FormatSupport(runs=True, rounds=True)),
        (2.0**-12, FormatSupport(runs=True, rounds=False)),
        (RuntimeError("no kernel"), FormatSupport(runs=False, rounds=False)),
    ],
)
def test_the_answer_tells_what_was_done(answer, expected, monkeypatch):
    monkeypatch.setattr(number_formats, "open_session", lambda *_, **__: Session(answer))
    assert probe_format("fp16", "cpu") == expected
    assert expected.text


@pytest.mark.parametrize("name", FORMATS)
def test_the_probe_is_between_two_numbers_of_the_format(name):
    dtype = FORMATS[name].numpy()
    step = number_formats._STEP[name]
    assert np.float32(dtype.type(step)) == step
    assert dtype.type(1) + dtype.type(step) == dtype.type(1)


def test_the_doctor_lists_the_formats():
    found = {finding.name: finding for finding in diagnose()}
    for name in FORMATS:
        finding = found[f"{name} on cpu"]
        assert finding.detail == probe_format(name, "cpu").text
        assert (finding.status == "ok") == ("and rounded" in finding.detail)
    if onnxruntime.__version__.startswith(("1.19", "1.31")):
        assert "not rounded" in found["fp16 on cpu"].detail
        assert found["bf16 on cpu"].detail == "no kernels"
