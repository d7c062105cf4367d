"""The graphs that a program is made of, by its boosts."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import get_engine
from ortboost.boosts import DimReduce, GradAccumulation, GradFreeze, LossScale
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.program.build import build_program
from ortboost.program.catalogue import merged, read_catalogue
from ortboost.program.config import ProgramConfig
from ortboost.program.forward import prepare_forward
from ortboost.program.lowered import lower_forward
from ortboost.program.network import read_network
from ortboost.program.training_graphs import build_graphs
from ortboost.transforms.loss_config import LossConfig
from tests.support import small_convnet, text_model, weights


def graphs(*boosts, **fields):
    config = ProgramConfig(boosts=(LossScale(NO_SCALE), *boosts), **fields)
    engine = get_engine("portable")
    forward = prepare_forward(read_network(small_convnet(), config, engine), config)
    found = build_graphs(lower_forward(forward, config, engine))
    for graph in found:
        onnx.checker.check_model(ir.to_proto(graph.model), full_check=True)
        if graph.name.startswith(("step", "flush")):  # nothing is computed for nobody
            made = [node.outputs for node in graph.model.graph]
            assert all(any(v.uses() or v.is_graph_output() for v in outputs) for outputs in made)
    return found


@pytest.mark.parametrize(
    ("boosts", "expected"),
    [
        ((), ["step"]),
        ((GradAccumulation(2),), ["step", "flush"]),
        ((GradFreeze(groups=2), GradAccumulation(2)), ["step", "flush", "step.1", "flush.1"]),
    ],
)
def test_names_and_order(boosts, expected):
    found = graphs(*boosts)
    assert [graph.name for graph in found] == expected
    for graph in found:
        assert read_catalogue(graph.model) == graph.catalogue
        kind = graph.name.partition(".")[0]
        assert graph.model.metadata_props["ortboost.kind"] == kind


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (LossConfig(), False),
        (LossConfig(sparse=False), True),
        (LossConfig("bce-with-logits"), True),
        (LossConfig("mse"), False),
    ],
)
def test_the_catalogue_says_which_labels_are_probabilities(loss, expected):
    (step,) = graphs(loss=loss)
    assert [spec.probabilities for spec in step.catalogue.batch] == [False, expected]


def test_a_line_search_has_graphs_to_try_and_accept_a_step(tmp_path):
    (step,) = graphs()
    length = sum(math.prod(entry.shape) for entry in step.catalogue.entries("parameter"))
    np.save(tmp_path / "basis.npy", np.eye(2, length, dtype=np.float32))
    found = graphs(DimReduce(str(tmp_path / "basis.npy")))
    assert [graph.name for graph in found] == ["step", "trial", "accept"]


def test_steps_give_every_state_an_initial_value():
    found = graphs(GradFreeze(groups=2), GradAccumulation(2))
    initial = {name for graph in found for name in graph.initial}
    assert initial == {entry.name for entry in merged([g.catalogue for g in found]).state}
    assert not any(graph.initial for graph in found if graph.name.startswith("flush"))


def test_accuracy_needs_classes():
    (step,) = graphs(metrics=("accuracy",))
    assert "accuracy" in [value.name for value in step.model.graph.outputs]
    with pytest.raises(ConfigError, match="requires softmax cross entropy"):
        graphs(metrics=("accuracy",), loss=LossConfig("mse"))


@pytest.mark.parametrize(("sparse", "classes", "rank"), [(True, 3, 1), (False, None, 2)])
def test_only_class_indices_are_held_to_the_classes(sparse, classes, rank):
    (step,) = graphs(loss=LossConfig(sparse=sparse))
    (labels,) = (spec for spec in step.catalogue.batch if spec.name == "labels")
    assert (labels.classes, len(labels.shape), labels.class_axis) == (classes, rank, 1)


def test_class_indices_that_the_models_own_loss_reads():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, int64[N] t, float[4,3] w) => (float loss) {
            y = MatMul(x, w) loss = SoftmaxCrossEntropyLoss<ignore_index=-1>(y, t) }""",
        w=weights(4, 3),
    )
    program = build_program(model, ProgramConfig(loss=LossConfig("output"), engine="portable"))
    (labels,) = (spec for spec in program.catalogue.batch if spec.name == "t")
    assert (labels.classes, labels.ignored, labels.class_axis) == (3, -1, 1)
