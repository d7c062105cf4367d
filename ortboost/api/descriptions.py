"""The results of ``ortboost.inspect``: descriptions of a model file and of a program folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ortboost.core.field_types import write_config
from ortboost.core.report import Report
from ortboost.core.shown import Shown
from ortboost.graph.query import format_shape, known_shape
from ortboost.program.catalogue import Catalogue
from ortboost.program.config import ProgramConfig

__all__ = [
    "Layer",
    "ModelDescription",
    "NodePrecision",
    "ParameterDescription",
    "ProgramDescription",
    "StateSize",
    "ValueDescription",
]


@dataclass(frozen=True)
class ValueDescription:
    """An input, an output or an intermediate tensor.

    Args:
        name: Its name.
        dtype: Element type, such as ``FLOAT``; ``None`` if unknown.
        shape: Lengths and names of dimensions; ``None`` if unknown.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        shape = "" if self.shape is None else format_shape(self.shape)
        return f"{self.name} {self.dtype or '?'}{shape}"

    @classmethod
    def of(cls, value: ir.Value) -> ValueDescription:
        """Describe a value of a graph."""
        shape, dtype = known_shape(value), value.dtype
        named = None if dtype is None else str(dtype)
        return cls(value.name or "", named, None if shape is None else tuple(shape))


@dataclass(frozen=True)
class ParameterDescription:
    """How a conversion treats a float tensor.

    See :class:`ortboost.graph.weights.parameters.Parameter`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    role: str
    trainable: bool
    reason: str
    doubt: str


@dataclass(frozen=True)
class Layer:
    """A node of the main graph; one without a name is called by its output."""

    node: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[ValueDescription, ...]


@dataclass(frozen=True)
class NodePrecision:
    """The precision in which a node computes, and why."""

    node: str
    precision: str
    why: str


@dataclass(frozen=True)
class StateSize:
    """Amount of state of one kind."""

    tensors: int
    elements: int


@dataclass(frozen=True, repr=False)
class ModelDescription(Shown):
    """Description of a model file or a step file.

    Args:
        kind: ``model`` or ``step``.
        path: The file, or the name of a model in memory.
        bytes: The size of the file, without external data; ``None`` in memory.
        producer: The tool that wrote it.
        ir_version: Version of the format.
        opset: Version of the standard opset.
        domains: Domain to opset version.
        functions: Number of model-local functions.
        metadata: Metadata entries of the file.
        inputs: Inputs other than weights.
        outputs: Outputs.
        weights_are_inputs: Whether weights are graph inputs too.
        nodes: Number of nodes, including subgraphs.
        weight_bytes: Bytes of all stored tensors.
        parameters: How a conversion treats the float tensors.
        ops: Operator to its number of nodes, the most frequent first.
        trainable_elements: Number of trainable parameters.
        layers: The nodes of the main graph.
        precision: The precision of each node that computes with floats.
        macs: Multiply-accumulates; ``None`` where none could be counted, and for a step, whose
            gradient kernels are not counted.
        macs_by_op: Multiply-accumulates by operator.
        macs_uncounted: Nodes that could not be counted, with reasons.
        macs_for: Input to the shape used for counting.
        catalogue: The catalogue of a step.

    Example:
        >>> import ortboost as ob
        >>> found = ob.inspect("models/mlp.onnx")
        >>> found.trainable_elements, found.macs
        (2410, 2368)
    """

    kind: str
    path: str
    bytes: int | None
    producer: str
    ir_version: int
    opset: int | None
    domains: Mapping[str, int]
    functions: int
    metadata: Mapping[str, str]
    inputs: tuple[ValueDescription, ...]
    outputs: tuple[ValueDescription, ...]
    weights_are_inputs: bool
    nodes: int
    weight_bytes: int
    parameters: tuple[ParameterDescription, ...]
    ops: Mapping[str, int]
    trainable_elements: int
    layers: tuple[Layer, ...]
    precision: tuple[NodePrecision, ...]
    macs: int | None = None
    macs_by_op: Mapping[str, int] = field(default_factory=dict)
    macs_uncounted: Mapping[str, str] = field(default_factory=dict)
    macs_for: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)
    catalogue: Catalogue | None = None

    def _facts(self) -> dict[str, object]:
        return {
            "path": self.path,
            "kind": self.kind,
            "made by": self.producer,
            "opset": self.opset,
            "inputs": ", ".join(map(str, self.inputs)),
            "outputs": ", ".join(map(str, self.outputs)),
            "nodes": self.nodes,
            "trainable": f"{self.trainable_elements:,} elements",
            "multiply-accumulates": None if self.macs is None else f"{self.macs:,}",
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, without fields that do not apply to a model or a step."""
        data = write_config(self)
        if self.catalogue is None:
            del data["catalogue"]
        else:
            data["catalogue"] = self.catalogue.to_dict()
        missing = self.macs is None and not self.macs_uncounted
        return {k: v for k, v in data.items() if not (missing and k.startswith("macs"))}


@dataclass(frozen=True, repr=False)
class ProgramDescription(Shown):
    """Description of a program folder.

    Args:
        path: The folder.
        source: The model that it was converted from.
        engine: Engine that computes its gradients.
        fingerprint: Identifies the program; checkpoints must match it.
        config: The configuration of the conversion.
        nodes: File to number of nodes.
        state: Kind of state to its amount.
        catalogue: Inputs, state and outputs of a step.
        reports: What the rewrites did.
        precision: The precision of each node, if a lower one was requested.
        kind: ``program``.

    Example:
        >>> import ortboost as ob
        >>> program = ob.convert("models/mlp.onnx", "runs/example/inspect", overwrite=True)
        >>> ob.inspect("runs/example/inspect").nodes["eval.onnx"]  # with the loss
        4
    """

    path: str
    source: str
    engine: str
    fingerprint: str
    config: ProgramConfig
    nodes: Mapping[str, int]
    state: Mapping[str, StateSize]
    catalogue: Catalogue
    reports: tuple[Report, ...]
    precision: tuple[NodePrecision, ...]
    kind: str = "program"

    def _facts(self) -> dict[str, object]:
        return {
            "path": self.path,
            "of": self.source,
            "engine": self.engine,
            "loss": self.config.loss.name,
            "optimizer": self.config.optimizer.name,
            "learning rate": self.config.learning_rate,
            "boosts": ", ".join(boost.name for boost in self.config.enabled_boosts),
            "nodes": ", ".join(f"{name} {number}" for name, number in self.nodes.items()),
            "state": f"{sum(size.tensors for size in self.state.values())} tensors",
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "kind": self.kind,
            **write_config(self),
            "config": self.config.to_dict(),
            "catalogue": self.catalogue.to_dict(),
            "reports": [report.to_dict() for report in self.reports],
        }
