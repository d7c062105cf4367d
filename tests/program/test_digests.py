"""Digests of graphs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.program.digests import serialized
from tests.support import shipped_program


@pytest.mark.parametrize("size", [1, 300])
def test_graphs_are_digested_as_they_are_serialized(size):
    """Weight by weight, which takes less memory: the digests of older versions stay valid."""
    proto = ir.to_proto(shipped_program("mlp").step)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(size, np.int8), "w"))
    proto.graph.doc_string = "what it does"
    whole = proto.graph.SerializeToString(deterministic=True)
    assert b"".join(serialized(proto.graph)) == whole
