"""Loops in both directions: what a forward Loop or Scan keeps, and the assembly of its gradient.

The body of the backward loop starts as a copy of the forward body, to which the reverse pass has
added nodes. Values of the copy that these read are kept by the forward loop for each step, if their
shapes are known; all others are computed again from the states and slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward
from ortboost.graph.bodies import captured_values, rename_values, states_of
from ortboost.graph.build import Builder, detach
from ortboost.graph.query import RANDOM_OPERATORS, has_subgraph, known_shape
from ortboost.graph.reach import values_read

__all__ = ["Carried", "ForwardLoop", "Slices", "backward_loop"]


@dataclass(frozen=True)
class Slices:
    """A tensor of which each step reads or writes one slice.

    Args:
        step: The slice, a value of the body.
        index: Index of the tensor among the inputs or outputs of the forward node.
        axis: The axis along which the slices lie.
        reverse: Whether the first step takes the last slice.
    """

    step: ir.Value
    index: int = -1
    axis: int = 0
    reverse: bool = False

    def backwards(self, step: ir.Value) -> Slices:
        """The slices of a tensor of the same layout in the backward loop."""
        return replace(self, step=step, reverse=not self.reverse)


@dataclass(frozen=True)
class Carried:
    """A state of the backward loop: before the first step, before a step and after it."""

    initial: ir.Value
    before: ir.Value
    after: ir.Value


class ForwardLoop:
    """A Loop or Scan, and a copy of its body with other names for the backward loop.

    Args:
        node: The node.
        builder: Makes unique names.

    Attributes:
        copy: The copy of the body.
        first_state: Index of the first state among the inputs of the node.
        states: Each state before and after a step, in the copy.
        read: The tensors whose slices the steps of a Scan read.
        written: The tensors that stack results of the steps.
        counter: The number of the step, and the condition, of a Loop.
    """

    def __init__(self, node: ir.Node, builder: Builder) -> None:
        self.node, self.builder = node, builder
        self.is_scan = node.op_type == "Scan"
        self.body = node.attributes["body"].as_graph()
        self.copy = self.body.clone(allow_outer_scope_values=True)
        rename_values(self.copy, builder.unique)
        inputs, outputs = list(self.copy.inputs), list(self.copy.outputs)
        self.first_state, first, count = states_of(node)
        end = self.first_state + count
        befores, afters = inputs[self.first_state : end], outputs[first : first + count]
        self.states = list(zip(befores, afters, strict=True))
        self.read = _slices(node, "scan_input", inputs[end:], end)
        self.written = _slices(node, "scan_output", outputs[first + count :], count)
        self.counter = None if self.is_scan else inputs[0]
        given = [*inputs, *captured_values(self.copy)]
        self._outer_lengths = {d for v in given for d in known_shape(v) or () if isinstance(d, str)}
        self._original = dict(zip(inputs, self.body.inputs, strict=True))
        for copied, original in zip(self.copy, self.body, strict=True):
            self._original.update(zip(copied.outputs, original.outputs, strict=True))

    def keeps(self, value: ir.Value) -> bool:
        """Whether a value of the copy has one shape in all steps, so that it can be stacked.

        Its lengths are numbers, or names of lengths that come from outside the body.
        """
        shape = known_shape(value)
        if value not in self._original or shape is None:
            return False
        return all(isinstance(dim, int) or dim in self._outer_lengths for dim in shape)

    def keep(self, value: ir.Value) -> ir.Value:
        """Let the forward node return a value of the copy for all steps, stacked along axis 0."""
        original, node = self._original[value], self.node
        output, name = original, self.builder.unique(f"{original.name}/kept")
        if original.producer() is None or original in self.body.outputs:
            identity = ir.node("Identity", [original], name=f"{name}/node")
            output = identity.outputs[0]
            output.name, output.type, output.shape = name, original.type, original.shape
            self.body.append(identity)
        self.body.outputs.append(output)
        node.resize_outputs(len(node.outputs) + 1)
        stacked = node.outputs[-1]
        stacked.name = self.builder.unique(f"{name}/all")
        stacked.type = original.type
        shape = known_shape(original)
        stacked.shape = None if shape is None else ir.Shape([None, *shape])
        for attribute in ("scan_output_axes", "scan_output_directions"):
            given = node.attributes.get_ints(attribute, None)
            if given is not None:
                node.attributes[attribute] = ir.AttrInt64s(attribute, [*given, 0])
        return stacked


def _slices(node: ir.Node, what: str, steps: Sequence[ir.Value], start: int) -> list[Slices]:
    axes = node.attributes.get_ints(f"{what}_axes", None) or [0] * len(steps)
    directions = node.attributes.get_ints(f"{what}_directions", None) or [0] * len(steps)
    found = zip(steps, axes, directions, strict=True)
    return [Slices(v, start + i, int(a), bool(d)) for i, (v, a, d) in enumerate(found)]


def backward_loop(
    b: Backward,
    forward: ForwardLoop,
    gradient_nodes: Sequence[ir.Node],
    carried: Sequence[Carried],
    given: Sequence[tuple[Slices, ir.Value]],
    stacked: Sequence[Slices],
) -> tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]]:
    """Build the backward loop.

    Args:
        b: The place of the forward node in the reverse pass; receives the loop.
        forward: The forward loop; its copy becomes the body.
        gradient_nodes: The nodes that compute the gradients of one step from values of the copy.
        carried: What the backward loop carries from step to step.
        given: What each step is given, with the outer tensors.
        stacked: Results of the steps to be stacked.

    Returns:
        What is carried, after the last step; and the stacked results.
    """
    body = forward.copy
    body.outputs.clear()
    body.extend(gradient_nodes)
    results = [*(c.after for c in carried), *(s.step for s in stacked)]
    kept = _kept_results(forward, gradient_nodes, results)
    results = [kept[value][0].step if value in kept else value for value in results]
    _remove_unneeded(body, results)
    given = [*given, *kept.values(), *_kept_inputs(forward, results)]
    for constant in list(body.initializers.values()):  # nodes that leave the body may read them
        body.initializers.pop(constant.name or "")
        if constant.uses():
            b.builder.graph.register_initializer(constant)
    body.inputs.clear()
    # What a step is given, or returns twice, need not be stacked again.
    whole = {_place(slices): tensor for slices, tensor in given}
    returned = zip(stacked, results[len(carried) :], strict=True)
    places = [_place(replace(slices, step=value)) for slices, value in returned]
    stacked = [Slices(step, axis=a, reverse=r) for step, a, r in dict.fromkeys(places)]
    stacked = [slices for slices in stacked if _place(slices) not in whole]
    results = [*results[: len(carried)], *(slices.step for slices in stacked)]
    steps = [*(c.before for c in carried), *(slices.step for slices, _ in given)]
    b.builder.nodes += _take_out_invariant(body, steps)
    if forward.is_scan:  # the last ones of a Loop are its counters
        given = [(s, t) for s, t in given if s.step.uses() or s.step in results]
        given = given or [_first_sequence(forward)]
    made = _scan if forward.is_scan else _loop
    outputs = made(b, forward, carried, given, stacked, results)
    for output, value in zip(outputs, results, strict=True):
        output.type = value.type
    for output, state in zip(outputs, carried, strict=False):
        output.shape = state.initial.shape
    whole.update(zip(map(_place, stacked), outputs[len(carried) :], strict=True))
    return outputs[: len(carried)], tuple(whole[place] for place in places)


def _first_sequence(forward: ForwardLoop) -> tuple[Slices, ir.Value]:
    """For a Scan that needs no slice, as its steps are linear: it counts its steps by one."""
    slices = forward.read[0]
    sequence = forward.node.inputs[slices.index]
    assert sequence is not None  # inputs of a Scan are not optional
    return slices.backwards(slices.step), sequence


def _place(slices: Slices) -> tuple[ir.Value, int, bool]:
    return slices.step, slices.axis, slices.reverse


def _like(value: ir.Value, builder: Builder) -> ir.Value:
    name = builder.unique(f"{value.name}/step")
    return ir.Value(name=name, type=value.type, shape=value.shape)


def _kept_results(
    forward: ForwardLoop, gradient_nodes: Sequence[ir.Node], results: Sequence[ir.Value]
) -> dict[ir.Value, tuple[Slices, ir.Value]]:
    """Let the forward loop output what the gradient needs from its steps.

    What does not depend on the step (a transposed weight) is computed again, once.

    Returns:
        Value of the copy to the input of a backward step that replaces it, and its tensor.
    """
    read = {*results, *(value for node in gradient_nodes for value in values_read(node))}
    own, varying = set(gradient_nodes), set(forward.copy.inputs)
    found = {}
    for node in forward.copy:
        if node in own or varying.isdisjoint(values_read(node)):
            continue
        varying.update(node.outputs)
        for value in node.outputs:
            if value in read and forward.keeps(value):
                step = _like(value, forward.builder)
                found[value] = (Slices(step, reverse=True), forward.keep(value))
    for value, (slices, _) in found.items():
        value.replace_all_uses_with(slices.step)
    return found


def _remove_unneeded(body: ir.Graph, results: Sequence[ir.Value]) -> None:
    needed = set(results)
    for node in reversed(list(body)):
        if needed.isdisjoint(node.outputs):
            detach(node)
            body.remove(node)
        else:
            needed.update(values_read(node))


def _kept_inputs(
    forward: ForwardLoop, results: Sequence[ir.Value]
) -> list[tuple[Slices, ir.Value]]:
    """What a backward step needs from the inputs of the forward step."""
    found = []
    for value, _ in forward.states:
        if value.uses() or value in results:
            found.append((Slices(value, reverse=True), forward.keep(value)))
    for slices in forward.read:
        sequence = forward.node.inputs[slices.index]
        if sequence is not None and (slices.step.uses() or slices.step in results):
            found.append((slices.backwards(slices.step), sequence))
    # Kept in any case: its length is the number of steps. Last, where `_loop` looks for it.
    if forward.counter is not None:
        found.append((Slices(forward.counter, reverse=True), forward.keep(forward.counter)))
    return found


def _take_out_invariant(body: ir.Graph, steps: Sequence[ir.Value]) -> list[ir.Node]:
    """Remove and return the nodes that compute the same in every step."""
    varying, found = set(steps), []
    for node in body:
        random = node.op_type in RANDOM_OPERATORS
        if random or has_subgraph(node) or not varying.isdisjoint(node.inputs):
            varying.update(node.outputs)
        else:
            found.append(node)
    body.remove(found)
    return found


def _own(body: ir.Graph, results: Sequence[ir.Value], builder: Builder) -> list[ir.Value]:
    """The results of a step, each computed by a separate node of its body, as runtimes need it."""
    inside = {output for node in body for output in node.outputs}
    found: list[ir.Value] = []
    for value in results:
        single = value in inside and value not in found
        found.append(value if single else builder.op("Identity", value, shape=value.shape))
    return found


def _scan(
    b: Backward,
    forward: ForwardLoop,
    carried: Sequence[Carried],
    given: Sequence[tuple[Slices, ir.Value]],
    stacked: Sequence[Slices],
    results: Sequence[ir.Value],
) -> tuple[ir.Value, ...]:
    body = forward.copy
    body.inputs.extend([*(c.before for c in carried), *(slices.step for slices, _ in given)])
    with b.builder.inner_graph():
        body.outputs.extend(_own(body, results, b.builder))
        body.extend(b.builder.take())
    layout: dict[str, Any] = {
        "num_scan_inputs": len(given),
        "scan_input_axes": [slices.axis for slices, _ in given],
        "scan_input_directions": [int(slices.reverse) for slices, _ in given],
    }
    if stacked:  # onnxruntime rejects empty lists
        layout["scan_output_axes"] = [slices.axis for slices in stacked]
        layout["scan_output_directions"] = [int(slices.reverse) for slices in stacked]
    return b.builder.ops(
        "Scan",
        *(c.initial for c in carried),
        *(tensor for _, tensor in given),
        names=[None] * len(results),
        body=body,
        **layout,
    )


def _loop(
    b: Backward,
    forward: ForwardLoop,
    carried: Sequence[Carried],
    given: Sequence[tuple[Slices, ir.Value]],
    stacked: Sequence[Slices],
    results: Sequence[ir.Value],
) -> tuple[ir.Value, ...]:
    """A Loop has no slices: each step gathers its own, the last first."""
    body, builder = forward.copy, b.builder
    _, counters = given[-1]  # see `_kept_inputs`
    steps = builder.op("Squeeze", b.shape_of(counters), shape=[])
    last = builder.op("Sub", steps, b.const(1, ir.DataType.INT64), shape=[])
    number = ir.val(builder.unique("step"), ir.DataType.INT64, [])
    condition = ir.val(builder.unique("condition"), ir.DataType.BOOL, [])
    with builder.inner_graph():
        position = builder.op("Sub", last, number, shape=[])
        for slices, tensor in given:
            index = position if slices.reverse else number
            step = builder.op("Gather", tensor, index, axis=slices.axis, shape=slices.step.shape)
            slices.step.replace_all_uses_with(step)
            results = [step if value is slices.step else value for value in results]
        first = builder.take()
        kept = list(body)
        body.remove(kept)
        body.extend([*first, *kept])
        own = _own(body, results, builder)
        body.inputs.extend([number, condition, *(c.before for c in carried)])
        again = builder.op("Identity", condition, shape=[])
        body.extend(builder.take())
        body.outputs.extend([again, *own])
    always = b.const(True, ir.DataType.BOOL)
    initial = [c.initial for c in carried]
    return builder.ops("Loop", steps, always, *initial, names=[None] * len(results), body=body)
