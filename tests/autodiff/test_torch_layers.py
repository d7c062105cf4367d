"""Layers exported by PyTorch against PyTorch's gradients (tools/golden/torch_layers.py)."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import GOLDEN, needs_native, stepper

FOLDER = GOLDEN / "torch_layers"
NETWORKS = ("attending", "decoder", "recurrent", "signal")
NATIVE = pytest.param(
    "native", marks=needs_native
)  # it has no recurrent layers; auto selects the other engine


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("engine", ["auto", "portable", NATIVE])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_parameter_is_trained_and_has_the_gradient_of_torch(network, engine, exporter):
    if (network, engine) == ("recurrent", "native"):
        pytest.skip("see tests/program/test_choose_engine.py")
    source = FOLDER / f"{network}_{exporter}.onnx"
    config = ProgramConfig(optimizer=Sgd(), loss_scale=NO_SCALE, engine=engine)
    training = stepper(build_program(source, config))
    with np.load(FOLDER / f"{network}.npz") as file:
        golden = {name: file[name] for name in file.files}
    expected = {name[2:]: array for name, array in golden.items() if name.startswith("g:")}
    names = {entry.name for entry in training.catalogue.entries("parameter")}
    assert names == set(expected)
    before = {name: training.get(name) for name in names}
    result = training.step({"x": golden["x"], "labels": golden["labels"]}, {"learning_rate": 1.0})
    assert result.loss == pytest.approx(float(golden["loss"]), rel=1e-5)
    largest = max(np.abs(array).max() for array in expected.values())
    for name, gradient in expected.items():
        found = before[name] - training.get(name)
        np.testing.assert_allclose(found, gradient, rtol=1e-3, atol=1e-6 + 3e-6 * largest)
