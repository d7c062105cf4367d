"""Fix dimensions and inputs of a graph, for ``--dim height=640`` and ``--input sr=16000``.

A fixed length replaces the name of the dimension in the shapes of all values; shape inference,
which runs when the model is normalized, does the rest. A fixed input becomes a constant, and its
shape fixes the dimensions of the input.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortboost.core.arrays import matches
from ortboost.core.errors import UsageError
from ortboost.core.report import Report
from ortboost.graph.query import FLOAT_TYPES, ROLE_MARK, format_shape, known_shape
from ortboost.graph.shapes.input_config import Dims, InputConfig, fit_dims, require_input
from ortboost.graph.source import source_name

__all__ = ["fit_inputs", "fix_inputs"]


def fix_inputs(model: ir.Model, config: InputConfig) -> Report:
    """Fix the dimensions and inputs that the configuration names, in place, in a model as loaded.

    Raises:
        UsageError: An input or dimension is unknown, or a length or value does not fit.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,h] x, int64 rate) => (float[n,h] y) {
        ...   c = Cast<to = 1>(rate) y = Mul(x, c) }''')
        >>> report = fix_inputs(model, InputConfig(dims={"h": 8}, values={"rate": 3}))
        >>> [str(value.shape) for value in model.graph.inputs]
        ['[n,8]']
    """
    report = Report("fix_inputs")
    graph = model.graph
    inputs = {v.name or "": v for v in graph.inputs if not v.is_initializer()}
    before = {name: known_shape(value) for name, value in inputs.items()}
    shapes = {name: shape for name, shape in before.items() if shape is not None}
    dtypes = {name: value.dtype for name, value in inputs.items()}
    arrays, fitted = fit_inputs(shapes, dtypes, config, f"{source_name(model)}: ")
    # Fixing one input may fix dimensions of the same name in others, and inside the graph.
    names = {
        old: new
        for name, shape in shapes.items()
        for old, new in zip(shape, fitted[name], strict=True)
        if isinstance(old, str) and isinstance(new, int)
    }
    for name, shape in fitted.items():
        inputs[name].shape = ir.Shape(shape)
        if shape != shapes[name] and name not in arrays:
            report.changed[name] = f"{format_shape(shapes[name])} -> {format_shape(shape)}"
    for node in graph.all_nodes() if names else ():
        for output in node.outputs:
            found = known_shape(output)
            if found is not None:
                # By type: a dimension may have the name 'None'.
                output.shape = ir.Shape(
                    names.get(dim, dim) if isinstance(dim, str) else dim for dim in found
                )
    for name, array in arrays.items():
        _make_constant(graph, inputs[name], array)
        shown = array.item() if array.size == 1 else f"an array {list(array.shape)}"
        report.changed[name] = f"fixed at {shown}"
    return report


def fit_inputs(
    shapes: Mapping[str, Dims],
    dtypes: Mapping[str, ir.DataType | None],
    config: InputConfig,
    where: str = "",
) -> tuple[dict[str, np.ndarray], dict[str, Dims]]:
    """Resolve a configuration for inputs with these shapes and types.

    The shape of a value fixes that of its input. ``shapes`` has the inputs whose rank is known;
    ``where`` names the model in errors. The results are the value of each fixed input, and the
    shape of each input with all known lengths.

    Raises:
        UsageError: An input or dimension is unknown, or a length or value does not fit.
    """
    for name in config.values:
        require_input(name, dtypes, f"{where}--input {name}")
    arrays = {
        name: _constant_array(name, shapes.get(name), dtypes[name], value)
        for name, value in config.values.items()
    }
    # As if given by --dim, which comes first: fit_dims refuses another length.
    lengths = dict(config.dims)
    for name, array in arrays.items():
        for axis, length in enumerate(array.shape if name in shapes else ()):
            lengths.setdefault(f"{name}:{axis}", length)
    return arrays, fit_dims(shapes, lengths)


def _constant_array(
    name: str, shape: Dims | None, dtype: ir.DataType | None, value: object
) -> np.ndarray:
    """Convert the value of an input to the input's dtype and shape."""
    array = np.asarray(value)
    expected = array.dtype if dtype is None else np.dtype(dtype.numpy())
    if shape is not None and array.size == 1 and array.ndim < len(shape):
        array = array.reshape((1,) * len(shape))  # a number for an input of shape [1]
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused below
        cast = array.astype(expected)
    if dtype is None or dtype in FLOAT_TYPES:  # rounding is allowed
        exact = np.array_equal(np.isfinite(cast), np.isfinite(array))
    else:
        exact = np.array_equal(cast, array) and dtype != ir.DataType.STRING
    if not exact or not array.size or not (shape is None or matches(array.shape, shape)):
        kind = "strings" if dtype == ir.DataType.STRING else expected
        raise UsageError(
            f"The value of the input '{name}' does not fit: it is "
            f"{array.dtype}{list(array.shape)}.",
            where=f"--input {name}: the model expects {kind} {format_shape(shape)}",
            fix="Give a value of that type and shape; read an array from a file with --input "
            f"{name}=values.npy.",
        )
    return cast


def _make_constant(graph: ir.Graph, value: ir.Value, array: np.ndarray) -> None:
    graph.inputs.remove(value)
    value.shape = ir.Shape(array.shape)
    value.const_value = ir.tensor(array, name=value.name)
    value.metadata_props[ROLE_MARK] = "constant"
    graph.register_initializer(value)
