"""Locate the origin of an overflow: the first non-finite tensors of a step, and their inputs.

The step runs again with its intermediate tensors as outputs. Only non-finite tensors from which a
non-finite loss or gradient is computed are traced back; others, such as the minus infinity of an
attention mask before a softmax, are not findings. A finding is

- an input or a state that is itself not finite;
- a node with finite inputs that computes inf or NaN: the overflow itself;
- a node that computes NaN from inputs with inf but without NaN (inf - inf, 0 * inf).

All intermediate tensors are in memory at once, so this is for a failed step, not for every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.autodiff.engine import gradient_name
from ortboost.graph.query import FLOAT_TYPES, producer_of
from ortboost.graph.reach import ancestors, descendants, values_by_name
from ortboost.program import names
from ortboost.program.catalogue import Catalogue
from ortboost.program.gradients import LARGEST_NORM, STATISTICS, ZEROS
from ortboost.runtime.findings import Diagnosis, Finding, TensorStats
from ortboost.runtime.peepholes import emulated_for
from ortboost.runtime.session import drawing, open_session

__all__ = ["diagnose", "inner_tensors", "list_nonfinite"]

_MOST_FINDINGS, _MOST_NAMES = 5, 10
_WIDENED = "ortboost/widened/"


def inner_tensors(
    model: ir.Model,
    inputs: Mapping[str, NDArray[Any]],
    *,
    device: str,
    threads: int | None = None,
    seed: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Compute all float outputs of the nodes of a graph, which is not modified, in graph order.

    Nodes with subgraphs (the gated update) are omitted; bfloat16 is returned as float32. ``inputs``
    may have more names than the graph; the seed is for a graph that draws random numbers.
    """
    copy = emulated_for(model, device, keep_names=True).clone()
    shown: list[ir.Value] = []
    keys: list[str] = []
    for node in list(copy.graph):  # a list, as casts are added
        if any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values()):
            continue
        for output in node.outputs:
            # None: a type that the native engine leaves to the runtime.
            if not output.name or output.dtype not in (*FLOAT_TYPES, None):
                continue
            keys.append(output.name)
            shown.append(output if output.dtype != ir.DataType.BFLOAT16 else _widened(copy, output))
    copy.graph.outputs[:] = shown
    session = open_session(copy, device=device, threads=threads)
    wanted = {value.name for value in session.get_inputs()}
    with drawing(seed):
        answers = session.run(None, {k: v for k, v in inputs.items() if k in wanted})
    found = dict(zip(keys, answers, strict=True))
    return {name: array for name, array in found.items() if array.dtype.kind == "f"}


def _widened(model: ir.Model, value: ir.Value) -> ir.Value:
    """Add a float32 copy: the bindings cannot convert bfloat16 to numpy."""
    node = ir.node("Cast", [value], {"to": ir.DataType.FLOAT.value}, num_outputs=1)
    (out,) = node.outputs
    out.name, out.dtype, out.shape = f"{_WIDENED}{value.name}", ir.DataType.FLOAT, value.shape
    model.graph.append(node)
    return out


def list_nonfinite(
    catalogue: Catalogue, inputs: Mapping[str, NDArray[Any]], inner: Mapping[str, NDArray[Any]]
) -> list[str]:
    """List at most ten tensors of a step that are not finite, in topological order.

    If loss and gradients are all finite, the overflow is that of a square: then gradients whose
    unscaled norm is too large (:mod:`ortboost.program.gradients`) are listed instead. ``inputs``
    are batch, learning rates and the whole state before the step, ``inner`` the result of
    :func:`inner_tensors`.
    """
    bad = [name for name, array in {**inputs, **inner}.items() if not _finite(array)]
    gradients = [gradient_name(entry.name) for entry in catalogue.entries("parameter")]
    if not any(name in bad for name in (names.LOSS, *gradients)):
        # Gradients are scaled; of several scales the largest, so that none is listed wrongly.
        scale = np.max(inputs.get(names.SCALE, np.ones(())))
        norms = {n: np.linalg.norm(inner[n].astype(np.float64)) for n in gradients if n in inner}
        bad = [name for name, norm in norms.items() if norm / scale >= LARGEST_NORM] or bad
    return bad[:_MOST_NAMES]


