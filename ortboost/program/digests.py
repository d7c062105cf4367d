"""Digests of a program: of its graphs, its settings and its initial state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.tensor_file import pieces_of
from ortboost.program.catalogue import Catalogue

__all__ = [
    "EVALUATION",
    "Digests",
    "digest_graphs",
    "digest_settings",
    "digest_state",
    "serialized",
]

EVALUATION = "eval"
"""Name of the evaluation graph."""
_LENGTH = 32  # hexadecimal digits of a digest


@dataclass(frozen=True)
class Digests:
    """Digests of the graphs of a program.

    Args:
        fingerprint: Of all training graphs and the catalogue.
        evaluation: Of the evaluation graph; empty without one.
        around: Graph to that of its opsets, functions and metadata.
    """

    fingerprint: str
    evaluation: str
    around: Mapping[str, str]


def digest_graphs(
    catalogue: Catalogue,
    graphs: Mapping[str, ir.Model],
    evaluation: ir.Model | None = None,
    each: Callable[[str, ir.Model, onnx.ModelProto], None] = lambda *_: None,
) -> Digests:
    """Serialize graphs and digest them.

    One after the other, as each contains the weights that are not states, such as quantized ones.

    Args:
        catalogue: That of the program.
        graphs: The training graphs by name.
        evaluation: The evaluation graph.
        each: Called for each graph with its name, model and serialized form.
    """
    text = json.dumps(catalogue.to_dict(), sort_keys=True)
    steps, other = hashlib.sha256(text.encode()), hashlib.sha256()
    around: dict[str, str] = {}
    named = [(name, graphs[name], steps) for name in sorted(graphs)]
    named += [] if evaluation is None else [(EVALUATION, evaluation, other)]
    for name, model, digest in named:
        proto = ir.to_proto(model)
        around[name] = _around(proto)
        for piece in serialized(proto.graph):
            digest.update(piece)
        each(name, model, proto)
    found = "" if evaluation is None else other.hexdigest()[:_LENGTH]
    return Digests(steps.hexdigest()[:_LENGTH], found, around)


def serialized(graph: onnx.GraphProto) -> Iterator[bytes]:
    """The serialized graph in pieces, weight by weight.

    Serializing it as a whole would take three times its size of additional memory.
    """
    before, after = onnx.GraphProto(), onnx.GraphProto()
    place = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
    for known, value in graph.ListFields():
        part = before if known.number < place else after
        if known.number == place:
            continue
        if isinstance(value, str):
            setattr(part, known.name, value)
        else:
            getattr(part, known.name).extend(value)
    yield before.SerializeToString(deterministic=True)
    for tensor in graph.initializer:
        data = tensor.SerializeToString(deterministic=True)
        length, varint = len(data), bytearray([place << 3 | 2])  # the tag of a message
        while length > 0x7F:
            varint.append(length & 0x7F | 0x80)
            length >>= 7
        yield bytes([*varint, length])
        yield data
    yield after.SerializeToString(deterministic=True)


def _around(proto: onnx.ModelProto) -> str:
    """Digest of a graph's opsets, functions, and metadata including the catalogue."""
    around = {
        "opsets": sorted((entry.domain, entry.version) for entry in proto.opset_import),
        "metadata": sorted((entry.key, entry.value) for entry in proto.metadata_props),
        "functions": [f.SerializeToString(deterministic=True).hex() for f in proto.functions],
    }
    return hashlib.sha256(json.dumps(around).encode()).hexdigest()[:_LENGTH]


def digest_settings(config: Any) -> str:
    """Digest of a configuration without learning rates, which the graphs do not contain."""
    if isinstance(config, Mapping):
        config = {**config, "learning_rate": None}
        # Whether a group has a rate is in the graph, as an input; which rate it is, is not.
        groups = config.get("groups") or ()
        config["groups"] = [
            {**group, "learning_rate": group.get("learning_rate") is None} for group in groups
        ]
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def digest_state(state: Mapping[str, NDArray[Any]]) -> str:
    """Digest of the names and values of tensors; it reads them piece by piece."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        for piece in pieces_of(state, name):
            digest.update(piece.view(np.uint8).data)
    return digest.hexdigest()[:_LENGTH]
