"""Graphs for the tests of rewrites for CUDA, which run on the CPU."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx_ir.passes import common

from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.runtime.peepholes import emulated_for
from ortboost.runtime.session import open_session

OLD = onnxruntime.__version__.startswith("1.19")
# On CUDA, both releases sum squares of differences (Welford).
needs_accurate = pytest.mark.skipif(
    OLD, reason="its LayerNormalization on the CPU subtracts the square of the mean"
)


def graph(text, opset=18, **stored):
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : {opset}]> g {text}')
    for name, array in stored.items():
        value = next(v for v in model.graph.inputs if v.name == name)
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=name)
        model.graph.register_initializer(value)
    for value in model.graph.outputs:
        if not value.shape:  # not written in the text: not a scalar
            value.shape = None
    infer_shapes(model)
    return model


def run(model, **feeds):
    return open_session(emulated_for(model, "cpu"), device="cpu", threads=1).run(None, feeds)


def types(model):
    return [node.op_type for node in model.graph if node.op_type not in ("Constant", "Reshape")]


def rewritten(model, rewrite):
    """A rewritten copy, checked; a second run finds nothing."""
    changed = model.clone()
    assert rewrite(changed)
    common.RemoveUnusedNodesPass()(changed)
    assert not rewrite(changed)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    return changed


def values(*shape, seed=0, mean=0.0):
    return (np.random.default_rng(seed).standard_normal(shape) + mean).astype(np.float32)


def inputs(model, feeds):
    names = {value.name for value in model.graph.inputs}
    return {name: np.asarray(array) for name, array in feeds.items() if name in names}
