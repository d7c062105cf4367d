"""Constant folding: evaluate nodes that do not depend on the inputs.

onnxscript does the folding. This module decides what must not be folded: random operators;
operators whose reference implementation differs from the runtimes; and nodes whose folding would
store a large tensor twice because another node reads it. A Resize is computed by onnxruntime: that
of stored positions would stay in every vision transformer, and TensorRT has no cubic one.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.helper import np_dtype_to_tensor_dtype
from onnx_ir.passes import common
from onnxscript import optimizer

from ortboost.core.report import Report
from ortboost.graph.evaluate import is_inexact
from ortboost.graph.opsets.convert_opset import quiet
from ortboost.graph.query import (
    RANDOM_OPERATORS,
    constant,
    count_operators,
    input_at,
    is_standard,
    label,
    static_shape,
)
from ortboost.graph.rewriting import Site, rewrite_nodes
from ortboost.runtime.session import open_session

__all__ = ["fold_constants"]

_HIDDEN_DOMAIN = "ortboost.hidden"
_COPY = 1 << 18  # elements; smaller copies do not matter
_RESULT = 1 << 20  # elements; a larger result must not be larger than what it is computed from
_SMALL = 64  # elements of a ConstantOfShape, which may be part of a shape
_IR_VERSION = 8  # every runtime reads it
_NO_LIMIT = 1 << 62  # size is decided here, not by the pass
_GROWING = ("Expand", "Pad", "Range", "Tile")
_KEPT = {
    "DequantizeLinear": "it is part of a quantized model",
    "DynamicQuantizeLinear": "it is part of a quantized model",
    "QuantizeLinear": "it is part of a quantized model",
    **dict.fromkeys(RANDOM_OPERATORS, "it draws random numbers"),
}


def fold_constants(model: ir.Model) -> Report:
    """Fold constants, in place.

    Returns:
        A report of the number of folded nodes per operator, and of the kept ones with reasons.
    """
    report = Report("fold_constants")
    before, opset = count_operators(model), model.opset_imports.get("", 0)
    constants = _constant_nodes(model, opset)
    _fold_splits(model, constants, opset)
    _fold_resizes(model, constants, opset)

    def should_fold(node: ir.Node) -> bool | None:
        reason = _obstacle(node, constants, opset)
        if reason is not None:
            report.kept[label(node)] = reason
            return False
        return True

    # onnxscript stops at a node that it cannot compute. That node is hidden, and folding goes on.
    hidden = {
        node: "it does not saturate, which constant folding ignores"
        for node in model.graph.all_nodes()
        if is_standard(node, "Cast", "CastLike") and not node.attributes.get_int("saturate", 1)
    }
    while True:
        try:
            # The logarithm of 0 is -inf, as in a runtime: T5 stores this value, and masks it.
            with quiet("onnxscript", "onnx_ir"), _hide(hidden), np.errstate(all="ignore"):
                optimizer.fold_constants_ir(
                    model,
                    onnx_shape_inference=False,
                    input_size_limit=_NO_LIMIT,
                    output_size_limit=_NO_LIMIT,
                    should_fold=should_fold,
                )
            break
        except RuntimeError as error:  # the nodes folded before it are correct
            failed = _named_in(str(error), model)
            if failed is None or failed in hidden:
                raise
            hidden[failed] = "onnxscript cannot compute it"
    report.kept.update({label(node): reason for node, reason in hidden.items()})
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    after = count_operators(model)
    if after.get("If", 0) < before.get("If", 0):
        _forget_branches(model)
    for op in sorted(before):
        if before[op] > after.get(op, 0):
            report.changed[op] = f"{before[op]} -> {after.get(op, 0)}"
    return report


def _constant_nodes(model: ir.Model, opset: int) -> set[ir.Node]:
    """Nodes that depend on stored tensors only: all of them may be folded."""
    found: set[ir.Node] = set()
    for node in model.graph.all_nodes():
        sources = [value for value in node.inputs if value is not None]
        if (
            sources
            and not is_standard(node, *_KEPT, "ConstantOfShape", "Dropout")
            and not is_inexact(node, opset)
            and all(v.is_initializer() or v.producer() in found for v in sources)
        ):
            found.add(node)
    return found


def _fold_splits(model: ir.Model, constants: set[ir.Node], opset: int) -> None:
    """Fold each Split of a stored tensor; onnxscript folds no operator of several outputs."""

    def rule(site: Site) -> list[ir.Value] | None:
        whole, shapes = site.array(0), [static_shape(part) for part in site.node.outputs]
        if whole is None or None in shapes or _obstacle(site.node, constants, opset):
            return None
        axis = site.axis(default=0)
        ends = np.cumsum([shape[axis] for shape in shapes if shape is not None])
        return [site.const(part) for part in np.split(whole, ends[:-1], axis)]

    rewrite_nodes(model, "fold_constants", {"Split": rule}, subgraphs=True)


def _fold_resizes(model: ir.Model, constants: set[ir.Node], opset: int) -> None:
    """Fold each Resize of a stored tensor, as onnxruntime computes it."""

    def rule(site: Site) -> list[ir.Value] | None:
        given = [value for value in site.node.inputs if value is not None]
        arrays = {value.name or "": constant(value) for value in given}
        feeds = {name: array for name, array in arrays.items() if array is not None}
        if len(feeds) < len(arrays) or static_shape(site.node.outputs[0]) is None:
            return None
        if _too_large(site.node, constants):
            return None
        whole = _computed(site.node, feeds, opset)
        return None if whole is None else [site.const(whole)]

    rewrite_nodes(model, "fold_constants", {"Resize": rule}, subgraphs=True)


def _computed(node: ir.Node, feeds: Mapping[str, NDArray[Any]], opset: int) -> NDArray[Any] | None:
    """The output of a standard node as onnxruntime computes it; ``None`` if it does not."""
    inputs = [
        onnx.helper.make_tensor_value_info(name, np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    output = onnx.helper.make_empty_tensor_value_info(node.outputs[0].name or "")
    graph = onnx.helper.make_graph([ir.to_proto(node)], "node", inputs, [output])
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=_IR_VERSION
    )
    try:
        session = open_session(ir.from_proto(proto), device="cpu", optimize=False)
        return np.asarray(session.run(None, dict(feeds))[0])
    except Exception:  # a type without a kernel: whatever stops the runtime, the node stays
        return None


def _forget_branches(model: ir.Model) -> None:
    """Remove nodes of deleted branches from the uses of their inputs, which the pass leaves there.

    Otherwise a value would seem to be read more than once, and nothing after it would be fused.
    """
    nodes = set(model.graph.all_nodes())
    values = [out for node in nodes for out in node.outputs]
    for graph in model.graphs():
        values += [*graph.inputs, *graph.initializers.values()]
    for value in values:
        for use in list(value.uses()):
            if use.node not in nodes:
                use.node.replace_input_with(use.idx, None)


@contextlib.contextmanager
def _hide(nodes: Iterable[ir.Node]) -> Iterator[None]:
    """Put nodes into an unknown domain, as ``should_fold`` is not called for all operators."""
    domains = [(node, node.domain) for node in nodes]
    try:
        for node, _ in domains:
            node.domain = _HIDDEN_DOMAIN
        yield
    finally:
        for node, domain in domains:
            node.domain = domain


def _named_in(message: str, model: ir.Model) -> ir.Node | None:
    """The node named in an error message of the folding."""
    named = re.search(r"for node '(.*)' \(", message)
    name = None if named is None else named[1]
    return next((node for node in model.graph.all_nodes() if name and node.name == name), None)


def _obstacle(node: ir.Node, constants: set[ir.Node], opset: int) -> str | None:
    """Why a node with constant inputs is kept, or ``None``."""
    if is_standard(node, *_KEPT):
        return _KEPT[node.op_type]
    if is_inexact(node, opset):
        return "the reference implementation differs from the runtimes"
    if is_standard(node, "ConstantOfShape"):
        shape = constant(node.inputs[0])
        if shape is None or int(np.prod(shape)) > _SMALL:
            return "a single value describes its large result"
    if is_standard(node, "Dropout") and input_at(node, 2) is not None:
        return "it may draw random numbers"
    return _too_large(node, constants)


def _too_large(node: ir.Node, constants: set[ir.Node]) -> str | None:
    """Why the result of a node is not stored, or ``None``."""
    # A large result would be stored beside the tensor that it is computed from, unless all readers
    # of that are folded too.
    result = static_shape(node.outputs[0])
    size = None if result is None else math.prod(result)
    for value in node.inputs if size is None or size > _COPY else ():
        if value is None or value.const_value is None or value.const_value.size <= _COPY:
            continue
        readers = {usage.node for usage in value.uses()}
        if len(readers) > 1 and not readers <= constants:
            return f"another node reads '{value.name}' too, so it would be stored twice"
    if size is not None:
        taken = sum(v.const_value.size for v in node.inputs if v is not None and v.const_value)
        if size > max(_RESULT, 2 * taken):
            return f"its result is large ({size} elements)"
    elif is_standard(node, *_GROWING):
        return "the size of its result is not known"
    return None
