"""Digests of graphs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.program.digests import digest_settings, serialized
from tests.support import shipped_program


@pytest.mark.parametrize("size", [1, 300])
def test_graphs_are_digested_as_they_are_serialized(size):
    """Weight by weight, which takes less memory: the digests of older versions stay valid."""
    proto = ir.to_proto(shipped_program("mlp").step)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(size, np.int8), "w"))
    proto.graph.doc_string = "what it does"
    whole = proto.graph.SerializeToString(deterministic=True)
    assert b"".join(serialized(proto.graph)) == whole


def test_the_settings_of_groups_count_except_their_rates():
    def digest(**group):
        return digest_settings({"learning_rate": 0.1, "groups": [{"name": "head", **group}]})

    assert digest(learning_rate=0.1) == digest(learning_rate="cosine:0.2")
    others = [digest(), digest(learning_rate=0.1), digest(weight_decay=0.0)]
    others += [digest_settings({"groups": []}), digest_settings({"groups": [], "optimizer": "sgd"})]
    assert len(set(others)) == len(others)
    assert digest_settings({"learning_rate": 0.1}) == digest_settings({"learning_rate": 0.2})
