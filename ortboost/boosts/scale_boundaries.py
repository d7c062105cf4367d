r"""Boundaries between groups of layers with different loss scales.

Groups may be any sets of parameters: a node belongs to the last group among its inputs and
parameters, and every edge between two groups has a boundary, including those of shared weights and
skip connections. The gradient of a parameter of group `i` therefore carries `s_i`, whatever the
structure of the graph. With marks, the user places the boundaries; a mark that would give a
parameter another scale than that of its group is an error.

A boundary is inserted as `y = x * 1` with a graph input for the `1`, which both engines
differentiate to `dx = dy * 1`. After differentiation the first product is removed, and the `1` of
the second becomes the ratio `s_a / s_b`, in float32 even if `dy` has 16 bits. The engines need no
support for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.boosts.roles import BOUNDARY
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.layers import find_layers
from ortboost.graph.query import subgraphs
from ortboost.graph.reach import Reach, reach, values_by_name, values_read
from ortboost.graph.weights.parameters import Parameter, named_parameters

__all__ = ["Boundary", "ScaleGroups", "insert_boundaries", "resolve_boundaries"]


@dataclass(frozen=True)
class Boundary:
    """One boundary.

    Args:
        one: Name of the graph input that is a placeholder for the ratio.
        output: Name of the output of the boundary in the forward pass.
        before: Group that the tensor leaves, from 1; 0 is outside of all groups.
        after: Group that it enters.
    """

    one: str
    output: str
    before: int
    after: int


@dataclass(frozen=True)
class ScaleGroups:
    """The groups of a network.

    Args:
        of: Name of a trained parameter to its group, from 1.
        number: Number of groups.
        boundaries: All boundaries.
        loss: Group that computes the loss; ``number + 1`` if the scale starts at a mark.
    """

    of: Mapping[str, int]
    number: int
    boundaries: tuple[Boundary, ...]
    loss: int


def insert_boundaries(
    model: ir.Model, trained: Sequence[Parameter], objective: str, config: GroupedScaleConfig
) -> tuple[ScaleGroups, Report]:
    """Insert boundaries between the groups of a forward graph, in place.

    Parameters are inputs of the graph; ``objective`` is the name of the loss to differentiate.

    Raises:
        ConfigError: A parameter is in no group; there are fewer layers than groups; a mark is not
            at a tensor, or gives a parameter another scale than that of its group.
    """
    report = Report("scale_groups")
    groups = _parameter_groups(model, trained, config, report)
    path = reach(model, [p.name for p in trained], objective)
    if config.marks:
        _check_marks(model, path, groups, objective, config)
        boundaries = _at_marks(model, path, config)
        # The marks scale what is between them: the loss itself is outside.
        loss = config.number + 1
    else:
        # A node belongs to one group, and each edge to another group gets a boundary.
        levels, of_value = _levels(path, groups)
        boundaries = _between(model, path, of_value, levels)
        makers = [node for node in path.nodes if any(o.name == objective for o in node.outputs)]
        loss = levels[id(makers[0])] if makers else config.number
    for boundary in boundaries:
        report.changed[boundary.output] = f"group {boundary.before} ends, {boundary.after} begins"
    return ScaleGroups(groups, config.number, tuple(boundaries), loss), report


def _parameter_groups(
    model: ir.Model, trained: Sequence[Parameter], config: GroupedScaleConfig, report: Report
) -> dict[str, int]:
    names = [parameter.name for parameter in trained]
    found: dict[str, int] = {}
    if isinstance(config.groups, int):
        layers = find_layers(model, trained)
        if len(layers) < config.number:
            raise ConfigError(
                f"{config.number} groups are requested, but the network has {len(layers)} layers.",
                where="loss scale, groups",
                fix=f"Use {len(layers)} groups or fewer.",
            )
        for index, layer in enumerate(layers):
            for name in layer.parameters:
                # Consecutive layers, in groups whose sizes differ by one at most.
                found[name] = 1 + index * config.number // len(layers)
    else:
        for number, patterns in enumerate(config.groups, 1):
            for name in named_parameters(trained, patterns, f"loss scale, group {number}"):
                # The first group that matches wins, so a last '*' takes the rest.
                found.setdefault(name, number)
        left = [name for name in names if name not in found]
        if left:
            raise ConfigError(
                f"{count_of(len(left), 'parameter')} in no group, for example '{left[0]}'.",
                where="loss scale, groups",
                fix="Give every trained parameter a group; a last group of '*' takes the rest.",
            )
    for number in range(1, config.number + 1):
        members = [name for name in names if found[name] == number]
        report.notes.append(
            f"scale group {number}: {len(members)} tensors, {', '.join(members[:2])}"
            + (", ..." if len(members) > 2 else "")
        )
    return found


def _levels(path: Reach, groups: Mapping[str, int]) -> tuple[dict[int, int], dict[str, int]]:
    """The group of each node on the path, the last among its inputs, and of each value."""
    levels: dict[int, int] = {}
    of_value = dict(groups)
    for node in path.nodes:
        read = [of_value.get(name, 0) for name in _reads(node) if name in path.active]
        levels[id(node)] = max(read, default=1) or 1  # 1 if no input has a group
        for output in node.outputs:
            if output.name:
                of_value[output.name] = levels[id(node)]
    return levels, of_value


def _between(
    model: ir.Model, path: Reach, of_value: Mapping[str, int], levels: Mapping[int, int]
) -> list[Boundary]:
    """Insert a boundary on every edge between two groups, one for all uses in the same group."""
    builder = Builder(model.graph, BOUNDARY)
    made: list[Boundary] = []
    for value in _active_values(model, path):
        before = of_value[value.name or ""]
        later: dict[int, list[tuple[ir.Node, int]]] = {}
        for node, index, owner in _uses(value, path):
            after = levels[id(owner)]
            if after != before:
                later.setdefault(after, []).append((node, index))
        for after, uses in later.items():
            made.append(_boundary(builder, model, value, before, after, uses))
    return made


def _at_marks(model: ir.Model, path: Reach, config: GroupedScaleConfig) -> list[Boundary]:
    builder = Builder(model.graph, BOUNDARY)
    active = {value.name: value for value in _active_values(model, path)}
    made = []
    for tensor, before, after in config.marks:
        uses = [(node, index) for node, index, _ in _uses(active[tensor], path)]
        made.append(_boundary(builder, model, active[tensor], before, after, uses))
    return made


def _boundary(
    builder: Builder,
    model: ir.Model,
    value: ir.Value,
    before: int,
    after: int,
    uses: Sequence[tuple[ir.Node, int]],
) -> Boundary:
    """Insert `value * 1` in front of the given uses."""
    graph = model.graph
    name = builder.unique(f"{BOUNDARY}/{before}-{after}/{value.name}")
    one = ir.val(builder.unique(f"{name}/one"), value.dtype or ir.DataType.FLOAT, ())
    graph.inputs.append(one)
    output = builder.op("Mul", value, one, name=name, dtype=value.dtype, shape=value.shape)
    (node,) = builder.take()
    # A boundary of an input stands at the start, all others right after what they scale.
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(producer, node)
    for user, index in uses:
        user.replace_input_with(index, output)
    return Boundary(one.name or "", output.name or "", before, after)


def _check_marks(
    model: ir.Model,
    path: Reach,
    groups: Mapping[str, int],
    objective: str,
    config: GroupedScaleConfig,
) -> None:
    """Trace the scale backward from the loss: it must be unique, and right for each parameter."""
    active = {value.name for value in _active_values(model, path)}
    marks = {tensor: (before, after) for tensor, before, after in config.marks}
    for tensor in marks:
        if tensor not in active:
            raise ConfigError(
                f"The mark '{tensor}' is not a tensor between the parameters and the loss.",
                where="loss scale, marks",
                fix="Use a tensor of the forward pass; see 'ortboost inspect MODEL --layers'.",
            )
    outside = config.number + 1
    # Backward from the loss: inside a node, all gradients have one scale; a mark changes it.
    level: dict[str, int] = {objective: outside}
    for node in reversed(path.nodes):
        found = sorted({_same(level[o.name], outside) for o in node.outputs if o.name in level})
        if not found:
            continue
        here = found[0]
        if len(found) > 1:
            raise _mismatch(node.outputs[0].name or "", found[0], found[1], outside)
        for name in dict.fromkeys(_reads(node)):
            if name not in active:
                continue
            before, after = marks.get(name, (here, here))
            wanted = after if name in marks else level.get(name, here)
            if here != _same(wanted, outside):
                raise _mismatch(name, here, wanted, outside)
            level[name] = _same(before, outside)
    for name, number in groups.items():
        if name in level and level[name] != number:
            raise _mismatch(name, level[name], number, outside)


def _same(number: int, outside: int) -> int:
    """Merge the two outside levels, which both have the scale 1."""
    return 0 if number == outside else number


def _mismatch(name: str, one: int, other: int, outside: int) -> ConfigError:
    shown = [f"group {n}" if 0 < n < outside else "the outside" for n in (one, other)]
    return ConfigError(
        f"The marks give the gradient of '{name}' the scale of {shown[0]} instead of {shown[1]}.",
        where="loss scale, marks",
        fix="Mark every tensor that passes from one group to another, or give only the groups.",
    )


def resolve_boundaries(
    model: ir.Model, groups: ScaleGroups, scales: ir.Value
) -> dict[tuple[int, int], list[ir.Value]]:
    """Insert the ratios into a gradient graph, and restore the original forward pass, in place.

    ``scales`` is the input with the scales of the groups, float32 ``[number]``.

    Returns:
        Pairs of groups with a boundary, the lower one first, to the gradients that cross it
        downward, before they are multiplied by the ratio.
    """
    graph = model.graph
    builder = Builder(graph, BOUNDARY)
    made = values_by_name(graph)
    incoming: dict[tuple[int, int], list[ir.Value]] = {}
    for boundary in groups.boundaries:
        # First the forward pass, in which products are bypassed.
        output = made.get(boundary.output)
        forward = None if output is None else output.producer()
        if output is not None and forward is not None:
            value = next(v for v in forward.inputs if v is not None and v.name != boundary.one)
            ir.convenience.replace_all_uses_with(output, value, replace_graph_outputs=True)
            graph.remove(forward, safe=True)
    # Then the backward pass; the ratios stand at the start, before all nodes that read them.
    first = graph[0]
    for boundary in groups.boundaries:
        one = made[boundary.one]
        for usage in list(one.uses()):  # `dy * one` of the backward pass; no use if frozen
            ratio = _ratio(builder, scales, boundary, groups.number)
            for node in builder.take():
                graph.insert_before(first, node)
            node = usage.node
            # Before the ratio: `ScaledGradients.caused` needs to know whether it was finite there.
            gradient = next(v for v in node.inputs if v is not None and v is not one)
            incoming.setdefault((boundary.before, boundary.after), []).append(gradient)
            if one.dtype in (None, ir.DataType.FLOAT):
                node.replace_input_with(usage.idx, ratio)
                continue
            # A ratio of 16 bits would be inexact, or even 0, and all gradients below with it.
            wide = builder.cast(gradient, ir.DataType.FLOAT)
            product = builder.op("Mul", wide, ratio, shape=gradient.shape)
            replace_node(node, [builder.cast(product, one.dtype)], builder)
        graph.inputs.remove(one)
    return incoming


def _ratio(b: Builder, scales: ir.Value, boundary: Boundary, number: int) -> ir.Value:
    """`s_before / s_after`, float32; the outside has the scale 1."""

    def scale(group: int) -> ir.Value:
        if not 0 < group <= number:
            return b.const(1.0)
        return b.op("Gather", scales, b.const(group - 1, ir.DataType.INT64), shape=())

    return b.op("Div", scale(boundary.before), scale(boundary.after), shape=())


def _reads(node: ir.Node) -> list[str]:
    return [value.name for value in values_read(node) if value.name]


def _active_values(model: ir.Model, path: Reach) -> list[ir.Value]:
    values = [*model.graph.inputs, *(o for node in path.nodes for o in node.outputs)]
    return [value for value in values if value.name in path.active]


def _uses(value: ir.Value, path: Reach) -> list[tuple[ir.Node, int, ir.Node]]:
    """Uses on the path: node, input index, and the node of the main graph that contains it."""
    owners = {id(node): node for node in path.nodes}
    for node in path.nodes:
        for graph in subgraphs(node):
            owners.update({id(inner): node for inner in graph.all_nodes()})
    found = []
    for usage in value.uses():
        owner = owners.get(id(usage.node))
        if owner is not None:
            found.append((usage.node, usage.idx, owner))
    return found
