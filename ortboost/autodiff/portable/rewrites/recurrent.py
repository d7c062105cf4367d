"""LSTM, GRU and RNN, unrolled over the steps of the sequence.

Their loop is inside one operator, which has no gradient; the unrolled steps are matrix products and
gates. This requires a known sequence length.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import input_at, known_shape
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes
from ortboost.graph.shape_inference import infer_shapes

__all__ = ["unrollable", "unrolled"]

_LONGEST = 512
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_KNOWN = ("Relu", "Sigmoid", "Tanh")
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def unrolled(model: ir.Model) -> Report:
    """Unroll LSTM, GRU and RNN, in place."""
    rules = dict.fromkeys(_GATES, _unroll)
    report = rewrite_nodes(model, "unrolled", rules, "unrolled")
    if report.modified:
        infer_shapes(model)
    return report


def unrollable(node: ir.Node) -> str | None:
    """Why a recurrent node cannot be unrolled, or ``None``."""
    data = node.inputs[0]
    shape = None if data is None else known_shape(data)
    if shape is None or not isinstance(shape[0], int):
        return (
            "the length of its sequence is not fixed; fix it with --dim NAME=LENGTH, "
            "or export with a fixed length"
        )
    if not 0 < shape[0] <= _LONGEST:
        return f"its sequence has {shape[0]} steps; 1 to {_LONGEST} can be unrolled"
    weight = node.inputs[2]
    sizes = None if weight is None else known_shape(weight)
    if sizes is None or not isinstance(sizes[2], int):
        return "the shape of its recurrence weight is unknown"
    if input_at(node, 4) is not None:
        return "it has sequence lengths; export without them and mask its output"
    if node.op_type == "LSTM" and input_at(node, 7) is not None:
        return "it has peepholes"
    if node.attributes.get_int("layout", 0):
        return "layout=1 (batch first) is not supported by onnxruntime either; use layout=0"
    if "clip" in node.attributes or node.attributes.get_int("input_forget", 0) == 1:
        return "clip and input_forget have no gradient here"
    if not set(_activations(node)) <= set(_KNOWN):
        return f"only the activations {', '.join(_KNOWN)} are supported"
    return None


def _activations(node: ir.Node) -> list[str]:
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    given = node.attributes.get_strings("activations", None)
    return list(given) if given else list(_DEFAULTS[node.op_type]) * directions


def _unroll(site: Site) -> list[ir.Value | None]:
    """Unroll each direction separately; `Y` is `[steps, directions, batch, hidden]`."""
    reason = unrollable(site.node)
    if reason is not None:
        raise Refusal(reason)
    direction = site.text("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    hidden_states, last, cells = [], [], []
    names = _activations(site.node)
    for index in range(count):
        own = names[index * len(names) // count : (index + 1) * len(names) // count]
        backwards = direction == "reverse" or index == 1
        outputs, hidden, cell = _direction(site, index, count, own, backwards)
        hidden_states.append(site.op("Unsqueeze", outputs, site.ints(1)))
        last.append(hidden)
        cells.append(cell)
    parts = ((hidden_states, 1), (last, 0), (cells, 0))  # Y, Y_h, Y_c
    results: list[ir.Value | None] = [_joined(site, part, axis) for part, axis in parts]
    return results[: len(site.node.outputs)]


def _joined(site: Site, parts: list[ir.Value], axis: int) -> ir.Value:
    return parts[0] if len(parts) == 1 else site.op("Concat", *parts, axis=axis)


def _part(site: Site, index: int, direction: int, count: int) -> ir.Value | None:
    """The part of an input for one direction, with the axis of directions kept."""
    value = site.optional(index)
    if value is None or count == 1:
        return value
    bounds = (site.ints(direction), site.ints(direction + 1), site.ints(0))
    return site.op("Slice", value, *bounds)


def _direction(
    site: Site, direction: int, count: int, names: list[str], backwards: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Outputs `[steps, batch, hidden]`, last state and last cell `[1, batch, hidden]`."""
    kind, x = site.node.op_type, site.input(0)
    steps = site.shape()[0]
    size = (known_shape(site.input(2)) or ())[2]
    if not isinstance(steps, int) or not isinstance(size, int):
        raise Refusal("excluded before")
    weight, recurrent = (_transposed_weight(site, index, direction, count) for index in (1, 2))
    bias = _part(site, 3, direction, count)  # [1, 2 * gates * hidden]
    input_bias = recurrent_bias = None
    if bias is not None:
        flat = site.op("Squeeze", bias, site.ints(0))
        input_bias, recurrent_bias = site.ops("Split", flat, count=2, axis=0, num_outputs=2)
    # The inputs of all steps in one product, [steps, batch, gates * hidden].
    projected = site.op("MatMul", x, weight)
    if input_bias is not None:
        projected = site.op("Add", projected, input_bias)
    before_reset = kind == "GRU" and site.integer("linear_before_reset", 0) == 1
    if recurrent_bias is not None and not before_reset:
        projected = site.op("Add", projected, recurrent_bias)
        recurrent_bias = None
    parts = site.ops("Split", projected, site.ints(*[1] * steps), count=steps, axis=0)
    state = _initial(site, 5, direction, count, size)
    cell = _initial(site, 6, direction, count, size) if kind == "LSTM" else state
    outputs: list[ir.Value] = []
    for part in reversed(parts) if backwards else parts:
        if kind == "LSTM":
            state, cell = _lstm_step(site, part, state, cell, recurrent, names)
        elif kind == "GRU":
            state = _gru_step(
                site, part, state, recurrent, recurrent_bias, size, names, before_reset=before_reset
            )
        else:
            state = site.op(names[0], site.op("Add", part, site.op("MatMul", state, recurrent)))
        outputs.append(state)
    ordered = list(reversed(outputs)) if backwards else outputs
    return _joined(site, ordered, 0), state, cell


