"""The lines of text in the boxes of a picture."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import known_shape

__all__ = ["cut", "family", "middle", "settings", "times", "type_text", "weight"]

_WIDE = 34  # characters per line
_NAME = 22  # characters for the name of a weight
_SHOWN = 4  # number of values shown of a constant
_USUAL: Mapping[str, Any] = {
    "alpha": 1.0,
    "beta": 1.0,
    "ceil_mode": 0,
    "auto_pad": "NOTSET",
    "group": 1,
    "storage_order": 0,
    "keepdims": 1,
    "transA": 0,
    "transB": 0,
    "allowzero": None,
    "start": 0,
    "training_mode": 0,
    "count_include_pad": 0,
    "momentum": None,
    "epsilon": None,
    "stash_type": None,
    "noop_with_empty_axes": 0,
}
"""Attributes that are not shown at this value; None: at any value."""


def settings(node: ir.Node) -> str:
    """The attributes of a node as a short text, for convolutions and pools in the usual order."""
    shown = {}  # the attributes with unusual values, as text
    for attribute in node.attributes.values():
        if not isinstance(attribute, ir.Attr) or attribute.value is None:
            continue
        value = attribute.value
        kinds = ir.AttributeType
        if attribute.type in (kinds.FLOAT, kinds.INT, kinds.STRING):
            shown[attribute.name] = f"{value:g}" if isinstance(value, float) else str(value)
        elif attribute.type == kinds.INTS:
            shown[attribute.name] = ",".join(str(item) for item in value)
        if attribute.name in _USUAL and _USUAL[attribute.name] in (None, value):
            shown.pop(attribute.name, None)
    words = []
    kernel = shown.pop("kernel_shape", "")
    if kernel:
        words.append(kernel.replace(",", "x"))
    for name, short, usual in (
        ("strides", "stride ", "1"),
        ("pads", "pad ", "0"),
        ("dilations", "dilation ", "1"),
    ):
        items = set(shown.pop(name, usual).split(","))
        if items != {usual}:  # one number if all axes have the same: "stride 2" for 2,2
            given = ",".join(map(str, node.attributes[name].as_ints()))
            words.append(short + (items.pop() if len(items) == 1 else given))
    return ", ".join([*words, *(f"{name} {value}" for name, value in shown.items())])


def weight(value: ir.Value | None, inside: Collection[str]) -> str | None:
    """A line that describes an input, if it is a weight or a constant."""
    if value is None:
        return None
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        tensor = ir.convenience.get_const_tensor(value)
        return "const " + _value(tensor) if tensor is not None else "const"
    if value.name not in inside:
        return None
    shape = known_shape(value)
    short = _tail((value.name or "").split("/")[-1])
    tensor = value.const_value
    if tensor is not None and tensor.size <= _SHOWN and tensor.dtype != ir.DataType.STRING:
        return f"{short} = {_value(tensor)}"
    return f"{short} {times(shape).replace(' ', '')}" if shape else short


def _tail(name: str) -> str:
    """The end of a dotted name, in whole parts if they fit."""
    parts = name.split(".")
    while len(parts) > 1 and sum(map(len, parts)) + len(parts) > _NAME:
        parts = parts[1:]
    short = ".".join(parts)
    return short if len(short) <= _NAME else "…" + short[1 - _NAME :]


def _value(tensor: ir.TensorProtocol) -> str:
    if tensor.size > _SHOWN or tensor.dtype == ir.DataType.STRING:
        return times(tuple(int(d) for d in tensor.shape.numpy()))
    array = np.asarray(tensor.numpy())
    items = [_number(item) for item in array.ravel()]
    return items[0] if array.ndim == 0 else f"[{', '.join(items)}]"


def _number(item: Any) -> str:
    number = float(item)
    if abs(number) >= 2.0**62:  # in Slice the largest integer means "to the end"
        return "max" if number > 0 else "min"
    return f"{number:.4g}"


def type_text(value: ir.Value) -> str:
    """Element type and shape of an input or output."""
    shape = known_shape(value)
    dtype = "" if value.dtype is None else str(value.dtype).lower()
    return cut(f"{dtype} {'' if shape is None else times(shape)}".strip())


def times(shape: Sequence[int | str | None]) -> str:
    """A shape as text.

    Example:
        >>> times(["batch", 3, None])
        'batch x 3 x ?'
    """
    return " x ".join("?" if dim is None else str(dim) for dim in shape)


def cut(text: str) -> str:
    """Truncate a line that is too long."""
    return text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"


def middle(text: str) -> str:
    """Shorten a long name in the middle, as names differ at their ends."""
    if len(text) <= _WIDE:
        return text
    front = math.floor((_WIDE - 1) / 3)
    return f"{text[:front]}…{text[-(_WIDE - 1 - front) :]}"


_OPERATORS = {
    "dense": "Conv ConvTranspose Gemm MatMul Einsum LSTM GRU RNN Attention",
    "layout": "Reshape Transpose Flatten Squeeze Unsqueeze Concat Slice Gather Shape Cast CastLike "
    "Identity Expand Split Pad",
    "activation": "Relu Clip Sigmoid Tanh Erf Gelu HardSwish LeakyRelu Softmax PRelu Elu Selu "
    "HardSigmoid Softplus Mish LogSoftmax",
}
_FAMILIES = {op: family for family, ops in _OPERATORS.items() for op in ops.split()}


def family(op: str) -> str:
    """The category of an operator: ``dense``, ``norm``, ``activation``, ``layout`` or empty."""
    if "Normalization" in op:
        return "norm"
    return _FAMILIES.get(op, "")
