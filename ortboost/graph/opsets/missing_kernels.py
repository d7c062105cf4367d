"""Nodes that onnxruntime does not run as they are, for example as torch's exporters write them."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder, insert_after
from ortboost.graph.io import ModelSource
from ortboost.graph.opsets.convert_opset import convert_opset
from ortboost.graph.query import (
    input_at,
    is_standard,
    known_shape,
    label,
    producer_of,
    scalar,
    source_before,
)
from ortboost.graph.rewriting import Site, rewrites

__all__ = [
    "drop_flat_biases",
    "narrow_pools",
    "newest_opset",
    "replace_missing_kernels",
    "runnable",
    "sort_for_argmax",
]

_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_SMALL_INTEGERS = (ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT8, ir.DataType.UINT16)
_NEWEST: Final = {
    # Run by inlining its definition of opset 24, which contains operators with newer versions
    # (CastLike and others): that fails at newer opsets.
    "Swish": 24,
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), 21),
    **dict.fromkeys(("Bernoulli", "Multinomial", "GlobalLpPool", "MaxRoiPool", "RoiAlign"), 21),
}
"""Operator to the newest opset of which onnxruntime (1.31.1) runs it."""


def newest_opset(model: ir.Model) -> int | None:
    """The newest opset at which onnxruntime runs all operators of a model; None for any."""
    used = (node.op_type for node in model.graph.all_nodes() if is_standard(node, *_NEWEST))
    return min((_NEWEST[op_type] for op_type in used), default=None)


def runnable(source: ModelSource, loaded: ir.Model) -> str | os.PathLike[str] | ir.Model:
    """What a runtime opens: a file as it is, or a model in memory.

    A file of an opset that onnxruntime does not run, see :func:`newest_opset`, is converted; one
    with biases that it refuses, see :func:`drop_flat_biases`, loses these.
    """
    newest, opset = newest_opset(loaded), loaded.opset_imports.get("", 1)
    old = newest is not None and opset > newest
    if old or any(map(_is_flat, _zero_biased(loaded))):
        loaded = loaded.clone()
        drop_flat_biases(loaded)
        if newest is not None and old:
            convert_opset(loaded, range(newest, newest + 1))
    elif isinstance(source, str | os.PathLike):
        return source
    return loaded


def drop_flat_biases(model: ir.Model) -> Report:
    """Drop the zeros that the dynamo exporter adds to a Conv without bias (optimize=False).

    For three spatial axes they have the shape [channels, 2], which onnxruntime 1.32 refuses: these
    are reported.
    """
    report = Report("drop_flat_biases")
    for node in _zero_biased(model):
        if _is_flat(node):
            report.changed[label(node)] = "without the zeros of the wrong shape"
        node.resize_inputs(2)
    return report


def _zero_biased(model: ir.Model) -> list[ir.Node]:
    if model.producer_name != "pytorch":
        return []
    biased = (node for node in model.graph.all_nodes() if is_standard(node, "Conv"))
    return [
        node
        for node in biased
        if producer_of(bias := input_at(node, 2), "Expand") is not None
        and scalar(source_before(bias, "Expand", "CastLike", "Cast")) == 0
    ]


def _is_flat(conv: ir.Node) -> bool:
    return len(known_shape(conv.inputs[1]) or ()) == 5


def replace_missing_kernels(model: ir.Model) -> None:
    """Rewrite nodes without a kernel, in place.

    Small integers are compared as int32, EyeLike computes float32, ``SAME_*`` of a dilated Conv
    becomes pads, and a Cos of float64 a Sin.

    The dynamo exporter counts rows and columns of an identity matrix in uint8, which onnxruntime
    1.19 cannot compare, and RT-DETR computes its positions in float64, of which it has no Cos; the
    TorchScript exporter writes ``torch.eye(n, dtype=torch.bool)`` as an EyeLike of type bool, and
    MindSpore's exporter writes ``SAME_UPPER``. No version has a kernel for these two.
    """
    builder = Builder(model.graph, "compared")
    for node in list(model.graph.all_nodes()):
        if is_standard(node, *_COMPARISONS):
            for index, value in enumerate(node.inputs):
                if value is not None and value.dtype in _SMALL_INTEGERS:
                    node.replace_input_with(index, builder.cast(value, ir.DataType.INT32))
        elif is_standard(node, "EyeLike") and node.outputs[0].dtype == ir.DataType.BOOL:
            _eye_of_floats(builder, node)
        elif is_standard(node, "Conv"):
            _pads_of_dilated(node)
        elif is_standard(node, "Cos") and node.outputs[0].dtype == ir.DataType.DOUBLE:
            angle, quarter = node.inputs[0], builder.const(np.pi / 2, ir.DataType.DOUBLE)
            node.replace_input_with(0, builder.op("Add", angle, quarter))
            node.op_type = "Sin"
        # In the node's own graph, which may be that of a branch.
        if builder.nodes and node.graph is not None:
            node.graph.insert_before(node, builder.take())


@rewrites("ArgMax", "ArgMin", what="the index of a TopK")
def sort_for_argmax(site: Site) -> list[ir.Value | None] | None:
    """Find extrema of int64 by TopK, in place; onnxruntime 1.19 has no other kernel.

    CLIP finds the end of a text in this way: its token has the largest ID.
    """
    if site.dtype != ir.DataType.INT64 or site.integer("select_last_index", 0):
        return None
    axis, keep = site.integer("axis", 0), site.integer("keepdims", 1)
    largest = int(site.node.op_type == "ArgMax")
    _, index = site.ops("TopK", site.input(0), site.ints(1), count=2, axis=axis, largest=largest)
    return [index if keep else site.op("Squeeze", index, site.ints(axis))]


@rewrites("AveragePool", "MaxPool", what="a pool without the axes that it does not change")
def narrow_pools(site: Site) -> list[ir.Value | None] | None:
    """Leave out axes that a pool does not change, in place; onnxruntime pools over three at most.

    Keras on JAX pools images also along samples and channels, with a kernel of length 1.
    """
    kernel = site.integers("kernel_shape") or ()
    axes = len(kernel)
    plain = site.text("auto_pad", "NOTSET") == "NOTSET" and not site.integer("ceil_mode", 0)
    if axes <= 3 or not plain or len(site.node.outputs) > 1:
        return None
    ones, pads = (1,) * axes, site.integers("pads") or (0,) * (2 * axes)
    settings = {"kernel_shape": kernel, "strides": site.integers("strides") or ones}
    if (dilations := site.integers("dilations")) is not None:
        settings["dilations"] = dilations
    moved = zip(kernel, settings["strides"], pads[:axes], pads[axes:], strict=True)
    pooled = [axis for axis, place in enumerate(moved) if place != (1, 1, 0, 0)]
    if not 0 < len(pooled) <= 3:
        return None
    front = [axis for axis in range(axes + 2) if axis - 2 not in pooled]
    order = [*front, *(axis + 2 for axis in pooled)]
    data = site.op("Transpose", site.input(0), perm=order)
    images = site.op("Concat", site.ints(-1, 1), site.shape_of(data, len(front)), axis=0)
    attributes: dict[str, Any] = {
        name: [values[axis] for axis in pooled] for name, values in settings.items()
    }
    attributes["pads"] = [pads[axis + end] for end in (0, axes) for axis in pooled]
    if site.integer("count_include_pad", 0):
        attributes["count_include_pad"] = 1
    result = site.op(site.node.op_type, site.op("Reshape", data, images), **attributes)
    whole = site.op("Concat", site.shape_of(data, 0, len(front)), site.shape_of(result, 2), axis=0)
    back = [order.index(axis) for axis in range(axes + 2)]
    return [site.op("Transpose", site.op("Reshape", result, whole), perm=back)]


def _pads_of_dilated(conv: ir.Node) -> None:
    """Replace ``SAME_*`` by pads; without a stride, they do not depend on the image size."""
    attributes = conv.attributes
    mode, dilations = attributes.get_string("auto_pad"), attributes.get_ints("dilations") or (1,)
    kernel = [dim for dim in (known_shape(conv.inputs[1]) or ())[2:] if isinstance(dim, int)]
    plain = max(dilations) == 1 or max(attributes.get_ints("strides") or (1,)) > 1
    if plain or mode not in ("SAME_UPPER", "SAME_LOWER") or len(kernel) != len(dilations):
        return
    totals = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    ends = [n // 2 for n in totals], [n - n // 2 for n in totals]
    before, after = ends if mode == "SAME_UPPER" else ends[::-1]
    attributes["pads"] = ir.AttrInt64s("pads", [*before, *after])
    attributes.pop("auto_pad")


def _eye_of_floats(builder: Builder, node: ir.Node) -> None:
    """Let an EyeLike compute floats, and its consumers read them as booleans."""
    source, eye = node.inputs[0], node.outputs[0]
    if source is None or eye.is_graph_output() or node.graph is None:
        return
    if source.dtype == ir.DataType.BOOL:
        node.replace_input_with(0, builder.cast(source, ir.DataType.FLOAT))
        node.graph.insert_before(node, builder.take())
    eye.dtype = ir.DataType.FLOAT
    node.attributes["dtype"] = ir.AttrInt64("dtype", int(ir.DataType.FLOAT))
    insert_after(eye, builder.cast(eye, ir.DataType.BOOL), builder)
