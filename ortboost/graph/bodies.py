"""Bodies of If, Loop and Scan: what they capture, their names, each as a model; a new If."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from ortboost.graph.build import Builder, all_names, unused_name

__all__ = [
    "StandaloneBody",
    "as_model",
    "captured_values",
    "choose",
    "own_outputs",
    "rename_values",
    "separate_branch_names",
    "states_of",
    "unwrap",
]

_SMALL = 1024  # elements of a captured constant that inference and rewrites may read


def captured_values(body: ir.Graph) -> list[ir.Value]:
    """The outer values that the nodes of a body, and of the bodies within it, read, each once.

    One that the body only returns does not count, see :func:`own_outputs`.
    """
    inside = {id(body), *map(id, body.subgraphs())}
    found: dict[int, ir.Value] = {}
    for node in body.all_nodes():
        for value in node.inputs:
            if value is not None and id(value.graph) not in inside:
                found.setdefault(id(value), value)
    return list(found.values())


def own_outputs(body: ir.Graph) -> None:
    """Let each output of a body be computed by a separate node of it, in place.

    onnxruntime (1.19.2, 1.31.1) returns other numbers if one value is several outputs of a branch.
    A body may also return an input, a constant or an outer value as it is.
    """
    seen: set[int] = set()
    for index, value in enumerate(body.outputs):
        producer = value.producer()
        if producer is None or producer.graph is not body or id(value) in seen:
            copy = ir.node("Identity", [value])
            copy.outputs[0].name, copy.outputs[0].type = f"{value.name}/{index}", value.type
            copy.outputs[0].shape = value.shape
            body.append(copy)
            body.outputs[index] = copy.outputs[0]
        seen.add(id(value))


def states_of(node: ir.Node) -> tuple[int, int, int]:
    """Index of the first state among the inputs of a Loop or Scan and of its body.

    Returns:
        That index, the index of the first state among the outputs of the body, and the number of
        states. A Loop also has a trip count and a condition; its body returns the condition.
    """
    if node.op_type == "Loop":
        return 2, 1, len(node.inputs) - 2
    return 0, 0, len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)


def rename_values(body: ir.Graph, new_name: Callable[[str], str]) -> None:
    """Rename every value and node of a body and of the bodies within it."""
    for graph in (body, *body.subgraphs()):
        for value in graph.inputs:
            value.name = new_name(value.name or "input")
        for constant in list(graph.initializers.values()):
            constant.name = new_name(constant.name or "constant")
        for node in graph:
            node.name = new_name(node.name or node.op_type)
            for output in node.outputs:
                if output.name:
                    output.name = new_name(output.name)


def unwrap(branch: ir.Graph, node: ir.Node) -> list[ir.Value]:
    """Move the nodes and constants of a branch to the graph of its node, in front of it.

    Values whose name is taken there get another one.

    Returns:
        The results of the branch, which the caller puts in place of the outputs of the node.
    """
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    taken = {value.name or "" for other in graph for value in other.outputs}
    taken.update(graph.initializers, (value.name or "" for value in graph.inputs))
    # A node or value belongs to one graph: release them from the branch first.
    results, nodes, stored = list(branch.outputs), list(branch), list(branch.initializers.values())
    branch.outputs.clear()
    branch.remove(nodes)
    branch.initializers.clear()
    for value in (*stored, *(output for inner in nodes for output in inner.outputs)):
        if value.name:
            value.name = unused_name(value.name, taken)
    for value in stored:
        graph.register_initializer(value)
    graph.insert_before(node, nodes)
    return results


def separate_branch_names(model: ir.Model) -> None:
    """Rename values that share a name with an earlier one, in place; the main graph comes first.

    Two branches of an If may use the same names. ONNX's shape inference then takes the lengths that
    it computed in one branch for those of the other (``data_prop``, seen up to onnx 1.23): shapes
    are wrong, and so is everything that is computed from them. Decoders that optimum merged are
    such models. The model has no functions.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 8, opset_import: ["" : 17]>
        ... net (bool c, float[2] x) => (float[2] y) {
        ...   y = If (c) <then_branch = one () => (float[2] a) { h = Abs(x) a = Neg(h) },
        ...               else_branch = two () => (float[2] b) { h = Exp(x) b = Neg(h) }> }''')
        >>> separate_branch_names(model)
        >>> [node.outputs[0].name for node in model.graph.all_nodes()]
        ['y', 'h', 'a', 'h_1', 'b']
    """
    values: list[ir.Value] = []
    for graph in (model.graph, *model.graph.subgraphs()):
        values += (*graph.inputs, *graph.initializers.values())
        values += (output for node in graph for output in node.outputs)
    taken = {value.name for value in values if value.name}
    seen: dict[str, ir.Value] = {}
    for value in values:
        if value.name and seen.setdefault(value.name, value) is not value:
            value.name = unused_name(value.name, taken)


@dataclass(frozen=True)
class StandaloneBody:
    """A body as a model of its own, which captures nothing.

    Args:
        model: The model: the inputs of the body, then what it captures; small captured constants
            are initializers.
        captured: Value of the model to the outer value that it stands for.
    """

    model: ir.Model
    captured: Mapping[ir.Value, ir.Value]

    def put_back(self, outer: ir.Model) -> ir.Graph:
        """The graph as a body again, with names that no value of ``outer`` has."""
        graph = self.model.graph
        for inner, value in self.captured.items():
            inner.replace_all_uses_with(value)
            if inner.name in graph.initializers:
                graph.initializers.pop(inner.name or "")
            else:
                graph.inputs.remove(inner)
        graph.opset_imports.clear()
        taken = all_names(outer.graph)
        taken.update(value.name for value in self.captured.values() if value.name)
        rename_values(graph, lambda name: unused_name(name, taken))
        return graph


def as_model(body: ir.Graph, outer: ir.Model) -> StandaloneBody:
    """Take a body out of its node in the outer model, which then has to be given another.

    Each output of the body is computed by a separate node (:func:`own_outputs`).
    """
    captured: dict[ir.Value, ir.Value] = {}
    inside = {id(body), *map(id, body.subgraphs())}
    for value in captured_values(body):
        tensor = value.const_value
        small = tensor is not None and tensor.size <= _SMALL and not value.is_graph_input()
        inner = ir.Value(
            name=value.name,
            type=value.type,
            shape=value.shape,
            const_value=tensor if small else None,
        )
        captured[inner] = value
        for node, index in list(value.uses()):
            if id(node.graph) in inside:
                node.replace_input_with(index, inner)
        if small:
            body.register_initializer(inner)
        else:
            body.inputs.append(inner)
    body.opset_imports.update(outer.opset_imports)
    functions = list(outer.functions.values())
    model = ir.Model(body, ir_version=outer.ir_version, functions=functions)
    return StandaloneBody(model, captured)


def choose(
    b: Builder,
    name: str,
    condition: ir.Value,
    then: Callable[[], Mapping[str, ir.Value]],
    otherwise: Callable[[], Mapping[str, ir.Value]],
    like: Mapping[str, ir.Value] = MappingProxyType({}),
    *,
    prefix: str = "",
) -> dict[str, ir.Value]:
    """Append `If(condition) then ... else ...`.

    Args:
        b: The builder of the graph, without collected nodes.
        name: Name of the node; the branches are named after it.
        condition: bool scalar.
        then: Creates the nodes of the first branch with ``b`` and returns its results by key.
        otherwise: The same for the second branch, with the same keys.
        like: Key to a value of the same type and shape; for other keys, those of the first
            branch's result are used.
        prefix: Prefix of the names of the outputs, followed by the keys.

    Returns:
        Key to an output of the ``If``.
    """
    first = then()
    kinds = {key: like.get(key, value) for key, value in first.items()}
    then_branch = _branch(b, f"{name}/then", first)
    second = otherwise()
    else_branch = _branch(b, f"{name}/else", {key: second[key] for key in first})
    results = {
        key: ir.val(b.unique(prefix + key), shape=kind.shape, type=kind.type)
        for key, kind in kinds.items()
    }
    # An If has one type and shape for each output: both branches declare them.
    for graph in (then_branch, else_branch):
        for value, kind in zip(graph.outputs, kinds.values(), strict=True):
            value.type, value.shape = kind.type, kind.shape
    branches = {"then_branch": then_branch, "else_branch": else_branch}
    outputs, name = list(results.values()), b.unique(name)
    b.graph.append(ir.node("If", [condition], branches, outputs=outputs, name=name))
    return results


def _branch(b: Builder, name: str, results: Mapping[str, ir.Value]) -> ir.Graph:
    """Turn the collected nodes into a branch whose outputs are the results, in this order.

    A branch may only output values computed inside it, and each only once: others are copied.
    """
    inside = {id(output) for node in b.nodes for output in node.outputs}
    outputs: list[ir.Value] = []
    for key, value in results.items():
        if id(value) in inside:
            inside.remove(id(value))
            outputs.append(value)
        else:
            outputs.append(b.op("Identity", value, name=f"{name}/{key}"))
    return ir.Graph([], outputs, nodes=b.take(), name=name)
