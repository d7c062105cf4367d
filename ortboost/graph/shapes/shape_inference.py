"""Infer the shapes and types of all values in place, with ONNX's shape inference.

This does what :class:`onnx_ir.passes.common.ShapeInferencePass` does in a fraction of the time: the
serialized model contains only what inference reads, and only shapes and types are read back
(:mod:`ortboost.graph.shapes.inference_model`). The pass is quadratic in the number of weights,
because it looks up each weight among the inputs.

A layer whose input is too short gets an output of a negative length. The inference of a Slice that
reads one aborts the process (onnx and onnxruntime 1.31 are built with the assertions of libstdc++).
So no Slice is inferred before the lengths of its input are (:func:`_infer`), and such a model is
rejected: when it is loaded (:func:`check_slices`), and where lengths become known
(:func:`check_lengths`).

A length that a Resize computes from a scale is the one that onnxruntime computes
(:func:`_round_as_kernels`).
"""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir import serde

from ortboost.core.errors import ModelError, first_line
from ortboost.graph.classic_ml import infer_elementwise
from ortboost.graph.query import find_schema, is_standard, known_shape, label
from ortboost.graph.shapes.inference_model import (
    SMALL,
    describe_model,
    describe_value,
    take_over,
    take_type,
)
from ortboost.graph.structure import walk

__all__ = [
    "check_lengths",
    "check_slices",
    "dimension_names",
    "infer_missing",
    "infer_shapes",
    "node_fault",
]

_Lengths: TypeAlias = ChainMap[str, list[int] | None]
_Reader: TypeAlias = tuple[onnx.NodeProto, _Lengths]
_log = logging.getLogger(__name__)
_ROUNDS = 12  # more consecutive elementwise operators of ai.onnx.ml than any known model has
_HIDDEN = "ortboost.not_yet_inferred"
_CHAIN = 12  # more Slices, each reading what the one before computed, than any known model has
_RESIZING = ("Resize", "Upsample")
_OLD_INPUTS = 2  # of Upsample, and of Resize before opset 11: image, scales
_LOOSE_WEIGHTS = 4  # the first IR version whose stored tensors need not be inputs
_PRIMES = (37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103)


def infer_shapes(model: ir.Model) -> None:
    """Infer shapes and types in place; what cannot be inferred stays unknown.

    Sequences and maps keep their types.
    """
    # infer_elementwise fills in what ONNX cannot infer; then ONNX gets to the next such node.
    for _ in range(_ROUNDS if "ai.onnx.ml" in model.opset_imports else 1):
        found = _try_to_infer(describe_model(model))
        if found is not None:
            take_over(model.graph, found.graph)
        if not infer_elementwise(model):
            break


def infer_missing(model: ir.Model) -> None:
    """Infer shapes and types in place if any type or dimension in the main graph is unknown."""
    for node in model.graph:
        for value in node.outputs:
            if value.shape is None or value.type is None or None in (known_shape(value) or ()):
                infer_shapes(model)
                return


def check_lengths(model: ir.Model) -> None:
    """Reject a model in which a dimension is negative.

    Its shapes have been inferred. In the branches of an If, some of which these lengths may
    exclude, only the inputs of Slices are checked.

    Raises:
        ModelError: The output of a node has a negative length.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[1,1,2] x) => (y) { y = MaxPool <kernel_shape = [7]> (x) }''')
        >>> infer_shapes(model)
        >>> check_lengths(model)
        Traceback (most recent call last):
        ...
        ortboost.core.errors.ModelError: The output of MaxPool has the shape [1, 1, -4].
          where: 'y'
          fix:   Its input is too short: check the lengths of the model's inputs.
    """
    for node in model.graph.all_nodes():
        for value in node.outputs:
            _check_dims(value, known_shape(value) or (), model)


def check_slices(model: ir.Model) -> None:
    """Raise a ModelError for a model as loaded with a Slice and an output of a negative length."""
    if not any(is_standard(node, "Slice") for node in model.graph.all_nodes()):
        return
    proto = describe_model(model)
    del proto.graph.value_info[:]  # it may be wrong
    found = _try_to_infer(proto)
    if found is None:
        return
    for node, (_, lengths) in zip(model.graph.all_nodes(), _lengths(found.graph), strict=True):
        for value in node.outputs:
            _check_dims(value, lengths.get(value.name or "") or (), model)


