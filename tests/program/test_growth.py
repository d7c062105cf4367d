"""Converting and exporting take time linear in the number of nodes.

Counted, not timed: twice the nodes must not mean four times as many calls of any function.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import onnx_ir as ir
import pytest

import ortboost
from ortboost.boosts import GradAccumulation, LessBN, MixedPrecision, SyncBatchNorm, Thor
from ortboost.deploy.pipeline import optimize
from ortboost.graph.reach import ancestors
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tools.bench.convert import chain

_PACKAGE = str(Path(ortboost.__file__).parent)
_FEW = 200
_QUADRATIC = 2.4  # a linear function is called twice as often, and some calls do not grow


def count_calls(work: Callable[[ir.Model], object], nodes: int) -> collections.Counter[str]:
    """Calls of each function of the package, on a chain with batch normalization."""
    model = ir.serde.deserialize_model(chain(nodes, norm=True))
    found: collections.Counter[str] = collections.Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PACKAGE):
            found[f"{code.co_filename}:{code.co_firstlineno}"] += 1

    sys.setprofile(count)
    try:
        work(model)
    finally:
        sys.setprofile(None)
    return found


def grown(work: Callable[[ir.Model], object]) -> list[str]:
    """The functions whose calls grow faster than the network."""
    small, large = (count_calls(work, nodes) for nodes in (60, 120))
    assert sum(large.values()) > 5_000
    return [
        f"{where}: {small[where]} to {calls}"
        for where, calls in large.items()
        if calls > _FEW and calls > _QUADRATIC * small[where] > 0
    ]


@pytest.mark.parametrize(
    "boosts",
    [
        (),
        (LessBN(), GradAccumulation(2), MixedPrecision()),  # recompute: n times the segments
        (Thor(), SyncBatchNorm()),
    ],
    ids=lambda boosts: "+".join(boost.name for boost in boosts),
)
def test_conversion_is_linear(boosts):
    config = ProgramConfig(boosts=boosts, engine="portable")
    assert grown(lambda model: build_program(model, config)) == []


def test_export_is_linear():
    assert grown(optimize) == []


def test_a_quadratic_search_is_noticed():
    def search(model: ir.Model) -> None:
        for node in model.graph:
            ancestors(node.inputs)

    assert any("reach.py" in line for line in grown(search))
