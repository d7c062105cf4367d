"""The nodes between the parameters and the loss: only these need a gradient.

A gradient flows along float values only. It stops at operators whose output does not depend
smoothly on the input (comparisons, ``ArgMax``, ``Shape``), at casts to integers, and where the
model says so: ``detach`` of torch. It passes integers between a QuantizeLinear and its inverse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.graph.query import FLOAT_TYPES, is_standard, subgraphs
from ortboost.graph.weights.fake_quantization import passes_integers
from ortboost.graph.weights.origins import CALL_KEY

__all__ = [
    "CONTROLS",
    "STOPS",
    "STOP_MARK",
    "Reach",
    "ancestors",
    "descendants",
    "dropped_detaches",
    "find_value",
    "nodes_before",
    "reach",
    "stops_gradient",
    "uses_inside",
    "values_by_name",
    "values_read",
]

STOPS = frozenset(
    "And ArgMax ArgMin Bernoulli BitwiseAnd BitwiseNot BitwiseOr BitwiseXor ConstantOfShape Equal "
    "EyeLike Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Multinomial NonZero Not Or "
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike SequenceLength Shape Size "
    "Xor".split()
)
"""Operators through which no gradient flows, whatever their inputs."""

STOP_MARK = "ortboost.stop_gradient"
"""Metadata key of a node through which no gradient flows."""

_DETACH = re.compile(r"\[target=torch\.ops\.aten\.detach_?\.default\]")
_DETACHED = re.compile(r"%detach_?(?:_\d+)?\b")

CONTROLS = {
    "BatchNormalization": (3, 4),
    "CastLike": (1,),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "OneHot": (0, 1),
    "QuantizeLinear": (1, 2),
    "Resize": (1, 2),
    "Upsample": (1,),
}
"""Operator to its float inputs that only control it: they get no gradient."""


@dataclass(frozen=True)
class Reach:
    """The part of a graph that gradients pass through.

    Args:
        nodes: Nodes on a differentiable path from a source to the loss, in graph order.
        active: Names of the values on such a path, sources and loss included.
        unreachable: Sources from which no differentiable path leads to the loss.
    """

    nodes: tuple[ir.Node, ...]
    active: frozenset[str]
    unreachable: tuple[str, ...]


def stops_gradient(node: ir.Node) -> bool:
    """Whether a node has :data:`STOP_MARK`, or is a ``detach`` of torch.

    The dynamo exporter writes ``detach`` as an Identity with the call as metadata. With
    ``optimize=True`` there is no such node, see :func:`dropped_detaches`; the TorchScript exporter
    leaves no trace.
    """
    known = node.metadata_props
    if STOP_MARK in known:
        return True
    return is_standard(node, "Identity") and _DETACH.search(known.get(CALL_KEY, "")) is not None


def dropped_detaches(graph: ir.Graph) -> set[str]:
    """Values detached in torch for which an optimizing exporter left no node, by torch's names."""
    read: set[str] = set()
    made: set[str] = set()
    for node in graph.all_nodes():
        call = node.metadata_props.get(CALL_KEY, "")
        if stops_gradient(node):
            made.add(call.partition(" ")[0])
        else:
            read.update(_DETACHED.findall(call.partition("=")[2]))
    return {name.removeprefix("%") for name in read - made}


def find_value(graph: ir.Graph, name: str) -> ir.Value | None:
    """The value of the main graph with this name, if there is one."""
    return values_by_name(graph).get(name)


def values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    """All values of the main graph."""
    found = dict(graph.initializers.items())
    found.update({value.name: value for value in graph.inputs if value.name})
    for node in graph:
        found.update({output.name: output for output in node.outputs if output.name})
    return found


def uses_inside(node: ir.Node) -> Iterable[ir.Value]:
    """Outer values that the subgraphs of a node (If, Loop, Scan) capture."""
    for graph in subgraphs(node):
        for inner in graph.all_nodes():
            for value in inner.inputs:
                if value is not None and value.graph is not graph:
                    yield value
        yield from graph.outputs  # a branch may pass on an outer value without a node


