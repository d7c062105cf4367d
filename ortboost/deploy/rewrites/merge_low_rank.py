r"""Merge a low-rank correction into the weight beside it: the adapters of LoRA.

    x W + b + s (x A) B = x (W + s A B) + b

The boost ``lora`` writes this form, and so do exports of PEFT models. For convolutions, `A` is a
convolution of the form of the layer, and `B` one with kernel size 1.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.layer_weights import Array
from ortboost.graph.query import (
    constant,
    input_at,
    label,
    permutation,
    producer_of,
    sole_consumer,
    static_shape,
)
from ortboost.graph.rewriting import Refusal, Rule, Site, rewrite_nodes

__all__ = ["merge_low_rank"]

_LINEAR = ("MatMul", "Gemm")


def merge_low_rank(model: ir.Model) -> Report:
    """Merge the adapters of linear layers and convolutions, in place, in the main graph."""
    weights = _Weights(model.graph)
    rules: dict[str, Rule] = {"Add": lambda site: _merge(site, weights)}
    report = rewrite_nodes(model, "merge_low_rank", rules, bypass=True)
    weights.take_names()
    return report


def _merge(site: Site, weights: _Weights) -> list[ir.Value] | None:
    for index in (0, 1):
        result, (path, scale) = site.input(index), _scaled(site.input(1 - index))
        found = _layer(result)
        if found is None:
            continue
        layer, readers = found
        adapter = _adapter(path, layer)
        correction = None if adapter is None else _correction(*adapter, layer)
        if correction is None or adapter is None:
            continue
        if any(sole_consumer(value) is None for value in readers):
            raise Refusal(f"the output of '{label(layer)}' is used elsewhere too")
        halves = [node.inputs[1] for node in adapter]
        weights.add(site, layer, scale * correction, (*halves, scale))
        site.note = f"merged into {label(layer)}"
        return [result]
    return None


class _Weights:
    """The stored weights of a graph, to which corrections are added.

    If several layers share a weight, each of them has to have the same correction. They are found
    one after the other: each reads the corrected copy from then on.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._reads = {v: len(v.uses()) for v in graph.initializers.values()}
        self._copies: dict[tuple[object, ...], ir.Value] = {}
        self._source: dict[ir.Value, ir.Value] = {}  # of a copy

    def add(
        self, site: Site, layer: ir.Node, correction: Array, adapter: tuple[object, ...]
    ) -> None:
        """Add a correction to the weight of a layer.

        Raises:
            Refusal: It is not stored, a node without this adapter reads it, or the sum is not
                finite in its type.
        """
        reader, index, turned = layer, 1, _is_turned(layer)
        turn = producer_of(layer.inputs[1], "Transpose")
        if turn is not None and permutation(turn) == [1, 0] and sole_consumer(turn.outputs[0]):
            # As torch's dynamo exporter writes a linear layer; folding constants removes it.
            reader, index, turned, correction = turn, 0, not turned, correction.T
        weight = reader.inputs[index]
        stored = constant(weight)
        if weight is None or stored is None or not weight.is_initializer():
            raise Refusal(f"the weight of '{label(layer)}' is computed, not stored")
        reads = self._reads[weight]
        matching = all(self._reads.get(v) == reads for v in adapter if isinstance(v, ir.Value))
        if weight.is_graph_output() or (reads > 1 and not matching):
            raise Refusal(f"'{weight.name}' is shared with another node")
        if stored.shape != correction.shape:
            raise Refusal(f"'{weight.name}' has another shape than its correction")
        key = (weight, turned, *adapter)
        if key not in self._copies:
            with np.errstate(over="ignore"):  # float16 ends at 65504
                merged = (stored.astype(np.float64) + correction).astype(stored.dtype)
            if not np.isfinite(merged.astype(np.float64)).all():
                raise Refusal("the merged weight would not be finite")
            name = site.builder.unique(f"{weight.name}/merged")
            tensor = ir.tensor(merged, name=name, dtype=weight.dtype)
            copy = ir.val(name, const_value=tensor)
            self._graph.register_initializer(copy)
            self._reads[copy], self._copies[key] = reads, copy
            self._source[copy] = self._source.get(weight, weight)
        reader.replace_input_with(index, self._copies[key])

    def take_names(self) -> None:
        """Give the corrected weights that are left the names of the old ones."""
        for copy, source in self._source.items():
            if copy.uses() and not source.uses() and source.graph is not None:
                del self._graph.initializers[source.name or ""]
                del self._graph.initializers[copy.name or ""]
                copy.name = source.name
                self._graph.register_initializer(copy)


