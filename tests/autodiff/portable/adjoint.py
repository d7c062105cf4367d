"""The gradient of a linear operator is its adjoint: ``<A' r, x> = <r, A x>`` for every x."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ortboost.autodiff.engine import differentiate
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.support import session

__all__ = ["assert_adjoint", "declared"]


def declared(shape: tuple[int, ...], named: int) -> list[int | str]:
    """A shape in which the dimensions with a set bit have a name instead of a number."""
    return [f"d{axis}" if named >> axis & 1 else dim for axis, dim in enumerate(shape)]


def assert_adjoint(
    op: str,
    x: tuple[int, ...],
    others: list[np.ndarray | None],
    *,
    named: int = 0,
    fed: bool = False,
    opset: int = 18,
    **attributes: Any,
) -> ir.Model:
    """``y = op(x, *others)`` is linear in x, and its gradient is the adjoint of it.

    Args:
        op: The operator.
        x: Shape of its first input.
        others: Its other inputs, initializers or, with ``fed``, inputs of the graph.
        named: Bit mask of dimensions of x that are symbolic.
        fed: Whether the other inputs are known only at run time.
        opset: Version of the standard opset.
        **attributes: Attributes.
    """
    rng = np.random.default_rng(len(x))
    feeds: dict[str, np.ndarray] = {"x": rng.integers(-4, 5, x).astype(np.float32)}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, declared(x, named))]
    initializers, names = [], ["x"]
    for place, array in enumerate(others):
        names.append("" if array is None else f"a{place}")
        if array is None:
            continue
        if fed:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(names[-1], kind, array.shape))
            feeds[names[-1]] = array
        else:
            initializers.append(numpy_helper.from_array(array, names[-1]))
    opsets = [helper.make_opsetid("", opset)]
    node = helper.make_node(op, names, ["y"], name="probed", **attributes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    alone = helper.make_graph([node], "g", inputs, [y], initializers)
    proto = helper.make_model(alone, opset_imports=opsets, ir_version=10)
    (result_of_op,) = session(proto).run(["y"], feeds)
    shape = result_of_op.shape
    feeds["r"] = rng.integers(-4, 5, shape).astype(np.float32)
    weights = [f"r{axis}" for axis in range(len(shape))]
    inputs.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, weights))
    nodes = [
        node,
        helper.make_node("Mul", ["y", "r"], ["p"], name="weigh"),
        helper.make_node("ReduceSum", ["p"], ["loss"], name="sum", keepdims=0),
    ]
    loss_value = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    made = helper.make_graph(nodes, "g", inputs, [loss_value], initializers)
    proto = helper.make_model(made, opset_imports=opsets, ir_version=10)
    model = ir.from_proto(proto)
    infer_shapes(model)
    forward = session(proto)
    result = differentiate(model, "loss", ["x"], "portable")
    proto = ir.to_proto(result)
    onnx.checker.check_model(proto, full_check=True)
    assert all(node.domain in ("", "ai.onnx") for node in result.graph)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if 0 in shape:  # optimizers of onnxruntime 1.19 fail on graphs that compute nothing
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    backward = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    needed = {value.name for value in backward.get_inputs()}
    (gradient,) = backward.run(["x_grad"], {k: v for k, v in feeds.items() if k in needed})
    assert gradient.shape == x
    for _ in range(3):
        moved = rng.integers(-4, 5, x).astype(np.float32)
        (loss,) = forward.run(["loss"], {**feeds, "x": moved})
        np.testing.assert_allclose(np.sum(gradient * moved), loss, rtol=1e-4, atol=1e-3)
    return result
