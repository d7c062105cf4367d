"""The uses of a stored tensor: the nodes that combine it with data.

Transpose, Slice, Concat of stored tensors and similar operators only move elements; arithmetic
among stored tensors (a weight normalization, the exponential of a scale) computes a weight from
several. The use is the first node after these.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.graph.bodies import states_of
from ortboost.graph.query import (
    FLOAT_TYPES,
    is_standard,
    known_shape,
    producer_of,
    source_before,
    subgraphs,
)
from ortboost.graph.reach import CONTROLS, STOPS, nodes_before
from ortboost.graph.weights.fake_quantization import passes_integers
from ortboost.graph.weights.written_norms import norm_role

__all__ = ["UseKind", "WeightUse", "weight_uses"]


class UseKind(enum.IntEnum):
    """Kinds of uses, the most conclusive first."""

    NORM = 0
    WEIGHT = 1
    BIAS = 2
    PLAIN = 3  # in arithmetic with activations
    OTHER = 4
    SETTING = 5  # of an operator


_NORM_OPS = {
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "RMSNormalization": (1,),
}
# Inputs where a float tensor is a weight, whatever its size.
_WEIGHTS = {
    "Conv": {1: "weight", 2: "bias"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "DeformConv": {1: "weight", 3: "bias"},
    "Gemm": {0: "weight", 1: "weight", 2: "bias"},
    "MatMul": {0: "weight", 1: "weight"},
    "Einsum": {0: "weight", 1: "weight", 2: "weight"},
    "Gather": {0: "weight"},
    "GatherND": {0: "weight"},
    "GatherElements": {0: "weight"},
    "PRelu": {1: "weight"},
    "LSTM": {1: "weight", 2: "weight", 3: "bias", 7: "weight"},
    "GRU": {1: "weight", 2: "weight", 3: "bias"},
    "RNN": {1: "weight", 2: "weight", 3: "bias"},
}
_RECURRENT = ("LSTM", "GRU", "RNN")
# Inputs that configure an operator; never learned.
_SETTINGS = {
    **CONTROLS,
    "Clip": (1, 2),
    "NegativeLogLikelihoodLoss": (2,),
    "Pad": (1, 2),
    "Pow": (1,),
    "Resize": (1, 2, 3),
    "OneHot": (2,),
    "SoftmaxCrossEntropyLoss": (2,),
    "Range": (0, 1, 2),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "GatherBlockQuantized": (2, 3),
}
# No gradient flows through these: a tensor that only they read is not a weight.
_STOPS = STOPS | {"OneHot", "Unique"}
# The output of these is the same tensor or a part of it: operator to its data inputs.
_MOVES = {
    **dict.fromkeys(
        "Cast CastLike DepthToSpace Expand Flatten Identity Pad Reshape ReverseSequence Slice "
        "SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Resize Upsample".split(),
        (0,),
    ),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
}
# Quantization-aware training rounds float weights to integers and back.
_ROUNDING = ("QuantizeLinear", "DequantizeLinear")
_STATE = ("Loop", "Scan", "If")
_PRODUCTS = ("Einsum", "Gemm", "MatMul", "Mul", "Div")
_WAVES = ("Cos", "Sin")


@dataclass(frozen=True)
class WeightUse:
    """One node in which a stored tensor is combined with data.

    Args:
        kind: The kind of the use.
        role: The role that a tensor has at that input.
        op: The operator.
        where: The input and the node, for messages.
        neutral: Whether it is the inner scale or shift of torch's GroupNorm, all 1 or all 0.
        plain_values: Whether it is a scale of all 1 or a shift of all 0.
        recurrent: Whether the layer is recurrent.
        raw: Whether it is subtracted from the raw input, or divides it, or scales the difference.
        raw_affine: Whether it is multiplied by the raw input, or added to it.
        waves: Whether it is multiplied by integers inside a sine or cosine.
        computed: Whether it is combined with other stored tensors first.
        start: Whether it is multiplied by a stored matrix, as an initial state is.
        linear: Whether it alone is the right factor of a MatMul with data, as in a linear layer.
    """

    kind: UseKind
    role: str
    op: str
    where: str
    neutral: bool = False
    plain_values: bool = False
    recurrent: bool = False
    raw: bool = False
    raw_affine: bool = False
    waves: bool = False
    computed: bool = False
    start: bool = False
    linear: bool = False


def weight_uses(value: ir.Value) -> tuple[WeightUse, ...]:
    """All uses of a stored tensor, in graph order.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        ...   t = Transpose(w)  y = MatMul(x, t) }''')
        >>> [use.role for use in weight_uses(model.graph.initializers["w"])]
        ['weight']
    """
    return tuple(dict.fromkeys(_use(value, *end) for end in _ends(value)))


def _use(value: ir.Value, node: ir.Node, index: int, waves: bool, computed: bool) -> WeightUse:
    op = node.op_type
    where = f"input {index} of {op} '{node.name or node.outputs[0].name}'"
    standard = is_standard(node)
    if op == "BatchNormalization" and index in (3, 4):
        role = "running_mean" if index == 3 else "running_var"
        return WeightUse(UseKind.SETTING, role, op, where)
    if index in _SETTINGS.get(op, ()):
        return WeightUse(UseKind.SETTING, "constant", op, where)
    if index in _NORM_OPS.get(op, ()):
        role, neutral = ("norm_scale", 1) if index == 1 else ("norm_shift", 0)
        tensor = value.const_value
        plain = tensor is not None and bool((tensor.numpy() == neutral).all())
        return WeightUse(UseKind.NORM, role, op, where, plain and _normalizes_groups(node), plain)
    role_here = _WEIGHTS.get(op, {}).get(index) if standard else None
    if role_here is not None:
        matrix = node.inputs[1] if op in ("Gemm", "MatMul") and index == 0 else None
        data = node.inputs[0] if op == "MatMul" and index == 1 and not computed else None
        return WeightUse(
            UseKind.BIAS if role_here == "bias" else UseKind.WEIGHT,
            role_here,
            op,
            where,
            recurrent=op in _RECURRENT,
            waves=waves,
            computed=computed,
            start=matrix is not None and _is_stored(matrix, {}),
            linear=data is not None and not _is_stored(data, {}),
        )
    # A non-standard operator may have weights at any input: it is trained, or rejected later.
    plain = not standard or op not in (*_STATE, *_RECURRENT)
    return WeightUse(
        UseKind.PLAIN if plain else UseKind.OTHER,
        norm_role(value, node, index) or "weight",
        op,
        where,
        raw=(op in ("Sub", "Div") and index == 1 and _is_raw(node.inputs[0]))
        or (op == "Mul" and _is_centred(node.inputs[1 - index])),
        raw_affine=op in ("Mul", "Add") and _is_raw(node.inputs[1 - index]),
        waves=waves,
        computed=computed,
    )


def _ends(value: ir.Value) -> Iterator[tuple[ir.Node, int, bool, bool]]:
    """Nodes that combine a tensor with data, after moves and arithmetic of stored tensors.

    The last members say whether the path went through a product with integers and a sine, and
    whether it went through arithmetic.
    """
    # Breadth first, so that uses are in graph order; one value may be reached by several paths.
    pending = [(value, False, False)]
    seen: set[tuple[int, bool, bool]] = set()
    known: dict[int, bool] = {}
    while pending:
        current, waves, computed = pending.pop(0)
        if (id(current), waves, computed) in seen:
            continue
        seen.add((id(current), waves, computed))
        for usage in current.uses():
            node, index, op = usage.node, usage.idx, usage.node.op_type
            if index == 0 and (op in _ROUNDING or passes_integers(node)):
                pending += [(out, waves, computed) for out in node.outputs]
                continue
            floats = [out for out in node.outputs if out.dtype is None or out.dtype in FLOAT_TYPES]
            if op in _STOPS or not floats:
                continue
            # The order matters: a tensor that is multiplied by integers for a sine is not a weight
            # of the product, and a layer is a use even where the rest of its inputs is stored.
            if op in _WAVES and waves:
                pending += [(out, True, True) for out in floats]
            elif index in _MOVES.get(op, ()):
                pending += [(out, waves, computed) for out in floats]
            elif (inner := _in_body(node, index)) is not None:
                pending.append((inner, waves, computed))
            elif _makes_waves(node, index):
                pending += [(out, True, True) for out in floats]
            elif index in (*_NORM_OPS.get(op, ()), *_WEIGHTS.get(op, ()), *_SETTINGS.get(op, ())):
                yield node, index, waves, computed
            elif all(_is_stored(other, known) for other in node.inputs if other is not None):
                # Not yet combined with data: follow the result. Concat only moves elements.
                arithmetic = computed or op != "Concat"
                pending += [(out, waves, arithmetic) for out in floats]
            else:
                yield node, index, waves, computed


def _in_body(node: ir.Node, index: int) -> ir.Value | None:
    """The name in the body for an input of a Loop or Scan that all iterations read unchanged.

    tf2onnx and jax2onnx pass weights to the body in this way. So does a Scan over layers, whose
    iterations read one part each; one number each is a time. Other inputs are initial states.
    """
    if node.op_type not in ("Loop", "Scan") or not is_standard(node):
        return None
    body = next(subgraphs(node), None)
    before, first, count = states_of(node)
    place = index - before + first  # of the state among the outputs of the body
    if body is None or index < before or len(body.inputs) <= index:
        return None
    inner = body.inputs[index]
    if index >= before + count:
        lengths = known_shape(inner)
        return None if lengths is not None and set(lengths) <= {1} else inner
    if len(body.outputs) <= place:  # the file is damaged
        return None
    return inner if source_before(body.outputs[place], "Identity") is inner else None


def _is_stored(value: ir.Value, known: dict[int, bool]) -> bool:
    """Whether a value is an initializer or computed from initializers alone."""
    pending, seen, stored = [value], set[int](), True
    while pending and stored:  # not recursive: networks are deep
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        node = current.producer()
        if id(current) in known:
            stored = known[id(current)]
        elif node is None:
            stored = current.is_initializer()
        else:
            stored = bool(node.inputs)
            pending += [v for v in node.inputs if v is not None]
    # If one source is not stored, this says nothing of the others that were seen.
    known.update(dict.fromkeys(seen, True) if stored else {id(value): False})
    return stored


def _makes_waves(node: ir.Node, index: int) -> bool:
    """Whether a node multiplies by integers only for sines and cosines, as for rotary positions."""
    if node.op_type not in _PRODUCTS:
        return False
    factors = node.inputs[:2] if node.op_type == "Gemm" else node.inputs  # not its bias
    others = [v for i, v in enumerate(factors) if i != index]
    return index < len(factors) and any(map(_is_whole, others)) and _only_waves(node.outputs[0])


def _is_whole(value: ir.Value | None) -> bool:
    """Whether a value was cast from integers."""
    while value is not None:
        node = value.producer()
        if node is None:
            tensor = value.const_value
            return tensor is not None and bool((tensor.numpy() % 1 == 0).all())
        if node.op_type == "Range":  # positions
            return True
        if node.op_type not in _MOVES:
            return False
        value = node.inputs[0]
        if value is not None and value.dtype in (ir.DataType.INT64, ir.DataType.INT32):
            return True
    return False


def _only_waves(value: ir.Value) -> bool:
    pending, found, seen = [value], False, set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for usage in current.uses():
            if usage.node.op_type in _WAVES:
                found = True
            elif usage.node.op_type in _MOVES or usage.node.op_type in ("Concat", "Mul"):
                pending += usage.node.outputs
            elif usage.node.op_type not in _STOPS:
                return False
    return found


def _normalizes_groups(node: ir.Node) -> bool:
    """Whether a node is the inner part of torch's GroupNorm, between two Reshapes."""
    source = producer_of(node.inputs[0])
    readers = [usage.node.op_type for usage in node.outputs[0].uses()]
    together = source is not None and source.op_type == "Reshape"
    return node.op_type == "InstanceNormalization" and together and set(readers) == {"Reshape"}


def _is_raw(value: ir.Value | None) -> bool:
    """Whether a value comes from the model's inputs without passing an operator with weights."""
    return not any(n.op_type in _WEIGHTS or n.op_type in _NORM_OPS for n in nodes_before([value]))


def _is_centred(value: ir.Value | None) -> bool:
    """Whether a value is the raw input minus a tensor that is stored or given, as Keras does."""
    node = producer_of(source_before(value, "Cast", "Identity"), "Sub")
    mean = None if node is None else node.inputs[1]
    if node is None or mean is None or not _is_raw(node.inputs[0]):
        return False
    return mean.is_graph_input() or _is_stored(mean, {})
