"""Tie the copies of a weight that an exporter stores a second time, transposed or reshaped.

A tensor that two layers share, such as an embedding that is also the output layer (Press and Wolf,
2017, "Using the Output Embedding to Improve Language Models"), is one parameter. With constant
folding, the default of both torch exporters, the file contains it twice: under its name, and as an
anonymous tensor (``onnx::MatMul_12``, ``t``) that holds its transposition. Trained separately, the
two would drift apart.

Tensors that were trained from different random values are never equal. So a tensor that torch's
exporters computed, with exactly the elements of one named tensor, in the same order or transposed,
is computed from it. Where names say nothing, as in files of other exporters, the transposition of a
tensor that is used earlier is computed from that one; equal tensors in the same order may be the
copies of a layer that is not trained yet, and are left alone. But if torch's dynamo exporter
computed both from one parameter, as for the layers of ALBERT, the second is a copy. So is what
jax2onnx stores in the body of a loop that reads a weight from outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import FLOAT_TYPES
from ortboost.graph.weights.origins import origin_of
from ortboost.graph.weights.store_weights import MOVED

__all__ = ["tie_copies"]

_NAMED = ("parameter", "module")
_ANONYMOUS = ("folded", "literal", "unknown")
_DISTINCT = 4  # fewer different values may be equal by chance: the ones of a fresh layer
_SAMPLE = 1024

_Key: TypeAlias = tuple[str, int, bytes]
# Tensors by their first elements, so that not every pair has to be compared.
_Index = defaultdict[_Key | None, list[ir.Value]]


def tie_copies(model: ir.Model, *, apart: Collection[str] = ()) -> Report:
    """Compute each copy from the tensor that it is a copy of, in place, except for those named.

    The origins of the model are stamped, see :func:`~ortboost.graph.weights.origins.stamp_origins`,
    and its constants are initializers. A copy that equals several named tensors is left alone, with
    a note.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,2] x) => (float[N,2] y)
        ...   <float[2,2] w = {1, 2, 3, 4}, float[2,2] t = {1, 3, 2, 4}> {
        ...   h = MatMul(x, w)  y = MatMul(h, t) }''')
        >>> tie_copies(model).changed
        {'t': "computed from 'w'"}
    """
    report = Report("tie_copies")
    stored = list(_stored(model.graph))
    builder = Builder(model.graph, "tied")
    named, earlier = _Index(list), _Index(list)
    tied: dict[ir.Value, ir.Value] = {}
    # A copy made by torch's exporters may be used before the parameter itself, so parameters are
    # collected first. In other files, the tensor that is used first counts as the source.
    for value in stored:
        if origin_of(value).kind in _NAMED:
            named[_key(_array(value))].append(value)
    for copy in stored:
        kind = origin_of(copy).kind
        if kind not in _ANONYMOUS:
            continue
        earlier[_key(_array(copy))].append(copy)
        if copy.is_graph_output() or copy.name in apart:
            continue
        candidates = [] if kind == "unknown" else _alike(copy, named)
        sources = [v for v in candidates if _is_copy(copy, v, in_order=True)]
        by_order = not sources  # no names, or names that a tool has replaced by numbers
        if by_order:
            sources = [
                v
                for v in _alike(copy, earlier)
                if _is_copy(copy, v, in_order=_of_one_parameter(copy, v) or _captured(copy, v))
            ]
        if len(sources) > 1 and not all(_of_one_parameter(copy, v) for v in sources):
            equal = ", ".join(f"'{source.name}'" for source in sources)
            report.notes.append(
                f"'{copy.name}' equals {equal}: it is trained separately, although the exporter "
                "may have copied one of them; export without constant folding to tie them"
            )
        elif sources:
            tied[copy] = _tie(copy, sources[0], tied.get(sources[0], sources[0]), builder)
            report.changed[copy.name or ""] = f"computed from '{sources[0].name}'"
            turned = by_order and not _in_order(copy, sources[0])
            what = "the transposition" if turned else "a copy, made by the exporter,"
            report.notes.append(
                f"'{copy.name}' is {what} of '{sources[0].name}': both are trained as one"
            )
    if report.modified:
        model.graph.insert_before(model.graph[0], builder.take())
    return report


def _alike(value: ir.Value, index: _Index) -> list[ir.Value]:
    """The tensors that begin like this one, or like its transpose."""
    array = _array(value)
    keys = dict.fromkeys(map(_key, [array, array.T] if array.ndim > 1 else [array]))
    return [other for key in keys if key is not None for other in index[key]]


def _key(array: NDArray[np.generic]) -> _Key | None:
    """The first elements; ``None`` if few of them differ: tensors may be equal by chance."""
    first = array.flat[:_SAMPLE]
    if np.unique(first).size < _DISTINCT:
        return None
    return array.dtype.str, array.size, first.tobytes()


def _tie(copy: ir.Value, source: ir.Value, read: ir.Value, builder: Builder) -> ir.Value:
    """Compute a copy, under its name, from its source; ``read`` is that, or its own replacement."""
    name = copy.name or ""
    if not _in_order(copy, source):
        result = builder.op("Transpose", read, shape=copy.shape, perm=[1, 0])
    elif _array(copy).shape == _array(source).shape:
        result = builder.op("Identity", read, shape=copy.shape)
    else:
        result = builder.op("Reshape", read, builder.ints(*_array(copy).shape), shape=copy.shape)
    copy.replace_all_uses_with(result)
    builder.graph.initializers.pop(name)
    result.name = name
    return result


def _stored(graph: ir.Graph) -> Iterable[ir.Value]:
    """The float tensors that nodes read, in the order of their first use."""
    found = {
        value.name: value
        for node in graph.all_nodes()
        for value in node.inputs
        if value is not None and value.is_initializer() and value.graph is graph
    }
    return (value for value in found.values() if value.dtype in FLOAT_TYPES)


def _of_one_parameter(copy: ir.Value, source: ir.Value) -> bool:
    """Whether the exporter folded one parameter into both: layers share it."""
    one, other = origin_of(copy), origin_of(source)
    both = one.kind == other.kind == "folded" and one.known and other.known
    return both and len(one.folded_from) == 1 and one.folded_from == other.folded_from


def _captured(copy: ir.Value, source: ir.Value) -> bool:
    """Whether one of two tensors of unknown origin was in the body of a loop."""
    unknown = origin_of(copy).kind == origin_of(source).kind == "unknown"
    return unknown and (MOVED in copy.meta or MOVED in source.meta)


def _is_copy(copy: ir.Value, source: ir.Value, *, in_order: bool) -> bool:
    """Whether a tensor has the elements of another one, transposed or, if allowed, in order."""
    if source.dtype != copy.dtype or source.name == copy.name:
        return False
    return in_order if _in_order(copy, source) else _transposed(copy, source)


def _in_order(copy: ir.Value, source: ir.Value) -> bool:
    one, other = _array(copy).reshape(-1), _array(source).reshape(-1)
    return np.array_equal(one[:_SAMPLE], other[:_SAMPLE]) and np.array_equal(one, other)


def _transposed(copy: ir.Value, source: ir.Value) -> bool:
    one, other = _array(copy), _array(source)
    if one.ndim != 2 or one.shape != other.shape[::-1]:
        return False
    # The first row decides nearly always, without a pass over a large table.
    return np.array_equal(one[:1], other.T[:1]) and np.array_equal(one, other.T)


def _array(value: ir.Value) -> NDArray[np.generic]:
    assert value.const_value is not None
    return value.const_value.numpy()
