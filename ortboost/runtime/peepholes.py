"""Forms of a graph that one kind of device runs faster; made in memory, the files stay as they are.

The gradient of Relu on the CPU: the kernel of ``ReluGrad`` (and ``Where``) branches on every element,
and the processor guesses the signs wrong; a comparison, a cast and a product together take an eighth
of its time. One difference: an incoming gradient that is not finite gives nan where the unit is off,
not 0, so that such a step always counts as an overflow.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.build import Builder, replace_node

__all__ = ["for_device"]


def for_device(model: ir.Model, device: str) -> ir.Model:
    """The form of a step graph for a device.

    Args:
        model: The graph; it is not changed.
        device: ``cpu`` or ``cuda``.

    Returns:
        The model itself, or a changed copy.
    """
    if device != "cpu" or not any(node.op_type == "ReluGrad" for node in model.graph):
        return model
    changed = model.clone()
    _branchless_relu(changed)
    return changed


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
