"""LSTM, GRU and RNN as a Scan over the steps of the sequence.

Their loop is inside one operator, which has no gradient; a Scan of products and gates has one
(:mod:`ortboost.autodiff.portable.rules.loops`). The formulas are those of ONNX, transposed: a state
is `[hidden, batch]`, and a step computes `R h`. CPU kernels of products pack the right operand in
each step; `h` is much smaller than the weight `R`. GFLOP/s in onnxruntime 1.32, one thread:

    hidden    batch    h^T R^T    R h
    128       16       40         42
    256       32       53         89
    512       16       38         66
    650       64       67         105
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.formulas import Term
from ortboost.graph.query import input_at, known_shape
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes
from ortboost.graph.shapes.shape_inference import infer_shapes

__all__ = ["recurrent_to_scan", "unsupported"]

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# Activation to its default alpha and beta, where it has them; without a default they are required.
_OPERATORS: Mapping[str, tuple[float | None, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    "Elu": (1.0,),
    "LeakyRelu": (0.01,),
    "HardSigmoid": (0.2, 0.5),
    "ThresholdedRelu": (None,),  # the standard says 1, onnxruntime takes 0
}
_NUMBERS = {**_OPERATORS, "Affine": (None, None), "ScaledTanh": (None, None)}  # no operators
_Activation: TypeAlias = tuple[str, tuple[float, ...]]
"""Name, and the numbers that it has: alpha, beta."""


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
    states = (known_shape(input_at(node, index)) for index in (5, 6))
    if any(isinstance(dims[-1], int) and dims[-1] != sizes[2] for dims in states if dims):
        return (
            "its initial states have another length than its outputs, and onnxruntime does not run "
            "it: torch's exporter writes an LSTM with proj_size this way, which ONNX does not have"
        )
    if node.attributes.get_int("layout", 0):
        return "layout=1 (batch first) is not supported by onnxruntime either; use layout=0"
    activations = _activations(node)
    if activations is None:
        return (
            f"its activations are other than {', '.join(_NUMBERS)}, or one of the last three "
            "lacks its alpha or beta"
        )
    if node.op_type == "RNN" and not _is_read_alike(_names(node), _given(node)):
        return (
            "onnxruntime 1.19 takes alpha and beta of an RNN by direction, without defaults, and "
            "crashes if there are fewer: give each direction an activation with as many numbers, "
            "and all of these"
        )
    return None


def _names(node: ir.Node) -> list[str]:
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    names = node.attributes.get_strings("activations", None)
    return list(names or [*_DEFAULTS[node.op_type]] * directions)


def _given(node: ir.Node) -> tuple[list[float], list[float]]:
    """The numbers that the node gives, alpha and beta."""
    lists = (node.attributes.get_floats(f"activation_{key}", ()) for key in ("alpha", "beta"))
    alpha, beta = (list(map(float, numbers)) for numbers in lists)
    return alpha, beta


def _is_read_alike(names: Sequence[str], given: Sequence[Sequence[float]]) -> bool:
    """Whether the lists mean the same, with one number per direction or per activation."""
    for place, numbers in enumerate(given):
        taken = {len(_NUMBERS[name]) > place for name in names}
        if len(taken) > 1 or ((numbers or True in taken) and len(numbers) < len(names)):
            return False
    return True


def _activations(node: ir.Node) -> list[_Activation] | None:
    """The activations of all directions; ``None`` if one is unknown or lacks a number."""
    given = _given(node)
    found: list[_Activation] = []
    for name in _names(node):
        if name not in _NUMBERS:
            return None
        # Each takes the next numbers of the lists, if any are left and it has such numbers.
        pairs = zip(given, _NUMBERS[name], strict=False)
        numbers = [values.pop(0) if values else default for values, default in pairs]
        if None in numbers:
            return None
        found.append((name, tuple(number for number in numbers if number is not None)))
    return found


def _to_scan(site: Site) -> list[ir.Value | None]:
    """A Scan for each direction; `Y` is `[steps, directions, batch, hidden]`."""
    reason = unsupported(site.node)
    if reason is not None:
        raise Refusal(reason)
    direction = site.text("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    activations = _activations(site.node) or []
    lengths = site.optional(4)
    mask = None if lengths is None else _mask(site, lengths)
    parts = []
    for index in range(count):
        size = len(activations) // count
        own = activations[index * size : (index + 1) * size]
        layer = _Layer(site, index, count, own)
        parts.append(layer.run(mask, backwards=direction == "reverse" or index == 1))
    # Y, Y_h and, of an LSTM, Y_c, each with an axis for the directions
    joined: list[ir.Value | None] = []
    for values, axis in zip(zip(*parts, strict=True), (1, 0, 0), strict=False):
        each = [site.op("Unsqueeze", value, site.ints(axis)) for value in values]
        joined.append(site.builder.combined("Concat", each, axis=axis))
    return joined[: len(site.node.outputs)]


def _mask(site: Site, lengths: ir.Value) -> ir.Value:
    """Whether a step is within its sequence, `[steps, 1, batch]`, from the lengths `[batch]`."""
    int64 = ir.DataType.INT64
    steps = site.op("Squeeze", site.shape_of(site.input(0), 0, 1))
    numbers = site.op("Range", site.const(0, int64), steps, site.const(1, int64))
    column = site.op("Unsqueeze", numbers, site.ints(1, 2))
    ends = site.op("Unsqueeze", site.cast(lengths, int64), site.ints(0, 1))
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
    activations: list[_Activation]

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
        weight = site.op("Transpose", self._weight(1), perm=[1, 0])
        projected = site.op("MatMul", site.input(0), weight)
        if bias is not None:
            projected = site.op("Add", projected, bias[0])
        late = site.node.op_type == "GRU" and site.integer("linear_before_reset", 0) == 1
        if bias is not None and not late:
            projected = site.op("Add", projected, bias[1])
        projected = site.op("Transpose", projected, perm=[0, 2, 1])
        late_bias = _column(site, bias[1]) if bias is not None and late else None
        multiples = self._part(7)  # [3 * hidden], in the order i, o, f
        peepholes = None
        if multiples is not None:
            column = _column(site, multiples)
            peepholes = site.ops("Split", column, count=3, axis=0, num_outputs=3)

        with builder.inner_graph():
            before = [self._inner(state, "state") for state in states]
            x = self._inner(projected, "x")
            if site.node.op_type == "LSTM":
                called = self.activations
                after = _lstm_step(site, x, before, recurrent, called, peepholes)
            elif site.node.op_type == "GRU":
                called = self.activations
                after = [_gru_step(site, x, before[0], recurrent, late_bias, called, late)]
            else:
                product = site.op("MatMul", recurrent, before[0])
                after = [_gate(site, Term(site, x) + product, self.activations[0]).value]
            inside = None if mask is None else self._inner(mask, "inside")
            if inside is None:
                output = site.op("Identity", after[0])
            else:  # after its end, a sequence keeps its states and its outputs are 0
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
        rows = site.op("Transpose", outputs, perm=[0, 2, 1])
        return [rows, *(site.op("Transpose", value, perm=[1, 0]) for value in last)]

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
        """`[gates * hidden, n]`."""
        value = self._part(index)
        if value is None:
            raise Refusal("its weights are missing; the file is not valid, export it again")
        return value

    def _bias(self) -> Sequence[ir.Value] | None:
        """The biases of the input and of the recurrence, `[gates * hidden]` each."""
        value = self._part(3)
        if value is None:
            return None
        return self.site.ops("Split", value, count=2, axis=0, num_outputs=2)

    def _initial(self, index: int) -> ir.Value:
        """An initial state, `[hidden, batch]`; zeros if it is not given."""
        site, value = self.site, self._part(index)
        if value is not None:
            return site.op("Transpose", value, perm=[1, 0])
        size, batch = _hidden(site), site.shape_of(site.input(0), 1, 2)
        shape = site.op("Concat", site.ints(size), batch, axis=0)
        return site.filled(0, shape, shape=[size, site.shape()[1]])


def _hidden(site: Site) -> int:
    size = site.shape(2)[2]
    assert isinstance(size, int)  # else `unsupported` refused it
    return size


def _column(site: Site, vector: ir.Value) -> ir.Value:
    return site.op("Unsqueeze", vector, site.ints(1))


def _gate(site: Site, x: Term, activation: _Activation) -> Term:
    """The activation of a gate, whose argument is clipped first if the node says so."""
    clip = site.node.attributes.get_float("clip", 0.0)
    return _activated(x.call("Clip", -clip, clip) if clip else x, activation)


def _activated(x: Term, activation: _Activation) -> Term:
    name, numbers = activation
    if name == "Affine":
        return x * numbers[0] + numbers[1]
    if name == "ScaledTanh":
        return (x * numbers[1]).call("Tanh") * numbers[0]
    return x.call(name, **dict(zip(("alpha", "beta"), numbers, strict=False)))


def _lstm_step(
    site: Site,
    x: ir.Value,
    states: Sequence[ir.Value],
    recurrent: ir.Value,
    activations: Sequence[_Activation],
    peepholes: Sequence[ir.Value] | None,
) -> list[ir.Value]:
    """`c' = f c + i c~`, `h' = o act(c')`; gates in the order i, o, f, c.

    ``x`` is the projected input with the biases, `[4 * hidden, batch]`, ``states`` are `h` and `c`,
    ``recurrent`` is the weight, `[4 * hidden, hidden]`. ``peepholes``, `[hidden, 1]` each, add a
    multiple of `c` to i and f, and of `c'` to o. With ``input_forget``, f is `1 - i`. onnxruntime
    clips the arguments of the gates, not that of the last activation.
    """
    state, cell = states
    summed = Term(site, x) + site.op("MatMul", recurrent, state)
    parts = site.ops("Split", summed.value, count=4, axis=0, num_outputs=4)
    i, o, f, c = (Term(site, part) for part in parts)
    if peepholes is not None:
        i, f = i + Term(site, cell) * peepholes[0], f + Term(site, cell) * peepholes[2]
    gate, candidate, output = activations
    i = _gate(site, i, gate)
    coupled = site.integer("input_forget", 0) == 1
    f = 1 - i if coupled else _gate(site, f, gate)
    following = f * cell + i * _gate(site, c, candidate)
    if peepholes is not None:
        o = o + following * peepholes[1]
    o = _gate(site, o, gate)
    return [(o * _activated(following, output)).value, following.value]


def _gru_step(
    site: Site,
    x: ir.Value,
    state: ir.Value,
    recurrent: ir.Value,
    bias: ir.Value | None,
    activations: Sequence[_Activation],
    before_reset: bool,
) -> ir.Value:
    """`h' = (1 - z) h~ + z h`; gates in the order z, r, h.

    h~ = act(x_h + r (R_h h + b_h))     with ``before_reset`` (linear_before_reset)
    h~ = act(x_h + R_h (r h))           without it, b_h being part of x_h
    """
    size = _hidden(site)
    sizes = site.ints(2 * size, size)  # z and r together, then h
    x_gates, x_candidate = site.ops("Split", x, sizes, count=2, axis=0)
    if before_reset:
        product = site.op("MatMul", recurrent, state)
        product = product if bias is None else site.op("Add", product, bias)
        h_gates, second = site.ops("Split", product, sizes, count=2, axis=0)
    else:
        gate_weight, second = site.ops("Split", recurrent, sizes, count=2, axis=0)
        h_gates = site.op("MatMul", gate_weight, state)
    gates = _gate(site, Term(site, x_gates) + h_gates, activations[0]).value
    update, reset = (
        Term(site, gate) for gate in site.ops("Split", gates, count=2, axis=0, num_outputs=2)
    )
    inner = reset * second if before_reset else Term(site, second) @ (reset * state)
    candidate = _gate(site, Term(site, x_candidate) + inner, activations[1])
    # (1 - z) h~ + z h = h~ + z (h - h~)
    return (candidate + update * (Term(site, state) - candidate)).value
