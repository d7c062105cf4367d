"""Damage to files: of bytes, for all formats, and of the structure of ONNX models."""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from ortboost.graph.structure.walk import all_graphs

__all__ = ["damage_bytes", "damage_model", "damage_text"]

_NUMBERS = (0, -1, 1, 2, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -1.0, 1e38, -1e38, 1e-40, float("inf"), float("nan"))
_STRINGS = (b"", b"x", b"SAME_UPPER", b"VALID", b"linear", b"\xff\xfe", b"x" * 5000)
_PLACES = (
    "/etc/passwd",
    "../x",
    "x/../../x",
    "link",
    "",
    ".",
    "\x00",
    "/dev/zero",
    "//",
    "x" * 5000,
)
_VALUE = re.compile(r'"[^"\n]*"|-?\d[\d.e+-]*|\b(?:true|false|null)\b')
_VALUES = (
    *("0", "-1", "1", "1e999", "-0.5", "NaN", "true", "null", "[]", "{}", "[[1]]", '{"a": 1}'),
    *(
        '""',
        '"x"',
        '"../../x"',
        '"/dev/zero"',
        '"\\u001b[31m"',
        '"\\ud800"',
        "9" * 5000,
        "[" * 5000,
    ),
    *(str(2**31), str(2**63), str(-(2**63)), "1e308", "1e-320", "", '"' + "x" * 3000 + '"'),
)
_OPERATORS = (
    *("Relu", "Add", "MatMul", "Conv", "Gemm", "Reshape", "Slice", "Gather", "Resize", "Loop"),
    *("If", "MaxPool", "Pad", "Tile", "Expand", "Cast", "Range", "Concat", "Split", "NonZero"),
    *("BatchNormalization", "Softmax", "Transpose", "Squeeze", "LSTM", "Einsum", "OneHot", "TopK"),
)


