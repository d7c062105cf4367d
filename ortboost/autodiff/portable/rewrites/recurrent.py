"""LSTM, GRU and RNN as a Scan over the steps of the sequence.

Their loop is inside one operator, which has no gradient; a Scan of products and gates has one
(:mod:`ortboost.autodiff.portable.rules.loops`). The formulas are those of ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.formulas import Term
from ortboost.graph.query import input_at, known_shape
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes
from ortboost.graph.shape_inference import infer_shapes

__all__ = ["recurrent_to_scan", "unsupported"]

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_KNOWN = ("Relu", "Sigmoid", "Tanh")


def recurrent_to_scan(model: ir.Model) -> Report:
    """Replace LSTM, GRU and RNN by a Scan for each direction, in place."""
    rules = dict.fromkeys(_DEFAULTS, _to_scan)
    report = rewrite_nodes(model, "recurrent_to_scan", rules, "a Scan over its steps")
    if report.modified:
        infer_shapes(model)
    return report


def unsupported(node: ir.Node) -> str | None:
    """Why a recurrent node cannot become a Scan, or ``None``."""
    weight = node.inputs[2]
    sizes = None if weight is None else known_shape(weight)
    if sizes is None or not isinstance(sizes[2], int):
        return "the shape of its recurrence weight is unknown"
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


def _to_scan(site: Site) -> list[ir.Value | None]:
    """A Scan for each direction; `Y` is `[steps, directions, batch, hidden]`."""
    reason = unsupported(site.node)
    if reason is not None:
        raise Refusal(reason)
    direction = site.text("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    names = _activations(site.node)
    lengths = site.optional(4)
    mask = None if lengths is None else _mask(site, lengths)
    parts = []
    for index in range(count):
        own = names[index * len(names) // count : (index + 1) * len(names) // count]
        layer = _Layer(site, index, count, own)
        parts.append(layer.run(mask, backwards=direction == "reverse" or index == 1))
    # Y, Y_h and, of an LSTM, Y_c, each with an axis for the directions
    joined: list[ir.Value | None] = []
    for values, axis in zip(zip(*parts, strict=True), (1, 0, 0), strict=False):
        each = [site.op("Unsqueeze", value, site.ints(axis)) for value in values]
        joined.append(site.builder.combined("Concat", each, axis=axis))
    return joined[: len(site.node.outputs)]


def _mask(site: Site, lengths: ir.Value) -> ir.Value:
    """Whether a step is within its sequence, `[steps, batch, 1]`, from the lengths `[batch]`."""
    int64 = ir.DataType.INT64
    steps = site.op("Squeeze", site.shape_of(site.input(0), 0, 1))
    numbers = site.op("Range", site.const(0, int64), steps, site.const(1, int64))
    column = site.op("Unsqueeze", numbers, site.ints(1, 2))
    ends = site.op("Unsqueeze", site.cast(lengths, int64), site.ints(0, 2))
    return site.op("Less", column, ends)


@dataclass(frozen=True)
class _Layer:
    """One direction of a recurrent node.

    Args:
        site: The node.
        direction: Index of the direction.
        count: Number of directions.
        activations: The activations of this direction.
    """

    site: Site
    direction: int
    count: int
    activations: list[str]

    def run(self, mask: ir.Value | None, *, backwards: bool) -> list[ir.Value]:
        """Outputs `[steps, batch, hidden]`, and the last states, `[batch, hidden]` each.

        Args:
            mask: Whether each step is within its sequence; ``None`` if all are.
            backwards: Whether the last step comes first.
        """
        site, builder = self.site, self.site.builder
        states = [self._initial(5), self._initial(6)][: 2 if site.node.op_type == "LSTM" else 1]
        recurrent, bias = self._weight(2), self._bias()
        # The inputs of all steps in one product, [steps, batch, gates * hidden].
        projected = site.op("MatMul", site.input(0), self._weight(1))
        if bias is not None:
            projected = site.op("Add", projected, bias[0])
        late = site.node.op_type == "GRU" and site.integer("linear_before_reset", 0) == 1
        if bias is not None and not late:
            projected = site.op("Add", projected, bias[1])
        late_bias = bias[1] if bias is not None and late else None

        with builder.inner_graph():
            before = [self._inner(state, "state") for state in states]
            x = self._inner(projected, "x")
            if site.node.op_type == "LSTM":
                after = _lstm_step(site, x, before, recurrent, self.activations)
            elif site.node.op_type == "GRU":
                names = self.activations
                after = [_gru_step(site, x, before[0], recurrent, late_bias, names, late)]
            else:
                product = site.op("MatMul", before[0], recurrent)
                after = [site.op(self.activations[0], site.op("Add", x, product))]
            inside = None if mask is None else self._inner(mask, "inside")
            if inside is None:
                output = site.op("Identity", after[0])
            else:  # behind its end, a sequence keeps its states and its outputs are 0
                output = site.op("Where", inside, after[0], site.const(0.0))
                pairs = zip(after, before, strict=True)
                after = [site.op("Where", inside, *pair) for pair in pairs]
            read = [(x, projected)]
            if mask is not None and inside is not None:
                read.append((inside, mask))
            body = ir.Graph(
                [*before, *(inner for inner, _ in read)],
                [*after, output],
                nodes=builder.take(),
                name=builder.unique("step"),
            )
        *last, outputs = site.ops(
            "Scan",
            *states,
            *(tensor for _, tensor in read),
            count=len(states) + 1,
            body=body,
            num_scan_inputs=len(read),
            scan_input_directions=[int(backwards)] * len(read),
            scan_output_directions=[int(backwards)],
        )
        return [outputs, *last]

    def _inner(self, value: ir.Value, name: str) -> ir.Value:
        unique = self.site.builder.unique(f"{self.site.builder.prefix}/{name}")
        return ir.Value(name=unique, type=value.type)

    def _part(self, index: int) -> ir.Value | None:
        """The part of an input for this direction, without the axis of directions."""
        site, value = self.site, self.site.optional(index)
        if value is None:
            return None
        if self.count == 2:
            bounds = (site.ints(self.direction), site.ints(self.direction + 1), site.ints(0))
            value = site.op("Slice", value, *bounds)
        return site.op("Squeeze", value, site.ints(0))

    def _weight(self, index: int) -> ir.Value:
        """`[1, gates * hidden, n]` as `[n, gates * hidden]`."""
        value = self._part(index)
        if value is None:
            raise Refusal("its weights are missing; the file is not valid, export it again")
        return self.site.op("Transpose", value, perm=[1, 0])

    def _bias(self) -> Sequence[ir.Value] | None:
        """The biases of the input and of the recurrence, `[gates * hidden]` each."""
        value = self._part(3)
        if value is None:
            return None
        return self.site.ops("Split", value, count=2, axis=0, num_outputs=2)

    def _initial(self, index: int) -> ir.Value:
        """An initial state, `[batch, hidden]`; zeros if it is not given."""
        value = self._part(index)
        if value is not None:
            return value
        site, size = self.site, _hidden(self.site)
        batch = site.shape_of(site.input(0), 1, 2)
        shape = site.op("Concat", batch, site.ints(size), axis=0)
        return site.filled(0, shape, shape=[site.shape()[1], size])


def _hidden(site: Site) -> int:
    size = site.shape(2)[2]
    assert isinstance(size, int)  # else `unsupported` refused it
    return size


def _lstm_step(
    site: Site, x: ir.Value, states: Sequence[ir.Value], recurrent: ir.Value, names: Sequence[str]
) -> list[ir.Value]:
    """`c' = f c + i c~`, `h' = o act(c')`; gates in the order i, o, f, c.

    ``x`` is the projected input with the biases, `[batch, 4 * hidden]`, ``states`` are `h` and `c`,
    ``recurrent`` is the weight, `[hidden, 4 * hidden]`, and ``names`` are the activations.
    """
    state, cell = states
    summed = Term(site, x) + site.op("MatMul", state, recurrent)
    parts = site.ops("Split", summed.value, count=4, axis=-1, num_outputs=4)
    *gates, last = (Term(site, part) for part in parts)
    input_gate, output_gate, forget_gate = (gate.call(names[0]) for gate in gates)
    following = forget_gate * cell + input_gate * last.call(names[1])
    return [(output_gate * following.call(names[2])).value, following.value]


def _gru_step(
    site: Site,
    x: ir.Value,
    state: ir.Value,
    recurrent: ir.Value,
    bias: ir.Value | None,
    names: Sequence[str],
    before_reset: bool,
) -> ir.Value:
    """`h' = (1 - z) h~ + z h`; gates in the order z, r, h.

    h~ = act(x_h + r (h R_h + b_h))     with ``before_reset`` (linear_before_reset)
    h~ = act(x_h + (r h) R_h)           without it, b_h being part of x_h
    """
    size = _hidden(site)
    sizes = site.ints(2 * size, size)  # z and r together, then h
    x_gates, x_candidate = site.ops("Split", x, sizes, count=2, axis=-1)
    if before_reset:
        product = site.op("MatMul", state, recurrent)
        product = product if bias is None else site.op("Add", product, bias)
        h_gates, second = site.ops("Split", product, sizes, count=2, axis=-1)
    else:
        gate_weight, second = site.ops("Split", recurrent, sizes, count=2, axis=-1)
        h_gates = site.op("MatMul", state, gate_weight)
    gates = site.op(names[0], site.op("Add", x_gates, h_gates))
    update, reset = (
        Term(site, gate) for gate in site.ops("Split", gates, count=2, axis=-1, num_outputs=2)
    )
    inner = reset * second if before_reset else (reset * state) @ second
    candidate = (Term(site, x_candidate) + inner).call(names[1])
    # (1 - z) h~ + z h = h~ + z (h - h~)
    return (candidate + update * (Term(site, state) - candidate)).value
