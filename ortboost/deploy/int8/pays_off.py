"""Whether an int8 file is faster than its model in float32, on the processor that compares them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.runtime.session import open_session

__all__ = ["not_faster"]

_RUNS: Final = range(3, 30)  # runs of each session; more than the minimum only within _SECONDS
_SECONDS: Final = 1.0
_LEAST: Final = 0.95  # a share of the time; the rest is noise


def not_faster(
    model: ir.Model, path: str | os.PathLike[str], feed: Mapping[str, NDArray[Any]]
) -> str | None:
    """A note if the file takes as long as the model that it was made of, else ``None``."""
    sessions = [open_session(source, device="cpu", threads=1) for source in (model, path)]
    times: list[list[float]] = [[], []]
    end = perf_counter() + _SECONDS
    while len(times[0]) < (_RUNS.stop if perf_counter() < end else _RUNS.start):
        for session, taken in zip(sessions, times, strict=True):  # in turns: others use the machine
            given = {value.name: feed[value.name] for value in session.get_inputs()}
            start = perf_counter()
            session.run(None, given)
            taken.append(perf_counter() - start)
    before, after = (min(taken) * 1e3 for taken in times)
    if after < _LEAST * before:
        return None
    return (
        f"int8 is not faster here: {after:.3g} ms for a batch on one core, {before:.3g} ms in "
        "float32; 'ortboost bench' measures it."
    )