def _check_dims(value: ir.Value, dims: Sequence[int | str | None], model: ir.Model) -> None:
    """Reject a negative length of a value that is computed in any case, or that a Slice reads."""
    node = value.producer()
    if node is None or not any(isinstance(dim, int) and dim < 0 for dim in dims):
        return
    sliced = any(is_standard(use.node, "Slice") and use.idx == 0 for use in value.uses())
    if node.graph is model.graph or sliced:
        raise ModelError(
            f"The output of {node.op_type} has the shape {list(dims)}.",
            where=f"'{label(node)}'",
            fix="Its input is too short: check the lengths of the model's inputs.",
        )


def dimension_names(model: ir.Model, output: ir.Value) -> tuple[str | None, ...]:
    """For each dimension of an output, the name of the inputs' dimension that it always equals.

    Exporters may name the dimensions of outputs anew (``out0``), and inference with names loses
    them where lengths are computed. So the shape is inferred twice with numbers: primes, which no
    rounding to a multiple would leave unchanged. The model is not changed.

    Returns:
        One name or ``None`` for each dimension; nothing if the rank cannot be inferred.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[batch,size] x) => (float[out0,out1] y) { y = Transpose(x) }''')
        >>> dimension_names(model, model.graph.outputs[0])
        ('size', 'batch')
    """
    known = {dim for value in model.graph.inputs for dim in known_shape(value) or ()}
    names = sorted(dim for dim in known if isinstance(dim, str))
    if not 0 < len(names) <= len(_PRIMES) // 2:
        return ()
    found = []
    # Twice: with one set of primes, a computed length may equal one of them by chance.
    for primes in (_PRIMES, _PRIMES[len(names) :]):
        shape = _shape_for(model, output, dict(zip(names, primes, strict=False)))
        lengths = dict(zip(primes, names, strict=False))
        found.append([None if length is None else lengths.get(length) for length in shape])
    if len(found[0]) != len(found[1]):
        return ()
    return tuple(one if one == other else None for one, other in zip(*found, strict=True))


def _shape_for(model: ir.Model, output: ir.Value, lengths: Mapping[str, int]) -> list[int | None]:
    """The shape of an output for these lengths of the inputs; empty if it cannot be inferred."""
    proto = describe_model(model)
    del proto.graph.value_info[:]  # it names dimensions, too
    for info in proto.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = lengths[dim.dim_param]
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    made = _try_to_infer(proto)
    if made is None:
        return []
    (info,) = (info for info in made.graph.output if info.name == output.name)
    dims = info.type.tensor_type.shape.dim
    return [dim.dim_value if dim.WhichOneof("value") == "dim_value" else None for dim in dims]


def node_fault(node: ir.Node, opset: int) -> str | None:
    """Infer a single standard node; return why ONNX rejects it with these inputs, if it does.

    Inference of a whole model skips such nodes, because many of them run all the same.
    """
    proto, schema = serde.serialize_node(node), find_schema(node.op_type, opset)
    if schema is None:
        return f"opset {opset} has no {node.op_type}"
    types, data = {}, {}
    for value in node.inputs:
        if value is not None and value.type is not None:
            info = onnx.ValueInfoProto()
            describe_value(info, value)
            types[info.name] = info.type
            if (tensor := value.const_value) is not None and tensor.nbytes <= SMALL:
                data[info.name] = serde.serialize_tensor(tensor)
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid("", opset)]
        )
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        return first_line(error)
    for value in node.outputs:
        if value.name in found:
            shape = value.shape
            take_type(value, found[value.name])
            value.shape = value.shape if shape is None else shape  # its names say more
    return None