def values_read(node: ir.Node) -> list[ir.Value]:
    """All values that a node reads, also in its subgraphs."""
    return [value for value in (*node.inputs, *uses_inside(node)) if value is not None]


def ancestors(
    values: Iterable[ir.Value | None], past: Callable[[ir.Node], bool] = lambda _: True
) -> set[ir.Node]:
    """The nodes that values depend on: their producers, and those of everything that these read.

    A node with subgraphs reads what the nodes in them read, and these count, too. The search does
    not go on to what a node reads if ``past`` is false for it.
    """
    return set(nodes_before(values, past))


def nodes_before(
    values: Iterable[ir.Value | None], past: Callable[[ir.Node], bool] = lambda _: True
) -> Iterator[ir.Node]:
    """:func:`ancestors` one by one, from the values backwards, so that a search can stop early."""
    found: set[ir.Node] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        node = None if value is None else value.producer()
        if node is None or node in found:
            continue
        found.add(node)
        yield node
        if past(node):
            pending += values_read(node)


def descendants(graph: ir.Graph, values: Iterable[ir.Value]) -> set[ir.Node]:
    """The nodes that read values of a graph, and those that read what these compute.

    Those in subgraphs count, and so do the nodes of the graph that have the subgraphs.
    """
    bodies = [(body, node) for node in graph for body in subgraphs(node)]
    outer = {inner: node for body, node in bodies for inner in body.all_nodes()}
    found: set[ir.Node] = set()
    pending = list(values)
    while pending:
        for usage in pending.pop().uses():
            new = {usage.node, outer.get(usage.node, usage.node)} - found
            found |= new
            pending += (output for node in new for output in node.outputs)
    return found


def reach(model: ir.Model, sources: Iterable[str], loss: str | Iterable[str]) -> Reach:
    """Find the nodes between ``sources`` and ``loss``.

    Args:
        model: Model whose main graph is searched.
        sources: Names of the values that need a gradient.
        loss: Name of the value to differentiate, or names of several.

    Returns:
        The nodes and values on differentiable paths. Unknown names count as unreachable.
    """
    names = list(sources)
    # Forwards: which values depend on a source. Backwards: which of them lead to the loss.
    forward: set[str] = set(names)
    touched: list[tuple[ir.Node, set[str]]] = []
    for node in model.graph:
        if (node.op_type in STOPS and is_standard(node)) or stops_gradient(node):
            continue
        moving = {v.name for v in _differentiable_inputs(node) if v.name and v.name in forward}
        faked = passes_integers(node)
        carried = [o.name for o in node.outputs if o.name and (faked or _carries(o))]
        if moving and carried:
            forward.update(carried)
            touched.append((node, moving))
    targets = {loss} if isinstance(loss, str) else set(loss)
    backward: set[str] = set(targets)
    between: list[ir.Node] = []
    for node, moving in reversed(touched):
        if any(output.name in backward for output in node.outputs if output.name):
            between.append(node)
            backward |= moving
    known = forward & backward
    known = known if known & targets else set()  # else nothing leads to the loss
    return Reach(
        nodes=tuple(reversed(between)),
        active=frozenset(known),
        unreachable=tuple(name for name in names if name not in known),
    )


def _carries(value: ir.Value) -> bool:
    """Whether a gradient can flow through this value; unknown types count as float."""
    return value.dtype is None or value.dtype in FLOAT_TYPES


def _differentiable_inputs(node: ir.Node) -> Iterable[ir.Value]:
    controls = CONTROLS.get(node.op_type, ()) if is_standard(node) else ()
    if node.op_type == "BatchNormalization" and not node.attributes.get_int("training_mode", 0):
        controls = ()  # it normalizes by the given statistics; in training mode by its own
    read = (value for index, value in enumerate(node.inputs) if index not in controls)
    for value in (*read, *uses_inside(node)):
        if value is not None and (_carries(value) or _is_faked(value)):
            yield value


def _is_faked(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and passes_integers(node)
