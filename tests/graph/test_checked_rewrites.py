"""The switch that checks the graph after every rewrite."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
import pytest

from ortboost.boosts import LessBN
from ortboost.boosts.base import Boost
from ortboost.core.errors import OrtBoostError
from ortboost.core.report import Report
from ortboost.deploy import pipeline
from ortboost.deploy.export import export_network
from ortboost.graph.checked_rewrites import VARIABLE
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import ENGINES, assert_three_lines, model_path, small_convnet


@pytest.fixture
def switched_on(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")


def dangle(model):
    """Let a node read an undefined name."""
    node = next(node for node in model.graph if node.op_type == "Gemm")
    node.replace_input_with(0, ir.Value(name="nobody"))


@dataclass(frozen=True)
class Broken(Boost):
    """A user's boost with a bug in one of its stages."""

    name = "broken"
    stage = "forward"
    where: str = "rewrite_network"

    def _spoil(self, stage, graph):
        if self.where == stage:
            dangle(graph.model)
        return Report("broken")

    def rewrite_network(self, graph):
        return self._spoil("rewrite_network", graph)

    def rewrite_forward(self, graph):
        return self._spoil("rewrite_forward", graph)

    def rewrite_decomposed(self, graph):
        return self._spoil("rewrite_decomposed", graph)

    def rewrite_gradients(self, graph):
        self._spoil("rewrite_gradients", graph)


STAGES = ["rewrite_network", "rewrite_forward", "rewrite_decomposed", "rewrite_gradients"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_boost_that_breaks_the_graph_is_named_with_its_stage(switched_on, monkeypatch, stage):
    config = ProgramConfig(engine="portable")
    broken = (*config.boosts, Broken(stage))
    monkeypatch.setattr(ProgramConfig, "enabled_boosts", property(lambda _: broken))
    with pytest.raises(
        OrtBoostError, match=f"'broken, {stage}' leaves an invalid ONNX graph"
    ) as caught:
        build_program(small_convnet(), config)
    assert "nobody" in caught.value.where
    assert_three_lines(caught.value)


def test_a_rewrite_of_the_pipeline_is_named(switched_on, monkeypatch):
    def bad(model, _):
        dangle(model)
        return Report("bad")

    monkeypatch.setitem(pipeline.REWRITES, "merge_casts", bad)
    with pytest.raises(OrtBoostError, match="The rewrite 'bad' leaves an invalid ONNX graph"):
        export_network(small_convnet())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["lenet5", "resnet_bottleneck"])
def test_ours_leave_valid_graphs(switched_on, name, engine):
    """MaxPoolGrad exists only in onnxruntime-training; onnx has no schema for it."""
    boosts = (LessBN(),) if name != "lenet5" else ()
    build_program(model_path(name), ProgramConfig(engine=engine, boosts=boosts))


def test_it_is_off_by_default(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("onnx.checker.check_model", lambda *_: pytest.fail("it was asked"))
    build_program(small_convnet(), ProgramConfig())
