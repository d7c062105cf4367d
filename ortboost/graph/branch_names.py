"""Give every value of a model a name of its own, also across the branches of an If.

Two branches may use the same names. ONNX's shape inference then takes the lengths that it computed
in one branch for those of the other (``data_prop``, seen up to onnx 1.23): shapes are wrong, and so
is everything that is computed from them. Decoders that optimum merged are such models.
"""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["separate_branch_names"]


def separate_branch_names(model: ir.Model) -> None:
    """Rename values whose name another one has, in place; the first, in the main graph, keeps it.

    Args:
        model: A model without functions.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 8, opset_import: ["" : 17]>
        ... net (bool c, float[2] x) => (float[2] y) {
        ...   y = If (c) <then_branch = one () => (float[2] a) { h = Abs(x) a = Neg(h) },
        ...               else_branch = two () => (float[2] b) { h = Exp(x) b = Neg(h) }> }''')
        >>> separate_branch_names(model)
        >>> [node.outputs[0].name for node in model.graph.all_nodes()]
        ['y', 'h', 'a', 'h_1', 'b']
    """
    values = [
        value
        for graph in (model.graph, *model.graph.subgraphs())
        for value in (*graph.inputs, *graph.initializers.values(), *_results(graph))
    ]
    taken = {value.name for value in values}
    seen: dict[str, ir.Value] = {}
    for value in values:
        if not value.name:
            continue
        if seen.setdefault(value.name, value) is not value:
            name, count = value.name, 1
            while f"{name}_{count}" in taken:
                count += 1
            value.name = f"{name}_{count}"
            taken.add(value.name)


def _results(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs]