def _transposed_weight(site: Site, index: int, direction: int, count: int) -> ir.Value:
    """`[1, gates * hidden, n]` as `[n, gates * hidden]`."""
    value = _part(site, index, direction, count)
    if value is None:
        raise Refusal("its weights are missing; the model is invalid")
    return site.op("Transpose", site.op("Squeeze", value, site.ints(0)), perm=[1, 0])


def _initial(site: Site, index: int, direction: int, count: int, size: int) -> ir.Value:
    """An initial state, `[1, batch, hidden]`; zeros if it is not given."""
    value = _part(site, index, direction, count)
    if value is not None:
        return value
    batch = site.shape_of(site.input(0), 1, 2)
    shape = site.op("Concat", site.ints(1), batch, site.ints(size), axis=0, dtype=ir.DataType.INT64)
    return site.filled(0, shape, shape=[1, site.shape()[1], size])


def _lstm_step(
    site: Site,
    x: ir.Value,
    state: ir.Value,
    cell: ir.Value,
    recurrent: ir.Value,
    names: list[str],
) -> tuple[ir.Value, ir.Value]:
    """`c' = f c + i c~`, `h' = o act(c')`; gates in the order i, o, f, c."""
    summed = site.op("Add", x, site.op("MatMul", state, recurrent))
    *gates, last = site.ops("Split", summed, count=4, axis=2, num_outputs=4)
    input_gate, output_gate, forget_gate = (site.op(names[0], gate) for gate in gates)
    candidate = site.op(names[1], last)
    kept = site.op("Mul", forget_gate, cell)
    cell = site.op("Add", kept, site.op("Mul", input_gate, candidate))
    return site.op("Mul", output_gate, site.op(names[2], cell)), cell


def _gru_step(
    site: Site,
    x: ir.Value,
    state: ir.Value,
    recurrent: ir.Value,
    bias: ir.Value | None,
    size: int,
    names: list[str],
    *,
    before_reset: bool,
) -> ir.Value:
    """`h' = (1 - z) h~ + z h`; gates in the order z, r, h.

    h~ = act(x_h + r (h R_h + b_h))     with ``before_reset`` (linear_before_reset)
    h~ = act(x_h + (r h) R_h)           without it, b_h being part of x_h
    """
    sizes = site.ints(2 * size, size)  # z and r together, then h
    x_gates, x_candidate = site.ops("Split", x, sizes, count=2, axis=2)
    if before_reset:
        product = site.op("MatMul", state, recurrent)
        product = product if bias is None else site.op("Add", product, bias)
        h_gates, second = site.ops("Split", product, sizes, count=2, axis=2)
    else:
        gate_weight, second = site.ops("Split", recurrent, sizes, count=2, axis=1)
        h_gates = site.op("MatMul", state, gate_weight)
    gates = site.op(names[0], site.op("Add", x_gates, h_gates))
    update, reset = site.ops("Split", gates, count=2, axis=2, num_outputs=2)
    if before_reset:
        inner = site.op("Mul", reset, second)
    else:
        inner = site.op("MatMul", site.op("Mul", reset, state), second)
    candidate = site.op(names[1], site.op("Add", x_candidate, inner))
    # (1 - z) h~ + z h = h~ + z (h - h~)
    return site.op("Add", candidate, site.op("Mul", update, site.op("Sub", state, candidate)))