def _scaled(path: ir.Value) -> tuple[ir.Value, float]:
    """The value before a multiplication by a number, and the number."""
    node = producer_of(path, "Mul")
    for value, factor in () if node is None else (node.inputs, node.inputs[::-1]):
        array = constant(factor, limit=1)
        # With two axes or more it could add some to the result.
        if value is not None and array is not None and array.size == 1 and array.ndim < 2:
            return value, float(array.reshape(-1)[0])
    return path, 1.0


def _layer(result: ir.Value) -> tuple[ir.Node, list[ir.Value]] | None:
    """The layer that computes a value, maybe with a bias after it, and its results."""
    layer = producer_of(result, *_LINEAR, "Conv")
    if layer is not None:
        return layer, [result]
    total = producer_of(result, "Add")
    for product, bias in () if total is None else (total.inputs, total.inputs[::-1]):
        layer = producer_of(product, "MatMul")
        if layer is not None and constant(bias) is not None:
            return layer, [layer.outputs[0], result]
    return None


def _adapter(path: ir.Value, layer: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """The two nodes of an adapter beside a layer."""
    kind = ("Conv",) if layer.op_type == "Conv" else _LINEAR
    last = producer_of(path, *kind)
    first = None if last is None else producer_of(last.inputs[0], *kind)
    if first is None or last is None or first.inputs[0] is not layer.inputs[0]:
        return None
    return first, last


def _correction(first: ir.Node, last: ir.Node, layer: ir.Node) -> Array | None:
    """`A B` in the layout of the layer's weight; ``None`` if the path is not an adapter of it."""
    if layer.op_type != "Conv":
        a, b = _matrix(first), _matrix(last)
        product = None if a is None or b is None or not _is_plain(layer) else a @ b
        return product.T if product is not None and _is_turned(layer) else product
    a, b = constant(first.inputs[1]), constant(last.inputs[1])
    alone = _has_no_bias(first) and _has_no_bias(last)
    if a is None or b is None or not alone or _geometry(first) != _geometry(layer):
        return None
    if not _is_pointwise(last) or layer.attributes.get_int("group", 1) != 1:
        return None
    return np.tensordot(b.astype(np.float64).reshape(b.shape[:2]), a.astype(np.float64), 1)


def _matrix(node: ir.Node) -> Array | None:
    """The stored matrix ``[in, out]`` of a linear layer without bias."""
    stored = constant(node.inputs[1])
    if stored is None or stored.ndim != 2 or not _has_no_bias(node) or not _is_plain(node):
        return None
    matrix = stored.astype(np.float64)
    return matrix.T if _is_turned(node) else matrix


def _has_no_bias(node: ir.Node) -> bool:
    """Whether a layer adds nothing; torch's dynamo exporter may store zeros."""
    bias = input_at(node, 2)
    stored = constant(bias)
    return bias is None or (stored is not None and not stored.any())


def _is_plain(node: ir.Node) -> bool:
    """Whether a linear layer is its input times its weight, without a factor."""
    factor = node.attributes.get_float("alpha", 1.0)
    return factor == 1.0 and not node.attributes.get_int("transA", 0)


def _is_turned(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("transB", 0))


def _is_pointwise(node: ir.Node) -> bool:
    """Whether a convolution reads single positions, all of them, over all channels."""
    kernel = (static_shape(node.inputs[1]) or (0,))[2:] if node.inputs[1] is not None else (0,)
    _, groups, strides, _, pads = _geometry(node)
    return {groups, *kernel, *strides} == {1} and not any(pads)


def _geometry(node: ir.Node) -> tuple[str, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Automatic padding, groups, strides, dilations and pads of a convolution."""
    weight = node.inputs[1]
    rank = len((static_shape(weight) if weight is not None else None) or (0, 0)) - 2
    settings = node.attributes
    return (
        settings.get_string("auto_pad", "NOTSET"),
        settings.get_int("group", 1),
        tuple(settings.get_ints("strides", (1,) * rank)),
        tuple(settings.get_ints("dilations", (1,) * rank)),
        tuple(settings.get_ints("pads", (0,) * 2 * rank)),
    )