def damage_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Flip, cut, repeat or insert bytes at a few places."""
    array = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if not array:
            break
        place = int(rng.integers(len(array)))
        what = int(rng.integers(6))
        if what == 0:
            array[place] ^= 1 << int(rng.integers(8))
        elif what == 1:
            array[place] = int(rng.integers(256))
        elif what == 2:
            del array[place:]
        elif what == 3:
            del array[place : place + int(rng.integers(1, 64))]
        elif what == 4:
            array[place:place] = rng.bytes(int(rng.integers(1, 64)))
        else:
            array[place:place] = array[place : place + int(rng.integers(1, 256))]
    return bytes(array)


def damage_text(data: bytes, rng: np.random.Generator) -> bytes:
    """Put other values in the place of a few numbers and texts of JSON, TOML or a list."""
    text = data.decode()
    for _ in range(int(rng.integers(1, 4))):
        found = list(_VALUE.finditer(text))
        if not found:
            break
        place = found[int(rng.integers(len(found)))]
        other = _VALUES[int(rng.integers(len(_VALUES)))]
        if rng.random() < 0.2:  # one of its own in another place
            other = found[int(rng.integers(len(found)))][0]
        text = text[: place.start()] + other + text[place.end() :]
    return text.encode()


def damage_model(data: bytes, rng: np.random.Generator) -> bytes:
    """Change a few things in the structure of a model; the file stays readable as protobuf."""
    proto = onnx.load_from_string(data)
    kinds = (_node, _node, _attribute, _attribute, _tensor, _tensor, _value)
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.1:
            _model(proto, rng)
        else:
            graphs = list(all_graphs(proto))
            inner = int(rng.integers(len(graphs))) if rng.random() < 0.5 else 0
            kinds[int(rng.integers(len(kinds)))](graphs[inner], rng)
    return bytes(proto.SerializeToString())


def _pick(items: object, rng: np.random.Generator) -> object | None:
    held = list(items)  # type: ignore[call-overload]
    return held[int(rng.integers(len(held)))] if held else None


def _number(rng: np.random.Generator) -> int:
    return _NUMBERS[int(rng.integers(len(_NUMBERS)))]


def _node(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    nodes = graph.node
    node = _pick(nodes, rng)
    if not isinstance(node, onnx.NodeProto):
        return
    names = [name for n in nodes for name in (*n.input, *n.output)] + ["", "nobody"]
    what = int(rng.integers(9))
    if what == 0:
        nodes.remove(node)
    elif what == 1:
        nodes.add().CopyFrom(node)
    elif what == 2 and node.input:
        node.input[int(rng.integers(len(node.input)))] = names[int(rng.integers(len(names)))]
    elif what == 3 and node.output:
        node.output[int(rng.integers(len(node.output)))] = names[int(rng.integers(len(names)))]
    elif what == 4:
        node.op_type = _OPERATORS[int(rng.integers(len(_OPERATORS)))]
    elif what == 5:
        node.domain = ("", "ai.onnx.ml", "com.microsoft", "nobody")[int(rng.integers(4))]
    elif what == 6 and node.input:
        del node.input[int(rng.integers(len(node.input))) :]
    elif what == 7:
        node.input.append(names[int(rng.integers(len(names)))])
    else:
        other = onnx.NodeProto()
        other.CopyFrom(node)
        nodes.remove(node)
        nodes.insert(int(rng.integers(len(nodes) + 1)), other)


def _attribute(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    node = _pick([n for n in graph.node if n.attribute], rng)
    if not isinstance(node, onnx.NodeProto):
        return
    attribute = node.attribute[int(rng.integers(len(node.attribute)))]
    what = int(rng.integers(6))
    if what == 0:
        node.attribute.remove(attribute)
    elif what == 1:
        attribute.type = int(rng.integers(14))  # type: ignore[assignment]
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = _FLOATS[int(rng.integers(len(_FLOATS)))]
    elif attribute.type == AttributeProto.STRING:
        attribute.s = _STRINGS[int(rng.integers(len(_STRINGS)))]
    elif what in (2, 5) and attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = _number(rng)
    elif attribute.type == AttributeProto.INT:
        attribute.i = _number(rng)
    elif attribute.ints:
        del attribute.ints[int(rng.integers(len(attribute.ints))) :]


def _tensor(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    constants = (a.t for n in graph.node for a in n.attribute if a.type == AttributeProto.TENSOR)
    tensor = _pick((*graph.initializer, *constants), rng)
    if not isinstance(tensor, TensorProto):
        return
    whole = tensor.raw_data and len(tensor.raw_data) % 8 == 0
    if tensor.data_type == TensorProto.INT64 and whole and rng.random() < 0.6:
        values = np.frombuffer(tensor.raw_data, "<i8").copy()  # lengths, axes, indices
        values[int(rng.integers(values.size))] = _number(rng)
        tensor.raw_data = values.tobytes()
        return
    what = int(rng.integers(7))
    if what == 0 and tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = _number(rng)
    elif what == 1:
        tensor.data_type = int(rng.integers(26))
    elif what == 2:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data) + 1))]
    elif what == 3:
        tensor.ClearField("name")
    elif what == 5:
        place = _PLACES[int(rng.integers(len(_PLACES)))]
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in (("location", place), ("offset", str(_number(rng)))):
            if key == "location" or rng.random() < 0.5:
                tensor.external_data.add(key=key, value=value)
    elif what == 4 and tensor.raw_data:
        place = int(rng.integers(len(tensor.raw_data)))
        tensor.raw_data = tensor.raw_data[:place] + b"\xff" + tensor.raw_data[place + 1 :]
    else:
        tensor.dims.append(1)


def _value(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    value = _pick((*graph.input, *graph.output, *graph.value_info), rng)
    if not isinstance(value, onnx.ValueInfoProto):
        return
    kind = value.type.tensor_type
    what = int(rng.integers(4))
    if what == 0 and kind.shape.dim:
        kind.shape.dim[int(rng.integers(len(kind.shape.dim)))].dim_value = _number(rng)
    elif what == 1:
        kind.elem_type = int(rng.integers(26))
    elif what == 2:
        kind.ClearField("shape")
    else:
        value.name += "x"


def _model(proto: onnx.ModelProto, rng: np.random.Generator) -> None:
    what = int(rng.integers(4))
    if what == 0 and proto.opset_import:
        proto.opset_import[0].version = int(rng.integers(0, 40))
    elif what == 1:
        proto.ir_version = int(rng.integers(0, 20))
    elif what == 2 and proto.graph.output:
        del proto.graph.output[int(rng.integers(len(proto.graph.output)))]
    elif proto.graph.input:
        del proto.graph.input[int(rng.integers(len(proto.graph.input)))]
