"""Forms of a graph that one kind of device runs faster, or rightly; made in memory, the files stay as they are.

The gradient of Relu on the CPU: the kernel of ``ReluGrad`` (and ``Where``) branches on every element,
and the processor guesses the signs wrong; a comparison, a cast and a product together take an eighth
of its time. One difference: an incoming gradient that is not finite gives nan where the unit is off,
not 0, so that such a step always counts as an overflow.

Mixed precision on the CPU: onnxruntime has no bfloat16 kernels there, and computes most of float16 in float32
without rounding in between, so that two copies of one number differ and a comparison of them (the gradients of
Max, Min, Clip) goes wrong. There the graph is emulated: :mod:`ortboost.transforms.precision.emulate`.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.build import Builder, replace_node
from ortboost.transforms.precision import emulate_precision

__all__ = ["emulated_for", "for_device"]


def for_device(model: ir.Model, device: str) -> ir.Model:
    """The form of a step graph for a device.

    Args:
        model: The graph; it is not changed.
        device: ``cpu`` or ``cuda``.

    Returns:
        The model itself, or a changed copy.
    """
    found = emulated_for(model, device)
    if device != "cpu" or not any(node.op_type == "ReluGrad" for node in found.graph):
        return found
    changed = model.clone() if found is model else found
    _branchless_relu(changed)
    return changed


def emulated_for(model: ir.Model, device: str) -> ir.Model:
    """The model itself, or on the CPU a copy in which 16-bit types are emulated.

    Args:
        model: The graph; it is not changed.
        device: ``cpu`` or ``cuda``.
    """
    short = _short_types(model) if device == "cpu" else []
    if not short:
        return model
    changed = model.clone()
    for dtype in short:
        emulate_precision(changed, dtype)
    return changed


def _short_types(model: ir.Model) -> list[ir.DataType]:
    """The 16-bit types that something computes in; an emulated graph only rounds to them."""
    found = {
        value.dtype
        for node in model.graph.all_nodes()
        if node.op_type != "Cast"
        for value in node.outputs
    }
    return [dtype for dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) if dtype in found]


def _branchless_relu(model: ir.Model) -> None:
    """`dX = dY * (Y > 0)`."""
    builder = Builder(model.graph, "ortboost/relu")
    for node in list(model.graph):
        incoming, value = (*node.inputs, None, None)[:2]
        if node.op_type != "ReluGrad" or incoming is None or value is None:
            continue
        dtype = incoming.dtype or ir.DataType.FLOAT
        zero = builder.const(0.0, dtype)
        on = builder.op("Greater", value, zero, dtype=ir.DataType.BOOL, shape=value.shape)
        mask = builder.op("Cast", on, dtype=dtype, shape=value.shape, to=int(dtype))
        product = builder.op("Mul", incoming, mask, dtype=dtype, shape=value.shape)
        replace_node(node, [product], builder)
