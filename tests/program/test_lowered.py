"""The forward graph in the form that an engine differentiates."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.autodiff.engine import get_engine
from ortboost.boosts import GradFreeze
from ortboost.core.errors import ModelError
from ortboost.program import names
from ortboost.program.config import ProgramConfig
from ortboost.program.forward import prepare_forward
from ortboost.program.lowered import find_values, lift_state, lower_forward
from ortboost.program.network import read_network
from tests.support import small_convnet


def lowered(**fields):
    config, engine = ProgramConfig(**fields), get_engine("portable")
    forward = prepare_forward(read_network(small_convnet(), config, engine), config)
    return lower_forward(forward, config, engine)


def test_weights_statistics_and_scale_are_inputs_with_initial_values():
    found = lowered()
    graph = found.graph.model.graph
    inputs = {value.name: value for value in graph.inputs}
    assert set(found.values) <= set(inputs)
    assert not set(found.values) & set(graph.initializers)
    kinds = {entry.name: entry.kind for entry in found.entries()}
    assert kinds[names.SCALE] == "scale"
    assert {"parameter", "buffer", "scale"} == set(kinds.values())
    assert found.values[names.SCALE] == np.float32(found.config.scaler.start())
    # Next statistics are outputs, or a rewrite would remove them as unused.
    assert set(found.buffers_next.values()) <= {value.name for value in graph.outputs}


def test_a_parameter_that_a_rewrite_removed_is_no_state():
    config, engine = ProgramConfig(), get_engine("portable")
    forward = prepare_forward(read_network(small_convnet(), config, engine), config)
    first, *others = forward.parameters
    value = forward.model.graph.initializers.pop(first)
    assert set(lift_state(forward.model, forward)) == set(others)
    forward.model.graph.initializers[first] = value
    value.const_value = None
    assert lift_state(forward.model, forward) == {}


def test_each_group_gets_a_context_with_its_own_memory():
    found = lowered(boosts=(GradFreeze(groups=2),))
    assert len(found.groups) > 1
    first, last = (found.context(found.graph.model, i) for i in (0, len(found.groups) - 1))
    assert first.trained == found.groups[0]
    assert last.trained == found.groups[-1]
    assert first.number == 0
    assert last.number == len(found.groups) - 1
    assert first.memory is not last.memory


def test_a_lost_value_is_named():
    model = lowered().graph.model
    with pytest.raises(ModelError, match="'nothing' was lost"):
        find_values(model, "nothing")
