"""Turn weights that a model computes, or keeps inside a branch, into initializers.

Some models compute weights with nodes (``ConstantOfShape``, ``Mul`` of constants), reshape the
running statistics of a normalization, or keep the weights of a layer in the body of an ``If``. A
training program needs each of them as a tensor of the main graph:

- A tensor that depends only on constants is computed once. A stored float tensor that may be a
  parameter does not count as a constant: a weight normalization ``g * v / ||v||`` is kept, and
  trains ``g`` and ``v``.
- Running statistics are never trained by gradients, so they are precomputed from any stored tensor.
- Float tensors of branches and loop bodies move to the main graph.
- Running statistics get tensors of their own: exporters that store equal tensors once let those of
  a new BatchNormalization share the tensors of its scale and bias, which are trained.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.evaluate import add_initializer, evaluate_node
from ortboost.graph.query import FLOAT_TYPES, find_nodes, is_standard, source_before, static_shape
from ortboost.graph.unused import remove_unused_nodes
from ortboost.graph.weights.origins import Origin, made_by_torch, origin_of, stamp_origin
from ortboost.graph.weights.weight_uses import weight_uses

__all__ = ["COMPUTED", "FUNCTIONS", "MOVED", "POSITIONS", "store_weights"]

COMPUTED = "ortboost.computed"
MOVED = "ortboost.moved"
POSITIONS = "ortboost.positions"
"""Key in ``Value.meta`` of a tensor that the file computes from integers or conditions."""
FUNCTIONS = ("Exp", "Sigmoid", "Softplus", "Tanh")
"""Operators that keep a learned number positive or bounded; a compiler computes others in advance.