def _try_to_infer(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    try:
        return _infer(proto)
    except Exception as error:  # inference is optional: its failure must not stop a conversion
        _log.info("shape inference failed: %s", error)
        return None


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer each Slice once the lengths of its input are known, or never will be.

    Slices in functions are inferred if no length is negative once the functions are inlined.
    """
    nodes = [node for node, _ in _lengths(proto.graph)]
    in_graphs = [node for node in nodes if _is_slice(node)]
    in_functions = [n for function in proto.functions for n in function.node if _is_slice(n)]
    if not in_graphs and not in_functions:
        return _infer_as_run(proto)
    # A Slice in a function is inferred with every call, so all calls have to be safe.
    if in_functions:
        inlined = _infer(onnx.inliner.inline_local_functions(proto))
        readable = {id(found): found for _, found in _lengths(inlined.graph)}.values()
        if all(dim >= 0 for found in readable for dims in found.values() for dim in dims or ()):
            in_functions = []
    for node in (*in_graphs, *in_functions):
        node.domain = _HIDDEN  # an operator that onnx does not know
    for imports in (proto, *proto.functions):
        imports.opset_import.add(domain=_HIDDEN, version=1)
    attempt = 0
    while True:
        found = _infer_as_run(proto)
        hidden = []
        for node, (_, lengths) in zip(nodes, _lengths(found.graph), strict=True):
            if node.domain == _HIDDEN:
                dims = lengths.get(node.input[0])
                if min(dims or (), default=0) >= 0:  # else it stays hidden: it would abort
                    hidden.append((node, dims is not None))
        if not hidden:
            return found
        # The input of the first one never will be known: all nodes before it are inferred. A long
        # chain is inferred at once in the end, as each round takes the time of the whole model.
        for node, known in hidden:
            if known or node is hidden[0][0] or attempt >= _CHAIN:
                node.domain = ""
        attempt += 1


def _infer_as_run(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer once more after each Resize, from the first on, whose length onnxruntime rounds up."""
    graphs = (proto.graph, *walk.graphs_of(proto.graph.node))
    resizing = any(node.op_type in _RESIZING for graph in graphs for node in graph.node)
    while True:
        # Types are not checked: one that an operator does not take would stop it for all others.
        found = onnx.shape_inference.infer_shapes(
            proto, check_type=False, strict_mode=False, data_prop=True
        )
        if not resizing or not _round_as_kernels(proto.graph, _lengths(found.graph)):
            return found
        proto.ir_version = max(proto.ir_version, _LOOSE_WEIGHTS)


def _round_as_kernels(graph: onnx.GraphProto, found: Iterator[_Reader]) -> bool:
    """Change the scales of the first Resize that onnx rounds otherwise than onnxruntime.

    onnxruntime multiplies in float32, onnx in float64: 5 times 1.8 (1.79999995 in float32) is 9 for
    the one and 8 for the other. Only the first: the lengths after it are not yet those of a run.

    Args:
        graph: The main graph, or the body of a node.
        found: All its nodes as inferred, with the lengths.

    Returns:
        Whether there was one.
    """
    # Inference knows the scales only in their own graph.
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors.update(
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    )
    for node, (_, lengths) in zip(graph.node, found, strict=False):
        if any(_round_as_kernels(body, found) for body in walk.subgraphs(node)):
            return True
        place = 2 if len(node.input) > _OLD_INPUTS else 1
        if node.op_type not in _RESIZING or place >= len(node.input):
            continue
        scales, name = node.input[place], f"ortboost/scales/{node.output[0]}"
        exact = None if scales == name else _exact_scales(node, tensors.get(scales), lengths)
        if exact is not None:
            graph.initializer.append(onnx.numpy_helper.from_array(exact, name))
            node.input[place] = name
            return True
    return False


def _exact_scales(
    node: onnx.NodeProto, tensor: onnx.TensorProto | None, lengths: _Lengths
) -> NDArray[np.float32] | None:
    """The scales of a Resize from which onnx infers the lengths of a run, if they differ."""
    before, inferred = lengths.get(node.input[0]), lengths.get(node.output[0])
    if tensor is None or before is None or inferred is None or len(before) != len(inferred):
        return None
    scales = onnx.numpy_helper.to_array(tensor)
    given = next((a.ints for a in node.attribute if a.name == "axes"), range(len(before)))
    axes = [axis for axis in given if -len(before) <= axis < len(before)]
    if scales.dtype != np.float32 or not len(axes) == len(given) == scales.size:
        return None
    old, new = (np.array([dims[axis] for axis in axes]) for dims in (before, inferred))
    lengthened = (old.astype(np.float32) * scales).astype(np.int64)
    wrong = (old > 0) & (lengthened != new)
    middle = (lengthened + 0.5) / np.maximum(old, 1)  # no rounding changes this length
    return np.where(wrong, middle, scales).astype(np.float32) if wrong.any() else None


def _is_slice(node: onnx.NodeProto) -> bool:
    return node.op_type == "Slice" and node.domain in walk.STANDARD and bool(node.input)


def _lengths(graph: onnx.GraphProto, outer: _Lengths | None = None) -> Iterator[_Reader]:
    """All nodes, each with the dimensions of the tensors that it may read or write by name.

    A dimension with a name counts as 0; an unknown shape is ``None``. A name may stand for several
    tensors: one in each branch of an If, and another one around it.
    """
    lengths = ChainMap({}) if outer is None else outer.new_child()
    lengths.update((name, None) for node in graph.node for name in node.output)
    lengths.update((tensor.name, list(tensor.dims)) for tensor in graph.initializer)
    for info in (*graph.input, *graph.value_info, *graph.output):
        shape = info.type.tensor_type.shape if info.type.tensor_type.HasField("shape") else None
        lengths[info.name] = None if shape is None else [dim.dim_value for dim in shape.dim]
    for node in graph.node:
        yield node, lengths
        for subgraph in walk.subgraphs(node):
            yield from _lengths(subgraph, lengths)
