"""Convert a network of another floating-point type to float32, like torch's ``module.float()``.

Steps train float32 parameters. A file in float16, bfloat16 or float64 (``model.half()`` before the
export, float16 converters, scientific code) is the same network with other roundings::

    W: float16 -> float32,  x: float16 -> float32,  Cast(to=float16) -> Cast(to=float32)

Each value of the type gets the type float32: inputs, results, weights, constants, and results whose
type an attribute of the node sets. A constant outside the range of float32 becomes the nearest
number that is neither infinite nor 0: the lowest float64 marks masked positions, where a sum of two
infinities could be NaN; tiny constants guard divisions.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.normal_form.inline_functions import inline_functions
from ortboost.graph.query import all_graphs, input_at, is_standard

__all__ = ["as_float32", "to_float32"]

# Attributes of standard operators that name a type.
_TYPE_ATTRIBUTES = (
    "dtype output_datatype output_dtype precision softmax_precision stash_type to".split()
)


def to_float32(model: ir.Model, types: Collection[ir.DataType]) -> Report:
    """Convert all values of some floating-point types to float32, and inline functions, in place.

    The note of the report names the inputs whose data are float32 from now on.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float16[n,2] x) => (float16[n,2] y) { y = Softmax(x) }''')
        >>> to_float32(model, {ir.DataType.FLOAT16}).notes
        ["the network is float16 and becomes float32, as does the data of its input 'x'"]
    """
    report = Report("to_float32")
    if not types:
        return report
    inline_functions(model)  # a type may be an argument of a function
    inputs = [v.name or "" for v in model.graph.inputs if v.dtype in types]
    weights = 0
    for graph in all_graphs(model.graph):
        for value in (*graph.inputs, *graph.initializers.values()):
            _convert_value(value, types)
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor is not None and tensor.dtype in types:
                value.const_value = ir.tensor(as_float32(tensor.numpy()), name=name)
                weights += 1
        for node in graph:
            for value in node.outputs:
                _convert_value(value, types)
            _convert_attributes(node, types)
    _bypass_casts(model)
    names = " and ".join(sorted(t.numpy().name for t in types))
    report.changed["model"] = f"{names} -> float32, {count_of(weights, 'tensor')}"
    note = f"the network is {names} and becomes float32"
    if inputs:
        named = "', '".join(inputs)
        note += f", as does the data of its input{'s' if len(inputs) > 1 else ''} '{named}'"
    report.notes.append(note)
    return report


def as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """An array in float32; values beyond its range become the nearest ones other than inf and 0.

    Example:
        >>> as_float32(np.array([-1e300, 1e-300, 0.0, np.inf])).tolist()
        [-3.4028234663852886e+38, 1.1754943508222875e-38, 0.0, inf]
    """
    with np.errstate(all="ignore"):
        found: NDArray[np.float32] = array.astype(np.float32)
    if array.dtype != np.float64:  # float32 holds all numbers of the narrower types
        return found
    limits = np.finfo(np.float32)
    sign = np.where(array < 0, np.float32(-1), np.float32(1))
    found = np.where(np.isinf(found) & np.isfinite(array), sign * limits.max, found)
    return np.where((found == 0) & (array != 0), sign * limits.tiny, found)


def _convert_value(value: ir.Value, types: Collection[ir.DataType]) -> None:
    if value.type is not None and value.dtype in types:
        value.type = copy.deepcopy(value.type)  # clones of the model share it
        value.dtype = ir.DataType.FLOAT  # of the elements, if it is a sequence


def _convert_attributes(node: ir.Node, types: Collection[ir.DataType]) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in types:
            tensor = attribute.as_tensor()
            converted = ir.tensor(as_float32(tensor.numpy()), name=tensor.name)
            node.attributes[name] = ir.AttrTensor(name, converted)
    for name in _TYPE_ATTRIBUTES if not node.domain else ():
        if node.attributes.get_int(name, 0) in types:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
    # torch's TorchScript exporter writes torch's own code of bfloat16, which is complex128 in
    # ONNX: a type that no Cast can have.
    if is_standard(node, "Cast") and node.attributes.get_int("to", 0) == ir.DataType.COMPLEX128:
        meant = ir.DataType.BFLOAT16
        meant = ir.DataType.FLOAT if meant in types else meant
        node.attributes["to"] = ir.AttrInt64("to", int(meant))
        node.outputs[0].type = ir.TensorType(meant)


def _bypass_casts(model: ir.Model) -> None:
    """Let readers of a cast between two types that are now the same read its input."""
    for node in list(model.graph.all_nodes()):
        source = input_at(node, 0)
        if not is_standard(node, "Cast") or source is None or source.dtype is None:
            continue
        result = node.outputs[0]
        if source.dtype == node.attributes.get_int("to", 0) and not result.is_graph_output():
            result.replace_all_uses_with(source)