Not Log: it does neither, and positions are computed from the logarithm of a constant."""
_SUFFIX = "/computed"
_OURS = "ortboost/"  # of the nodes that rewrites add
_LARGEST = 1 << 28  # elements of one tensor
_MOST = 1 << 29  # elements of all tensors together, 2 GiB in float32
_INDICES = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)  # int8 may be a weight
_OPERATORS = frozenset(
    "Abs Add And Cast CastLike Clip Concat ConstantOfShape Cos Div Equal Exp Expand EyeLike "
    "Flatten Gather Greater Identity Less Log Max Min Mul Neg Not Or Pow Range Reciprocal Reshape "
    "Sin Slice Split Sqrt Squeeze Sub Tile Transpose Trilu Unsqueeze Where".split()
)


def store_weights(model: ir.Model, *, keep: Collection[str] = ()) -> Report:
    """Precompute tensors that depend only on constants, and move weights out of branches, in place.

    Constants of the model are initializers, and its shapes inferred. What is computed from the
    tensors of the names ``keep``, which the user selects, stays computed. The rewrite is
    idempotent.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,2] x) => (float[N,3] y) <int64[2] shape = {2, 3}> {
        ...   w = ConstantOfShape(shape)  y = MatMul(x, w) }''')
        >>> ir.passes.common.ShapeInferencePass()(model).modified
        True
        >>> store_weights(model).changed
        {'w': 'computed by ConstantOfShape from constants'}
    """
    report = Report("store_weights")
    _leave_branches(model, report)
    _own_statistics(model, report)
    statistics, of_torch = _made_statistics(model), made_by_torch(model)

    # In graph order: a stored result makes the node that reads it computable.
    total, made = 0, dict[str, str]()
    for node in list(model.graph):
        wanted = node in statistics or _computes_weights(node, keep)
        size = _stored_size(node) if wanted else None
        if size is None:
            continue
        if size > _LARGEST or total + size > _MOST:
            why = f"{node.op_type} of constants has {size:,} elements: too many to store"
            report.kept[node.outputs[0].name or ""] = why
            continue
        arrays = _results(node, model.opset_imports.get("", 18))
        if arrays is None:
            continue
        source = node.inputs[0]
        if source is not None and node.op_type == "Identity":  # a copy would be trained separately
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
            model.graph.remove(node, safe=True)
            continue
        total += size
        _store(model.graph, node, arrays, report, torch=of_torch)
        # Worth a note only where the file does not say what the tensors are.
        if all(origin_of(value).kind == "unknown" for value in node.inputs if value is not None):
            made |= {
                out.name.removesuffix(_SUFFIX): node.op_type
                for out in node.outputs
                if out.name and not out.name.startswith(_OURS)
            }
    if report.modified:
        remove_unused_nodes(model)
    # Only tensors that are left: the others were intermediate results.
    left = model.graph.initializers
    report.changed = {name: what for name, what in report.changed.items() if name in left}
    report.notes += _about_made([name for name in made if name in left], sorted({*made.values()}))
    report.notes += [
        f"'{name}' is computed at each step: {why}" for name, why in report.kept.items()
    ]
    return report


def _may_be_learned(node: ir.Node) -> bool:
    """Whether a node computes a positive or bounded number from one of unknown origin."""
    value = node.inputs[0] if is_standard(node, *FUNCTIONS) else None
    if value is None or COMPUTED in value.meta:
        return False
    return value.is_initializer() and origin_of(value).kind == "unknown"


def _about_made(weights: Sequence[str], operators: Sequence[str]) -> list[str]:
    if not weights:
        return []
    return [
        f"stored {count_of(len(weights), 'tensor')} that the model computes from constants "
        f"({', '.join(operators)}): '{weights[0]}'{', ...' if len(weights) > 1 else ''}"
    ]


def _computes_weights(node: ir.Node, keep: Collection[str]) -> bool:
    """Whether a node computes floats, which may be weights, from constants alone.

    Only running statistics may need integers, too, such as shapes.
    """
    floats = any(out.dtype in FLOAT_TYPES for out in node.outputs)
    constant = all(_is_constant(value, keep) for value in node.inputs)
    return floats and constant and not _may_be_learned(node)


def _stored_size(node: ir.Node) -> int | None:
    """The number of elements that a node computes; ``None`` if they cannot be stored."""
    shapes = [static_shape(out) for out in node.outputs]
    known = [shape for shape in shapes if shape is not None]
    if not is_standard(node, *_OPERATORS):
        return None
    if len(known) < len(shapes):
        return None  # an unknown size may be enormous
    if any(out.is_graph_output() for out in node.outputs):
        return None  # an output needs a node
    return sum(map(math.prod, known))


def _is_constant(value: ir.Value | None, keep: Collection[str]) -> bool:
    """Whether a value cannot be a parameter: integers, scalars, literals of the code."""
    if value is None:
        return True
    if value.name in keep:
        return False
    if value.is_graph_input() or not value.is_initializer() or value.const_value is None:
        return False
    if value.dtype not in FLOAT_TYPES or value.meta.get(COMPUTED):
        return True
    origin = origin_of(value).kind
    return origin == "literal" or (origin in ("unknown", "folded") and value.const_value.size <= 1)


def _made_statistics(model: ir.Model) -> set[ir.Node]:
    """Nodes that compute running statistics from stored tensors."""
    found: set[ir.Node] = set()
    for norm in find_nodes(model.graph, "BatchNormalization"):
        for value in norm.inputs[3:5]:
            chain = _chain(value)
            if chain and any(node.op_type != "Identity" for node in chain):
                found |= chain
    return found


def _chain(value: ir.Value | None) -> set[ir.Node] | None:
    """The nodes that compute a value from initializers alone; ``None`` if it has other sources."""
    pending, found = [value], set[ir.Node]()
    while pending:
        current = pending.pop()
        if current is None or (current.is_initializer() and not current.is_graph_input()):
            continue
        node = current.producer()
        if node is None or node.op_type not in _OPERATORS:
            return None
        if node not in found:
            found.add(node)
            pending += node.inputs
    return found


def _results(node: ir.Node, opset: int) -> list[NDArray[np.generic]] | None:
    """The outputs of a node for its constant inputs; ``None`` if they cannot be computed."""
    feeds: dict[str, NDArray[Any]] = {}
    for value in node.inputs:
        if value is None:
            continue
        if value.const_value is None:
            return None
        feeds[value.name or ""] = value.const_value.numpy()
    arrays = evaluate_node(node, feeds, opset)
    if arrays is None:
        return None
    same = all(
        value.dtype is None or value.dtype.numpy() == array.dtype
        for value, array in zip(node.outputs, arrays, strict=True)
    )
    return arrays if same else None


def _is_of_positions(node: ir.Node) -> bool:
    """Whether a node computes positions, masks or what follows from them: no weights."""
    if node.op_type == "Range" or any(v and v.meta.get(POSITIONS) for v in node.inputs):
        return True
    source = node.inputs[0] if node.op_type in ("Cast", "CastLike", "Where") else None
    return source is not None and source.dtype in _INDICES and source.shape != ir.Shape(())


def _store(
    graph: ir.Graph,
    node: ir.Node,
    arrays: list[NDArray[np.generic]],
    report: Report,
    *,
    torch: bool,
) -> None:
    # Not of shapes and conditions: the exporter computes those in advance, too.
    read = [value for value in node.inputs if value is not None and value.dtype not in _INDICES]
    sources = [origin_of(value) for value in read]
    of_positions = _is_of_positions(node)
    for output, array in zip(node.outputs, arrays, strict=True):
        name = output.name or ""
        output.name = f"{name}{_SUFFIX}"  # the tensor takes over the name
        value = add_initializer(graph, name, array)
        value.meta[COMPUTED] = True
        if of_positions:
            value.meta[POSITIONS] = True
        for kind in ("folded", "literal"):  # a result of both kinds counts as folded
            found = next((origin for origin in sources if origin.kind == kind), None)
            if found is not None:
                stamp_origin(value, found)
                break
        else:
            # torch stores all parameters: what it computes from shapes alone is a literal. So is
            # what the definition of an operator computes, such as the zeros of an Attention's mask.
            code = torch or name.startswith(_OURS)
            if code and all(origin.kind == "unknown" for origin in sources):
                stamp_origin(value, Origin("literal"))
        ir.convenience.replace_all_uses_with(output, value)
        report.changed[name] = f"computed by {node.op_type} from constants"
    graph.remove(node, safe=True)


def _leave_branches(model: ir.Model, report: Report) -> None:
    builder = Builder(model.graph, "ortboost/weight")
    for graph in model.graphs():
        if graph is model.graph:
            continue
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            # Single numbers are constants of the code.
            if value.dtype not in FLOAT_TYPES or tensor is None or tensor.size <= 1:
                continue
            if value.is_graph_output():
                continue
            graph.initializers.pop(name)
            taken = name in model.graph.initializers  # both branches may have a weight of that name
            moved = value.name = builder.unique(name) if taken else name
            value.meta[MOVED] = True
            model.graph.register_initializer(value)
            report.changed[moved] = "moved out of a branch or loop body to the main graph"


def _own_statistics(model: ir.Model, report: Report) -> None:
    """Copy running statistics that other inputs of nodes read, too."""
    made: dict[tuple[ir.Value | None, ...], ir.Value] = {}
    builder = Builder(model.graph, "ortboost/statistics")
    for norm in find_nodes(model.graph, "BatchNormalization"):
        for index, role in ((3, "running_mean"), (4, "running_var")):
            given = norm.inputs[index]
            stored = source_before(given, "Identity")
            if given is None or stored is None or stored.const_value is None:
                continue
            # A module that is applied twice has the same scale and bias, too.
            module = (*norm.inputs[1:3], given)
            if module not in made:
                if all(use.role.startswith("running_") for use in weight_uses(stored)):
                    continue  # shared with other statistics: to_training separates them
                name = given.name or ""  # that of torch, if the exporter wrote an Identity
                if given is not stored and not given.is_graph_output():
                    given.name = builder.unique(f"{name}/shared")
                else:
                    name = builder.unique(f"{name}/{role}")
                made[module] = add_initializer(model.graph, name, stored.const_value.numpy())
                report.changed[name] = f"separated from '{stored.name}': the file shared one tensor"
            norm.replace_input_with(index, made[module])
