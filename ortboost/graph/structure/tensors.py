"""Stored tensors: their data has the length that their shape requires."""

from __future__ import annotations

import math
import re

import numpy as np
import onnx

from ortboost.graph.structure.walk import damaged

__all__ = ["check_tensors"]

_BITS = {  # bits per element; other types have a numpy dtype
    **dict.fromkeys(("UINT4", "INT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("UINT2", "INT2"), 2),
}

_DIGITS = re.compile("[0-9]{1,18}")  # a file ends before 2^63 bytes


def check_tensors(graph: onnx.GraphProto, where: str) -> None:
    """Check initializers and tensor attributes of one graph; external data is not checked.

    Raises:
        FileError: A dimension is negative, or the data does not have the length of the shape.
    """
    attributes = [a for node in graph.node for a in node.attribute]
    inner = [t for a in attributes for t in ((a.t,) if a.HasField("t") else tuple(a.tensors))]
    for tensor in (*graph.initializer, *inner):
        at = f"{where}: tensor '{tensor.name}'"
        if any(dim < 0 for dim in tensor.dims):
            raise damaged(f"A stored tensor has the shape {list(tensor.dims)}.", at)
        bits = _bits(tensor.data_type)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_place(tensor, at)  # its length is checked once the file is found
            continue
        if bits is None:  # strings have any length; onnx.checker reports unknown types
            continue
        elements = math.prod(tensor.dims)
        if tensor.HasField("raw_data"):
            have, need, unit = len(tensor.raw_data), (elements * bits + 7) // 8, "bytes"
        else:
            have, need, unit = *_numbers(tensor, elements, bits), "values"
        if have != need:
            raise damaged(
                f"A stored tensor of shape {list(tensor.dims)} holds {have} {unit}, not {need}.", at
            )


def _check_place(tensor: onnx.TensorProto, at: str) -> None:
    """Refuse external data without a valid file name, offset or length."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers = [entries[key] for key in ("offset", "length") if key in entries]
    if not all(_DIGITS.fullmatch(number) for number in numbers):
        fault = f"its place is {', '.join(numbers)}"
    elif not entries.get("location") or "\0" in entries["location"]:
        fault = f"its file is called {entries.get('location', '')!r}"
    else:
        return
    raise damaged(f"A stored tensor cannot be found: {fault}.", at)


def _bits(kind: int) -> int | None:
    """Bits per element; ``None`` for strings and unknown types."""
    try:
        name = onnx.TensorProto.DataType.Name(kind)
        if name in _BITS:
            return _BITS[name]
        found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, ValueError, TypeError):
        return None
    return None if found.kind in "OUS" else 8 * found.itemsize


def _numbers(tensor: onnx.TensorProto, elements: int, bits: int) -> tuple[int, int]:
    """Number of values that the typed field holds, and number that it needs."""
    # A complex number takes two values; types of less than 8 bits share one.
    complex_number = "COMPLEX" in onnx.TensorProto.DataType.Name(tensor.data_type)
    packed = 8 // bits if bits < 8 else 1
    held = getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))
    return len(held), (2 if complex_number else 1) * -(-elements // packed)
