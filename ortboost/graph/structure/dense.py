"""Store sparse tensors densely: the rest of ortboost supports only dense ones."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ortboost.core.errors import FileError, first_line
from ortboost.core.limits import Limits
from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.structure.sizes import check_bytes
from ortboost.graph.structure.walk import all_graphs, damaged

__all__ = ["SPARSE", "dense_report", "store_densely"]

SPARSE = "ortboost.sparse_tensors"
"""Key of the names of the tensors that the file stores as sparse ones, in a model's ``meta``."""
_INVALID = (
    *(onnx.checker.ValidationError, IndexError, TypeError, ValueError),
    NotImplementedError,  # strings: numpy's zeros are not strings
)


def store_densely(proto: onnx.ModelProto, where: str) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model with all elements of its sparse tensors, a copy if it has any, and their names.

    Raises:
        FileError: A sparse tensor is invalid, too large, or in another file.
    """
    if not any(graph.sparse_initializer for graph in all_graphs(proto)) and not any(_sparse(proto)):
        return proto, ()
    dense, names, limits = onnx.ModelProto(), list[str](), Limits.from_environment()
    dense.CopyFrom(proto)
    for graph in all_graphs(dense):
        for tensor in graph.sparse_initializer:
            graph.initializer.append(_dense(tensor, where, limits))
            names.append(tensor.values.name)
        graph.ClearField("sparse_initializer")
    for node, attribute in _sparse(dense):
        tensor = _dense(attribute.sparse_tensor, where, limits)
        attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
        names.append(node.output[0] if node.output else node.name)
    return dense, tuple(names)


def dense_report(model: ir.Model) -> Report:
    """The report of the tensors that were stored densely when the model was loaded."""
    report = Report("store_densely", changed=dict.fromkeys(model.meta.get(SPARSE, ()), "dense"))
    if report.modified:
        report.notes.append(
            f"the file stores {count_of(len(report.changed), 'tensor')} as sparse, first "
            f"'{next(iter(report.changed))}'; here all elements are stored: zeros are trained if "
            "the tensor is, and exported"
        )
    return report


def _sparse(proto: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, onnx.AttributeProto]]:
    """The Constant nodes that store a sparse tensor."""
    nodes = [*(graph.node for graph in all_graphs(proto)), *(f.node for f in proto.functions)]
    for node in (node for group in nodes for node in group if node.op_type == "Constant"):
        for attribute in node.attribute:
            if attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
                yield node, attribute


def _dense(sparse: onnx.SparseTensorProto, where: str, limits: Limits) -> onnx.TensorProto:
    """All elements of a sparse tensor: its values at their places, and zeros."""
    at, dims = f"{where}: tensor '{sparse.values.name}'", list(sparse.dims)
    check_bytes(dims, at, limits)
    external = onnx.TensorProto.EXTERNAL
    if external in (sparse.values.data_location, sparse.indices.data_location):
        what = "A sparse tensor is stored in another file, which ortboost does not read."
        raise FileError(what, where=at, fix="Store all its elements, or store it in the model.")
    try:
        onnx.checker.check_sparse_tensor(sparse)
        values, indices = map(numpy_helper.to_array, (sparse.values, sparse.indices))
        array = np.zeros(math.prod(dims), values.dtype)
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), dims)
        array[indices] = values
        return numpy_helper.from_array(array.reshape(dims), sparse.values.name)
    except _INVALID as error:
        reason = first_line(error).rstrip(".")
        raise damaged(f"A sparse tensor is not valid: {reason}.", at) from error
