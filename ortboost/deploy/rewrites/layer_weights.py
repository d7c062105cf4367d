"""Read and change the stored weights of a Conv, ConvTranspose or Gemm.

An affine map of the output channels becomes part of the layer:

    (W x + b) s + t = (W s) x + (b s + t)

All is computed in float64 and stored in the type of the layer, under the names of its old weights.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.query import constant, input_at, is_standard, label
from ortboost.graph.rewriting import Refusal, Site

__all__ = ["LAYERS", "fold_into", "read_weights", "store_weights"]

LAYERS = ("Conv", "ConvTranspose", "Gemm")
Array = NDArray[np.float64]


def read_weights(layer: ir.Node) -> tuple[Array, Array]:
    """The weight of a layer, and its bias ``[channels]``; zeros if it has none.

    Raises:
        Refusal: They are not stored, another node reads them too, or the bias has another form.
    """
    for value in layer.inputs[1:]:  # refuse weights that are computed or shared
        if value is None:
            continue
        if constant(value) is None or not value.is_initializer():
            raise Refusal(f"'{value.name}' is computed, not stored")
        others = any(not is_standard(usage.node, *LAYERS) for usage in value.uses())
        if others or value.is_graph_output():
            raise Refusal(f"'{value.name}' is shared with another node")
    shift = input_at(layer, 2)
    weight, stored = constant(layer.inputs[1]), constant(shift)
    assert weight is not None
    groups, _, per_group, _ = _by_channel(layer, weight.shape)
    bias = np.zeros(groups * per_group)
    if shift is not None and stored is not None:
        if stored.size != 1 and (stored.size != bias.size or stored.shape[-1] != bias.size):
            raise Refusal(  # valid for a Gemm; for a Conv it is an error that runtimes accept
                f"'{shift.name}' has shape {list(stored.shape)}, not one value per channel"
            )
        bias += stored.astype(np.float64).reshape(-1) * layer.attributes.get_float("beta", 1.0)
    return weight.astype(np.float64), bias


def store_weights(site: Site, layer: ir.Node, weight: Array, bias: Array) -> None:
    """Replace the weights that :func:`read_weights` returned.

    Raises:
        Refusal: They are not finite in the type of the layer.
    """
    kept = layer.inputs[1]
    assert kept is not None
    dtype = kept.dtype or ir.DataType.FLOAT
    with np.errstate(over="ignore"):  # float16 ends at 65504
        arrays = [array.astype(dtype.numpy()) for array in (weight, bias)]
    if not all(np.isfinite(array.astype(np.float64)).all() for array in arrays):
        raise Refusal("the folded weights would not be finite")
    layer.resize_inputs(3)
    for place, array in enumerate(arrays, 1):
        value = layer.inputs[place]
        if value is None or len(value.uses()) > 1:  # a module applied twice: equal ones are merged
            layer.replace_input_with(place, site.const(array, dtype))
        else:
            value.const_value = ir.tensor(array, name=value.name, dtype=dtype)
            value.shape = ir.Shape(array.shape)
    layer.attributes.pop("beta", None)  # the bias is multiplied by it


def fold_into(site: Site, layer: ir.Node, scale: Array, shift: Array) -> list[ir.Value]:
    """Fold the only reader of a layer, the node of ``site``, into it: ``scale * y + shift``.

    Returns:
        The values that replace the outputs of the node.

    Raises:
        Refusal: The weights cannot be changed, or there are not as many channels.
    """
    weight, bias = read_weights(layer)
    if scale.shape != bias.shape or shift.shape != bias.shape:
        raise Refusal(f"'{label(layer)}' has {bias.size} channels, not {scale.size}")
    shape = _by_channel(layer, weight.shape)
    scaled = weight.reshape(shape) * scale.reshape(shape[0], 1, shape[2], 1)
    store_weights(site, layer, scaled.reshape(weight.shape), bias * scale + shift)
    return site.computed_by(layer)


def _by_channel(layer: ir.Node, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A shape of the weight in which the axes 0 and 2 count the output channels."""
    rest = math.prod(shape[2:])
    if is_standard(layer, "ConvTranspose"):  # [C, M/G, k...]
        groups = layer.attributes.get_int("group", 1)
        return groups, shape[0] // groups, shape[1], rest
    if is_standard(layer, "Gemm") and not layer.attributes.get_int("transB", 0):  # [K, M]
        return 1, shape[0], shape[1], 1
    return 1, 1, shape[0], math.prod(shape[1:])  # [M, C/G, k...] and [M, K]