def _finite(array: NDArray[Any]) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def diagnose(
    model: ir.Model,
    catalogue: Catalogue,
    inputs: Mapping[str, NDArray[Any]],
    *,
    device: str,
    threads: int | None = None,
    seed: int | None = None,
) -> Diagnosis:
    """Locate the origin of an overflow in a step graph; at most five findings.

    The inputs are batch, learning rates and the whole state before the step; the rest is as for
    :func:`inner_tensors`.
    """
    # The non-finite tensors that lead to a non-finite loss or gradient.
    computed = inner_tensors(model, inputs, device=device, threads=threads, seed=seed)
    values = {name: array for name, array in inputs.items() if array.dtype.kind == "f"}
    values.update(computed)
    bad = {name for name, array in values.items() if not np.isfinite(array).all()}
    parameters = {entry.name for entry in catalogue.entries("parameter")}
    gradients = [gradient_name(name) for name in sorted(parameters)]
    made = values_by_name(model.graph)
    sinks = [name for name in (*gradients, names.LOSS) if name in bad]
    # Gradients too large, yet finite; or only running statistics that are not.
    sinks = sinks or [name for name in bad if name.startswith((ZEROS, STATISTICS))]
    way = _ancestors_among(sinks, made, bad)  # non-finite from the origin to the sinks
    # In which part of the step a node is; the first of these that contains it.
    ends = [made[name] for name in gradients if name in made]
    sides = {
        "forward": ancestors([made.get(names.LOSS)]),
        "backward": ancestors(ends),
        "update": descendants(model.graph, ends),
    }

    def side(node: ir.Node) -> str:
        return next((kind for kind, members in sides.items() if node in members), "statistics")

    # The origins among them: inputs and states first, then nodes in topological order.
    batch = {spec.name for spec in catalogue.batch}
    findings = [
        Finding("input" if name in batch else "state", "", "", TensorStats.of(name, values[name]))
        for name in inputs
        if name in way
    ]
    for node in model.graph:
        bad_outputs = [out for out in node.outputs if out.name in way and out.name in computed]
        if not bad_outputs:
            continue
        tensors = [
            TensorStats.of(out.name or "", values[out.name or ""], _type(out))
            for out in bad_outputs
        ]
        stats = _inputs(node, values)
        # From inputs with inf, an inf is only passed on; a NaN is new (inf - inf, 0 * inf).
        worse = [t for t in tensors if t.nan] if any(not s.finite for s in stats) else tensors
        if worse and not any(s.nan for s in stats):
            label = node.name or worse[0].name
            used = tuple(s.name for s in stats if s.name in parameters)
            findings.append(Finding(side(node), label, node.op_type, worse[0], stats, used))
    scale = inputs.get(names.SCALE, np.ones(()))
    return Diagnosis(tuple(findings[:_MOST_FINDINGS]), len(bad), len(values), float(np.max(scale)))


def _type(value: ir.Value) -> str | None:
    """The type of a value whose array has another type: upcast for numpy, or emulated."""
    kinds = {ir.DataType.BFLOAT16: "bfloat16", ir.DataType.FLOAT16: "float16"}
    return kinds.get(value.dtype) if value.dtype is not None else None


def _inputs(node: ir.Node, values: Mapping[str, NDArray[Any]]) -> tuple[TensorStats, ...]:
    """Statistics of the inputs of a node, including constants."""
    found: dict[str, TensorStats] = {}
    for value in node.inputs:
        if value is None:
            continue
        name = value.name or ""
        tensor = ir.convenience.get_const_tensor(value)
        if name in values:
            found[name] = TensorStats.of(name, values[name], _type(value))
        elif tensor is not None and tensor.dtype in FLOAT_TYPES:
            array = np.asarray(tensor.numpy()).astype(np.float32)
            found[name] = TensorStats.of(name, array, _type(value))
    return tuple(found.values())


def _ancestors_among(
    ends: Sequence[str], made: Mapping[str, ir.Value], among: set[str]
) -> set[str]:
    """The ends, and those of the names ``among`` that they depend on, through such names only."""
    pending, seen = list(ends), set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = producer_of(made.get(name))
        read = [] if node is None else [value.name for value in node.inputs if value is not None]
        pending += [other for other in read if other in among]
    return seen
