r"""Scan and Loop: backpropagation through time.

A loop computes, from a state `s`, a slice `x` of each sequence and captured values `w`,

    s_t+1, y_t = f(s_t, x_t, w)        t = 0 .. T-1

Its gradient is a loop over the same steps from the last to the first, which carries `ds`, the
gradient of the state, and sums up that of `w`:

    ds_t, dx_t, dw += J_f(s_t, x_t, w)^T (ds_t+1, dy_t)

Source: Werbos, "Backpropagation through time: what it does and how to do it", Proc. IEEE 78 (10),
1990. The weight gradients of products `z_t = a_t W` or `z_t = W a_t`, most of the work for
recurrent layers, are not summed step by step: one product over all steps computes
`sum_t a_t^T dz_t` or `sum_t dz_t a_t^T`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.backward_loop import Carried, ForwardLoop, Slices, backward_loop
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.reverse_pass import reverse_pass
from ortboost.autodiff.portable.rewrites.recurrent import unsupported
from ortboost.autodiff.portable.rules.control_flow import body_reason
from ortboost.graph.bodies import captured_values
from ortboost.graph.query import FLOAT_TYPES, is_standard, known_shape, static_shape
from ortboost.graph.reach import reach
from ortboost.graph.rewriting import Refusal

__all__: list[str] = []

refuses("GRU", "LSTM", "RNN")(unsupported)


@register("GRU", "LSTM", "RNN")
def recurrent(b: Backward) -> Gradients:
    """Refuse: a recurrent node is left only if ``prepare`` could not make a Scan of it."""
    raise Refusal(unsupported(b.node) or "it is not a Scan yet; run prepare() of the engine")


@refuses("Loop", "Scan")
def _form(node: ir.Node) -> str | None:
    body = node.attributes["body"].as_graph()
    for value in (*node.inputs, *body.inputs, *node.outputs):
        kind = None if value is None else value.type
        if kind is not None and not isinstance(kind, ir.TensorType):
            return "it carries a sequence of tensors; export it with a tensor of known size instead"
    floats = [v.name for v in body.inputs if v.name and v.dtype in (None, *FLOAT_TYPES)]
    return body_reason(body, floats)


@register("Loop", "Scan")
def loop(b: Backward) -> Gradients:
    """Run the steps backwards; the algebra is at the top of the file."""
    forward = ForwardLoop(b.node, b.builder)
    captured = {_name(v): v for v in captured_values(forward.copy) if v.name in b.active}
    products = _take_products(forward, captured)
    read = [slices for slices in forward.read if b.needs_gradient(slices.index)]
    first = forward.first_state
    starts = [v for i, (v, _) in enumerate(forward.states) if b.needs_gradient(first + i)]
    sources = {*captured, *map(_name, starts), *(_name(s.step) for s in read)}
    sources |= {_name(product.result) for product in products}
    active = _active_states(forward, sources)
    sources |= {_name(before) for before, _ in active.values()}

    # What a step of the backward loop is given: the gradients of its states and results.
    grads = {i: b.value_like(before, "state_grad") for i, (before, _) in active.items()}
    seeds = {_name(after): grads[i] for i, (_, after) in active.items()}
    given = []
    for slices in forward.written:
        gradient = b.gradients[slices.index]
        if gradient is not None:
            seeds[_name(slices.step)] = step = b.value_like(slices.step, "step_grad")
            given.append((slices.backwards(step), gradient))

    with b.builder.inner_graph():  # the body of the backward loop
        reached = reach(ir.Model(forward.copy, ir_version=10), sources, seeds)
        turned = [_turned(b, product) for product in products]
        # Sorted: the order of a set, and with it that of the nodes, differs between processes.
        found = reverse_pass(reached, seeds, sorted(sources), b.builder, b.opset)
        for pair in zip(products, turned, strict=True):
            _show_weight(*pair)

        def total(value: ir.Value) -> ir.Value:
            return found[_name(value)] or b.zeros_like(value)

        states = {i: (grads[i], total(before)) for i, (before, _) in active.items()}
        sums = {}
        for name, value in captured.items():
            if (term := found[name]) is not None:
                so_far = b.value_like(value, "sum")
                sums[name] = (so_far, b.op("Add", so_far, term, shape=value.shape))
        results = [slices.backwards(total(slices.step)) for slices in read]
        products = [product for product in products if found[_name(product.result)] is not None]
        # In the order of the steps, as the gradient of what they read, often the same tensor.
        order = results[0].reverse if results else forward.is_scan
        for product in products:
            values = product.operand, total(product.result)
            results += [Slices(value, reverse=order) for value in values]
        body = b.builder.take()

    carried = [
        *(
            Carried(b.gradients[i] or b.zeros_like(b.input(first + i)), *pair)
            for i, pair in states.items()
        ),
        *(Carried(b.zeros_like(captured[name]), *pair) for name, pair in sums.items()),
    ]
    gradients: list[ir.Value | None] = [None] * len(b.node.inputs)
    if not carried and not results:  # a step reads a trained value, but no result depends on it
        return gradients
    last, stacked = backward_loop(b, forward, body, carried, given, results)
    for i, gradient in zip(states, last, strict=False):
        gradients[first + i] = gradient
    for slices, gradient in zip(read, stacked, strict=False):
        gradients[slices.index] = gradient
    for name, gradient in zip(sums, last[len(states) :], strict=True):
        b.contribute(captured[name], gradient)
    _contribute_products(b, products, stacked[len(read) :])
    return gradients


def _name(value: ir.Value) -> str:
    return value.name or ""


def _active_states(forward: ForwardLoop, sources: set[str]) -> dict[int, tuple[ir.Value, ir.Value]]:
    """The states that need a gradient, before and after a step, by number.

    Those that depend on a source; the other states that depend on them after another step, too.
    """
    targets = [_name(value) for value in forward.copy.outputs]
    active: dict[int, tuple[ir.Value, ir.Value]] = {}
    while True:
        names = sources | {_name(before) for before, _ in active.values()}
        known = reach(ir.Model(forward.copy, ir_version=10), names, targets).active
        more = {
            i: (before, after)
            for i, (before, after) in enumerate(forward.states)
            if i not in active and before.dtype in FLOAT_TYPES
            if _name(after) in known or _name(before) in sources
        }
        if not more:
            return dict(sorted(active.items()))
        active.update(more)


@dataclass(frozen=True)
class _Product:
    """A MatMul of a step with a captured weight.

    Args:
        operand: The other operand.
        weight: The weight, a matrix.
        first: Whether the weight is the left operand.
        stand_in: Takes the place of the weight, so that no step computes its gradient.
        result: The product.
    """

    operand: ir.Value
    weight: ir.Value
    first: bool
    stand_in: ir.Value
    result: ir.Value


def _take_products(forward: ForwardLoop, captured: Mapping[str, ir.Value]) -> list[_Product]:
    """Find the products with captured weights, and hide these."""
    found = []
    for node in forward.copy:
        if not is_standard(node, "MatMul"):
            continue
        for place in (1, 0):
            operand, weight = node.inputs[1 - place], node.inputs[place]
            if operand is None or weight is None or captured.get(_name(weight)) is not weight:
                continue
            # The operands of all steps are stacked.
            if not forward.keeps(operand) or len(static_shape(weight) or ()) != 2:
                continue
            if place == 0 and len(known_shape(operand) or ()) != 2:
                continue
            name = f"{node.name}/weight{place}"
            stand_in = ir.Value(name=name, type=weight.type, shape=weight.shape)
            node.replace_input_with(place, stand_in)
            found.append(_Product(operand, weight, place == 0, stand_in, node.outputs[0]))
            break
    return found


def _turned(b: Backward, product: _Product) -> ir.Value | None:
    """The transposed weight of `W a_t`, for the gradient `W^T dz_t`.

    It is the same in all steps, so the backward loop leaves it outside; a Gemm that transposes the
    weight would do so in each step.
    """
    if not product.first:
        return None
    shape = (static_shape(product.weight) or ())[::-1]
    return b.op("Transpose", product.weight, perm=[1, 0], shape=shape)


def _show_weight(product: _Product, turned: ir.Value | None) -> None:
    """Let the nodes of the gradient read the weight again."""
    for usage in list(product.stand_in.uses()):
        node = usage.node
        turns = node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1
        if turned is not None and turns:
            node.attributes.pop("transA")
            node.replace_input_with(usage.idx, turned)
    product.stand_in.replace_all_uses_with(product.weight)


def _contribute_products(
    b: Backward, products: Sequence[_Product], stacked: Sequence[ir.Value]
) -> None:
    """Add the weight gradients, from the stacked operands and gradients of the products."""
    for product, operand, result in zip(products, stacked[::2], stacked[1::2], strict=True):
        b.contribute(product.weight, _weight_gradient(b, product, operand, result))


def _weight_gradient(
    b: Backward, product: _Product, operand: ir.Value, result: ir.Value
) -> ir.Value:
    """The gradient of the weight as one product of the stacked tensors.

    `sum_t a_t^T dz_t` of `[T, ..., k]` and `[T, ..., n]`, or `sum_t dz_t a_t^T` of `[T, n, rows]`
    and `[T, k, rows]`.
    """
    shape = static_shape(product.weight) or ()
    if product.first:
        dz = b.op("Transpose", result, perm=[0, 2, 1])
        a = b.op("Transpose", operand, perm=[0, 2, 1])
        rows = _as_rows(b, dz, shape[0]), _as_rows(b, a, shape[1])
    else:
        rows = _as_rows(b, operand, shape[0]), _as_rows(b, result, shape[1])
    return b.op("Gemm", *rows, transA=1, shape=shape)


def _as_rows(b: Backward, stacked: ir.Value, length: int) -> ir.Value:
    rows = b.op("Reshape", stacked, b.ints(-1, length), shape=[None, length])
    if b.node.op_type == "Scan":
        return rows
    # A Loop may run no step, and onnxruntime 1.19 has no product over no rows.
    zeros = b.const(np.zeros((1, length)), stacked.dtype or b.dtype)
    return b.op("Concat", zeros, rows, axis=0, shape=[None, length])
