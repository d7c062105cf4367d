"""Outputs of models that are not plain tensors with a name each."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.evaluator import open_evaluator
from ortboost.transforms.loss_config import LossConfig
from tests.support import text_model, weights


@pytest.mark.parametrize("twice", [True, False])
def test_a_sequence_is_a_list_and_a_name_counts_once(twice):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,8] x, float[8,4] w) => (float[N,4] z, seq(float[N,4]) s) {
          z = MatMul(x, w)  s = SequenceConstruct(z, z) }""",
        w=weights(8, 4),
    )
    proto = ir.to_proto(model)
    if twice:
        del proto.graph.output[1:]
        proto.graph.output.append(proto.graph.output[0])
    program = build_program(proto, ProgramConfig(loss=LossConfig("mse", output="z")))
    batch = {"x": weights(5, 8), "labels": np.zeros([5, 4], np.float32)}
    found = open_evaluator(program, program.initial, device="cpu").evaluate(batch)
    expected = batch["x"] @ weights(8, 4)
    assert set(found) == ({"z", "loss"} if twice else {"z", "s", "loss"})
    for array in (found["z"], *found.get("s", ())):
        np.testing.assert_allclose(array, expected, rtol=1e-5)
