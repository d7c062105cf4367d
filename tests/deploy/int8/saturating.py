"""A quantized model as an x86 processor with or without VNNI computes it, in numpy, node by node.

The oracle of the tests of int8: it multiplies unsigned by signed bytes as VPMADDUBSW does, two
neighbouring products summed in 16 bits that saturate, so that the defect is seen on every machine.
Conv is a product of its patches.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

_HOSTS = ("Conv", "Gemm", "MatMul")


def multiply(a, w, *, saturates):
    """``a @ w`` of unsigned bytes ``a`` and signed bytes ``w``, in pairs along the inner axis."""
    assert a.min(initial=0) >= 0
    assert a.max(initial=0) <= 255
    odd = a.shape[1] % 2
    a = np.pad(a.astype(np.int32), ((0, 0), (0, odd)))
    w = np.pad(w.astype(np.int32), ((0, odd), (0, 0)))
    if not saturates:
        return a @ w
    total = np.zeros((len(a), w.shape[1]), np.int32)
    for k in range(0, len(w), 2):
        pair = a[:, k, None] * w[k] + a[:, k + 1, None] * w[k + 1]
        total += np.clip(pair, -32768, 32767)
    return total


def run_as(model, feeds, *, saturates):
    """The outputs of a model in pairs of QuantizeLinear and DequantizeLinear.

    Args:
        model: The model; activations are uint8, or int8 that the runtime shifts to uint8.
        feeds: Inputs by name.
        saturates: Whether products saturate.
    """
    proto = ir.to_proto(model)
    opsets = {"": max(21, proto.opset_import[0].version)}  # the evaluator has the pairs from 19 on
    known = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    known |= dict(feeds)
    whole = {}  # dequantized value to its whole numbers, scale and zero point
    for node in proto.graph.node:
        if node.op_type in _HOSTS and set(node.input[:2]) <= set(whole):
            bias = known[node.input[2]] if len(node.input) > 2 else 0.0
            known[node.output[0]] = _host(
                node, *(whole[n] for n in node.input[:2]), bias, saturates
            )
            continue
        if node.op_type == "DequantizeLinear":
            whole[node.output[0]] = [known[name] for name in node.input]
        evaluator = ReferenceEvaluator(node, opsets=opsets)
        given = {name: known[name] for name in node.input if name}
        known.update(zip(node.output, evaluator.run(None, given), strict=True))
    return {out.name: known[out.name] for out in proto.graph.output}


def _host(node, activation, weight, bias, saturates):
    (q, s, z), (w, ws, _) = activation, weight
    shift = 128 if q.dtype == np.int8 else 0  # the runtime has no kernel for two signed operands
    a, zero = q.astype(np.int32) + shift, int(z) + shift
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def product(a, w):
        return multiply(a, w, saturates=saturates) - zero * w.astype(np.int32).sum(0)

    if node.op_type == "Conv":
        bias = np.reshape(bias, (-1, *[1] * (a.ndim - 2))) if np.ndim(bias) else bias
        scale = np.reshape(ws, (-1, *[1] * (a.ndim - 2))) if np.ndim(ws) else ws
        return (_convolve(a, w, zero, options, product) * (s * scale) + bias).astype(np.float32)
    if node.op_type == "Gemm" and options.get("transB", 0):
        w = w.T
    rows = product(a.reshape(-1, a.shape[-1]), w)
    return (rows.reshape(*a.shape[:-1], -1) * (s * ws) + bias).astype(np.float32)


def _convolve(a, w, zero, options, product):
    """Patches in the order rows, columns, channels, as the runtime lays them out."""
    kernel, strides = w.shape[2:], options.get("strides", [1] * (w.ndim - 2))
    pads, groups = options.get("pads", [0] * 2 * len(kernel)), options.get("group", 1)
    half = len(kernel)
    around = [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)]
    a = np.pad(a, around, constant_values=zero)
    patches = np.lib.stride_tricks.sliding_window_view(a, kernel, tuple(range(2, a.ndim)))
    patches = patches[(slice(None), slice(None), *(slice(None, None, n) for n in strides))]
    batch, channels, *image = patches.shape[: 2 + half]
    inner, outer = channels // groups, len(w) // groups
    found = []
    for group in range(groups):
        part = patches[:, group * inner : (group + 1) * inner]
        axes = (0, *range(2, 2 + 2 * half), 1)
        rows = part.transpose(axes).reshape(batch * int(np.prod(image)), -1)
        kernels = w[group * outer : (group + 1) * outer]
        columns = kernels.transpose((*range(2, 2 + half), 1, 0)).reshape(-1, outer)
        answer = product(rows, columns).reshape(batch, *image, outer)
        found.append(np.moveaxis(answer, -1, 1))
    return np.concatenate(found, 1)
